"""Variants of one protein: where each differs from the consensus, and groups by mutated position.

Splitting variants at random puts other substitutions of the same position on both sides, and the score then says how
well positions are remembered (Dallago et al. 2021, FLIP; Notin et al. 2023, ProteinGym, "modulo" and "contiguous").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

ALIGNED_SHARE = 0.95
"""Share of the rows that must have the usual length and few substitutions."""
FEW_SUBSTITUTIONS = 0.15
"""Share of the residues of one row that may differ from the consensus."""
LARGEST_SHARE = 0.5
_FEWEST_ROWS, _FEWEST_RESIDUES = 30, 20


@dataclass(frozen=True)
class Mutants:
    """consensus: the usual residue at each position.   differs: (rows, positions) bool; a row of another length differs
    nowhere and is in `odd`."""

    consensus: str
    differs: np.ndarray
    odd: np.ndarray


def aligned_mutants(sequences: Sequence[str]) -> Mutants | None:
    """The rows as substitutions of one protein, or None if they are not."""
    lengths = np.array([len(sequence) for sequence in sequences])
    usual = int(np.bincount(lengths).argmax()) if len(lengths) else 0
    fits = lengths == usual
    if len(sequences) < _FEWEST_ROWS or usual < _FEWEST_RESIDUES or fits.mean() < ALIGNED_SHARE:
        return None
    letters = np.frombuffer("".join(np.asarray(sequences, object)[fits]).encode("ascii"), np.uint8).reshape(-1, usual)
    consensus = _column_modes(letters)
    differs = np.zeros((len(sequences), usual), bool)
    differs[fits] = letters != consensus
    few = differs.sum(axis=1) <= max(1, FEW_SUBSTITUTIONS * usual)
    if (few & fits).mean() < ALIGNED_SHARE:
        return None
    return Mutants(consensus.tobytes().decode("ascii"), differs, np.flatnonzero(~fits))


def position_groups(mutants: Mutants) -> tuple[np.ndarray, str]:
    """(rows,) group by mutated positions, and in words how. Rows without a substitution are one group, each odd row
    is one of its own.

    Positions that occur together in a row belong together; where that joins most rows, the first position decides.
    """
    differs = mutants.differs
    rows, positions = np.nonzero(differs)
    num_rows, num_positions = differs.shape
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), num_positions)
    first[mutants.odd] = num_positions + 1 + np.arange(len(mutants.odd))
    if (differs.sum(axis=1) <= 1).all():
        return first, "variants of one protein: those mutated at the same position stay together"
    both = csr_matrix((np.ones(len(rows), np.int8), (first[rows], positions)), shape=(num_positions, num_positions))
    code = connected_components(both, directed=False)[1]
    joined = np.where(first < num_positions, code[np.minimum(first, num_positions - 1)], first)
    joined = np.where(first < num_positions, joined, num_positions + first)
    if np.bincount(joined).max() <= LARGEST_SHARE * num_rows:
        return (
            joined,
            "variants of one protein: those that share a mutated position, also through others, stay together",
        )
    return first, (
        "variants of one protein with several substitutions: those with the same first position stay together, "
        "later positions may be on both sides"
    )


def _column_modes(letters: np.ndarray) -> np.ndarray:
    """(positions,) the commonest byte of each column."""
    codes = np.unique(letters)
    counts = np.stack([(letters == code).sum(axis=0) for code in codes])
    return np.asarray(codes[counts.argmax(axis=0)], dtype=np.uint8)
