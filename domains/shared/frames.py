"""Tables of rows and columns: `read_frame` (CSV, TSV, JSON lines, gzip, Parquet, DataFrame), and `FrameTable`: the Table
of most data types. How a cell becomes a number is decided in `domains.shared.cells`."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pandas as pd

from domains.shared.cells import Distinct, cell_texts, has_decimal_commas
from domains.shared.delimited import read_delimited, record_lines, unique_names
from domains.shared.json_lines import read_json_lines
from trainers.errors import DataError, did_you_mean

TEXT_SUFFIXES = (".csv", ".tsv", ".tab", ".txt")
PARQUET_SUFFIXES = (".parquet", ".pq")
JSON_SUFFIXES = (".jsonl", ".ndjson")
# gzip packs real tables 3 to 20 times; a thousandfold is a bomb. Small files may be as regular as they like.
MAX_UNPACK_RATIO = 100
FREE_UNPACKED_BYTES = 32 << 20
_MOST_SHOWN = 40
_BYTES_A_CELL = 8


def is_table(data: Any) -> bool:
    """Whether data that may be files and folders, too, is a DataFrame, or a table by its name."""
    return isinstance(data, pd.DataFrame) or Path(data).suffix.lower() in (".csv", ".tsv", ".parquet")


class FrameReading(NamedTuple):
    """frame: rows in file order under a plain index.   places: where each row stands.   notices: what to tell the user.
    ragged: (position, reason) of lines with too few or too many cells, padded or cut, and of lines that are no JSON.
    comma: decimal commas."""

    frame: pd.DataFrame
    places: Sequence[str]
    notices: tuple[str, ...] = ()
    ragged: tuple[tuple[int, str], ...] = ()
    comma: bool = False


@dataclass(frozen=True)
class Places(Sequence[str]):
    """Where a person finds a row: `places[row]` is "x.csv line 7". Lines are counted only when somebody asks."""

    name: str
    num_rows: int
    separator: str = ","
    is_text: bool = True
    utf8: bytes | None = field(default=None, repr=False)
    known_lines: Sequence[int] = field(default=(), repr=False)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, row: Any) -> Any:
        if not -self.num_rows <= row < self.num_rows:
            raise IndexError(row)  # else iterating would never end
        if not self.is_text:
            return f"{self.name} row {row} (counted from 0)"
        if self.known_lines:
            return f"{self.name} line {self.known_lines[row]}"
        return f"{self.name} line {self._lines[row] if self.utf8 is not None else row + 2}"

    @cached_property
    def _lines(self) -> list[int]:
        assert self.utf8 is not None
        return record_lines(self.utf8, self.separator)


@dataclass(frozen=True, eq=False)
class FrameTable:
    """Rows of a DataFrame as a `domains.contract.Table`. The frame's own index is never looked at.

    ids: one text a row.   target_name: the column `target()` returns; it may be absent from the frame.
    """

    frame: pd.DataFrame
    ids: Sequence[str] | np.ndarray
    target_name: str | None = None
    context: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.frame), f"{len(self.ids)} ids for {len(self.frame)} rows"

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, position: int) -> Mapping[str, Any]:
        return {name: self.frame[name].iloc[position] for name in self.frame.columns}

    def column(self, name: str) -> pd.Series:
        """The column called `name`. Raises DataError with the nearest names."""
        return self.frame[choose_column(self.frame, name)]

    def take(self, positions: Sequence[int] | np.ndarray) -> FrameTable:
        """The rows at `positions`, in that order."""
        chosen = np.asarray(positions, dtype=np.int64)
        ids = self.ids[chosen] if isinstance(self.ids, np.ndarray) else [self.ids[i] for i in chosen]
        return replace(self, frame=self.frame.take(chosen), ids=ids)

    def without_target(self) -> FrameTable:
        """The same rows with no target column."""
        if self.target_name is None or self.target_name not in self.frame.columns:
            return replace(self, target_name=None)
        return replace(self, frame=self.frame.drop(columns=self.target_name), target_name=None)

    def target(self) -> np.ndarray:
        """(rows,) class names as text (object) or float64 numbers. Raises DataError where there is no target."""
        if self.target_name is None or self.target_name not in self.frame.columns:
            raise DataError(f"these rows have no target column ({self.target_name or 'none was named'}).")
        values = self.frame[self.target_name]
        is_number = pd.api.types.is_numeric_dtype(values.dtype)
        return values.to_numpy(np.float64 if is_number else object)


def read_frame(
    source: str | Path | pd.DataFrame, *, text_columns: Sequence[str] = (), encoding: str | None = None
) -> FrameReading:
    """Read a table. Unpacks as `frame, places, *_`.

    text_columns: kept byte for byte, missing markers too (ids, sequences); names the file lacks are ignored.
    encoding: of a text file that is no UTF-8.
    Raises DataError for a missing or empty file, a folder, an unknown suffix, no header, a broken or exploding archive.
    """
    if isinstance(source, pd.DataFrame):
        frame, notices = plain_frame(source, text_columns)
        return FrameReading(frame, Places("DataFrame", len(frame), is_text=False), notices)
    path = Path(source)
    check_path(path)
    if path.suffix in PARQUET_SUFFIXES:
        frame, notices = plain_frame(_read_parquet(path), text_columns)
        return FrameReading(frame, Places(path.name, len(frame), is_text=False), notices)
    if Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower() in JSON_SUFFIXES:
        return _read_json(path, text_columns, encoding)
    return _read_text(path, text_columns, encoding)


def refuse_missing_header(where: str, name: str, usual: str) -> NoReturn:
    """Raise DataError for a column whose name is itself data: the first row of a table without a header would be lost."""
    shown = name if len(name) <= _MOST_SHOWN else name[:_MOST_SHOWN] + "..."
    raise DataError(
        f"{where}: the first line names a column {shown!r}, which is data itself: the header is missing. Put a line with "
        f"the names of the columns first, {usual!r} for this one."
    )


def check_path(path: Path) -> None:
    """Raise DataError unless `path` is a file that `read_frame` can read."""
    if path.is_dir():
        known = ", ".join((*TEXT_SUFFIXES, *JSON_SUFFIXES, *PARQUET_SUFFIXES))
        raise DataError(f"{path}: this is a folder. Name a file ({known}).")
    if not path.exists():
        siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"{path}: no such file.{did_you_mean(path.name, siblings)}")
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix.lower() not in TEXT_SUFFIXES + JSON_SUFFIXES + (PARQUET_SUFFIXES if path.suffix != ".gz" else ()):
        known = ", ".join((*TEXT_SUFFIXES, ".csv.gz", *JSON_SUFFIXES, *PARQUET_SUFFIXES))
        raise DataError(f"{path}: files ending in {path.suffix!r} cannot be read. Save the table as one of {known}.")


def choose_column(frame: pd.DataFrame, name: str, path: str = "", flag: str = "") -> str:
    """`name`, if the frame has it. Raises DataError with the nearest names and all columns. flag: what to correct."""
    if name in frame.columns:
        return name
    names = [str(column) for column in frame.columns]
    known = ", ".join(names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else "")
    advice = f" Choose one with {flag}." if flag else ""
    where = f"{path}: " if path else ""
    raise DataError(f"{where}no column {name!r}.{did_you_mean(name, names)} Columns: {known}.{advice}")


def _read_json(path: Path, text_columns: Sequence[str], encoding: str | None) -> FrameReading:
    parsed = read_json_lines(file_bytes(path), path.name, encoding)
    frame, notices = plain_frame(parsed.frame, text_columns)
    places = Places(path.name, len(frame), known_lines=parsed.lines)
    return FrameReading(frame, places, (*parsed.notices, *notices), parsed.bad)


def file_bytes(path: Path) -> bytes:
    """What is in a file, unpacked where it is gzip. Raises DataError for a broken or exploding archive."""
    raw = path.read_bytes()
    if raw.startswith(b"\x1f\x8b"):
        return unpacked(raw, path)
    if path.suffix == ".gz":
        raise DataError(f"{path}: not a gzip file. Pack it again, or drop the suffix .gz if it is plain text.")
    return raw


def _read_text(path: Path, text_columns: Sequence[str], encoding: str | None) -> FrameReading:
    parsed = read_delimited(file_bytes(path), path.name, encoding)
    distinct = {name: Distinct.of(parsed.table[name]) for name in parsed.table.column_names if name not in text_columns}
    comma = parsed.separator != "," and has_decimal_commas(distinct.values())
    columns, notices = {}, list(parsed.notices)
    for name in parsed.table.column_names:
        if name not in distinct:
            columns[name] = parsed.table[name].to_pandas()
            continue
        columns[name], notice = distinct[name].column(comma)
        notices += [f"{path.name}: column {name!r} {notice}"] if notice else []
    frame = pd.DataFrame(columns)
    places = Places(path.name, len(frame), parsed.separator, utf8=parsed.utf8)
    return FrameReading(frame, places, tuple(notices), parsed.ragged, comma)


def unpacked(raw: bytes, path: Path) -> bytes:
    """The bytes of a gzip file, unpacked piece by piece so that a bomb is refused before it fills the memory."""
    limit = max(FREE_UNPACKED_BYTES, MAX_UNPACK_RATIO * len(raw))
    parts, size = [], 0
    while raw:
        unpacker = zlib.decompressobj(wbits=31)
        while not unpacker.eof:
            try:
                part = unpacker.decompress(raw, 1 << 20)
            except zlib.error as error:
                raise DataError(f"{path}: broken gzip file ({error}). Pack or fetch it again.") from None
            raw = unpacker.unconsumed_tail
            size += len(part)
            if size > limit:
                raise DataError(f"{path}: unpacks to more than {limit:,} bytes, like a bomb. Unpack it yourself.")
            if not part and not raw and not unpacker.eof:
                raise DataError(f"{path}: the gzip file is cut off. Pack or fetch it again.")
            parts.append(part)
        raw = unpacker.unused_data.lstrip(b"\0")
    return b"".join(parts)


def parquet_file(path: Path) -> Any:
    """A pyarrow.parquet.ParquetFile. Raises DataError for what is none, or declares more than the machine could hold."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None
    _refuse_absurd(file.metadata, path)
    return file


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]}).")


def _read_parquet(path: Path) -> pd.DataFrame:
    import pyarrow as pa

    file = parquet_file(path)
    try:
        table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None
    # pandas' own notes in the file would turn columns into an index; the index of a row means nothing here.
    for place, column in enumerate(table.columns):
        if pa.types.is_nested(column.type):  # lists and objects as JSON text, as from JSON lines
            cells = [None if cell is None else json.dumps(cell, ensure_ascii=False) for cell in column.to_pylist()]
            table = table.set_column(place, table.column_names[place], pa.array(cells, pa.string()))
    frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    return frame.drop(columns=[name for name in frame.columns if name.startswith("__index_level_")])


def _refuse_absurd(declared: Any, path: Path) -> None:
    """Refuse by what a Parquet file says of itself: runs of one value pack without bound, and a frame unpacks them."""
    pages = sum(declared.row_group(at).total_byte_size for at in range(declared.num_row_groups))
    needed = max(pages, _BYTES_A_CELL * declared.num_rows * declared.num_columns)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise DataError(
            f"{path}: declares {declared.num_rows:,} rows of {declared.num_columns} columns, at least "
            f"{needed / 2**30:,.1f} GiB, and this machine has {there / 2**30:,.1f} GiB. Give fewer rows."
        )


def plain_frame(frame: pd.DataFrame, text_columns: Sequence[str] = ()) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """A copy with text names, a plain index and plain columns: bool, int64, float64, datetime64 or text.

    Raises DataError if it has no columns.
    """
    if frame.shape[1] == 0:
        raise DataError("the DataFrame has no columns.")
    names, renamed = unique_names([str(name).strip() for name in frame.columns])
    notices = (f"repeated column names became {', '.join(renamed)}",) if renamed and len(set(names)) else ()
    columns = {name: _plain_column(frame.iloc[:, i], name in text_columns) for i, name in enumerate(names)}
    return pd.DataFrame(columns, index=pd.RangeIndex(len(frame))), notices


def _plain_column(values: pd.Series, as_text: bool) -> Any:
    import pyarrow as pa

    kinds = pd.api.types
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(object)  # whoever said "category" means it, so numbers in it become text
    if as_text or not (kinds.is_numeric_dtype(values.dtype) or kinds.is_datetime64_any_dtype(values.dtype)):
        if kinds.is_timedelta64_dtype(values.dtype):
            return values.dt.total_seconds().to_numpy(np.float64)
        # By way of Arrow, so that text has the same dtype as from a file (it differs between pandas 2 and 3).
        return pa.array(cell_texts(values, blank=not as_text), pa.string()).to_pandas()
    if kinds.is_datetime64_any_dtype(values.dtype):
        return pd.to_datetime(values, utc=True).dt.tz_localize(None).to_numpy()
    if kinds.is_bool_dtype(values.dtype) and not values.isna().any():
        return values.to_numpy(bool)
    exact = kinds.is_integer_dtype(values.dtype) and not values.isna().any()
    return values.to_numpy(np.int64 if exact else np.float64, na_value=0 if exact else np.nan)


def usual_column(frame: pd.DataFrame, named: str | None, usual: Sequence[str], where: str, flag: str) -> str:
    """The column that is `named`, else the first with a usual name (in lower case). Raises DataError as `choose_column`."""
    if named is not None:
        return choose_column(frame, named, where, flag)
    found = [str(name) for name in frame.columns if str(name).lower() in usual]
    return found[0] if found else choose_column(frame, usual[0], where, flag)
