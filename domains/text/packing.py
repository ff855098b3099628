"""Documents into rows of one length: which stretch of tokens goes where.

A span is what a model reads at once of one document: `length` inputs from `begin`, each of which predicts the token after
it. Short documents share a row, kept apart by masks; long ones are cut.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

STRETCH = 1 << 16
"""Spans packed together: the whole corpus at once would cost memory, and more of them pack no better."""


@dataclass(frozen=True)
class Rows:
    """begins, lengths: (spans,) int64, of all spans in the order of rows.   bounds: (rows + 1,) where each row starts."""

    begins: np.ndarray
    lengths: np.ndarray
    bounds: np.ndarray

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def spans(self, row: int) -> Iterator[tuple[int, int]]:
        """(begin, length) of each span in a row."""
        part = slice(self.bounds[row], self.bounds[row + 1])
        return zip(self.begins[part].tolist(), self.lengths[part].tolist(), strict=True)


def cut_documents(starts: np.ndarray, num_tokens: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """begins, lengths of the spans of all documents: whole ones, and those longer than `length` in equal steps of it.

    The last token of a document predicts the BOS of the next one; the very last predicts nothing.
    """
    stops = np.append(starts[1:], num_tokens - 1)
    sizes = np.maximum(stops - starts, 0)
    counts = -(-sizes // length)
    which = np.repeat(np.arange(len(starts)), counts)
    step = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = starts[which] + step * length
    return begins, np.minimum(length, stops[which] - begins)


def packed(begins: np.ndarray, lengths: np.ndarray, capacity: int) -> Rows:
    """Rows of at most `capacity` tokens by best fit, largest first, over STRETCH spans at a time: every span goes where
    least room is left over (Ding et al. 2024, arXiv 2404.10830, section 3)."""
    order, bounds = [], [0]
    for start in range(0, len(lengths), STRETCH):
        for row in best_fit(lengths[start : start + STRETCH].tolist(), capacity):
            order += [start + at for at in row]
            bounds.append(len(order))
    chosen = np.array(order, dtype=np.int64)
    return Rows(begins[chosen], lengths[chosen], np.array(bounds))


def best_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Positions of the sizes that share a row, rows in the order they were opened."""
    rows: list[list[int]] = []
    rooms: list[int] = []  # distinct rooms that some row has, rising
    by_room: dict[int, list[int]] = {}
    for at in sorted(range(len(sizes)), key=lambda position: -sizes[position]):
        place = bisect_left(rooms, sizes[at])
        if place == len(rooms):
            rows.append([at])
            row, left = len(rows) - 1, capacity - sizes[at]
        else:
            room = rooms[place]
            row, left = by_room[room].pop(), room - sizes[at]
            if not by_room[room]:
                del rooms[place], by_room[room]
            rows[row].append(at)
        if left > 0:
            if left not in by_room:
                insort(rooms, left)
            by_room.setdefault(left, []).append(row)
    return rows


def overlapping(num_before: int, num_tokens: int, length: int, stride: int) -> list[tuple[int, int, int]]:
    """(begin, end, first counted) of windows that together count every prediction from `num_before` - 1 on, once.

    Positions are those of tokens that predict the next one, of `num_tokens` in all. A window reads at most `length` of
    them, as far back as it can, and all but the first count `stride` at most: what is predicted has length - stride
    tokens before it, or all there are.
    """
    windows = []
    counted, last = max(0, num_before - 1), num_tokens - 1
    end = min(last, max(length, counted + stride))
    while counted < last:
        windows.append((max(0, end - length), end, counted))
        counted, end = end, min(last, end + stride)
    return windows
