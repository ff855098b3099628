"""The cheap strong rival of text models: weighted counts of words and pairs of words with a linear model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from domains.baselines import by_label, with_estimator
from domains.contract import Baseline

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


def words_by_label(classes: Sequence[str]) -> Baseline:
    """TF-IDF of words and pairs of words, a logistic regression for each label on the rows where it is known."""

    def features(train: Any) -> tuple[Any, Callable[[Any], Any]]:
        counts = _counts()
        return counts.fit_transform(_texts(train)), lambda rows: counts.transform(_texts(rows))

    about = "TF-IDF of words and pairs of words, logistic regression for each label"
    return by_label("tf-idf", about, classes, features)


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
