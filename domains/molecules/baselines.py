"""The rivals of molecule models: shares and means, and ECFP4 fingerprints with a random forest (scikit-learn).

With missing labels each target has a forest of its own, on the rows where it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from domains.contract import Baseline, Facts
from domains.molecules.fingerprints import feature_matrix
from domains.molecules.targets import MULTILABEL, MULTIREGRESSION
from trainers.contract import Predictions, known_labels

NUM_TREES = 100
RADIUS, NUM_BITS = 2, 1024


def shares(classes: Sequence[str]) -> Baseline:
    """Each label with its share of the training rows where it is known as its probability."""

    def fit(train: Any) -> Callable[[Any], Predictions]:
        known = known_labels(train.target(), classes)
        counts = np.isfinite(known).sum(axis=0)
        found = np.nansum(known, axis=0) / np.maximum(counts, 1)
        return lambda rows: Predictions.of_label_sets(np.tile(found, (len(rows), 1)), classes)

    return Baseline("label shares", "the share of each label in the training rows, whatever the molecule", fit)


def means() -> Baseline:
    """Each number by its mean over the training rows where it is known."""

    def fit(train: Any) -> Callable[[Any], Predictions]:
        known = np.array(train.target().tolist(), np.float64)
        found = np.nansum(known, axis=0) / np.maximum(np.isfinite(known).sum(axis=0), 1)
        names = train.context["targets"]
        return lambda rows: Predictions.of_number_rows(np.tile(found, (len(rows), 1)), names)

    return Baseline("mean", "the mean of each target over the training rows", fit)


def forest(facts: Facts) -> Baseline:
    """Random forest of 100 trees on ECFP4 counts, one for each of several targets."""
    about = f"ECFP4 fingerprints, random forest of {NUM_TREES} trees"
    return Baseline("ecfp forest", about, lambda train: fit_forest(train, facts, ecfp))


def fit_forest(train: Any, facts: Facts, features: Callable[[Any], np.ndarray]) -> Callable[[Any], Predictions]:
    """The forest, fitted on what `features(rows)` returns: (rows, features)."""
    matrix = features(train)
    answers = [_fitted(matrix, column, facts) for column in _targets(train.target(), facts)]
    return lambda rows: _predictions([answer(features(rows)) for answer in answers], facts)


def ecfp(rows: Any) -> np.ndarray:
    """(rows, bits) float32 counts."""
    return feature_matrix(rows.column("smiles").tolist(), ["ecfp"], radius=RADIUS, num_bits=NUM_BITS)


def _targets(target: np.ndarray, facts: Facts) -> list[np.ndarray]:
    """A column for each forest: class names, or 0, 1 and NaN, or numbers."""
    if facts.task == MULTILABEL:
        return list(known_labels(target, facts.classes).T)
    if facts.task == MULTIREGRESSION:
        return list(np.array(target.tolist(), np.float64).T)
    return [target.astype(str) if facts.task == "classification" else target]


def _fitted(matrix: np.ndarray, column: np.ndarray, facts: Facts) -> Callable[[np.ndarray], np.ndarray]:
    """rows -> (rows, classes) probabilities of class names, else (rows,) the probability of 1 or a number."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    if facts.task == "classification":
        model = RandomForestClassifier(NUM_TREES, random_state=0).fit(matrix, column)
        return lambda new: _in_order(model, new, facts.classes)
    known = np.isfinite(column)
    if len(np.unique(column[known])) < 2:
        value = float(column[known].mean()) if known.any() else 0.0
        return lambda new: np.full(len(new), value)
    kind = RandomForestClassifier if facts.task == MULTILABEL else RandomForestRegressor
    options = {"max_features": 1 / 3} if kind is RandomForestRegressor else {}
    chosen = kind(NUM_TREES, random_state=0, **options).fit(matrix[known], column[known])
    return lambda new: chosen.predict_proba(new)[:, 1] if facts.task == MULTILABEL else chosen.predict(new)


def _in_order(model: Any, new: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    found = np.zeros((len(new), len(classes)))
    found[:, [classes.index(str(name)) for name in model.classes_]] = model.predict_proba(new)
    return found


def _predictions(answers: Sequence[np.ndarray], facts: Facts) -> Predictions:
    if facts.task == "classification":
        return Predictions.of_labels(answers[0], facts.classes)
    if facts.task == MULTILABEL:
        return Predictions.of_label_sets(np.column_stack(answers), facts.classes)
    if facts.task == MULTIREGRESSION:
        return Predictions.of_number_rows(np.column_stack(answers), facts.schema["targets"])
    return Predictions.of_numbers(answers[0])
