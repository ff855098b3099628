"""What identifies the data of a run, so that nothing continues on other rows: contents of files and frames.

A file that is named is hashed whole; so are the files of a folder and those that rows name, up to `LARGEST_HASHED` bytes
each; larger ones count by size and time of change, and hidden ones not at all. The price is one more reading of the data at
the speed of SHA-256, 1.1 GB/s on one core here (measured), before the readers read it.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from domains.contract import Request
from trainers.contract import JSON
from trainers.errors import DataError

LARGEST_HASHED = 64 << 20
"""Bytes of a file among many: pictures and scans are smaller, shards of a corpus larger."""
Moment = list[tuple[str, int, int]]
"""(path, size, time of change in ns) of every file."""


def fingerprint(data: Any, request: Request) -> JSON:
    """A hash of the data, of the labels and of the reference where there are any. What is not there
    has none: the reader says so."""
    found = {"data": _digest(data)}
    for name in ("labels", "reference"):
        if (path := getattr(request, name)) is not None:
            found[name] = _digest(path)
    return found


def with_named_files(found: JSON, files: Sequence[Path]) -> JSON:
    """A fingerprint with the contents of the files that rows name; their names are in the data already."""
    return {**found, "files": _joined(_mark(path) for path in dict.fromkeys(files))} if files else found


def moment(data: Any, request: Request) -> Moment:
    """The state of the data's files, cheap enough to be taken before and after reading."""
    found = []
    for place in (data, request.labels, request.reference):
        if isinstance(place, str | Path):
            path = Path(place)
            files = _files_below(path) if path.is_dir() else [path] if path.is_file() else []
            found += [(str(file), (now := file.stat()).st_size, now.st_mtime_ns) for file in files]
    return found


def refuse_change(before: Moment, after: Moment) -> None:
    """Raise DataError naming a file that is no longer as it was: nobody knows which state was read."""
    changed = sorted({path for path, *_ in set(before) ^ set(after)})
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise DataError(f"{changed[0]}{more}: changed while it was read. Start again when it is written to the end.")


def _files_below(folder: Path) -> list[Path]:
    found = (
        path for path in folder.rglob("*") if not any(part.startswith(".") for part in path.parts[len(folder.parts) :])
    )
    return sorted(path for path in found if path.is_file())


def _digest(data: Any) -> str:
    if isinstance(data, str | Path):
        path = Path(data)
        if path.is_dir():
            return _joined(f"{file.relative_to(path)}\0{_mark(file)}" for file in _files_below(path))
        return _digest_of_file(path) if path.is_file() else "missing"
    from pandas.util import hash_pandas_object

    return hashlib.sha256(hash_pandas_object(data, index=False).to_numpy().tobytes()).hexdigest()


def _mark(path: Path) -> str:
    """The content of a file among many, or for a large one what changes with it."""
    now = path.stat()
    return _digest_of_file(path) if now.st_size <= LARGEST_HASHED else f"{now.st_size} {now.st_mtime_ns}"


def _joined(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
