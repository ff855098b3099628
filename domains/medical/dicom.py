"""A DICOM series, one folder of slices, as one array in the order of its slices in space; nothing is told from file names.

Left out: multi-frame files, and masks kept as DICOM segmentations (give those as NIfTI on the grid of the series).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

MAGIC, MAGIC_AT = b"DICM", 128
_LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
MOST_PIXELS = 1 << 26
"""Of a slice: refused by what is declared, before anything is decoded."""
_SAME_GAP = 0.05
"""Gaps between slices may differ by this share of the usual one: positions are written with few digits."""

_BESIDE = 0.5
"""Pixels that a slice may lie beside the straight line through the others."""
_UPRIGHT = 1.0
"""Degrees between that line and the normal of the slices from which the gantry counts as tilted."""
_SAME_TAG = 1e-3
"""Numbers of orientation and spacing are written with few digits as well."""


class SeriesError(ValueError):
    """A folder that is no single, whole series; the text says why."""


class Series(NamedTuple):
    """array: (columns, rows, slices) float32 in the unit of the series (HU for CT).   affine: voxel to mm, RAS.
    notes: what was assumed.   patient: its PatientID, "" where it has none."""

    array: np.ndarray
    affine: np.ndarray
    notes: tuple[str, ...]
    patient: str = ""


def is_series(folder: Path) -> bool:
    """Whether a folder holds DICOM files itself, by suffix or, for files without one, by their first bytes."""
    return folder.is_dir() and any(is_slice(path) for path in folder.iterdir())


def is_slice(path: Path) -> bool:
    """Whether a file is DICOM."""
    if path.name.startswith(".") or not path.is_file():
        return False
    if path.suffix.lower() in (".dcm", ".ima"):
        return True
    if path.suffix and not path.suffix[1:].isdigit():
        return False
    with path.open("rb") as file:
        file.seek(MAGIC_AT)
        return file.read(len(MAGIC)) == MAGIC


def read_series(folder: Path) -> Series:
    """The slices of `folder` sorted by where they lie, rescaled by their slope and intercept.

    Without these tags the stored numbers are taken as they are; MONOCHROME1 (bright is low) is then turned over. Raises
    SeriesError for several series, missing or repeated slices, and files that cannot be read.
    """
    slices = [_read(path) for path in sorted(folder.iterdir()) if is_slice(path)]
    if not slices:
        raise SeriesError(f"{folder.name} holds no DICOM slice")
    series = Counter(str(each.SeriesInstanceUID) for each in slices)
    if len(series) > 1:
        shown = ", ".join(f"{uid} ({num} files)" for uid, num in sorted(series.items()))
        raise SeriesError(f"{folder.name} holds {len(series)} series: {shown}. Give each a folder of its own")
    first = slices[0]
    for each in slices:
        _check_alike(first, each)
    across, down = np.array(first.ImageOrientationPatient, float).reshape(2, 3)
    normal = np.cross(across, down)
    slices.sort(key=lambda each: float(np.dot(normal, np.array(each.ImagePositionPatient, float))))
    places = np.array([each.ImagePositionPatient for each in slices], float)
    _check_gaps(places @ normal, folder)
    tilt = _tilt(slices, places, normal)
    array = np.stack([_values(each).T for each in slices], axis=-1)
    notes = [note for each in slices for note in _notes(each)]
    if tilt > _UPRIGHT:
        notes.append(
            f"slices stand {tilt:.0f} degrees off the direction in which they follow one another (a tilted gantry)"
        )
    patient = str(first.get("PatientID") or "").strip()
    return Series(array, _affine(slices, places, across, down, normal), tuple(dict.fromkeys(notes)), patient)


def _read(path: Path) -> Any:
    import pydicom

    try:
        found = pydicom.dcmread(path)
        needed = ("SeriesInstanceUID", "ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "PixelData")
        if missing := [name for name in needed if name not in found]:
            raise SeriesError(f"{path.name} lacks {', '.join(missing)}")
        if int(found.get("NumberOfFrames", 1)) > 1:
            raise SeriesError(f"{path.name} holds many frames; only one slice a file is read")
        if (num := int(found.get("Rows", 0)) * int(found.get("Columns", 0))) > MOST_PIXELS:
            raise SeriesError(f"{path.name} declares {found.Rows} x {found.Columns} = {num:,} pixels in one slice")
        return found
    except (pydicom.errors.InvalidDicomError, OSError, ValueError) as error:
        raise SeriesError(f"{path.name} is no readable DICOM file ({error})") from None


def _check_alike(first: Any, other: Any) -> None:
    """Raise SeriesError where two slices are no two layers of one box of voxels, or one holds a single value by its scale."""
    name, of = Path(other.filename).name, Path(first.filename).name
    patients = [str(each.get("PatientID") or "") for each in (other, first)]
    if patients[0] != patients[1]:
        raise SeriesError(
            f"{name} is of patient {patients[0]!r}, {of} of {patients[1]!r}: one series is of one patient"
        )
    for tag in ("Rows", "Columns"):
        if first.get(tag) != other.get(tag):
            raise SeriesError(f"{name} has {other.get(tag)} {tag.lower()}, {of} has {first.get(tag)}")
    for tag in ("ImageOrientationPatient", "PixelSpacing"):
        own, theirs = (np.array(each[tag].value, float) for each in (first, other))
        if own.shape != theirs.shape or not np.allclose(own, theirs, atol=_SAME_TAG):
            raise SeriesError(f"{name} differs from {of} in {tag}: {theirs.tolist()} beside {own.tolist()}")
    if float(other.get("RescaleSlope", 1)) == 0:
        raise SeriesError(f"{name} has a RescaleSlope of 0, which leaves one value")


def _values(slice_: Any) -> np.ndarray:
    try:
        stored = slice_.pixel_array.astype(np.float64)
    except (ValueError, AttributeError, RuntimeError, NotImplementedError) as error:
        raise SeriesError(f"slice {slice_.get('InstanceNumber', '?')} cannot be decoded ({error})") from None
    if "RescaleSlope" in slice_ or "RescaleIntercept" in slice_:
        stored = stored * float(slice_.get("RescaleSlope", 1)) + float(slice_.get("RescaleIntercept", 0))
    elif slice_.get("PhotometricInterpretation") == "MONOCHROME1":
        stored = 2 ** int(slice_.BitsStored) - 1 - stored
    return np.asarray(stored, np.float32)


def _notes(slice_: Any) -> list[str]:
    if "RescaleSlope" in slice_ or "RescaleIntercept" in slice_:
        return []
    turned = (
        " and MONOCHROME1, so they are turned over" if slice_.get("PhotometricInterpretation") == "MONOCHROME1" else ""
    )
    return [f"stored numbers have no rescale tags (slope 1, intercept 0){turned}"]


def _check_gaps(heights: np.ndarray, folder: Path) -> None:
    gaps = np.diff(heights)
    if not len(gaps):
        return
    usual = float(np.median(gaps))
    if (gaps <= 1e-4).any():
        raise SeriesError(f"{folder.name} holds two slices at {heights[int(np.argmin(gaps))]:g} mm")
    if (np.abs(gaps - usual) > _SAME_GAP * usual).any():
        at = int(np.argmax(np.abs(gaps - usual)))
        raise SeriesError(
            f"{folder.name}: slices are {usual:g} mm apart, but {gaps[at]:g} mm after the one at {heights[at]:g} mm: is one "
            "missing?"
        )


def _tilt(slices: list[Any], places: np.ndarray, normal: np.ndarray) -> float:
    """Degrees between the line through the slices and their normal. Raises SeriesError for a slice beside that line."""
    if len(slices) < 2:
        return 0.0
    usual = np.median(np.diff(places, axis=0), axis=0)
    steps = np.diff(places, axis=0) - usual
    pixel = min(float(value) for value in slices[0].PixelSpacing)
    beside = np.linalg.norm(steps - np.outer(steps @ normal, normal), axis=1)
    if (beside > _BESIDE * pixel).any():
        at = int(np.argmax(beside)) + 1
        name = Path(slices[at].filename).name
        raise SeriesError(f"{name} lies {beside[at - 1]:.3g} mm beside where the slices before it lead")
    return float(np.degrees(np.arccos(np.clip(usual @ normal / np.linalg.norm(usual), -1, 1))))


def _affine(
    slices: list[Any], places: np.ndarray, across: np.ndarray, down: np.ndarray, normal: np.ndarray
) -> np.ndarray:
    """Source: DICOM PS3.3, C.7.6.2.1.1; DICOM's axes point left and posterior, NIfTI's right and anterior."""
    row_mm, column_mm = (float(value) for value in slices[0].PixelSpacing)
    thickness = float(slices[0].get("SliceThickness") or 1.0)
    step = (places[-1] - places[0]) / (len(slices) - 1) if len(slices) > 1 else normal * thickness
    affine = np.eye(4)
    affine[:3] = np.column_stack([across * column_mm, down * row_mm, step, places[0]])
    return _LPS_TO_RAS @ affine
