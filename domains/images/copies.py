"""Pictures that are copies of each other belong on one side of a split: exact copies, and nearly exact ones."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from domains.images.pictures import Print

# Recompressing or resizing a photograph moves the mean colour of a tile by one or two steps of 255; in CIFAR-10 no two
# different pictures are this near and share all 64 slopes.
MAX_MEAN_STEP, MAX_STEP = 2.0, 10
LARGEST_BUCKET = 2000
"""Beyond so many pictures with equal slopes (blank scans) only exact copies are looked for: pairs grow as the square."""


def copy_groups(prints: Sequence[Print], *, near: bool = True, also: Sequence[Hashable] | None = None) -> np.ndarray:
    """(pictures,) group of each picture, from 0: copies have the same one, and so have rows with equal `also`."""
    links = [*_equal([p.pixels for p in prints])]
    if near:
        links += _near(prints)
    if also is not None:
        links += _equal(list(also))
    if not links:
        return np.arange(len(prints))
    these, those = np.array(links).T
    graph = coo_array((np.ones(len(these)), (these, those)), shape=(len(prints), len(prints)))
    return np.asarray(connected_components(graph, directed=False)[1])


def _equal(values: Sequence[Hashable]) -> list[tuple[int, int]]:
    first: dict[Hashable, int] = {}
    pairs = ((first.setdefault(value, i), i) for i, value in enumerate(values))
    return [(a, b) for a, b in pairs if a != b]


def _near(prints: Sequence[Print]) -> list[tuple[int, int]]:
    buckets: dict[bytes, list[int]] = {}
    for i, found in enumerate(prints):
        buckets.setdefault(found.slopes, []).append(i)
    return [pair for b in buckets.values() if 1 < len(b) <= LARGEST_BUCKET for pair in _near_in(b, prints)]


def _near_in(bucket: list[int], prints: Sequence[Print]) -> list[tuple[int, int]]:
    tiles = np.stack([np.frombuffer(prints[i].tiles, np.uint8) for i in bucket]).astype(np.int16)
    pairs = []
    for k in range(1, len(bucket)):
        steps = np.abs(tiles[:k] - tiles[k])
        hits = np.flatnonzero((steps.mean(axis=1) <= MAX_MEAN_STEP) & (steps.max(axis=1) <= MAX_STEP))
        pairs += [(bucket[int(hit)], bucket[k]) for hit in hits]
    return pairs
