"""Rows as the float32 matrix that boosted trees take. Everything fitted is in the schema, which `domains.tabular.data`
made from the training rows; it is stored as JSON beside the model.

A category is the position of its name in the stored list (NaN where unseen or missing), so that a row is encoded the same
whatever else is in its file. A date becomes days since 1970, year, month, weekday and, if the training rows had any, hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import Table
from trainers.contract import JSON

DATE_PARTS = ("days", "year", "month", "weekday")


@dataclass(frozen=True)
class Encoder:
    """columns: name -> schema entry, in the order of the training file."""

    columns: Mapping[str, JSON]

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the matrix columns."""
        return tuple(name for column, entry in self.columns.items() for name in _names(column, entry))

    @property
    def categorical(self) -> tuple[int, ...]:
        """Positions of the matrix columns that hold category numbers."""
        kinds = [entry["kind"] for column, entry in self.columns.items() for _ in _names(column, entry)]
        return tuple(position for position, kind in enumerate(kinds) if kind == "category")

    def matrix(self, rows: Table, dtype: Any = np.float32) -> np.ndarray:
        """(rows, features) of `dtype`, NaN where missing."""
        parts = [part for name, entry in self.columns.items() for part in _encoded(rows.column(name), entry)]
        matrix = np.empty((len(rows), len(parts)), dtype)
        for position, part in enumerate(parts):
            matrix[:, position] = part
        return matrix

    def as_json(self) -> JSON:
        """The state as plain values; `Encoder(**state)` makes it again."""
        return {"columns": dict(self.columns)}


def _names(column: str, entry: JSON) -> list[str]:
    if entry["kind"] != "date":
        return [column]
    return [f"{column} ({part})" for part in (*DATE_PARTS, *(["hour"] if entry["hours"] else []))]


def _encoded(values: pd.Series, entry: JSON) -> list[np.ndarray]:
    if entry["kind"] == "number":
        return [values.to_numpy(np.float64, na_value=np.nan)]
    if entry["kind"] == "date":
        return _date_parts(values, hours=entry["hours"])
    return [category_numbers(values, entry["categories"])]


def category_numbers(values: pd.Series, known: list[str]) -> np.ndarray:
    """(rows,) position of each category in `known`, NaN for others. values: Categorical; its own list may differ."""
    # Look up each distinct name once; the extra last place answers code -1, which is missing.
    places = pd.Index(known, dtype=object).get_indexer(values.cat.categories.astype(object))
    numbers = np.append(np.where(places < 0, np.nan, places), np.nan)
    return numbers[values.cat.codes.to_numpy()]


def _date_parts(values: pd.Series, *, hours: bool) -> list[np.ndarray]:
    day = pd.Timedelta(days=1)
    parts: list[Any] = [(values - pd.Timestamp(0)) / day, values.dt.year, values.dt.month, values.dt.weekday]
    if hours:
        parts.append(values.dt.hour + values.dt.minute / 60)
    return [part.to_numpy(np.float64, na_value=np.nan) for part in parts]
