"""The rivals of a network that is shown a box: the box itself, and a threshold inside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from domains.contract import Baseline
from domains.medical.boxes import Box, sorted_by_size
from domains.medical.masked import IMAGES
from domains.medical.prompted import BOXES
from domains.medical.volumes import Mask, read_image
from trainers.contract import Predictions

_BINS = 64


def filled() -> Baseline:
    """Every voxel of a box belongs to its structure."""
    return Baseline("box", "all of the box", lambda train: _answers(lambda image, box: np.ones(image.shape, bool)))


def brighter_part() -> Baseline:
    """Of the two sides of Otsu's threshold in the box, the one to which most of the middle of the box belongs."""

    def part(image: np.ndarray, box: Box) -> np.ndarray:
        above = image > otsu(image)
        middle = tuple(slice(size // 4, size - size // 4) for size in image.shape)
        return above if above[middle].mean() >= 0.5 else ~above

    about = "Otsu's threshold inside the box, the side that its middle is on"
    return Baseline("threshold", about, lambda train: _answers(part))


def otsu(values: np.ndarray) -> float:
    """The threshold that leaves the least variance within its two sides; minus infinity where all values are one.

    Source: Otsu 1979, doi 10.1109/TSMC.1979.4310076, equation 18, over a histogram of 64 bins.
    """
    if values.min() == values.max():
        return float("-inf")
    counts, edges = np.histogram(values, _BINS)
    centres = (edges[:-1] + edges[1:]) / 2
    below = np.cumsum(counts)[:-1]
    above = counts.sum() - below
    sums = np.cumsum(counts * centres)
    with np.errstate(invalid="ignore", divide="ignore"):
        between = below * above * (sums[:-1] / below - (sums[-1] - sums[:-1]) / above) ** 2
    return float(edges[1 + int(np.nanargmax(between))])


def _answers(inside: Callable[[np.ndarray, Box], np.ndarray]) -> Callable[[Any], Predictions]:
    """Masks made box by box. inside(first channel of the scan in the box, box) -> which voxels belong to the structure."""

    def predict(rows: Any) -> Predictions:
        found = []
        for name, paths, boxes in zip(rows.ids, rows.column(IMAGES), rows.column(BOXES), strict=True):
            geometry = rows.context["looks"][name].geometry
            image = geometry.from_ras(read_image([Path(path) for path in paths]).array[0])
            classes = np.zeros(geometry.shape, np.uint8)
            for box in sorted_by_size(boxes):
                place = tuple(
                    slice(int(low), max(int(low) + 1, round(high))) for low, high in zip(box.low, box.high, strict=True)
                )
                classes[place][inside(image[place], box)] = box.position
            found.append(Mask.of(classes, geometry))
        return Predictions.of_files(found)

    return predict
