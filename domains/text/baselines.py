"""The cheap strong rival of text models: weighted counts of words and pairs of words with a linear model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from domains.baselines import with_estimator
from domains.contract import Baseline
from trainers.contract import Predictions, known_labels

MOST_WORDS = 200_000
# Words as scikit-learn cuts them, single letters and emoji included: short texts have little else.
WORD = r"(?u)\b\w+\b|[^\w\s]"


def words(task: str) -> Baseline:
    """TF-IDF of words and pairs of words; logistic regression for classes, ridge for numbers."""
    model = "logistic regression" if task == "classification" else "ridge regression"
    return with_estimator(
        "tf-idf",
        f"TF-IDF of words and pairs of words, {model}",
        make=partial(_pipeline, task),
        features=_texts,
        task=task,
    )


def label_shares(classes: Sequence[str]) -> Baseline:
    """Each label with its share of the training rows as its probability."""

    def fit(train: Any) -> Callable[[Any], Predictions]:
        shares = np.nan_to_num(np.nanmean(known_labels(train.target(), classes), axis=0))
        return lambda rows: Predictions.of_label_sets(np.tile(shares, (len(rows), 1)), classes)

    return Baseline("label shares", "the share of each label in the training rows, whatever the text", fit)


def words_by_label(classes: Sequence[str]) -> Baseline:
    """TF-IDF of words and pairs of words, a logistic regression for each label on the rows where it is known."""

    def fit(train: Any) -> Callable[[Any], Predictions]:
        counts = _counts()
        matrix, has_label = counts.fit_transform(_texts(train)), known_labels(train.target(), classes)
        models = [_one_label(matrix, column) for column in has_label.T]

        def answer(rows: Any) -> Predictions:
            new = counts.transform(_texts(rows))
            return Predictions.of_label_sets(np.column_stack([model(new) for model in models]), classes)

        return answer

    return Baseline("tf-idf", "TF-IDF of words and pairs of words, logistic regression for each label", fit)


def _one_label(matrix: Any, has_label: np.ndarray) -> Callable[[Any], np.ndarray]:
    """Probability of one label, from the rows where it is known; their share where all of them agree."""
    from sklearn.linear_model import LogisticRegression

    known = np.isfinite(has_label)
    share = float(has_label[known].mean()) if known.any() else 0.0
    if share in (0.0, 1.0):
        return lambda new: np.full(new.shape[0], share)
    model = LogisticRegression(C=10.0, max_iter=1000).fit(matrix[known], has_label[known])
    return lambda new: np.asarray(model.predict_proba(new)[:, 1])


def _pipeline(task: str) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline

    if task == "regression":
        return make_pipeline(_counts(), Ridge(alpha=1.0))
    return make_pipeline(_counts(), LogisticRegression(C=10.0, max_iter=1000))


def _counts() -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        token_pattern=WORD, ngram_range=(1, 2), sublinear_tf=True, strip_accents="unicode", max_features=MOST_WORDS
    )


def _texts(rows: Any) -> list[str]:
    return [str(text) for text in rows.column("text")]
