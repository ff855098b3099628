"""Kinds of feature columns: number, category, date. Which one a column is, and a new file's column made the same kind.

A kind is a dtype in the table's frame: float or int, pandas Categorical of text, datetime64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from domains.shared.cells import as_numbers, clean_texts
from trainers.contract import JSON

# A text column with so many numbers (or dates) is one with a few strays, which are read as missing.
MOSTLY = 0.95
# Trees can split thousands of categories, but each then has too few rows to learn from; rarer ones are read as missing.
MAX_CATEGORIES = 1000
# Text that hardly ever repeats names the rows; nothing can be learned from it.
ID_SHARE = 0.95
FEWEST_ROWS_FOR_IDS = 20
_DATE = (
    r"\s*\d{4}[-/]\d{1,2}[-/]\d{1,2}"
    r"([T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?\s?(Z|[+-]\d{2}:?\d{2})?)?\s*"
)
_OTHER_DATE = r"\s*\d{1,2}[./-]\d{1,2}[./-]\d{2,4}\s*"


def recognised(values: pd.Series, *, comma: bool = False) -> tuple[pd.Series, str]:
    """The column as the kind it is, and a notice where cells had to be given up ('' where none).

    comma: whether the file writes decimal commas.
    """
    if pd.api.types.is_bool_dtype(values.dtype):
        return clean_texts(values).astype("category"), ""
    if pd.api.types.is_numeric_dtype(values.dtype):
        return finite(values)
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        return values, ""
    if not values.notna().any():
        return pd.Series(np.full(len(values), np.nan)), ""
    return _recognised_text(values, comma)


def _recognised_text(values: pd.Series, comma: bool) -> tuple[pd.Series, str]:
    categories = values.astype("category")
    names, codes = pd.Series(categories.cat.categories), categories.cat.codes.to_numpy()
    num_rows = np.bincount(codes[codes >= 0], minlength=len(names))
    enough = MOSTLY * num_rows.sum()
    if num_rows[names.str.fullmatch(_DATE).to_numpy(bool)].sum() >= enough:
        return as_dates(values)
    _, strays = as_numbers(names, comma=comma)
    # Without strays it is text because of leading zeros: codes, and so they stay when strays come on top.
    if strays.any() and num_rows[~strays].sum() >= enough and not names.str.match(r"[+-]?0\d").any():
        numbers, strays = as_numbers(values, comma=comma)
        return finite(pd.Series(numbers))[0], _lost(values, strays, "no number")
    return categories, _told_of_mixture(names, strays, num_rows)


def _told_of_mixture(names: pd.Series, strays: np.ndarray, num_rows: np.ndarray) -> str:
    """What to say of a column of categories in which half of the cells or more are numbers, or dates; else ''."""
    numbers, dates = ~strays, names.str.fullmatch(f"{_DATE}|{_OTHER_DATE}").to_numpy(bool)
    for is_it, what in ((numbers, "numbers"), (dates, "dates")):
        others = names[~is_it]
        if num_rows[is_it].sum() >= num_rows.sum() / 2 and 0 < len(others) < len(names):
            examples = ", ".join(repr(str(name)) for name in others.head(3))
            count = f"{num_rows[~is_it].sum():,} of {num_rows.sum():,} filled cells are no {what} ({examples})"
            return f"{count}, so it is taken as categories; leave such cells empty to have {what}"
    return ""


def converted(values: pd.Series, column: JSON, *, comma: bool = False) -> tuple[pd.Series, str]:
    """A column of a new file as the kind that the training file had. Each cell alone decides what becomes of it.

    column: its entry in the schema.   Returns the column and a notice ('' where nothing was lost).
    """
    if column["kind"] == "number":
        numbers, strays = as_numbers(values, comma=comma)
        series, notice = finite(pd.Series(numbers))
        return series, _lost(values, strays, "no number") or notice
    if column["kind"] == "date":
        return as_dates(values)
    known = pd.Index(column["categories"], dtype=object)
    texts = clean_texts(values)
    codes = known.get_indexer(pd.Index(texts.to_numpy(object)))
    unseen = (codes < 0) & texts.notna().to_numpy()
    notice = _lost(values, unseen, "a category that the training rows had", "not ")
    return pd.Series(pd.Categorical.from_codes(codes, categories=known)), notice


def finite(values: pd.Series) -> tuple[pd.Series, str]:
    """The numbers with infinite ones made missing: trees refuse or misplace them."""
    infinite = np.isinf(values.to_numpy(np.float64))
    if not infinite.any():
        return values, ""
    return values.mask(infinite), f"{infinite.sum():,} infinite values are read as missing"


def as_dates(values: pd.Series) -> tuple[pd.Series, str]:
    """datetime64 in UTC from ISO dates (2024-01-31, 2024/01/31, 2024-01-31 12:30+02:00); NaT where a cell is none."""
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        return values, ""
    texts = clean_texts(values)
    is_date = texts.str.fullmatch(_DATE).eq(True)
    iso = texts.where(is_date).str.replace("/", "-", regex=False)
    dates = pd.to_datetime(iso, format="ISO8601", utc=True, errors="coerce").dt.tz_localize(None)
    return dates, _lost(values, (texts.notna() & dates.isna()).to_numpy(), "a date like 2024-01-31", "not ")


def _lost(values: pd.Series, lost: np.ndarray, what: str, negation: str = "") -> str:
    if not lost.any():
        return ""
    shown = values[lost].drop_duplicates().head(3)
    examples = ", ".join(repr(str(value)) for value in shown)
    cells = "1 cell is" if lost.sum() == 1 else f"{lost.sum():,} cells are"
    return f"{cells} read as missing: {examples} is {negation}{what}"


def described(values: pd.Series) -> tuple[JSON | None, str]:
    """The schema entry of a column of the training rows, or None and the reason why it is of no use."""
    num_present, num_distinct = int(values.notna().sum()), int(values.nunique())
    if num_present == 0:
        return None, "it is empty"
    if num_distinct == 1 and num_present == len(values):
        return None, f"it is {str(values.iloc[0])!r} everywhere"
    if not isinstance(values.dtype, pd.CategoricalDtype):
        return _number_or_date(values), ""
    if num_present >= FEWEST_ROWS_FOR_IDS and num_distinct >= ID_SHARE * num_present:
        hint = ""
        if values.dropna().astype(str).str.fullmatch(_OTHER_DATE).mean() > MOSTLY:
            hint = "; if these are dates, write them like 2024-01-31"
        return None, f"it is text that hardly repeats ({num_distinct:,} values in {num_present:,} rows){hint}"
    return {"kind": "category", "categories": frequent_categories(values)}, ""


def _number_or_date(values: pd.Series) -> JSON:
    if not pd.api.types.is_datetime64_any_dtype(values.dtype):
        return {"kind": "number"}
    present = values.dropna()
    return {"kind": "date", "hours": bool((present != present.dt.normalize()).any())}


def frequent_categories(values: pd.Series) -> list[str]:
    """The categories that occur, by name; of more than 1,000 only the most frequent (ties by name)."""
    counts = values.value_counts()
    names = sorted(counts[counts > 0].index, key=lambda name: (-counts[name], name))[:MAX_CATEGORIES]
    return sorted(names)


def is_row_number(values: pd.Series) -> bool:
    """Whether the column counts the rows (0, 1, 2, ... or from any other start): an index somebody saved."""
    if not pd.api.types.is_integer_dtype(values.dtype) or len(values) < FEWEST_ROWS_FOR_IDS:
        return False
    numbers = values.to_numpy()
    return bool((np.diff(numbers) == 1).all())


def gives_away(values: pd.Series, target: np.ndarray) -> str:
    """Why the column looks like a copy of the target ('' if it does not). target: class names or numbers."""
    if len(target) < FEWEST_ROWS_FOR_IDS:
        return ""
    if target.dtype != object:
        if not pd.api.types.is_numeric_dtype(values.dtype) or values.nunique() < 2:
            return ""
        together = values.notna().to_numpy()
        correlation = np.corrcoef(values.to_numpy(np.float64)[together], target[together])[0, 1]
        return f"correlates with the target at {correlation:.6f}" if abs(correlation) > 0.99999 else ""
    codes, names = pd.factorize(values)
    classes, _ = pd.factorize(target)
    # Every value has one class, and values are about as few as classes: with many values that happens by chance.
    if not 2 <= len(names) <= 2 * len(set(target)):
        return ""
    pairs = len(np.unique(np.stack([codes, classes])[:, codes >= 0], axis=1).T)
    return "each of its values stands for one class" if pairs == len(names) else ""


def names_like(frame: pd.DataFrame, names: Sequence[str]) -> str | None:
    """The first column called one of `names`, whatever the case."""
    return next((str(column) for column in frame.columns if str(column).lower() in names), None)
