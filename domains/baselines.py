"""The rivals every data type has: the answer that ignores the features, and any scikit-learn model on a feature matrix."""

from collections.abc import Callable
from typing import Any

import numpy as np

from domains.contract import Baseline
from trainers.contract import Predictions


def trivial(task: str) -> Baseline:
    """The most frequent class with the class shares as probabilities, or the mean of the target."""
    if task == "classification":
        return Baseline("majority", "always the most frequent class of the training rows", _fit_majority)
    return Baseline("mean", "always the mean of the training rows", _fit_mean)


def with_estimator(
    name: str, about: str, *, make: Callable[[], Any], features: Callable[[Any], Any], task: str
) -> Baseline:
    """A scikit-learn estimator on what `features(rows)` returns: a matrix, a frame or a list of texts.

    make() returns a fresh estimator with predict_proba (classification) or predict (regression); everything that it
    fits, it fits on the training rows.
    """

    def fit(train: Any) -> Callable[[Any], Predictions]:
        estimator = make().fit(features(train), train.target())
        return lambda rows: _answers(estimator, features(rows), task)

    return Baseline(name, about, fit)


def _answers(estimator: Any, matrix: Any, task: str) -> Predictions:
    if task == "classification":
        return Predictions.of_labels(estimator.predict_proba(matrix), [str(name) for name in estimator.classes_])
    return Predictions.of_numbers(np.asarray(estimator.predict(matrix)))


def _fit_majority(train: Any) -> Callable[[Any], Predictions]:
    names, counts = np.unique(train.target().astype(str), return_counts=True)
    shares = counts / counts.sum()
    return lambda rows: Predictions.of_labels(np.tile(shares, (len(rows), 1)), names.tolist())


def _fit_mean(train: Any) -> Callable[[Any], Predictions]:
    mean = float(np.mean(train.target()))
    return lambda rows: Predictions.of_numbers(np.full(len(rows), mean))
