"""Rivals of a language model on running text: bytes by their frequency, and bytes after the bytes before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from domains.contract import Baseline
from trainers.contract import Predictions

ORDER = 6
MOST_BYTES = 64 << 20
"""Of a larger corpus, every n-th shard is counted: memory grows with the distinct runs of bytes."""
_BYTE = np.uint64(8)


def unigram() -> Baseline:
    """Every byte by its share of the training bytes, whatever stands before it."""
    return Baseline("bytes", "every byte by its frequency in the training shards", _fit_unigram)


def ngram() -> Baseline:
    """Interpolated Kneser-Ney over runs of ORDER bytes."""
    about = f"each byte after the {ORDER - 1} before it, interpolated Kneser-Ney (64 MiB of the corpus at most)"
    return Baseline(f"{ORDER}-gram bytes", about, _fit_ngram)


def _fit_unigram(train: Any) -> Callable[[Any], Predictions]:
    counts = np.ones(256)  # a byte that never occurred costs bits, not infinitely many
    for row in _sample(train):
        counts += np.bincount(_bytes_of(train, row)[1], minlength=256)
    bits = -np.log2(counts / counts.sum())
    return lambda rows: Predictions.of_numbers(
        np.array([bits[_bytes_of(rows, row)[1]].sum() for row in range(len(rows))])
    )


def _fit_ngram(train: Any) -> Callable[[Any], Predictions]:
    runs, counts = np.empty(0, np.uint64), np.empty(0, np.int64)
    for row in _sample(train):
        runs, counts = _merged(runs, counts, _runs(*_bytes_of(train, row)))
    levels = _levels(runs, counts)

    def predict(rows: Any) -> Predictions:
        return Predictions.of_numbers(
            np.array([-np.log2(_probability(levels, _runs(*_bytes_of(rows, row)))).sum() for row in range(len(rows))])
        )

    return predict


def _sample(train: Any) -> Iterator[int]:
    step = max(1, int(np.ceil(train.num_bytes().sum() / MOST_BYTES)))
    return iter(range(0, len(train), step))


def _bytes_of(rows: Any, row: int) -> tuple[np.ndarray, np.ndarray]:
    """The bytes just before a shard, and those of its documents one after another."""
    before = rows.before(row).encode()[-(ORDER - 1) :]
    text = b"".join(text.encode() for text in rows.documents(row))
    return np.frombuffer(before.rjust(ORDER - 1, b"\0"), np.uint8), np.frombuffer(text, np.uint8)


def _runs(before: np.ndarray, text: np.ndarray) -> np.ndarray:
    """(bytes,) each byte of the text with the ORDER - 1 before it, as one number, the byte itself lowest."""
    every = np.concatenate([before, text]).astype(np.uint64)
    found = np.zeros(len(text), np.uint64)
    for at in range(ORDER):
        found = (found << _BYTE) | every[at : at + len(text)]
    return found


def _merged(runs: np.ndarray, counts: np.ndarray, more: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    new, new_counts = np.unique(more, return_counts=True)
    every, place = np.unique(np.concatenate([runs, new]), return_inverse=True)
    weights = np.concatenate([counts, new_counts])
    return every, np.bincount(place, weights, len(every)).astype(np.int64)


class _Level:
    """Counts of runs of one length, sorted; and of each context its sum, its kinds, and its discount."""

    def __init__(self, runs: np.ndarray, counts: np.ndarray) -> None:
        self.runs, self.counts = runs, counts
        self.contexts, first = np.unique(runs >> _BYTE, return_index=True)
        self.totals = np.add.reduceat(counts, first)
        self.kinds = np.diff(np.append(first, len(runs)))
        once, twice = int((counts == 1).sum()), int((counts == 2).sum())
        # Ney, Essen & Kneser 1994, Computer Speech & Language 8(1), section 3: the estimate that leaves one out.
        self.discount = once / max(1, once + 2 * twice)

    def mixed(self, runs: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """P(byte | context) of each run, discounted counts mixed with `lower`, the shorter context's answer."""
        counts = _looked_up(self.runs, self.counts, runs)
        totals = _looked_up(self.contexts, self.totals, runs >> _BYTE)
        kinds = _looked_up(self.contexts, self.kinds, runs >> _BYTE)
        known = np.maximum(totals, 1)
        found = np.maximum(counts - self.discount, 0) / known + self.discount * kinds / known * lower
        return np.where(totals > 0, found, lower)


def _levels(runs: np.ndarray, counts: np.ndarray) -> list[_Level]:
    """From one byte to ORDER: shorter runs are counted by how many different bytes stand before them (Kneser & Ney 1995,
    "Improved backing-off for m-gram language modeling")."""
    found = [_Level(runs, counts)]
    for length in range(ORDER - 1, 0, -1):
        mask = np.uint64(2 ** (8 * length) - 1)
        found.append(_Level(*np.unique(found[-1].runs & mask, return_counts=True)))
    return found[::-1]


def _looked_up(names: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    place = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    return np.where(names[place] == wanted, values[place], 0)


def _probability(levels: list[_Level], runs: np.ndarray) -> np.ndarray:
    found = np.full(len(runs), 1 / 256)
    for length, level in enumerate(levels, start=1):
        found = level.mixed(runs & np.uint64(2 ** (8 * length) - 1), found)
    return found
