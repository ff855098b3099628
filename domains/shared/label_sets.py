"""Several labels a row: one column of lists, or a column of 0 and 1 for each label. A row's target is a tuple of names; what
nobody knows of is in it as "NAME?" (`trainers.contract.known_labels`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import pandas as pd

from domains.contract import Doubt
from domains.shared.cells import as_numbers, plain_text
from domains.shared.frames import choose_column
from domains.shared.targets import MAX_CLASSES
from trainers.contract import UNKNOWN, as_objects
from trainers.errors import DataError, did_you_mean

SEPARATORS = (";", "|")


@dataclass(frozen=True)
class LabelSets:
    """values: (rows,) a tuple of names each, None where `reasons` says why there is none.   notices: what was decided."""

    values: np.ndarray
    reasons: dict[int, str]
    notices: tuple[str, ...]


def target_columns(frame: pd.DataFrame, target: str, where: str = "") -> list[str]:
    """The columns that `--target` names: one, or several with commas between. Raises DataError for an unknown one."""
    if target in frame.columns:
        return [target]
    names = [name.strip() for name in target.split(",") if name.strip()]
    return [choose_column(frame, name, where, "--target") for name in dict.fromkeys(names)]


def read_label_sets(frame: pd.DataFrame, target: str, *, classes: Sequence[str] = (), where: str = "") -> LabelSets:
    """The labels of every row. classes: where given, others are unknown and make a row unusable.

    Raises DataError for fewer than two labels, or so many that they look like texts.
    """
    columns = target_columns(frame, target, where)
    found = _from_lists(frame[columns[0]]) if len(columns) == 1 else _from_flags(frame[columns])
    names = sorted(
        {name.removesuffix(UNKNOWN) if len(columns) > 1 else name for row in found.values for name in row or ()}
    )
    if not classes and len(names) < 2 and len(columns) < 2:
        raise DataError(
            f"{where}: target {target!r} holds {len(names)} label{'s' * (len(names) != 1)}; several are needed. Cells hold "
            f"labels with {' or '.join(SEPARATORS)} between, or a JSON list; or name columns of 0 and 1: --target a,b,c."
        )
    if not classes and len(names) > MAX_CLASSES:
        raise DataError(
            f"{where}: target {target!r} holds {len(names):,} labels, at most {MAX_CLASSES:,} can be learned."
        )
    if not classes:
        return found
    reasons = dict(found.reasons)
    for i, row in enumerate(found.values):
        odd = next(
            (name for name in row or () if name.removesuffix(UNKNOWN) not in classes and name not in classes), None
        )
        if odd is not None:
            reasons[i] = f"label {odd!r} was not in the training data.{did_you_mean(odd, classes)}"
    return LabelSets(found.values, reasons, found.notices)


def label_names(values: np.ndarray, target: str, columns: Sequence[str] = ()) -> tuple[str, ...]:
    """All labels there are, sorted; of columns of 0 and 1 their names. Raises DataError for fewer than two."""
    names = tuple(columns) if len(columns) > 1 else tuple(sorted({name for row in values for name in row}))
    if len(names) < 2:
        raise DataError(f"target {target!r}: only {len(names)} label in the training rows. Use --task classification.")
    return names


def rarest_labels(values: np.ndarray) -> np.ndarray:
    """(rows,) of each row the label that the fewest rows have, "" where it has none: what a split keeps even."""
    counts = Counter(name for row in values for name in row)
    return np.array([min(row, key=lambda name: (counts[name], name), default="") for row in values], dtype=object)


def _from_lists(cells: pd.Series) -> LabelSets:
    texts = [None if pd.isna(cell) else plain_text(cell).strip() for cell in cells]
    separator = max(SEPARATORS, key=lambda each: sum(each in text for text in texts if text))
    values: list[tuple[str, ...] | None] = []
    reasons: dict[int, str] = {}
    for i, text in enumerate(texts):
        found = (
            _listed(text) if text and text.startswith("[") else [part.strip() for part in (text or "").split(separator)]
        )
        if found is None:
            reasons[i] = f"target {cells.name!r} is {text!r}, no JSON list of texts"
        values.append(None if found is None else tuple(sorted({name for name in found if name})))
    num_empty = sum(text is None or text == "" for text in texts)
    notices = [f"{num_empty:,} rows have nothing in {cells.name!r}: they count as having no label"] if num_empty else []
    notices += _joined_labels({name for row in values for name in row or ()}, separator)
    return LabelSets(as_objects(values), reasons, tuple(notices))


def _joined_labels(names: Set[str], separator: str) -> list[str]:
    """A doubt about labels that look like several: "a, b" where "a" and "b" are labels, too."""
    marks = {*SEPARATORS, ","} - {separator}
    joined = [n for n in sorted(names) if any(m in n and names >= {part.strip() for part in n.split(m)} for m in marks)]
    if not joined:
        return []
    return [
        Doubt(f"label {joined[0]!r} looks like several, as its parts are labels, too: put {separator!r} between them")
    ]


def _listed(text: str) -> list[str] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_plain = isinstance(found, list) and all(isinstance(each, str | int) for each in found)
    return [str(each).strip() for each in found] if is_plain else None


def _from_flags(frame: pd.DataFrame) -> LabelSets:
    reasons: dict[int, str] = {}
    flags = np.full(frame.shape, np.nan)
    for column, name in enumerate(frame.columns):
        numbers, strays = as_numbers(frame[name].map({True: 1, False: 0}) if frame[name].dtype == bool else frame[name])
        flags[:, column] = numbers
        for i in np.flatnonzero(strays | (np.isfinite(numbers) & ~np.isin(numbers, (0, 1)))):
            reasons.setdefault(int(i), f"target {name!r} is {str(frame[name].iloc[i])!r}, neither 0 nor 1")
    for i in np.flatnonzero(np.isnan(flags).all(axis=1)):
        reasons.setdefault(int(i), f"no value in any target column ({', '.join(map(str, frame.columns))})")
    num_unknown = int(np.isnan(flags).sum())
    notices = (f"{num_unknown:,} labels are unknown (empty cells): they are neither learned from nor scored",) * bool(
        num_unknown
    )
    return LabelSets(as_objects([_named(row, list(frame.columns)) for row in flags]), reasons, notices)


def _named(row: np.ndarray, names: list[str]) -> tuple[str, ...]:
    """The labels of a row of 0, 1 and NaN."""
    marked = ((name + UNKNOWN if np.isnan(flag) else name, flag) for flag, name in zip(row, names, strict=True))
    return tuple(name for name, flag in marked if flag != 0)
