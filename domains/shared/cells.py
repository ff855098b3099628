"""What one cell of a table means: missing, a number, or text.

A cell is a number only if nothing is lost by it: codes such as 00017 or 0x1F stay text. Missing becomes NaN or None,
whatever the file wrote for it (`MISSING`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    import pyarrow as pa

# "?" is how UCI files write missing; "-" and "#N/A" come from spreadsheets.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "<NA>", "?", "-")

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:inf|infinity)$"
_COMMA_NUMBER = r"^[+-]?[0-9]+,[0-9]+([eE][+-]?[0-9]+)?$"
_LEADING_ZERO = r"^[+-]?0[0-9]"


def plain_text(value: object) -> str:
    """A value as a person would write it: 3.0 -> "3", 0.5 -> "0.5", True -> "True"."""
    if isinstance(value, (float, np.floating)):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    return str(value)


def cell_texts(values: pd.Series, *, blank: bool) -> list[str | None]:
    """Each cell as text; None where it is missing, and (`blank`) where it reads as a missing marker."""
    cells = values.to_numpy(object)
    texts = [
        None if gone else cell if isinstance(cell, str) else plain_text(cell)
        for cell, gone in zip(cells, pd.isna(values).to_numpy(), strict=True)
    ]
    if not blank:
        return ["" if text is None else text for text in texts]
    return [None if text is None or text.strip() in MISSING else text.strip() for text in texts]


@dataclass(frozen=True)
class Distinct:
    """A text column as its distinct cells (trimmed, None for missing) and where each stands: each is looked at once."""

    cells: pa.Array
    positions: pa.ChunkedArray

    @classmethod
    def of(cls, column: pa.ChunkedArray | pa.Array) -> Distinct:
        import pyarrow as pa
        import pyarrow.compute as pc

        encoded = pc.dictionary_encode(column)
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.unify_dictionaries().combine_chunks()
        cells = pc.utf8_trim_whitespace(encoded.dictionary)
        cells = pc.if_else(pc.is_in(cells, pa.array(MISSING)), pa.scalar(None, cells.type), cells)
        return cls(cells, encoded.indices)

    def all_match(self, pattern: str, first: int | None = None) -> bool:
        """Whether every cell (of the `first` ones) that is not missing matches."""
        import pyarrow.compute as pc

        return bool(pc.all(pc.match_substring_regex(self.cells[:first], pattern), min_count=0).as_py())

    def column(self, comma: bool) -> tuple[pd.Series, str]:
        """Numbers if every cell is one and none has a leading zero, else text; and a notice about leading zeros."""
        import pyarrow.compute as pc

        is_number = self.all_match(_NUMBER, 100) and self.all_match(_NUMBER)
        if not is_number and not (comma and self.all_match(f"{_NUMBER}|{_COMMA_NUMBER}")):
            return self.cells.take(self.positions).to_pandas(), ""
        zeros = self.cells.filter(pc.fill_null(pc.match_substring_regex(self.cells, _LEADING_ZERO), False))
        if len(zeros):
            return self.cells.take(self.positions).to_pandas(), f"was kept as text: it has leading zeros ({zeros[0]})"
        return _numbers(self.cells, comma).take(self.positions).to_pandas(), ""


def clean_texts(values: pd.Series) -> pd.Series:
    """Text trimmed, with missing markers read as missing; whole numbers in a float column lose their ".0"."""
    import pyarrow as pa

    column = Distinct.of(pa.array(cell_texts(values, blank=True), pa.string()))
    texts: pd.Series = column.cells.take(column.positions).to_pandas()
    return texts


def has_decimal_commas(columns: Iterable[Distinct]) -> bool:
    """Whether some column has numbers with a decimal comma and none has one with a decimal point."""
    import pyarrow.compute as pc

    def any_match(column: Distinct, pattern: str) -> bool:
        return bool(pc.any(pc.match_substring_regex(column.cells, pattern), min_count=0).as_py())

    numeric = [column for column in columns if column.all_match(f"{_NUMBER}|{_COMMA_NUMBER}")]
    with_point = any(any_match(column, r"\.") for column in numeric)
    return not with_point and any(any_match(column, _COMMA_NUMBER) for column in numeric)


def _numbers(cells: pa.Array, comma: bool) -> pa.Array:
    """int64 where every cell is a whole number that fits, else float64."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = pc.replace_substring(cells, ",", ".") if comma else cells
    cells = pc.utf8_ltrim(cells, "+")
    if cells.null_count == len(cells):
        return pa.nulls(len(cells), pa.float64())
    try:
        return pc.cast(cells, pa.int64())
    except pa.ArrowInvalid:
        return pc.cast(cells, pa.float64())


def as_numbers(values: pd.Series, *, comma: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) float64, NaN where a cell is missing or no number; and (rows,) whether it holds text that is no number.

    Each cell alone decides: the same cell gives the same number whatever else is in the column.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pd.api.types.is_numeric_dtype(values.dtype):
        return values.to_numpy(np.float64), np.zeros(len(values), bool)
    column = Distinct.of(pa.array(cell_texts(values, blank=True), pa.string()))
    pattern = f"{_NUMBER}|{_COMMA_NUMBER}" if comma else _NUMBER
    fits = pc.fill_null(pc.match_substring_regex(column.cells, pattern), False)
    numbers = pc.cast(_numbers(pc.if_else(fits, column.cells, pa.scalar(None, pa.string())), comma), pa.float64())
    strays = pc.and_(pc.is_valid(column.cells), pc.invert(fits))
    return (
        numbers.take(column.positions).to_numpy(zero_copy_only=False),
        pc.fill_null(strays.take(column.positions), False).to_numpy(zero_copy_only=False),
    )
