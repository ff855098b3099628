"""The rivals of networks over pairs of a molecule and a protein: what each half does on average, and a forest on both.

Unlike networks, the first knows nothing of a molecule or protein that it has not met; it shows what no interaction explains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np

from domains.contract import Baseline, Facts
from domains.molecules.baselines import NUM_TREES, ecfp, fit_forest
from domains.shared.proteins.residues import STANDARD
from trainers.contract import Predictions

MOST_ROWS = 20_000
"""Training pairs of the forest, drawn from a seed; 100 trees on 1,444 features."""
NUM_SWEEPS = 20
PAIRS = {first + second: place for place, (first, second) in enumerate(product(STANDARD, STANDARD))}


def additive(classes: Sequence[str]) -> Baseline:
    """The mean, plus what the molecule, plus what the protein differs from it: least squares by turns (backfitting)."""

    def fit(train: Any) -> Callable[[Any], Predictions]:
        values = _columns(train.target(), classes)
        mean = values.mean(axis=0)
        molecules, proteins = (_Effects(train.column(name).tolist()) for name in ("smiles", "sequence"))
        for _ in range(NUM_SWEEPS):
            molecules.fit(values - mean - proteins.fitted)
            proteins.fit(values - mean - molecules.fitted)

        def answer(rows: Any) -> Predictions:
            found = mean + molecules.of(rows.column("smiles").tolist()) + proteins.of(rows.column("sequence").tolist())
            return _answers(found, classes)

        return answer

    return Baseline("additive", "mean of the molecule plus mean of the protein, where they were seen", fit)


class _Effects:
    """What each of several names adds, for every column; a name that was not seen adds nothing."""

    def __init__(self, names: Sequence[str]) -> None:
        distinct, self.code = np.unique(np.array(names, dtype=str), return_inverse=True)
        self.place = {name: at for at, name in enumerate(distinct.tolist())}
        self.values = np.zeros((len(distinct), 1))
        self.fitted: np.ndarray = np.zeros(1)

    def fit(self, left: np.ndarray) -> None:
        """left: (rows, columns) what the other effects leave over."""
        self.values = np.zeros((len(self.place), left.shape[1]))
        np.add.at(self.values, self.code, left)
        self.values /= np.bincount(self.code)[:, None]
        self.fitted = self.values[self.code]

    def of(self, names: Sequence[str]) -> np.ndarray:
        """(names, columns)."""
        nothing = np.zeros(self.values.shape[1])
        return np.array([self.values[self.place[name]] if name in self.place else nothing for name in names])


def _columns(target: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """(rows, 1) numbers, or (rows, classes) 0 and 1."""
    if not classes:
        return np.asarray(target, np.float64)[:, None]
    return np.asarray(target.astype(str)[:, None] == np.array(classes)[None], np.float64)


def _answers(found: np.ndarray, classes: Sequence[str]) -> Predictions:
    if not classes:
        return Predictions.of_numbers(found[:, 0])
    shares = np.clip(found, 1e-6, None)
    return Predictions.of_labels(shares / shares.sum(axis=1, keepdims=True), classes)


def pair_forest(facts: Facts) -> Baseline:
    """A random forest on ECFP4 counts of the molecule and shares of residues and their pairs in the protein."""

    def fit(train: Any) -> Callable[[Any], Predictions]:
        if len(train) > MOST_ROWS:
            train = train.take(np.sort(np.random.default_rng(0).choice(len(train), MOST_ROWS, replace=False)))
        return fit_forest(train, facts, pair_features)

    about = f"ECFP4 fingerprints, shares of residues and residue pairs; random forest of {NUM_TREES} trees"
    return Baseline("ecfp + composition forest", f"{about}, on {MOST_ROWS:,} pairs at most", fit)


def pair_features(rows: Any) -> np.ndarray:
    """(rows, 1024 + 20 + 400) float32."""
    distinct, code = np.unique(rows.column("sequence").to_numpy(object).astype(str), return_inverse=True)
    return np.concatenate([ecfp(rows), np.stack([composition(each) for each in distinct])[code]], axis=1)


def composition(sequence: str) -> np.ndarray:
    """(20 + 400,) float32: shares of the standard residues, and of pairs of neighbours."""
    singles = np.array([sequence.count(letter) for letter in STANDARD], np.float32)
    pairs = np.zeros(len(PAIRS), np.float32)
    for first, second in pairwise(sequence):
        if (place := PAIRS.get(first + second)) is not None:
            pairs[place] += 1
    return np.concatenate([singles / max(1, len(sequence)), pairs / max(1, len(sequence) - 1)])
