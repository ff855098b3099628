"""Kernels between molecules: how alike their descriptors are, at several length scales, and how many fragments they share.

Minimum over maximum of counts is Tanimoto's kernel (Ralaivola et al. 2005, Neural Networks 18:1093); Gaussian processes on it
do well on few molecules (Moss & Griffiths 2020, arXiv 2010.01118).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rdkit import rdBase
from rdkit.DataStructs import BulkTanimotoSimilarity
from scipy.spatial.distance import cdist

from domains.molecules.chemistry import molecule
from domains.molecules.fingerprints import descriptor_matrix, generator
from trainers.contract import JSON

RADIUS = 2
"""Bonds around an atom: ECFP4."""
NUM_BITS = 4096
FRAGMENTS = ("ecfp", "pairs", "torsions")
LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Length scales, where the training rows lie 1 from their mean (root of the mean square)."""
SMALLEST_SPREAD = 1e-6
"""A descriptor that varies less is the same in all training rows, but for rounding."""
FURTHEST = 5.0
"""Standard deviations at which a descriptor is cut: rare groups would be all that counts."""


@dataclass(frozen=True)
class _Features:
    """descriptors: (molecules, those that vary) float32, of mean squared length 1 over the training rows.   mols: RDKit's."""

    descriptors: np.ndarray
    mols: list[Any]


class MoleculeKernels:
    """Meets `trainers.kernel.Kernels` on canonical SMILES. mean, spread: of the descriptors' logarithms in the training rows.

    cache: a folder that outlives runs, for descriptors.
    """

    def __init__(self, mean: Sequence[float], spread: Sequence[float], cache: Path | None = None) -> None:
        self.mean, self.spread, self.cache = np.asarray(mean), np.asarray(spread), cache
        self._known: tuple[Sequence[str], _Features] | None = None

    @classmethod
    def of(cls, smiles: Sequence[str], cache: Path | None = None) -> MoleculeKernels:
        """Fit the scaling on training rows."""
        found = _logarithms(smiles, cache)
        return cls(found.mean(axis=0), found.std(axis=0), cache)

    def as_json(self) -> JSON:
        """Plain values for `MoleculeKernels(**values)`."""
        return {"mean": self.mean.tolist(), "spread": self.spread.tolist()}

    def names(self) -> tuple[str, ...]:
        """Names of the kernels in the order of `matrix`'s weights."""
        return ("constant", "linear", *(f"descriptors_{length:g}" for length in LENGTHS), *FRAGMENTS)

    def each(self, these: Sequence[str], those: Sequence[str]) -> list[np.ndarray]:
        """Every kernel, (these, those) float32."""
        return [found for _, found in self._between(these, those, self.names())]

    def matrix(self, these: Sequence[str], those: Sequence[str], weights: np.ndarray) -> np.ndarray:
        """The kernels' sum, each times its weight, (these, those) float32. Kernels of no weight cost nothing."""
        weight = {name: np.float32(each) for name, each in zip(self.names(), weights, strict=True) if each > 0}
        total = np.zeros((len(these), len(those)), np.float32)
        for name, found in self._between(these, those, tuple(weight)):
            total += weight[name] * found
        return total

    def _between(
        self, these: Sequence[str], those: Sequence[str], names: Sequence[str]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """The kernels called `names` one by one, in the order of `self.names()`. Descriptors of `those` are kept until
        others are asked for: usually they are the training rows."""
        if self._known is None or self._known[0] is not those:
            self._known = (those, self._features(those))
        other = self._known[1]
        one = other if these is those else self._features(these)
        if "constant" in names:
            yield "constant", np.ones((len(one.mols), len(other.mols)), np.float32)
        if "linear" in names:
            yield "linear", one.descriptors @ other.descriptors.T
        apart = _distances(one.descriptors, other.descriptors)
        for length in LENGTHS:
            if (name := f"descriptors_{length:g}") in names:
                yield name, _matern(apart / np.float32(length))
        for kind in FRAGMENTS:
            if kind in names:
                yield kind, _shared(one.mols, other.mols, kind)

    def _features(self, smiles: Sequence[str]) -> _Features:
        varies = self.spread > SMALLEST_SPREAD
        scaled = (_logarithms(smiles, self.cache)[:, varies] - self.mean[varies]) / self.spread[varies]
        near = np.clip(scaled, -FURTHEST, FURTHEST) / np.sqrt(max(1, varies.sum()))
        return _Features(near.astype(np.float32), [molecule(each) for each in smiles])


def _logarithms(smiles: Sequence[str], cache: Path | None) -> np.ndarray:
    """(molecules, descriptors) float64 logarithms, signs kept: many are counts and areas with long tails."""
    with rdBase.BlockLogs():
        found = descriptor_matrix(smiles, cache).astype(np.float64)
    return np.asarray(np.sign(found) * np.log1p(np.abs(found)))


def _distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Euclidean distances (these, those) float32."""
    return np.asarray(cdist(one, other), np.float32)


def _matern(apart: np.ndarray) -> np.ndarray:
    """Matérn's kernel of smoothness 3/2, of distances in length scales. Rasmussen & Williams 2006, equation 4.17."""
    scaled = np.float32(np.sqrt(3)) * apart
    return np.asarray((1 + scaled) * np.exp(-scaled))


def _shared(one: Sequence[Any], other: Sequence[Any], kind: str) -> np.ndarray:
    """Tanimoto's likeness of counts of fragments, (these, those) float32."""
    make = generator(kind, RADIUS, NUM_BITS).GetCountFingerprint
    counts = [make(mol) for mol in other]
    return np.array([BulkTanimotoSimilarity(make(mol), counts) for mol in one], np.float32).reshape(len(one), -1)
