"""What the target column means: classes or numbers, their names, and the rows whose target cannot be used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from domains.contract import BadRow
from domains.shared.cells import as_numbers, plain_text
from trainers.errors import DataError, UsageError, did_you_mean

TASKS = ("classification", "regression")
MAX_WHOLE_CLASSES = 20
LARGEST = 1e18
"""Squares of larger numbers leave float32, in which trees and networks compute."""
MAX_CLASSES = 1000
# A text column with so many numbers is a column of numbers with a few strays, not classes.
MOSTLY_NUMBERS = 0.9
_WITH_COMMAS = r"\s*[-+]?[\d.]*\d,\d[\d,.]*\s*"

_WORDS_FOR_NONE = " (cells like NA, None and null count as empty: give a class of such a name another one)"


def infer_task(values: pd.Series, task: str | None = None, *, comma: bool = False) -> tuple[str, str]:
    """The task that a target column asks for, and a notice where that was a judgement ('' where it was not).

    Text, bool and category: classification. Whole numbers with at most 20 distinct values, each on three rows or more:
    the same, said aloud unless there are two. Other numbers: regression. A given `task` is only checked.
    Raises UsageError for an unknown task, DataError if the values look like names of rows.
    """
    if task is not None and task not in TASKS:
        raise UsageError(f"--task {task}: unknown task.{did_you_mean(task, TASKS)} Known: {', '.join(TASKS)}.")
    chosen, notice = (task, "") if task else _guess_task(values, comma)
    if chosen == "classification":
        _refuse_names(values)
    else:
        _refuse_words(values, comma)
    return chosen, notice


def _guess_task(values: pd.Series, comma: bool) -> tuple[str, str]:
    present = values.dropna()
    if not pd.api.types.is_numeric_dtype(values.dtype):
        _, strays = as_numbers(present, comma=comma)
        if len(present) and 0 < strays.sum() <= (1 - MOSTLY_NUMBERS) * len(present):
            return "regression", f"target {values.name!r} is taken as numbers, though {strays.sum():,} cells hold none"
        return "classification", ""
    if pd.api.types.is_bool_dtype(values.dtype):
        return "classification", ""
    whole = bool(np.equal(np.mod(present[np.isfinite(present)], 1), 0).all())
    distinct = present.nunique()
    if not whole or distinct > MAX_WHOLE_CLASSES or (distinct > 2 and distinct > len(present) / 3):
        return "regression", ""
    if distinct <= 2:
        return "classification", ""
    return "classification", (
        f"target {values.name!r} holds {distinct} distinct whole numbers and is taken as classes. "
        "If it measures an amount, say --task regression."
    )


def _refuse_names(values: pd.Series) -> None:
    num_classes, num_rows = values.nunique(), int(values.notna().sum())
    if num_classes > MAX_CLASSES or (num_classes > 2 and num_classes > num_rows / 2):
        texts = values.dropna().astype(str)
        if texts.str.fullmatch(_WITH_COMMAS).mean() > MOSTLY_NUMBERS:
            shown = ", ".join(map(repr, texts.unique()[:3]))
            raise DataError(
                f"target {values.name!r} holds numbers written with commas ({shown}), which may mean thousands or "
                "decimals. Write them with a point and without separators."
            )
        raise DataError(
            f"target {values.name!r}: {num_classes:,} distinct values in {num_rows:,} rows look like names of rows, "
            "not like classes. Choose another column with --target, or say --task regression if they are numbers."
        )


def _refuse_words(values: pd.Series, comma: bool) -> None:
    present = values.dropna()
    if len(present) and as_numbers(present, comma=comma)[1].all():
        shown = ", ".join(repr(str(value)) for value in present.unique()[:3])
        raise DataError(
            f"target {values.name!r} holds no numbers ({shown}), so it cannot be predicted by regression. "
            "Say --task classification, or choose another column with --target."
        )


def label_texts(values: pd.Series) -> np.ndarray:
    """(rows,) class name of each row as text, as in the file: 3 -> "3", 1.0 -> "1", True -> "True", missing -> None."""
    codes, distinct = pd.factorize(values, use_na_sentinel=True)
    names = np.array([*(plain_text(value) for value in distinct), None], dtype=object)
    return names[codes]


def class_names(labels: np.ndarray | Sequence[str | None], subject: str = "the target") -> tuple[str, ...]:
    """The distinct labels, in numeric order if all are numbers ("9" before "10"), else by text.

    subject: what the labels are, for the message ("adult.csv: target 'income'"). Raises DataError if there are fewer
    than two: nothing can be learned.
    """
    names = {str(label) for label in labels if label is not None}
    if len(names) < 2:
        only = f"only one class ({names.pop()!r})" if names else f"no class at all{_WORDS_FOR_NONE}"
        raise DataError(f"{subject} has {only}; classification needs two or more. Check --target and the rows.")
    try:
        return tuple(sorted(names, key=lambda name: (float(name), name)))
    except ValueError:
        return tuple(sorted(names))


def target_values(values: pd.Series, task: str, *, comma: bool = False) -> np.ndarray:
    """(rows,) the target as a table keeps it: class names (object, None if missing) or float64 (NaN if unusable)."""
    if task == "classification":
        return label_texts(values)
    numbers, _ = as_numbers(values, comma=comma)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _no_known_class(values: pd.Series, labels: np.ndarray, classes: Sequence[str]) -> DataError:
    shown, known = (", ".join(repr(str(name)) for name in dict.fromkeys(each[:3])) for each in (labels, classes))
    return DataError(
        f"target column {values.name!r}: not one of its {len(labels):,} values ({shown} ...) is a class of the training "
        f"data ({known} ...). Name the column with --target."
    )


def bad_targets(
    values: pd.Series, task: str, places: Sequence[str], *, comma: bool = False, classes: Sequence[str] = ()
) -> list[BadRow]:
    """Every row whose target cannot be used, with the reason. classes: where given, others are unknown.

    places: where each row stands, by position. Raises DataError where no row of several has a known class: then it is
    another column.
    """
    missing = values.isna().to_numpy()
    none = f"no value in target column {values.name!r}{_WORDS_FOR_NONE if task == 'classification' else ''}"
    reasons = {int(i): none for i in np.flatnonzero(missing)}
    numbers = as_numbers(values, comma=comma)[0] if task == "regression" else np.zeros(len(values))
    unusable, too_large = ~np.isfinite(numbers), np.isfinite(numbers) & (np.abs(numbers) > LARGEST)
    for i in np.flatnonzero(unusable & ~missing):
        reasons[int(i)] = f"target {values.name!r} is {str(values.iloc[i])!r}, not a finite number"
    for i in np.flatnonzero(too_large & ~missing):
        reasons[int(i)] = f"target {values.name!r} is {str(values.iloc[i])!r}, beyond what models compute with (1e18)"
    if task == "classification" and classes:
        labels = label_texts(values)
        is_unknown = ~np.isin(labels.astype(str), classes) & ~missing
        if is_unknown.sum() == (~missing).sum() > 1:
            raise _no_known_class(values, labels[is_unknown], classes)
        for i in np.flatnonzero(is_unknown):
            reasons[int(i)] = f"class {labels[i]!r} was not in the training data.{did_you_mean(labels[i], classes)}"
    return [BadRow(i, places[i], reasons[i]) for i in sorted(reasons)]
