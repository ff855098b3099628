"""Which sequences overlap or are near copies, on either strand: they share many of their 12-mers.

A k-mer and its reverse complement count as one, so strands need no search of their own. Near means a quarter of the shorter
sequence's k-mers: by chance two sequences of 1,000 bases share 1 in 10, overlapping windows and copies with one change in
nine bases (0.89 ** 12 = .25) share more. Shared k-mers find no distant relatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from domains.genomics.bases import reverse_complement

K = 12
NEAR = 0.25
MOST_BASES = 20_000_000
"""In all; more would take minutes and gigabytes."""
COMMON = 200
"""A k-mer in more sequences than this is a repeat of the genome (poly-A, microsatellites): it joins nothing."""
_CODES = np.full(128, -1)
_CODES[[ord(base) for base in "ACGT"]] = range(4)

Links = Callable[[np.ndarray, np.ndarray], np.ndarray]


def nearness(sequences: Sequence[str]) -> csr_matrix:
    """(sequences, sequences) share of the shorter one's k-mers that the other has too, where it is at least `NEAR`.

    Sequences shorter than K have no k-mers and are near nothing.
    """
    kmers = [_kmers(sequence) for sequence in sequences]
    rows = np.repeat(np.arange(len(sequences)), [len(each) for each in kmers])
    names, code, counts = np.unique(
        np.concatenate([*kmers, np.empty(0, np.int64)]), return_inverse=True, return_counts=True
    )
    kept = (counts[code] > 1) & (counts[code] <= COMMON)
    has = csr_matrix(
        (np.ones(int(kept.sum()), np.float32), (rows[kept], code[kept])), shape=(len(sequences), len(names))
    )
    shared = (has @ has.T).tocoo()
    sizes = np.array([max(1, len(each)) for each in kmers])
    part = shared.data / np.minimum(sizes[shared.row], sizes[shared.col])
    near = (part >= NEAR) & (shared.row != shared.col)
    return csr_matrix((part[near], (shared.row[near], shared.col[near])), shape=shared.shape)


def groups(near: csr_matrix) -> np.ndarray:
    """(sequences,) number of the connected component of each."""
    return np.asarray(connected_components(near, directed=False)[1])


def links(near: csr_matrix) -> Links:
    """See `domains.contract.Keys.links`, over the same sequences."""

    def found(these: np.ndarray, those: np.ndarray) -> np.ndarray:
        if not len(these) or not len(those):
            return np.zeros(len(these))
        return np.asarray(near[these][:, those].max(axis=1).todense(), np.float64).reshape(-1)

    return found


def _kmers(sequence: str) -> np.ndarray:
    """The distinct k-mers without ambiguous bases, as numbers, each on the strand with the smaller one."""
    forward, backward = _numbers(sequence), _numbers(reverse_complement(sequence))[::-1]
    return np.unique(np.minimum(forward, backward)[forward >= 0])


def _numbers(sequence: str) -> np.ndarray:
    """(places,) number in base 4 of the k-mer that begins at each place; -1 where it holds an ambiguous base."""
    codes = _CODES[np.frombuffer(sequence.encode("ascii"), np.uint8)]
    size = max(0, len(codes) - K + 1)
    number, is_known = np.zeros(size, np.int64), np.ones(size, bool)
    for place in range(K):
        part = codes[place : place + size]
        number, is_known = number * 4 + part, is_known & (part >= 0)
    return np.where(is_known, number, -1)
