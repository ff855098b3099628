"""Masks of pictures: class numbers in palette or grey PNG files, read as they are stored and written the same way."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from domains.shared.pictures import PictureError, open_stored

IGNORED = 255
"""The class position of pixels that nobody labelled; in files the value that PASCAL VOC gives them."""
LARGEST = 254
_WHOLE_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")
_LOSSY = (".jpg", ".jpeg")


@dataclass(frozen=True)
class MaskPicture:
    """An answer: class values of every pixel, packed; it writes itself as a palette PNG of the size of its picture.

    shape: (height, width).   values: the number in files of each class position.
    """

    shape: tuple[int, int]
    packed: bytes
    values: tuple[int, ...]
    suffix = ".png"

    @classmethod
    def of(cls, classes_HW: np.ndarray, values: Sequence[int]) -> MaskPicture:
        """classes: positions from 0."""
        height, width = (int(n) for n in classes_HW.shape)
        return cls((height, width), zlib.compress(np.asarray(classes_HW, np.uint8).tobytes(), 1), tuple(values))

    def array(self) -> np.ndarray:
        """(height, width) uint8 class positions."""
        return np.frombuffer(zlib.decompress(self.packed), np.uint8).reshape(self.shape)

    def write(self, path: Path) -> None:
        """A PNG whose pixels are the values of the training masks, with colours to look at."""
        picture = Image.fromarray(np.array(self.values, np.uint8)[self.array()]).convert("P")
        picture.putdata(np.array(self.values, np.uint8)[self.array()].reshape(-1).tolist())
        picture.putpalette(colour_map().reshape(-1).tolist())
        picture.save(path)

    def __str__(self) -> str:
        return f"mask of {self.shape[1]} x {self.shape[0]} pixels"


@dataclass(frozen=True)
class MaskPng:
    """The true mask of a picture: read when it is asked for. values: the number in the file of each class position."""

    path: str
    values: tuple[int, ...]

    def array(self) -> np.ndarray:
        """(height, width) uint8 class positions, IGNORED where nobody knows."""
        table = np.full(256, IGNORED, np.uint8)
        table[list(self.values)] = np.arange(len(self.values))
        return np.asarray(table[read_mask(Path(self.path))])

    def __str__(self) -> str:
        return self.path


def read_mask(path: Path) -> np.ndarray:
    """(height, width) uint8 values of a mask, upright as its picture.

    Raises PictureError for files that are no pictures, hold colours in place of numbers, or numbers beyond 255.
    """
    if path.suffix.lower() in _LOSSY:
        raise PictureError(
            f"mask {path.name} is a JPEG, which changes numbers: save class numbers as a grey or palette PNG"
        )
    picture = open_stored(path, most_frames=1)
    if picture.mode not in _WHOLE_MODES:
        raise PictureError(
            f"mask {path.name} is a picture of mode {picture.mode}: save class numbers as a grey or palette PNG"
        )
    values = np.asarray(picture).astype(np.int64)  # of a palette the indices, of one bit 0 and 1
    if values.min() < 0 or values.max() > IGNORED:
        raise PictureError(f"mask {path.name} holds values from {values.min()} to {values.max()}: 0 to 255 are classes")
    return values.astype(np.uint8)


def class_values(seen: Sequence[int]) -> tuple[tuple[int, ...], str]:
    """The values that are classes, among all that masks hold, and what to say of them.

    0 is the background whether it occurs or not. 0 and 255 alone are background and foreground; beside other classes 255 is
    what nobody labelled.
    """
    found = {0, *seen}
    if found == {0, IGNORED}:
        return (0, IGNORED), "masks hold 0 and 255: background and one class"
    if IGNORED in found:
        return tuple(sorted(found - {IGNORED})), "pixels of value 255 count as unlabelled"
    return tuple(sorted(found)), ""


def colour_map() -> np.ndarray:
    """(256, 3) uint8: PASCAL VOC's colours, bits of the class number spread over red, green and blue."""
    numbers = np.arange(256)
    colours = np.zeros((256, 3), int)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= ((numbers >> (3 * bit + channel)) & 1) << (7 - bit)
    return colours.astype(np.uint8)
