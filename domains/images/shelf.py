"""Decoded pictures kept on disk as plain bytes, because decoding a photograph every epoch costs more than training on it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from domains.shared.pictures import in_threads, open_checked

_PIXELS, _INDEX = "pictures.bin", "pictures.json"
_AT_ONCE = 256
STORED_MARGIN = 8 / 7  # 256 for 224: room for a random box before pixels must be invented
LARGEST_SHARE_OF_DISK = 0.5
"""Of the free space; a set that needs more is decoded anew each time."""


class Shelf(Sequence[np.ndarray]):
    """Pictures as (height, width, 3) uint8, small ones as they are, large ones with a short side of `side` pixels."""

    def __init__(self, paths: Sequence[Path], side: int, folder: Path | None) -> None:
        """folder: holds the pixels; None decodes at every access."""
        self.paths, self.side, self.folder = paths, side, folder
        self.shapes: list[list[int]] = []
        if folder is not None:
            self.shapes = json.loads((folder / _INDEX).read_text())["shapes"]
            sizes = [height * width * 3 for height, width in self.shapes]
            self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
            self.pixels = np.memmap(folder / _PIXELS, np.uint8, "r")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: Any) -> Any:
        if self.folder is None:
            return _shelved(self.paths[position], self.side)
        height, width = self.shapes[position]
        return self.pixels[self.starts[position] : self.starts[position + 1]].reshape(height, width, 3)


class Examples(Sequence[tuple[np.ndarray, Any]]):
    """(picture, target) of each training row."""

    def __init__(self, shelf: Shelf, targets: np.ndarray) -> None:
        self.shelf, self.targets = shelf, targets

    def __len__(self) -> int:
        return len(self.shelf)

    def __getitem__(self, position: Any) -> Any:
        return self.shelf[position], self.targets[position]


def shelve(paths: Sequence[Path], side: int, folder: Path, *, num_bytes: int) -> Shelf:
    """The pictures in `paths`, decoded into `folder` once; what an earlier call completed there is used again.

    num_bytes: an upper bound of what they take, decoded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = {"side": side, "paths": [str(path) for path in paths]}
    if _is_complete(folder, key):
        return Shelf(paths, side, folder)
    if num_bytes > LARGEST_SHARE_OF_DISK * shutil.disk_usage(folder).free:
        return Shelf(paths, side, None)
    shapes = []
    with (folder / _PIXELS).open("wb") as file:
        for picture in _in_order(paths, side):
            shapes.append([int(picture.shape[0]), int(picture.shape[1])])
            file.write(picture.tobytes())
    part = folder / (_INDEX + ".part")  # renamed last: an index means that every pixel is there
    part.write_text(json.dumps({**key, "shapes": shapes}))
    part.replace(folder / _INDEX)
    return Shelf(paths, side, folder)


def _is_complete(folder: Path, key: dict[str, Any]) -> bool:
    if not (folder / _INDEX).exists():
        return False
    found = json.loads((folder / _INDEX).read_text())
    return all(found.get(name) == value for name, value in key.items())


def _in_order(paths: Sequence[Path], side: int) -> Iterator[np.ndarray]:
    for start in range(0, len(paths), _AT_ONCE):
        yield from in_threads(lambda path: _shelved(path, side), paths[start : start + _AT_ONCE])


def _shelved(path: Path, side: int) -> np.ndarray:
    picture = open_checked(path)
    short = min(picture.size)
    if short > side:
        size = (round(picture.width * side / short), round(picture.height * side / short))
        picture = picture.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.asarray(picture)
