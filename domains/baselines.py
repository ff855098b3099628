"""The rivals every data type has: the answer that ignores the features, and any scikit-learn model on a feature matrix."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from domains.contract import Baseline
from trainers.contract import Predictions, known_labels


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


def label_shares(classes: Sequence[str]) -> Baseline:
    """Each of several labels with its share of the training rows as its probability."""

    def fit(train: Any) -> Callable[[Any], Predictions]:
        shares = np.nan_to_num(np.nanmean(known_labels(train.target(), classes), axis=0))
        return lambda rows: Predictions.of_label_sets(np.tile(shares, (len(rows), 1)), classes)

    return Baseline("label shares", "the share of each label in the training rows, whatever the row", fit)


def by_label(
    name: str,
    about: str,
    classes: Sequence[str],
    features: Callable[[Any], tuple[Any, Callable[[Any], Any]]],
    *,
    C: float = 10.0,
) -> Baseline:
    """A logistic regression for each label on the rows where it is known.

    features(train) -> the matrix of the training rows, and what makes the matrix of new rows.   C: as in scikit-learn.
    """

    def fit(train: Any) -> Callable[[Any], Predictions]:
        matrix, of_rows = features(train)
        models = [_one_label(matrix, column, C) for column in known_labels(train.target(), classes).T]

        def answer(rows: Any) -> Predictions:
            new = of_rows(rows)
            return Predictions.of_label_sets(np.column_stack([model(new) for model in models]), classes)

        return answer

    return Baseline(name, about, fit)


def _one_label(matrix: Any, has_label: np.ndarray, C: float) -> Callable[[Any], np.ndarray]:
    """Probability of one label, from the rows where it is known; their share where all of them agree."""
    from sklearn.linear_model import LogisticRegression

    known = np.isfinite(has_label)
    share = float(has_label[known].mean()) if known.any() else 0.0
    if share in (0.0, 1.0):
        return lambda new: np.full(new.shape[0], share)
    model = LogisticRegression(C=C, max_iter=1000).fit(matrix[known], has_label[known])
    return lambda new: np.asarray(model.predict_proba(new)[:, 1])


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
