"""A run folder: created once, written atomically, sealed with hashes, verified when it is loaded again.

config.yaml   the recipe and what the user said, with the origin of each value
plan.json     everything fixed before training        split.json    ids of the parts and the proof
data.json     fingerprint, counts, notices             env.json      versions and machine
many.json     in place of plan, split and model where the folder holds several runs (folds, seeds)
events.jsonl  one line an event                        checkpoints/  while training
model/        what `load` needs                        predictions.csv, metrics.json, actual.json, README.md
logs/         curves for other viewers, if asked for
complete.json sha256 of every file but those in logs/; written last. Without it the run is not finished.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainers.contract import JSON
from trainers.errors import DataError, UsageError, did_you_mean

COMPLETE = "complete.json"
MANY = "many.json"
"""In a folder of several runs (folds, seeds): what they are. See `zoo.many`."""
LOCK = "lock"
SCHEMA_VERSION = 1
# logs/ belongs to other viewers, which write into it when they show it.
_NOT_SEALED = ("checkpoints", "logs", COMPLETE, "STOP", LOCK)


def new_folder(recipe: str, out: str | Path | None) -> Path:
    """Create a run folder that no other run can take: `out`, or runs/<recipe>-<number>. Never an existing one with content."""
    if out is not None:
        folder = Path(out)
        try:
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise UsageError(f"{folder} exists and is not empty; a run is never overwritten. Choose another --out.")
            folder.mkdir(parents=True, exist_ok=True)
            # Empty for two runs that begin at once; only one of them makes this file.
            (folder / LOCK).touch(exist_ok=False)
        except FileExistsError:
            raise UsageError(f"{folder}: another run has just begun there. Choose another --out.") from None
        except OSError as error:
            raise UsageError(
                f"--out {folder}: no folder can be made there ({error.strerror}). Choose another one."
            ) from None
        return folder
    stem = recipe.replace("/", "-")
    for number in range(1, 100_000):
        folder = Path("runs") / f"{stem}-{number:03d}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:  # also when another process took the number this moment
            continue
        return folder
    raise UsageError(f"runs/ holds too many runs of {recipe}. Choose a folder with --out.")


def refuse_inside(data: str | Path, out: str | Path | None) -> None:
    """Raise UsageError where the run folder would lie in the folder of its data: the data would change by what the run
    writes, so that it could not be resumed, and pictures that it draws would be read as data."""
    place, folder = Path("runs") if out is None else Path(out), Path(data)
    if folder.is_dir() and place.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{place}: the run folder would lie inside its own data folder {folder}, and what the run writes would become "
            "data. Choose a place outside with --out."
        )


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON: a temporary file, flushed to disk, then renamed. NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` so that a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_json(path: Path) -> Any:
    """The value in a JSON file of a run. Raises DataError where it is missing or torn."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: missing. Is {path.parent} a run folder of zoo train?") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({error}). The run folder is damaged.") from None


def seal(folder: Path) -> None:
    """Mark the run complete: drop the snapshots, then write the hash of every file."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / LOCK).unlink(missing_ok=True)
    files = {name: _sha256(folder / name) for name in _files(folder)}
    write_json(folder / COMPLETE, {"schema_version": SCHEMA_VERSION, "sha256": files, "seal": _seal(files)})


def is_parent(folder: Path) -> bool:
    """Whether the folder holds several runs, folds or seeds, rather than one."""
    return (folder / MANY).exists()


def is_run(folder: Path) -> bool:
    """Whether the folder is that of a run or of several. A plan.json alone is what `zoo plan --json` printed."""
    return all((folder / name).exists() for name in ("config.yaml", "plan.json")) or is_parent(folder)


def members(parent: Path) -> list[Path]:
    """The folders of the runs in `parent`, in order."""
    return [parent / name for name in read_json(parent / MANY)["members"]]


def is_complete(folder: Path) -> bool:
    """Whether the run was sealed."""
    return (folder / COMPLETE).exists()


def verify(folder: Path) -> None:
    """Raise DataError unless every file is as it was sealed. Raises UsageError where `folder` is no finished run."""
    if not folder.is_dir():
        near = did_you_mean(folder.name, [path.name for path in folder.parent.glob("*") if path.is_dir()])
        what = "no such run folder"
        if folder.exists():
            what = "this is a file, not a run folder. Give the folder that zoo train printed last"
        raise UsageError(f"{folder}: {what}.{near}")
    if not is_complete(folder):
        if (folder / "plan.json").exists() or is_parent(folder):
            raise UsageError(f"{folder}: this run is not finished. Continue it with: zoo resume {folder}")
        raise UsageError(f"{folder}: not a run folder (no {COMPLETE}). Give the folder that zoo train printed last.")
    marker = read_json(folder / COMPLETE)
    files = marker.get("sha256", {}) if isinstance(marker, dict) else {}
    if marker != {"schema_version": SCHEMA_VERSION, "sha256": files, "seal": _seal(files)}:
        raise DataError(f"{folder / COMPLETE}: damaged. Restore the run folder from a copy, or train again.")
    for name, digest in files.items():
        path = folder / name
        if not path.is_file() or _sha256(path) != digest:
            raise DataError(f"{path}: changed or missing since training. Restore it from a copy, or train again.")


def has_learned(folder: Path) -> bool:
    """Whether training left a snapshot there."""
    return any((folder / "checkpoints").rglob("step-*"))


def discard(folder: Path) -> None:
    """Remove a run folder in which nothing was learned."""
    shutil.rmtree(folder, ignore_errors=True)


def append_experiment(folder: Path, row: JSON) -> None:
    """One line for this run in experiments.tsv beside it; a header first where the file is new. Runs that end at once
    wait for one another."""
    values = [re.sub(r"\s+", " ", "" if value is None else str(value)) for value in row.values()]
    with (folder.parent / "experiments.tsv").open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0, os.SEEK_END)
        header = "" if file.tell() else "\t".join(row) + "\n"
        file.write(header + "\t".join(values) + "\n")


def _files(folder: Path) -> list[str]:
    """What is sealed; of a run within, which has a seal of its own, that seal alone."""
    inner = {path.parent for path in folder.glob(f"*/{COMPLETE}")}
    found = (path for path in folder.rglob("*") if path.is_file())
    own = [path for path in found if path.name == COMPLETE or not inner.intersection(path.parents)]
    names = (path.relative_to(folder) for path in own)
    return sorted(path.as_posix() for path in names if path.parts[0] not in _NOT_SEALED)


def _seal(files: Any) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run folder for this process; the system lets go when the process dies, however it dies.

    Raises UsageError while another process trains in it, and where nothing can be written there.
    """
    try:
        opened = (folder / LOCK).open("w")
    except OSError as error:
        raise UsageError(
            f"{folder}: nothing can be written there ({error.strerror}). Make the folder writable, or copy it to a place "
            "that is."
        ) from None
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{folder}: another process is training in this run folder right now.") from None
        yield
