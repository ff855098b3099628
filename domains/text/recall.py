"""Cheap rivals of models that write: the source text as it is, and what was written for the most similar source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from domains.contract import Baseline
from trainers.contract import Predictions

_AT_ONCE = 1024


def copied() -> Baseline:
    """The source text itself."""
    return Baseline("copy", "the source text as it is", lambda train: lambda rows: Predictions.of_texts(_sources(rows)))


def remembered() -> Baseline:
    """The target of the training row whose source is nearest by TF-IDF of words."""
    return Baseline("nearest", "the target of the training row with the most similar source (TF-IDF)", _remember)


def _remember(train: Any) -> Callable[[Any], Predictions]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b|[^\w\s]")
    known, targets = words.fit_transform(_sources(train)), list(train.target())

    def answer(rows: Any) -> Predictions:
        asked, found = words.transform(_sources(rows)), []
        for start in range(0, len(rows), _AT_ONCE):
            near = (asked[start : start + _AT_ONCE] @ known.T).toarray().argmax(axis=1)
            found += [targets[i] for i in near]
        return Predictions.of_texts(found)

    return answer


def _sources(rows: Any) -> list[str]:
    return [str(text) for text in rows.column("source")]
