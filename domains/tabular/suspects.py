"""Columns of a table that somebody should look at before training: ids, constants, copies of the target, hidden groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from domains.tabular.columns import described, gives_away

FEWEST_VALUES = 10
"""Fewer values may each have one target by chance."""


def looked_through(features: pd.DataFrame, target: np.ndarray, *, known: Sequence[str | None]) -> dict[str, str]:
    """Why a column is suspicious, by column. known: columns whose role is known."""
    found = {}
    for name in (str(column) for column in features.columns if column not in known):
        entry, reason = described(features[name])
        reason = reason if entry is None else gives_away(features[name], target) or hidden_group(features[name], target)
        if reason:
            found[name] = reason
    return found


def hidden_group(values: pd.Series, target: np.ndarray) -> str:
    """Why the column looks as if it named groups whose rows share their target ("" if it does not): with such rows on both
    sides of a split the answer is remembered. target: class names or numbers, which must repeat within every value."""
    code, names = pd.factorize(values)
    if not FEWEST_VALUES <= len(names) <= (code >= 0).sum() / 2:
        return ""
    rows = pd.DataFrame({"code": code, "target": target})[code >= 0]
    repeats = rows.groupby("code")["target"].agg(["size", "nunique"])
    repeats = repeats[repeats["size"] > 1]
    if len(repeats) < FEWEST_VALUES or (repeats["nunique"] > 1).any() or rows["target"].nunique() < 2:
        return ""
    return (
        f"rows with the same value of it always have the same target ({len(repeats):,} values repeat): if it names what was "
        "measured several times, say --group"
    )
