"""N-grams over the tokens of SMILES: the cheap rival of a language model that writes molecules.

Witten-Bell smoothing (Chen & Goodman 1999, 10.1006/csla.1999.0128, section 2.6): behind a context the next token is as in
training with weight count, and as behind the shorter context with weight (kinds of tokens that followed).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from domains.contract import Baseline
from domains.molecules.chemistry import PATTERN
from domains.molecules.generated import Draws, predictions
from trainers.contract import Predictions

END = ""
MOST_TOKENS = 200


class NGram:
    """order: tokens of a gram; 1 looks at no context. Tokens never seen share one place."""

    def __init__(self, texts: Sequence[str], order: int) -> None:
        self.order = order
        self.counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for text in texts:
            for context, token in self._grams([*re.findall(PATTERN, text), END]):
                for start in range(len(context) + 1):
                    self.counts[context[start:]][token] += 1
        self.vocabulary = sorted(self.counts[()])
        self.place = {token: at for at, token in enumerate(self.vocabulary)}
        self.cache: dict[tuple[str, ...], np.ndarray] = {}

    def _grams(self, tokens: Sequence[str]) -> list[tuple[tuple[str, ...], str]]:
        return [(tuple(tokens[max(0, at - self.order + 1) : at]), token) for at, token in enumerate(tokens)]

    def shares(self, context: tuple[str, ...]) -> np.ndarray:
        """(vocabulary + 1,) probability of each token behind `context`; the last one: a token never seen."""
        if context not in self.cache:
            shorter = self.shares(context[1:]) if context else np.full(len(self.vocabulary) + 1, 1.0)
            shorter = shorter / shorter.sum()
            found = self.counts.get(context, Counter())
            own = np.zeros(len(shorter))
            own[[self.place[token] for token in found]] = list(found.values())
            self.cache[context] = (own + len(found) * shorter) / (own.sum() + len(found)) if found else shorter
        return self.cache[context]

    def cost(self, text: str) -> tuple[float, int]:
        """Bits of a text, its end included, and its tokens; NaN and 0 of an empty one."""
        if not text:
            return float("nan"), 0
        grams = self._grams([*re.findall(PATTERN, text), END])
        return -float(sum(np.log2(self.shares(c)[self.place.get(t, -1)]) for c, t in grams)), len(grams)

    def written(self, rng: np.random.Generator) -> str:
        """A text drawn token by token."""
        tokens: list[str] = []
        while len(tokens) < MOST_TOKENS:
            shares = self.shares(tuple(tokens[max(0, len(tokens) - self.order + 1) :]))[:-1]
            token = self.vocabulary[int(np.searchsorted(shares.cumsum(), rng.random() * shares.sum()))]
            if token == END:
                break
            tokens.append(token)
        return "".join(tokens)


def rival(order: int, seed: int = 0) -> Baseline:
    """N-grams of this order as a baseline."""

    def fit(train: Any) -> Callable[[Any], Predictions]:
        smiles = train.column("smiles").tolist()
        model, known, draws = NGram(smiles, order), frozenset(smiles), Draws(seed)

        def predict(rows: Any) -> Predictions:
            draws.begin(rows)
            costs = [model.cost(text) for text in rows.column("smiles")]
            return predictions([model.written(rng) for rng in draws.of(rows)], np.array(costs), known)

        return predict

    about = "tokens by their share alone" if order == 1 else f"the token behind {order - 1} others, Witten-Bell"
    return Baseline(f"{order}-grams", about, fit)
