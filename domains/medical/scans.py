"""A scan of one case as slices: a NIfTI volume, a folder with a DICOM series, or a 2-D picture (PNG, TIFF, JPEG).

Letters: S slices from feet to head, H rows, W columns, C channels. Volumes are turned to RAS and cut across z; rows run from
anterior to posterior and columns from left to right of the patient. Pictures are one slice, as they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from domains.medical.dicom import is_series
from domains.medical.volumes import SUFFIXES as VOLUMES
from domains.medical.volumes import VolumeError, is_volume, mark_of, read_image
from domains.shared.paths import is_hidden
from domains.shared.pictures import SUFFIXES as PICTURES
from domains.shared.pictures import PictureError, open_stored

KNOWN = (*VOLUMES, *PICTURES)
_CLIP = (0.5, 99.5)
"""Percentiles of a scan between which it is scaled: nnU-Net's for CT (Isensee et al. 2021, online methods)."""
_KEPT_MODES = ("L", "RGB", "I", "I;16", "I;16B", "I;16L", "F")


class Scan(NamedTuple):
    """array: (S, H, W, C) float32, as stored.   spacing: mm between slices, rows and columns; 1 for pictures.
    notes: what was assumed.   patient: as DICOM names it, "" where nothing does."""

    array: np.ndarray
    spacing: tuple[float, float, float]
    notes: tuple[str, ...] = ()
    patient: str = ""


class ScanLook(NamedTuple):
    """shape: (S, H, W, C).   mark: a hash of all values, equal for copies.   patient: as of `Scan`."""

    shape: tuple[int, int, int, int]
    spacing: tuple[float, float, float]
    mark: str
    notes: tuple[str, ...] = ()
    patient: str = ""


def is_picture(name: str) -> bool:
    """Whether a file name ends as a picture's."""
    return name.lower().endswith(PICTURES)


def scans_in(folder: Path) -> list[Path]:
    """Volumes, pictures and folders of DICOM below `folder`, sorted; what is hidden is left out."""
    every = [path for path in folder.rglob("*") if not is_hidden(path.relative_to(folder))]
    return sorted(path for path in every if is_volume(path.name) or is_picture(path.name) or is_series(path))


def read_scan(path: Path) -> Scan:
    """The scan in `path`. Raises VolumeError for what is none, holds no numbers, or is cut off."""
    if not path.is_dir() and is_picture(path.name):
        return _of_picture(path)
    volume = read_image([path])
    x, y, z = volume.geometry.spacing
    array = volume.array.transpose(3, 2, 1, 0)[:, ::-1]
    return Scan(np.ascontiguousarray(array), (z, y, x), volume.notes, volume.patient)


def _of_picture(path: Path) -> Scan:
    try:
        picture = open_stored(path, most_frames=1)
    except PictureError as error:
        raise VolumeError(str(error)) from None
    if picture.mode not in _KEPT_MODES or "transparency" in picture.info:
        # Palettes, alpha and the like have no intensities of their own: what a person sees is taken.
        picture = _seen(picture)
    values = np.asarray(picture, np.float32)
    if not np.isfinite(values).all():
        raise VolumeError(f"{path.name} holds {np.count_nonzero(~np.isfinite(values)):,} pixels that are no number")
    array = values[None, ..., None] if values.ndim == 2 else values[None]
    if array.shape[-1] == 3 and (array == array[..., :1]).all():
        array = array[..., :1]  # a grey picture that was saved in colour
    return Scan(array, (1.0, 1.0, 1.0))


def _seen(picture: Image.Image) -> Image.Image:
    from domains.shared.pictures import to_rgb

    try:
        return to_rgb(picture)
    except PictureError as error:
        raise VolumeError(str(error)) from None


def look(path: Path) -> ScanLook | str:
    """What a scan is, or why it cannot be used."""
    try:
        scan = read_scan(path)
    except VolumeError as error:
        return str(error)
    shape: Any = tuple(int(n) for n in scan.array.shape)
    flat = ("every pixel has one value",) if scan.array.min() == scan.array.max() else ()
    return ScanLook(shape, scan.spacing, mark_of(scan.array), (*scan.notes, *flat), scan.patient)


def slices_of(scan: Scan, *, num: int, side: int, window: Sequence[float] | None) -> np.ndarray:
    """(num, side, side, 3) uint8: `num` slices evenly from feet to head, in true proportions and padded with 0.

    One channel: the slice between its two neighbours, which a network for pictures then sees as its three colours. Two: both
    and their mean. Three: as they are.   window: intensities that become 0 and 255; None: percentiles of the scan.
    """
    scaled = _scaled(scan.array, window)
    last = len(scaled) - 1
    places = np.clip(np.rint((np.arange(num) + 0.5) / num * len(scaled) - 0.5).astype(int), 0, last)
    channels = scaled.shape[-1]
    if channels == 1:
        beside = [np.clip(places + step, 0, last) for step in (-1, 0, 1)]
        chosen = np.concatenate([scaled[at] for at in beside], axis=-1)
    elif channels == 2:
        mean = scaled[places].mean(axis=-1, keepdims=True)
        chosen = np.concatenate([scaled[places], mean], axis=-1)
    else:
        chosen = scaled[places]
    return np.stack([_fitted(np.rint(each).astype(np.uint8), scan.spacing[1:], side) for each in chosen])


def _scaled(array: np.ndarray, window: Sequence[float] | None) -> np.ndarray:
    """0 to 255 float32, each channel by itself."""
    axes = (0, 1, 2)
    low, high = window if window is not None else np.percentile(array, _CLIP, axis=axes)
    low, width = np.asarray(low, np.float32), np.maximum(np.asarray(high, np.float32) - low, 1e-6)
    return np.asarray(np.clip((array - low) / width, 0, 1) * 255, np.float32)


def _fitted(slice_HWC: np.ndarray, spacing: Sequence[float], side: int) -> np.ndarray:
    """Scaled so that the longer side in mm fills `side`, in the middle of a black square."""
    height, width = (n * mm for n, mm in zip(slice_HWC.shape[:2], spacing, strict=True))
    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    picture = Image.fromarray(slice_HWC).resize(size, Image.Resampling.BILINEAR)
    found = np.zeros((side, side, 3), np.uint8)
    top, left = (side - picture.height) // 2, (side - picture.width) // 2
    found[top : top + picture.height, left : left + picture.width] = np.asarray(picture)
    return found
