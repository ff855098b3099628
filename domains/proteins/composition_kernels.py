"""Kernels between proteins that do not align: counts of residues, pairs and triads, each block with a radial kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from domains.proteins.baselines import WEIGHTS, kmer_features
from trainers.contract import JSON

FURTHEST = 10.0
"""Standard deviations at which a feature is cut: rare k-mers would be all that counts."""


@dataclass(frozen=True)
class CompositionKernels:
    """scaling: of each block the mean and spread of its features over the training rows. Meets `trainers.kernel.Kernels`."""

    scaling: Mapping[str, tuple[Sequence[float], Sequence[float]]]

    @classmethod
    def of(cls, sequences: Sequence[str]) -> CompositionKernels:
        """Fit the scaling on training rows."""
        blocks = kmer_features(sequences)
        return cls({name: (x.mean(axis=0).tolist(), (x.std(axis=0) + 1e-6).tolist()) for name, x in blocks.items()})

    def as_json(self) -> JSON:
        """Plain values for `CompositionKernels(**values)`."""
        return {"scaling": {name: list(pair) for name, pair in self.scaling.items()}}

    def names(self) -> tuple[str, ...]:
        """Names of the kernels in the order of `matrix`'s weights: constant, one a block, all blocks together."""
        return ("constant", *self.scaling, "together")

    def each(self, these: Sequence[str], those: Sequence[str]) -> list[np.ndarray]:
        """Every kernel, (these, those) float32."""
        one, other = self._scaled(these), self._scaled(those)
        apart = {name: _squares(one[name], other[name]) for name in self.scaling}
        together = sum(WEIGHTS[name] * apart[name] for name in apart) / sum(WEIGHTS[name] for name in apart)
        ones = np.ones((len(these), len(those)), np.float32)
        return [ones, *(np.exp(-apart[name]) for name in apart), np.exp(-together)]

    def matrix(self, these: Sequence[str], those: Sequence[str], weights: np.ndarray) -> np.ndarray:
        """The kernels' sum, each times its weight, (these, those) float32."""
        total = np.zeros((len(these), len(those)), np.float32)
        for weight, kernel in zip(weights, self.each(these, those), strict=True):
            total += np.float32(weight) * kernel
        return total

    def _scaled(self, sequences: Sequence[str]) -> dict[str, np.ndarray]:
        """Blocks whose mean squared length over the training rows is 1."""
        found, blocks = {}, kmer_features(sequences)
        for name, scaling in self.scaling.items():  # a run of before may know fewer blocks
            block, (mean, spread) = blocks[name], (np.asarray(each, np.float32) for each in scaling)
            found[name] = np.clip((block - mean) / spread, -FURTHEST, FURTHEST) / np.float32(np.sqrt(block.shape[1]))
        return found


def _squares(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Squared distances (these, those)."""
    lengths = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None]
    return np.asarray(np.maximum(lengths - 2 * one @ other.T, 0), np.float32)
