"""Boxes around structures: what a person draws, what a mask would have made them draw, and where they lie for the network.

A box has six edges, in voxels of the file: voxel number i reaches from i to i + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from domains.medical.configure import Configuration
from domains.medical.volumes import Geometry
from trainers.errors import did_you_mean

FORM = "CLASS x0 y0 z0 x1 y1 z1; ... (first and last voxel of each axis, counted from 0 in the order of the file)"
REACH = 0.02
"""How far a drawn box reaches beyond its structure at most, as a share of an axis: 20 of 1,024 pixels, by which MedSAM's
authors enlarge the boxes that they train with (Ma et al. 2024, code)."""


class Box(NamedTuple):
    """low, high: edges along each axis.   position: of the class, 1 or more."""

    position: int
    low: tuple[float, ...]
    high: tuple[float, ...]


def read_boxes(cell: str, names: Sequence[str], shape: Sequence[int]) -> list[Box] | str:
    """The boxes that a cell names, or why it names none.

    names: of the classes, background first; with a single one after it CLASS may be left out.   shape: of the file.
    """
    found = []
    for text in filter(None, (part.strip() for part in cell.split(";"))):
        words = text.split()
        label, edges = (" ".join(words[:-6]), words[-6:]) if len(words) >= 6 else ("", [])
        label = label or (names[1] if len(names) == 2 else "")
        if label not in names[1:]:
            return f"box {text!r}: its class is none of {', '.join(names[1:])}.{did_you_mean(label, names[1:])} Write {FORM}"
        try:
            numbers = [int(edge) for edge in edges]
        except ValueError:
            return f"box {text!r}: six whole numbers are expected. Write {FORM}"
        low, last = numbers[:3], numbers[3:]
        if any(not 0 <= a <= b < size for a, b, size in zip(low, last, shape, strict=True)):
            return f"box {text!r} does not lie in a scan of {' x '.join(map(str, shape))} voxels. Write {FORM}"
        found.append(Box(names.index(label), tuple(map(float, low)), tuple(float(edge + 1) for edge in last)))
    return found or f"no box: write {FORM}"


def boxes_around(classes: np.ndarray) -> list[Box]:
    """The smallest box around each class of a mask of class positions, in the order of its file."""
    found = []
    for position in np.unique(classes[classes > 0]).tolist():
        spans = [np.flatnonzero((classes == position).any(axis=others)) for others in ((1, 2), (0, 2), (0, 1))]
        low, high = (float(span[0]) for span in spans), (float(span[-1] + 1) for span in spans)
        found.append(Box(position, tuple(low), tuple(high)))
    return found


def loosely(boxes: Sequence[Box], shape: Sequence[int], rng: np.random.Generator, reach: float = REACH) -> list[Box]:
    """The boxes as a person draws them: every side farther out by up to `reach` of the axis, but never out of the scan."""
    size = np.asarray(shape, float)
    found = []
    for box in boxes:
        out = rng.uniform(0, reach, (2, len(size))) * size
        low, high = np.maximum(box.low - out[0], 0), np.minimum(box.high + out[1], size)
        found.append(Box(box.position, tuple(low.tolist()), tuple(high.tolist())))
    return found


def hand(name: str) -> np.random.Generator:
    """The chance of the case `name`: whoever reads it again finds the same boxes."""
    return np.random.default_rng(list(sha256(name.encode("utf-8", "surrogateescape")).digest()[:8]))


def on_grid(boxes: Sequence[Box], geometry: Geometry, plan: Configuration, shape: Sequence[int]) -> list[Box]:
    """The boxes on the grid of the prepared case. shape: (D, H, W) of it."""
    turned = geometry.orientation.astype(int)
    size = np.asarray(geometry.shape, float)
    found = []
    for box in boxes:
        low, high, extent = np.zeros(3), np.zeros(3), np.zeros(3)
        for axis, (ras, sign) in enumerate(turned):
            edges = (box.low[axis], box.high[axis])
            low[ras], high[ras] = edges if sign > 0 else (size[axis] - edges[1], size[axis] - edges[0])
            extent[ras] = size[axis]
        scale = (np.asarray(shape) / extent[list(plan.axes)]).tolist()
        ends = [[edge[axis] * factor for axis, factor in zip(plan.axes, scale, strict=True)] for edge in (low, high)]
        found.append(Box(box.position, tuple(map(float, ends[0])), tuple(map(float, ends[1]))))
    return found


def slices_of(box: Box, num_slices: int) -> range:
    """The slices along the first axis whose middle the box holds; the nearest one where it is thinner than a slice."""
    first, last = round(box.low[0]), round(box.high[0])
    if first >= last:
        first = min(num_slices - 1, int((box.low[0] + box.high[0]) / 2))
        last = first + 1
    return range(max(0, first), min(num_slices, last))


def sorted_by_size(boxes: Sequence[Box]) -> list[Box]:
    """The largest first, so that what is drawn later over it is the smaller structure."""
    return sorted(boxes, key=lambda box: -float(np.prod(np.subtract(box.high, box.low))))
