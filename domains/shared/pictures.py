"""Opening pictures: safely (size before pixels, known formats only) and the same way for every kind of pixel.

Alpha is laid over white; EXIF rotation is applied; 16-bit values are scaled, not cut; only the first frame is read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from domains.contract import Doubt
from domains.shared.paths import is_special
from trainers.errors import DataError

MAX_PIXELS = 100_000_000
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
# Pillow's other readers (PostScript, layered and medical formats) run more code than anyone here needs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
NO_FILE = "no such file"
_MOST_THREADS = 8
_TOP = 65_535
_DIM = 4_095
"""The largest value of 12 bits: a sixteenth of the range of 16."""
_BACKGROUND = (255, 255, 255)
In = TypeVar("In")
Out = TypeVar("Out")


class PictureError(ValueError):
    """Why a picture cannot be read, in words for a person; the caller knows the file."""


@dataclass(frozen=True)
class Print:
    """What identifies a picture: side lengths in pixels, a hash of its pixels, and its mean colours on an 8 x 8 grid
    (`tiles`, 192 bytes).   brightest: the largest value of 16 bits, where so many are stored."""

    width: int
    height: int
    pixels: bytes
    tiles: bytes
    brightest: int | None = None


def open_rgb(path: Path) -> Image.Image:
    """The picture in `path`, fully decoded, as 8-bit RGB. Raises PictureError as `open_stored`, and as `to_rgb`."""
    return _rgb(path, open_stored(path))


def _rgb(path: Path, picture: Image.Image) -> Image.Image:
    try:
        return to_rgb(picture)
    except (OSError, SyntaxError, ValueError, MemoryError) as error:
        raise PictureError(_reason(path, error)) from None


def open_stored(path: Path, *, most_frames: int | None = None) -> Image.Image:
    """The first frame of the picture in `path`, fully decoded, with the pixels that it stores, upright.

    most_frames: more are refused.   Raises PictureError: no such file, empty, not a picture, cut off, or more than MAX_PIXELS
    by its own header (checked before any pixel is decoded).
    """
    if is_special(path):
        raise PictureError("a pipe or a device, no file")
    Image.init()  # Pillow registers WebP and TIFF late, and named formats it does not know yet are a KeyError
    try:
        with Image.open(path, formats=FORMATS) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise PictureError(_too_large(f"{picture.width} x {picture.height} pixels"))
            if most_frames is not None and (num := getattr(picture, "n_frames", 1)) > most_frames:
                raise PictureError(f"holds {num} pages or frames. Save each as a file, or all as a NIfTI volume.")
            picture.load()
            return _upright(picture)
    except Image.DecompressionBombError as error:
        raise PictureError(_too_large(str(error).split("(")[-1].split(")")[0])) from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError, MemoryError) as error:
        raise PictureError(_reason(path, error)) from None


def open_checked(path: Path) -> Image.Image:
    """`open_rgb` for a picture that was fine when the data was read. Raises DataError naming the file."""
    try:
        return open_rgb(path)
    except PictureError as error:
        raise DataError(f"{path}: was readable when the data was read and no longer is: {error}") from None


def to_rgb(picture: Image.Image) -> Image.Image:
    """8-bit RGB of a picture of any mode. Raises PictureError for pixel values without a known range."""
    if picture.mode.startswith(("I", "F")):
        picture = _eight_bits(picture)
    # Palettes, grey and RGB may carry one transparent colour; convert() knows where.
    if picture.mode in ("LA", "PA", "La", "RGBa", "RGBA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        ground = Image.new("RGBA", picture.size, (*_BACKGROUND, 255))
        return Image.alpha_composite(ground, picture).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def picture_print(path: Path) -> Print:
    """Decode the picture once and describe it. Raises PictureError."""
    stored = open_stored(path)
    picture = _rgb(path, stored)
    digest = hashlib.blake2b(repr(picture.size).encode(), digest_size=16)
    digest.update(picture.tobytes())
    tiles = picture.resize((8, 8), Image.Resampling.BOX).tobytes()
    brightest = int(np.asarray(stored).max()) if stored.mode.startswith("I") else None
    return Print(picture.width, picture.height, digest.digest(), tiles, brightest)


def dim_pictures(prints: Mapping[str, Print]) -> list[str]:
    """What to say of 16-bit pictures that use less than a sixteenth of the range, as those of cameras with 12 bits do.

    prints: by file.
    """
    deep = {file: found.brightest for file, found in prints.items() if found.brightest is not None}
    dim = {file: most for file, most in deep.items() if 0 < most <= _DIM}
    if not dim:
        return []
    file = max(dim, key=lambda name: dim[name])
    return [
        Doubt(
            f"{len(dim):,} of {len(deep):,} 16-bit pictures hold no value above {dim[file]:,} of {_TOP:,} ({file} for one), so "
            "models see them nearly black. If the camera has fewer bits, stretch all pictures by the same factor and save "
            "them again"
        )
    ]


def in_threads(make: Callable[[In], Out], items: Iterable[In]) -> list[Out]:
    """`make` of every item, in order, on several cores: decoding and resizing let other threads run."""
    items = list(items)
    num_threads = min(_MOST_THREADS, os.cpu_count() or 1, len(items))
    if num_threads < 2:
        return [make(item) for item in items]
    with ThreadPoolExecutor(num_threads, thread_name_prefix="pictures") as pool:
        return list(pool.map(make, items))


def try_print(path: Path) -> Print | PictureError:
    """`picture_print`, with the error as a value: one bad file must not hide the others."""
    try:
        return picture_print(path)
    except PictureError as error:
        return error


def _upright(picture: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # broken EXIF says nothing about the pixels, and Pillow raises whatever its parser met
        return picture


def _eight_bits(picture: Image.Image) -> Image.Image:
    """16-bit greys, and floats in [0, 1], scaled to 0..255."""
    values: Any = np.asarray(picture, np.float64)
    low, high = float(values.min()), float(values.max())
    top = 1.0 if picture.mode == "F" else float(_TOP)
    if not (low >= 0 and high <= top):
        raise PictureError(
            f"pixel values from {low:g} to {high:g} in mode {picture.mode} have no known range. "
            "Save it with 8 or 16 bits a channel."
        )
    return Image.fromarray(np.round(values * (255.0 / top)).astype(np.uint8))


def _too_large(declared: str) -> str:
    return f"declares {declared}, more than {MAX_PIXELS:,}, and was not decoded. Make it smaller."


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, PictureError):
        return str(error)
    if not path.exists():
        return NO_FILE
    if path.is_dir():
        return "is a folder"
    if path.stat().st_size == 0:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):
        return f"not a picture (its content is none of {', '.join(FORMATS)})"
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    return f"cannot be decoded: {error}"
