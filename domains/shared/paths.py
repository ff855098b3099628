"""Paths in folders and tables: what is hidden, what a table may name, and what is not there."""

import os
from pathlib import Path, PurePath

from trainers.errors import DataError, did_you_mean

HIDDEN_FOLDERS = ("__macosx", "@eadir")
"""Folders that systems leave behind, in lower case."""


def is_hidden(below: PurePath) -> bool:
    """Whether a file, by its path below the folder that is read, or a folder above it is hidden or a system's own."""
    return any(part.startswith(".") or part.lower() in HIDDEN_FOLDERS for part in below.parts)


def path_problem(file: str | None, root: Path, column: str, *, anywhere: bool = False) -> str:
    """Why a path that a table names cannot be used, or ''.

    root: the folder of the table, which paths must not leave, links followed. anywhere: they may; for a DataFrame, whose
    maker wrote them, while a data file may come from a stranger.
    """
    if file is None:
        return f"no path in column {column!r}"
    if "://" in file or "\0" in file:
        return f"{file!r} is no path of a file. Download it and write its path."
    try:
        target = (root / file).resolve()
    except (OSError, RuntimeError) as error:  # a circle of links
        return f"{file!r} cannot be followed: {error}"
    if not anywhere and not target.is_relative_to(root.resolve()):
        return f"{file!r} leads outside the folder of the table. Put it beside or below the table."
    if "\\" in file and not target.exists():
        return f"there is no {file!r}: write / for \\ between folders"
    return f"{file!r} is a pipe or a device, no file" if is_special(target) else ""


def is_special(path: Path) -> bool:
    """Whether it is there but neither file nor folder: a pipe or a device, of which reading may never end."""
    return path.exists() and not path.is_file() and not path.is_dir()


def existing(path: str | os.PathLike[str]) -> Path:
    """A file or folder that is there. Raises DataError with the nearest name beside it."""
    found = Path(path)
    if not found.exists():
        near = [other.name for other in found.parent.iterdir()] if found.parent.is_dir() else []
        raise DataError(f"{found}: no such file or folder.{did_you_mean(found.name, near)}")
    return found
