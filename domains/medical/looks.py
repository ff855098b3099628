"""The integrity check of every case, always before anything else; and what is remembered of each for plan and split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from domains.medical.layout import Case
from domains.medical.volumes import Geometry, VolumeError, read_image, read_labels, unlike

_SAMPLES = 500
"""Foreground intensities kept of a case: nnU-Net gathers some thousands over all cases for its percentiles."""
_THREADS = 4
LARGEST_LABEL = 255


@dataclass(frozen=True)
class Look:
    """What a case is. counts: voxels of each value of the mask, () without one.   samples: (C, n) foreground intensities,
    evenly picked.   notes: what was assumed of the file.   mark, patient: as of `Volume`."""

    geometry: Geometry
    num_channels: int
    counts: Mapping[int, int]
    samples: np.ndarray
    notes: tuple[str, ...] = ()
    mark: str = ""
    patient: str = ""


@dataclass(frozen=True)
class Fault:
    """Why a case cannot be used, and the file that is to blame."""

    reason: str
    path: str


def looked(cases: Sequence[Case]) -> list[Look | Fault]:
    """A look at every case, or why it cannot be used."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(_look, cases))


def _look(case: Case) -> Look | Fault:
    file = next(iter((*case.images, case.mask or case.name)))
    if case.problem:
        return Fault(case.problem, file)
    try:
        image = read_image([Path(path) for path in case.images])
        notes = image.notes
        if flat := [at for at, channel in enumerate(image.array) if channel.min() == channel.max()]:
            notes = (*notes, f"every voxel has one value{f' in channel {flat[0]}' if len(image.array) > 1 else ''}")
        if case.mask is None:
            return Look(
                image.geometry, len(image.array), {}, np.empty((len(image.array), 0)), notes, image.mark, image.patient
            )
        file = case.mask
        labels, geometry = read_labels(Path(file))
    except VolumeError as error:
        return Fault(str(error), file)
    if problem := unlike(image.geometry, geometry):
        return Fault(f"image and mask {problem}", file)
    values, counts = np.unique(labels, return_counts=True)
    inside = image.array[:, geometry.to_ras(labels) > 0]
    samples = inside[:, :: max(1, inside.shape[1] // _SAMPLES)]
    found = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return Look(geometry, len(image.array), found, samples, notes, image.mark, image.patient)


def expected_values(found: Sequence[Look], declared: tuple[int, ...] | None) -> tuple[int, ...]:
    """The values that masks may hold: what is declared, else 0 and the numbers that follow it without a gap."""
    if declared is not None:
        return declared
    seen = {value for look in found for value in look.counts}
    last = 0
    while last + 1 in seen:
        last += 1
    return tuple(range(last + 1))


def unexpected(look: Look, values: Sequence[int]) -> str:
    """Why the mask of a case holds labels that it may not; empty where it does not."""
    strange = {value: count for value, count in look.counts.items() if value not in values}
    if not strange:
        return ""
    shown = ", ".join(f"{value} ({count:,} voxels)" for value, count in strange.items())
    return f"the mask holds label {shown}; expected are {', '.join(map(str, values))}"
