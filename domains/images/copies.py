"""Pictures that are copies of each other belong on one side of a split: exact copies, and nearly exact ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree

from domains.images.pictures import Print

# Recompressing or resizing a photograph moves the mean colour of a tile by a step or two of 255; different photographs
# differ by tens.
MAX_MEAN_STEP, MAX_STEP = 2.0, 10
_COARSE_STEP = 3.0
MOST_PAIRS_A_PICTURE = 50
"""With more candidates (blank scans all look alike) only exact copies are looked for: pairs would grow as the square."""


def copy_groups(prints: Sequence[Print], *, near: bool = True) -> np.ndarray:
    """(pictures,) group of each picture, from 0; copies have the same one."""
    links = [*_equal([found.pixels for found in prints]), *(_near(prints) if near and len(prints) > 1 else [])]
    return _components(links, len(prints))


def joined(groupings: Sequence[Iterable[Hashable]]) -> np.ndarray:
    """(rows,) groups, from 0, in which rows meet that meet in any of the groupings."""
    links = [link for grouping in groupings for link in _equal(list(grouping))]
    return _components(links, len(list(groupings[0])))


def _components(links: Sequence[tuple[int, int]], num: int) -> np.ndarray:
    if not links:
        return np.arange(num)
    these, those = np.array(links).T
    graph = coo_array((np.ones(len(these)), (these, those)), shape=(num, num))
    return np.asarray(connected_components(graph, directed=False)[1])


def _equal(values: Sequence[Hashable]) -> list[tuple[int, int]]:
    first: dict[Hashable, int] = {}
    pairs = ((first.setdefault(value, i), i) for i, value in enumerate(values))
    return [(a, b) for a, b in pairs if a != b]


def _near(prints: Sequence[Print]) -> list[tuple[int, int]]:
    """Pairs whose 8 x 8 tiles nearly agree, found among those whose quarters do."""
    tiles = np.stack([np.frombuffer(found.tiles, np.uint8) for found in prints]).astype(np.int16)
    quarters = tiles.reshape(-1, 2, 4, 2, 4, 3).mean(axis=(2, 4)).reshape(len(tiles), 12)
    tree = KDTree(quarters)
    num_pairs = (tree.count_neighbors(tree, _COARSE_STEP, p=np.inf) - len(tiles)) // 2
    if num_pairs > MOST_PAIRS_A_PICTURE * len(tiles):
        return []
    pairs = tree.query_pairs(_COARSE_STEP, p=np.inf, output_type="ndarray")
    steps = np.abs(tiles[pairs[:, 0]] - tiles[pairs[:, 1]])
    alike = (steps.mean(axis=1) <= MAX_MEAN_STEP) & (steps.max(axis=1) <= MAX_STEP)
    return [(int(a), int(b)) for a, b in pairs[alike]]
