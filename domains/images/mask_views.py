"""Pictures and masks as a network sees them: whole ones in a square, random parts of them in training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageEnhance

from domains.images.augment import random_box
from domains.images.mask_files import MaskPng
from domains.shared.pictures import in_threads, open_checked
from trainers.contract import JSON

_VALUES, _INDEX = "masked.bin", "masked.json"
_AT_ONCE = 64
LARGEST_SHARE_OF_DISK = 0.5
"""Of the free space; a set that needs more is decoded anew each time."""
_RATIO = (3 / 4, 4 / 3)


class Whole(NamedTuple):
    """A whole picture. pixels: (3, side, side) uint8, scaled and padded at the right and below.   inner: (height, width) of
    the part that is no padding.   source: (height, width) of the file."""

    pixels: Any
    inner: tuple[int, int]
    source: tuple[int, int]


def whole(path: Path, side: int) -> Whole:
    """The picture in `path`, its longer side scaled to `side`."""
    picture = open_checked(path)
    height, width = fitted(picture.height, picture.width, side)
    pixels = np.zeros((side, side, 3), np.uint8)
    pixels[:height, :width] = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC))
    return Whole(pixels.transpose(2, 0, 1), (height, width), (picture.height, picture.width))


def fitted(height: int, width: int, side: int) -> tuple[int, int]:
    """(height, width) in the same proportions, the longer one `side`."""
    scale = side / max(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def training_pair(
    picture_HWC: np.ndarray,
    mask_HW: np.ndarray,
    side: int,
    *,
    scale: float,
    flip: bool,
    colour: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """A random box of both, (side, side, 3) and (side, side), mirrored half of the time if `flip`.

    scale: smallest share of the area that a box may have.   colour: change of brightness and contrast, at most.
    """
    picture, mask = Image.fromarray(np.asarray(picture_HWC)), Image.fromarray(np.asarray(mask_HW))
    box = random_box(picture.height, picture.width, scale=(scale, 1.0), ratio=_RATIO, rng=rng)
    corners = (box.left, box.top, box.left + box.width, box.top + box.height)
    view = picture.resize((side, side), Image.Resampling.BILINEAR, box=corners)
    if colour:
        for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast):
            view = enhance(view).enhance(1 + rng.uniform(-colour, colour))
    pixels, classes = np.asarray(view), np.asarray(mask.resize((side, side), Image.Resampling.NEAREST, box=corners))
    return (pixels[:, ::-1], classes[:, ::-1]) if flip and rng.random() < 0.5 else (pixels, classes)


class PairShelf(Sequence[tuple[np.ndarray, np.ndarray]]):
    """(picture, mask) of each training row, no side longer than `side` pixels.   folder: None decodes at every access."""

    def __init__(self, paths: Sequence[Path], masks: Sequence[MaskPng], side: int, folder: Path | None) -> None:
        self.paths, self.masks, self.side, self.folder = paths, masks, side, folder
        if folder is not None:
            self.shapes = json.loads((folder / _INDEX).read_text())["shapes"]
            self.starts = np.concatenate([[0], np.cumsum([4 * h * w for h, w in self.shapes])]).astype(np.int64)
            self.values = np.memmap(folder / _VALUES, np.uint8, "r")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: Any) -> Any:
        if self.folder is None:
            return _pair(self.paths[position], self.masks[position], self.side)
        height, width = self.shapes[position]
        found = self.values[self.starts[position] : self.starts[position + 1]]
        cut = 3 * height * width
        return found[:cut].reshape(height, width, 3), found[cut:].reshape(height, width)


def shelved(paths: Sequence[Path], masks: Sequence[MaskPng], side: int, folder: Path, num_bytes: int) -> PairShelf:
    """The pairs, decoded into `folder` once; what an earlier call completed there is used again.

    num_bytes: an upper bound of what they take.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key: JSON = {"side": side, "paths": [str(path) for path in paths], "masks": [mask.path for mask in masks]}
    index = folder / _INDEX
    if index.exists() and {**json.loads(index.read_text()), "shapes": None} == {**key, "shapes": None}:
        return PairShelf(paths, masks, side, folder)
    if num_bytes > LARGEST_SHARE_OF_DISK * shutil.disk_usage(folder).free:
        return PairShelf(paths, masks, side, None)
    shapes = []
    with (folder / _VALUES).open("wb") as file:
        for start in range(0, len(paths), _AT_ONCE):
            these = list(zip(paths, masks, strict=True))[start : start + _AT_ONCE]
            for picture, mask in in_threads(lambda both: _pair(*both, side), these):
                shapes.append([int(n) for n in mask.shape])
                file.write(picture.tobytes() + mask.tobytes())
    part = folder / (_INDEX + ".part")  # renamed last: an index means that every pixel is there
    part.write_text(json.dumps({**key, "shapes": shapes}))
    part.replace(index)
    return PairShelf(paths, masks, side, folder)


def _pair(path: Path, mask: MaskPng, side: int) -> tuple[np.ndarray, np.ndarray]:
    picture, classes = open_checked(path), mask.array()
    if max(picture.size) > side:
        height, width = fitted(picture.height, picture.width, side)
        picture = picture.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
        classes = np.asarray(Image.fromarray(classes).resize((width, height), Image.Resampling.NEAREST))
    return np.asarray(picture), classes
