"""Folders that outlive a run: where they lie, and how one comes to be whole or not at all. Standard library only."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp


def cache_folder() -> Path:
    """Where embeddings, decoded pictures and demos outlive a run: $ZOO_CACHE, else zoo/ in the user's cache folder."""
    named = os.environ.get("ZOO_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named) if named else base / "zoo"


def made_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """`folder`, which `write` fills where it is not there yet, under another name until it is whole."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write(unfinished)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.exists():  # another process may have been first
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder
