"""Pictures that are copies of each other belong on one side of a split: exact copies, and nearly exact ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.spatial import KDTree

from domains.shared.groupings import components, equal
from domains.shared.pictures import Print

# Recompressing or resizing a photograph moves the mean colour of a tile by a step or two of 255; different photographs
# differ by tens.
MAX_MEAN_STEP, MAX_STEP = 2.0, 10
_COARSE_STEP = 3.0
_AT_ONCE = 256
MOST_PAIRS_A_PICTURE = 50
"""With more candidates (blank scans all look alike) only exact copies are looked for: pairs would grow as the square."""


def copy_groups(prints: Sequence[Print], *, near: bool = True) -> np.ndarray:
    """(pictures,) group of each picture, from 0; copies have the same one."""
    links = [*equal([found.pixels for found in prints]), *(_near(prints) if near and len(prints) > 1 else [])]
    return components(links, len(prints))


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


def nearest(prints: Sequence[Print], these: np.ndarray, those: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each picture of `these` 1 less the mean step of its tiles from the nearest of `those`, as a share of 255, and
    where that one stands among them (-1: nowhere)."""
    from scipy.spatial.distance import cdist

    highest, position = np.zeros(len(these)), np.full(len(these), -1)
    if not len(those):
        return highest, position
    tiles = np.stack([np.frombuffer(found.tiles, np.uint8) for found in prints]).astype(np.float64)
    for start in range(0, len(these), _AT_ONCE):
        steps = cdist(tiles[these[start : start + _AT_ONCE]], tiles[those], "cityblock") / tiles.shape[1]
        highest[start : start + _AT_ONCE] = 1 - steps.min(axis=1) / 255
        position[start : start + _AT_ONCE] = steps.argmin(axis=1)
    return highest, position
