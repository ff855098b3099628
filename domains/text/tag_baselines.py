"""Cheap rivals of taggers: no entity anywhere, and a linear model of words, their shapes and their neighbours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from domains.contract import Baseline
from domains.text.tags import OUTSIDE, best_tags
from trainers.contract import Predictions

NUM_FEATURES = 2**20
MOST_AFFIX = 4
"""Letters of the longest prefix and suffix that count."""
_SMALLEST = 1e-12
_RUNS = re.compile(r"(.)\1+")


def all_outside(classes: Sequence[str]) -> Baseline:
    """No entity anywhere."""

    def fit(train: Any) -> Callable[[Any], Predictions]:
        return lambda rows: Predictions.of_tags([[OUTSIDE] * len(words) for words in rows.column("words")], classes)

    return Baseline("outside", f"every word is tagged {OUTSIDE}", fit)


def word_features(classes: Sequence[str]) -> Baseline:
    """Logistic regression on the forms of a word and of its neighbours, decoded to tags that are well formed."""

    def fit(train: Any) -> Callable[[Any], Predictions]:
        from sklearn.feature_extraction import FeatureHasher
        from sklearn.linear_model import SGDClassifier

        hasher = FeatureHasher(NUM_FEATURES, input_type="string", alternate_sign=False)
        # Averaged stochastic descent: hundreds of thousands of words would take a batch solver minutes.
        model = SGDClassifier(loss="log_loss", alpha=1e-5, max_iter=20, average=True, tol=None, random_state=0)
        model.fit(
            hasher.transform(features(train.column("words"))), np.concatenate(list(map(np.array, train.target())))
        )
        known = [str(name) for name in model.classes_]

        def answer(rows: Any) -> Predictions:
            words = list(rows.column("words"))
            shares = model.predict_proba(hasher.transform(features(words))) if words else np.empty((0, len(known)))
            logs = np.split(np.log(np.clip(shares, _SMALLEST, None)), np.cumsum([len(each) for each in words])[:-1])
            return Predictions.of_tags([best_tags(each, known) for each in logs[: len(words)]], classes)

        return answer

    return Baseline("word features", "logistic regression on forms of a word and its neighbours", fit)


def features(sentences: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """What is known of each word, sentence after sentence."""
    for words in sentences:
        padded = ["<", *words, ">"]
        for at in range(1, len(padded) - 1):
            yield [*_of_word(padded[at]), *_of_neighbour(padded[at - 1], "-1"), *_of_neighbour(padded[at + 1], "+1")]


def shape_of(word: str) -> str:
    """What a word looks like: McDonald's -> XxXx'x, 3,000 -> 0,0."""
    shape = "".join("X" if c.isupper() else "x" if c.islower() else "0" if c.isdigit() else c for c in word)
    return _RUNS.sub(r"\1", shape)


def _of_word(word: str) -> Iterator[str]:
    lower = word.lower()
    yield from ("bias", f"form={word}", f"word={lower}", f"shape={shape_of(word)}")
    for length in range(1, min(MOST_AFFIX, len(lower)) + 1):
        yield f"starts={lower[:length]}"
        yield f"ends={lower[-length:]}"


def _of_neighbour(word: str, where: str) -> Iterator[str]:
    yield f"word{where}={word.lower()}"
    yield f"shape{where}={shape_of(word)}"
