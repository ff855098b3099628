"""Kernels between variants of one protein: how alike the effects of two substitutions are expected to be.

A variant is the sum of its substitutions, and each kernel is a product over where they are, what was lost and what was gained.
Position and residue kernels of this kind: Hie et al. 2020, Cell Systems 11:461 (Gaussian processes on variants); Romero et
al. 2013, PNAS 110:E193. Unseen positions are reached through the wild type's residue, its neighbourhood in the chain, and
the periods of helix (3.6 residues) and strand (2).

Shapes: S and T substitutions, P positions, 21 letters (the last: any other).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from domains.proteins.baselines import letter_codes, residue_scales
from domains.proteins.signals import AMINO_ACIDS
from trainers.contract import JSON

NUM_LETTERS = len(AMINO_ACIDS) + 1
NEXT_RESIDUES, NEAR_RESIDUES, TURN_RESIDUES, HELIX_RESIDUES, FAR_RESIDUES = 1.0, 2.0, 5.0, 6.0, 20.0
"""Length scales along the chain: the next residue, neighbours, a turn or two, a few turns, a domain's stretch."""
HELIX_PERIOD, STRAND_PERIOD = 3.6, 2.0
WINDOW = 4
"""Residues to each side that are a position's surroundings."""
_KINDS = ("FWYH", "P", "G", "VIT", "DE", "KR", "C")
"""Aromatic, the two that shape the backbone, branched at the beta carbon, the charged, cysteine."""


@dataclass(frozen=True)
class SubstitutionKernels:
    """Kernels on rows of sequences; the training rows' consensus is the wild type. Meets `trainers.kernel.Kernels`."""

    consensus: str

    def as_json(self) -> JSON:
        """Plain values for `SubstitutionKernels(**values)`."""
        return {"consensus": self.consensus}

    def names(self) -> tuple[str, ...]:
        """Names of the kernels in the order of `matrix`'s weights."""
        return (
            *("constant", "position", "position_gained", "position_gained_like"),
            *("gained", "gained_like", "lost", "lost_gained", "lost_gained_like"),
            *("near", "near_gained_like", "helix", "strand", "far", "surroundings", "surroundings_gained_like"),
            *("next", "turn", "near_lost_like", "helix_gained_like"),
        )

    def each(self, these: Sequence[str], those: Sequence[str]) -> list[np.ndarray]:
        """Every kernel, (these, those) float32."""
        one, other = self._substitutions(these), self._substitutions(those)
        return [np.ones((len(these), len(those)), np.float32)] + [
            one.rows @ (other.rows @ self._between(one, other, name).T).T for name in self.names()[1:]
        ]

    def matrix(self, these: Sequence[str], those: Sequence[str], weights: np.ndarray) -> np.ndarray:
        """The kernels' sum, each times its weight, (these, those) float32. Kernels of no weight cost nothing."""
        one, other = self._substitutions(these), self._substitutions(those)
        total = np.zeros((len(one.position), len(other.position)), np.float32)
        for name, weight in zip(self.names()[1:], weights[1:], strict=False):  # a run of before may know fewer
            if weight > 0:
                total += np.float32(weight) * self._between(one, other, name)
        return np.asarray(one.rows @ (other.rows @ total.T).T + np.float32(weights[0]))

    def _between(self, one: Substitutions, other: Substitutions, name: str) -> np.ndarray:
        """(S, T) kernel between substitutions."""
        where, lost, gained = _PARTS[name]
        found = np.ones((len(one.position), len(other.position)), np.float32)
        if where:
            found *= self._positions(where)[np.ix_(one.position, other.position)]
        if lost:
            found *= _residue_kernel(lost)[np.ix_(one.lost, other.lost)]
        if gained:
            found *= _residue_kernel(gained)[np.ix_(one.gained, other.gained)]
        return found

    def _positions(self, name: str) -> np.ndarray:
        """(P, P) kernel between positions, 1 on the diagonal."""
        if name == "surroundings":
            return _surroundings(self.consensus)
        apart = np.abs(np.subtract.outer(np.arange(len(self.consensus)), np.arange(len(self.consensus))))
        kernels: dict[str, Callable[[], np.ndarray]] = {
            "position": lambda: apart == 0,
            "next": lambda: np.exp(-0.5 * (apart / NEXT_RESIDUES) ** 2),
            "near": lambda: np.exp(-0.5 * (apart / NEAR_RESIDUES) ** 2),
            "turn": lambda: np.exp(-0.5 * (apart / TURN_RESIDUES) ** 2),
            "far": lambda: np.exp(-0.5 * (apart / FAR_RESIDUES) ** 2),
            "helix": lambda: np.exp(-apart / HELIX_RESIDUES) * np.cos(2 * np.pi * apart / HELIX_PERIOD),
            "strand": lambda: np.exp(-apart / HELIX_RESIDUES) * np.cos(2 * np.pi * apart / STRAND_PERIOD),
        }
        return np.asarray(kernels[name](), np.float32)

    def _substitutions(self, sequences: Sequence[str]) -> Substitutions:
        """Chains that end early lose their tail; what is beyond the consensus is not looked at."""
        length, wild = len(self.consensus), letter_codes(self.consensus)
        codes = np.full((len(sequences), length), NUM_LETTERS - 1)
        for row, sequence in zip(codes, sequences, strict=True):
            row[: len(sequence[:length])] = letter_codes(sequence[:length])
        row, position = np.nonzero(codes != wild)
        both, number = np.unique(position * NUM_LETTERS + codes[row, position], return_inverse=True)
        rows = csr_matrix((np.ones(len(row), np.float32), (row, number)), shape=(len(sequences), len(both)))
        where = both // NUM_LETTERS
        return Substitutions(where, wild[where], both % NUM_LETTERS, rows)


@dataclass(frozen=True)
class Substitutions:
    """Distinct substitutions: position, letters lost and gained (S,), and which rows have them (rows, S) sparse."""

    position: np.ndarray
    lost: np.ndarray
    gained: np.ndarray
    rows: csr_matrix


# Of each kernel: between positions, residues lost, residues gained; "" where it does not matter.
_PARTS = {
    "position": ("position", "", ""),
    "position_gained": ("position", "", "same"),
    "position_gained_like": ("position", "", "like"),
    "gained": ("", "", "same"),
    "gained_like": ("", "", "like"),
    "lost": ("", "same", ""),
    "lost_gained": ("", "same", "same"),
    "lost_gained_like": ("", "like", "like"),
    "near": ("near", "", ""),
    "near_gained_like": ("near", "", "like"),
    "helix": ("helix", "", ""),
    "strand": ("strand", "", ""),
    "far": ("far", "", ""),
    "surroundings": ("surroundings", "", ""),
    "surroundings_gained_like": ("surroundings", "", "like"),
    "next": ("next", "", ""),
    "turn": ("turn", "", ""),
    "near_lost_like": ("near", "like", ""),
    "helix_gained_like": ("helix", "", "like"),
}


def _residue_features() -> np.ndarray:
    """(21, features) hydropathy, volume, charge, and kinds; the last row, any other letter, is zero."""
    kinds = np.array([[letter in kind for kind in _KINDS] for letter in AMINO_ACIDS], np.float32)
    return np.hstack([residue_scales(), np.vstack([kinds, np.zeros(len(_KINDS), np.float32)])])


def _residue_kernel(name: str) -> np.ndarray:
    """(21, 21) "same": one for equal letters; "like": by chemistry, 1 on the diagonal."""
    if name == "same":
        return np.eye(NUM_LETTERS, dtype=np.float32)
    features = _residue_features()
    apart = ((features[:, None] - features[None]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-apart / np.median(apart)), np.float32)


def _surroundings(consensus: str) -> np.ndarray:
    """(P, P) likeness of the residues around two positions, near ones counting more; beyond the ends there are none."""
    features = _residue_features()[letter_codes(consensus)]
    padded = np.pad(features, ((WINDOW, WINDOW), (0, 0)))
    parts = [
        padded[WINDOW + shift : WINDOW + shift + len(consensus)] / (1 + abs(shift))
        for shift in range(-WINDOW, WINDOW + 1)
    ]
    around = np.hstack(parts)
    square = (around**2).sum(axis=1)
    apart = np.maximum(square[:, None] + square[None] - 2 * around @ around.T, 0)
    return np.asarray(np.exp(-apart / max(1e-6, np.median(apart))), np.float32)
