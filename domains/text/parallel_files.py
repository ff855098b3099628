"""A folder of texts line by line: train.de beside train.en, line 7 of one belongs to line 7 of the other."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from domains.shared.frames import FrameReading
from domains.shared.roles import PARTS
from trainers.errors import DataError


def read_folder(folder: Path) -> FrameReading:
    """Rows of all parts with a column for each ending ("de", "en") and "split": train, valid or test by the file's name.

    Raises DataError where files of a part are missing or differ in their number of lines.
    """
    files = sorted(
        path for path in folder.iterdir() if path.is_file() and path.suffix and not path.name.startswith(".")
    )
    parts: dict[str, dict[str, Path]] = {}
    for path in files:
        if _part(path.stem) is not None:
            parts.setdefault(path.stem, {})[path.suffix[1:]] = path
    endings = sorted({ending for found in parts.values() for ending in found})
    if len(endings) < 2:
        raise DataError(f"{folder}: no parallel files here, such as train.de beside train.en.")
    frames = [_rows(name, found, endings, folder) for name, found in parts.items()]
    frame = pd.concat([each for each, _ in frames], ignore_index=True)
    places = [place for _, each in frames for place in each]
    return FrameReading(frame, places)


def _part(stem: str) -> str | None:
    """The part a file belongs to: "train", "test_2016" and "val-b" say so by how they begin."""
    first = stem.lower().replace("-", "_").replace(".", "_").split("_")[0]
    return PARTS.get(first)


def _rows(name: str, found: dict[str, Path], endings: list[str], folder: Path) -> tuple[pd.DataFrame, list[str]]:
    if lacking := [ending for ending in endings if ending not in found]:
        raise DataError(f"{folder}: {name} has no file ending in .{lacking[0]}, as the other parts have.")
    columns = {ending: _lines(found[ending]) for ending in endings}
    counts = {f"{name}.{ending}": len(lines) for ending, lines in columns.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{file} has {count:,} lines" for file, count in counts.items())
        raise DataError(f"{folder}: {told}: they must belong together line by line.")
    frame = pd.DataFrame({**columns, "split": _part(name)})
    return frame, [f"{name}.{endings[0]} line {i + 1}" for i in range(len(frame))]


def _lines(path: Path) -> list[str]:
    """Lines of a file, split at line feeds alone: other separators stand inside sentences."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 (byte {error.start:,}). Save it as UTF-8.") from None
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
