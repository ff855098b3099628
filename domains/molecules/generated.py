"""Molecules that are written: how samples are scored, and what a written molecule says about itself.

A row holds one molecule to be found likely, and gets one new molecule written. Valid: RDKit reads it. Unique: no earlier
sample is the same molecule. New: no training row is. Source: Polykovskiy et al. 2020, arXiv 1811.12823, section 4 (MOSES).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from domains.contract import Metric
from domains.molecules.chemistry import parsed
from trainers.contract import Predictions, as_objects

TASK, TARGET = "generation", "molecule"
COLUMNS = ("bits", "tokens", "valid", "new")
"""Of each answer: bits and tokens of the row's own molecule (NaN without one), and 0 or 1 of the one that was written."""


def predictions(written: Sequence[str], costs: np.ndarray, known: Collection[str]) -> Predictions:
    """Answers. costs: (rows, 2) bits and tokens.   known: canonical SMILES of the training rows."""
    canonical = [parsed(text).canonical for text in written]
    valid = np.array([bool(each) for each in canonical], np.float64)
    new = np.array([bool(each) and each not in known for each in canonical], np.float64)
    scores = np.column_stack([np.asarray(costs, np.float64).reshape(-1, 2), valid, new])
    return Predictions("text", as_objects(list(written)), scores, COLUMNS, ("",) * len(written))


def metrics() -> tuple[Metric, ...]:
    """Bits a token of held-out molecules decide; then shares of what was written: valid, of those unique, of those new."""
    return (
        Metric("bits_per_token", "bits", False, _stats, _bits_per_token),
        Metric("validity", "", True, _stats, lambda stats: _mean(stats[:, 2])),
        Metric("uniqueness", "", True, _stats, lambda stats: _mean(stats[stats[:, 2] > 0, 3])),
        Metric("novelty", "", True, _stats, lambda stats: _mean(stats[(stats[:, 2] > 0) & (stats[:, 3] > 0), 4])),
    )


def _stats(truth: np.ndarray, answers: Predictions) -> np.ndarray:
    """(rows, 5): bits, tokens, valid, first of its kind, new. Which sample is the first is settled here, once: drawing rows
    again for an interval must not make copies of them."""
    assert answers.scores is not None
    bits, tokens, valid, new = answers.scores.T
    seen: set[str] = set()
    first = []
    for text, is_valid in zip(answers.values, valid, strict=True):
        canonical = parsed(text).canonical if is_valid else ""
        first.append(bool(canonical) and canonical not in seen)
        seen.add(canonical)
    return np.column_stack([bits, tokens, valid, np.array(first, np.float64), new])


def _bits_per_token(stats: np.ndarray) -> float:
    has_one = np.isfinite(stats[:, 0])
    return float(stats[has_one, 0].sum() / stats[has_one, 1].sum()) if has_one.any() else float("nan")


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


class Draws:
    """A generator for each row: of its molecule and of how many rows with the same one came before, not of its place, so
    that the order of rows changes nothing and equal rows get different molecules."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.known: dict[str, int] = {}

    def begin(self, rows: Any) -> None:
        """Count the rows that are going to be answered."""
        seen: dict[str, int] = {}
        self.known = {}
        for name, smiles in zip(rows.ids, rows.column("smiles"), strict=True):
            self.known[str(name)] = seen[smiles] = seen.get(smiles, -1) + 1

    def of(self, rows: Any) -> list[np.random.Generator]:
        """One generator a row."""
        return [
            np.random.default_rng([self.seed, self.known.get(str(name), 0), *smiles.encode()])
            for name, smiles in zip(rows.ids, rows.column("smiles"), strict=True)
        ]
