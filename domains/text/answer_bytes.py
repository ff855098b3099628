"""Rivals of models that answer: frequencies of bytes, alone and after the bytes before them, the prompt's included.

What they are asked is what language models are asked: how many bits each answer costs, its end included.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from domains.contract import Baseline
from trainers.contract import Predictions

END = 256
"""The symbol behind the last byte; it counts as a byte."""
ORDER = 5
MOST_BYTES = 2_000_000
"""Of training text that is counted: about ten seconds of it."""


class ByteModel:
    """Frequencies of bytes after up to `order` bytes, mixed from the longest context to none.

    The share of a context against the next shorter one grows with what was seen in it, and falls with how many different
    bytes followed (Witten & Bell 1991, method C, as interpolated in Chen & Goodman 1999, section 2.6).
    """

    def __init__(self, order: int) -> None:
        self.order = order
        self.counts: defaultdict[bytes, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.totals: defaultdict[bytes, int] = defaultdict(int)

    def add(self, before: bytes, text: bytes) -> None:
        """Count `text` and its end, as they follow `before`."""
        for context, symbol in _places(before, text, self.order):
            for start in range(len(context) + 1):
                self.counts[context[start:]][symbol] += 1
                self.totals[context[start:]] += 1

    def bits(self, before: bytes, text: bytes) -> float:
        """What `text` and its end cost after `before`."""
        return -sum(math.log2(self.share(*place)) for place in _places(before, text, self.order))

    def share(self, context: bytes, symbol: int) -> float:
        """The probability of `symbol` after `context`; never 0, and over all symbols they add up to 1."""
        found = 1 / (END + 1)
        for start in range(len(context), -1, -1):
            if followers := self.counts.get(context[start:]):
                seen, kinds = self.totals[context[start:]], len(followers)
                found = (followers.get(symbol, 0) + kinds * found) / (seen + kinds)
        return found


def byte_rivals(texts: Callable[[Any], Iterable[tuple[str, str]]]) -> tuple[Baseline, ...]:
    """Two baselines. texts(rows): of each row what comes before, and what is to be predicted."""
    return (
        Baseline("bytes", "how frequent each byte is in the training answers", lambda rows: _fitted(rows, 0, texts)),
        Baseline(
            "byte-ngrams",
            f"how frequent each byte is after the {ORDER} bytes before it, mixed with shorter contexts",
            lambda rows: _fitted(rows, ORDER, texts),
        ),
    )


def _fitted(train: Any, order: int, texts: Callable[[Any], Iterable[tuple[str, str]]]) -> Callable[[Any], Predictions]:
    model, num_bytes = ByteModel(order), 0
    for before, text in texts(train):
        model.add(before.encode(), text.encode())
        num_bytes += len(text)
        if num_bytes > MOST_BYTES:
            break
    return lambda rows: Predictions.of_numbers(
        np.array([model.bits(before.encode(), text.encode()) for before, text in texts(rows)])
    )


def _places(before: bytes, text: bytes, order: int) -> Iterable[tuple[bytes, int]]:
    whole = before[-order:] + text if order else text
    offset = len(whole) - len(text)
    for at, symbol in enumerate((*text, END), start=offset):
        yield whole[max(0, at - order) : at], symbol
