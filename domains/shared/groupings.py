"""Rows that belong together for one reason or another, as one number a row."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np


def joined(groupings: Sequence[Iterable[Hashable]]) -> np.ndarray:
    """(rows,) groups, from 0, in which rows meet that meet in any of the groupings."""
    lists = [list(grouping) for grouping in groupings]
    return components([link for grouping in lists for link in equal(grouping)], len(lists[0]))


def components(links: Sequence[tuple[int, int]], num: int) -> np.ndarray:
    """(num,) number of the connected component of each row; links: pairs of positions."""
    if not links:
        return np.arange(num)
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    these, those = np.array(links).T
    graph = coo_array((np.ones(len(these)), (these, those)), shape=(num, num))
    return np.asarray(connected_components(graph, directed=False)[1])


def equal(values: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pairs of positions with equal values, each with the first of its kind."""
    first: dict[Hashable, int] = {}
    pairs = ((first.setdefault(value, i), i) for i, value in enumerate(values))
    return [(a, b) for a, b in pairs if a != b]


def equal_rows(marks: np.ndarray, these: np.ndarray, those: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For `domains.contract.Likeness`: 1.0 and the place among `those` of the first row with the same mark; else 0.0, -1.

    marks: (rows,) anything that is equal for equal rows.
    """
    first: dict[Hashable, int] = {}
    for place, mark in enumerate(marks[those].tolist()):
        first.setdefault(mark, place)
    position = np.array([first.get(mark, -1) for mark in marks[these].tolist()], np.int64)
    return (position >= 0).astype(np.float64), position


def highest_of(nearness: Any, these: np.ndarray, those: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For `domains.contract.Likeness`, from a sparse matrix of similarities between all rows."""
    if not len(these) or not len(those):
        return np.zeros(len(these)), np.full(len(these), -1)
    part = nearness[these][:, those].tocsr()
    highest = np.asarray(part.max(axis=1).todense(), np.float64).reshape(-1)
    position = np.asarray(part.argmax(axis=1)).reshape(-1)
    return highest, np.where(highest > 0, position, -1)
