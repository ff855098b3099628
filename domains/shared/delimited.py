"""Delimited text (CSV, TSV) as columns of text: encoding, separator, header, ragged lines. No cell is interpreted here;
`domains.shared.frames` decides what is a number."""

from __future__ import annotations

import codecs
import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from domains.contract import Doubt
from trainers.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

SEPARATORS = (",", ";", "\t", "|")
# A file with one column has no separator; this control character stands for "none" and occurs in no text.
NO_SEPARATOR = "\x1f"
SAMPLE_BYTES = 1 << 18
SAMPLE_RECORDS = 50
NUMBER = re.compile(r"^\s*[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?\s*$", re.ASCII)
UNKNOWN = ("", "?", "NA", "NaN", "nan", "null", "-")


@dataclass(frozen=True)
class Delimited:
    """Every record under the header, as text.

    table: one string column a name, '' where a cell is empty.
    ragged: position and reason of records whose number of cells differs from the header's (cut or padded), and of those
        that repeat the header (left empty).
    utf8: the text itself where line numbers must be counted (cells over several lines, blank lines), else None.
    """

    table: pa.Table
    separator: str
    ragged: tuple[tuple[int, str], ...]
    notices: tuple[str, ...]
    utf8: bytes | None


def read_delimited(raw: bytes, name: str, encoding: str | None = None) -> Delimited:
    """Parse the bytes of a delimited file called `name` whose first record holds the column names.

    Raises DataError if it is empty, is no text, has no header or a quote that never closes.
    """
    utf8, notices = as_utf8(raw, name, encoding)
    if not utf8.strip():
        raise DataError(f"{name}: the file is empty. It needs a header line and one line per row.")
    separator = detect_separator(_sample(utf8))
    header = next(_records(_sample(utf8), separator))
    names, renamed = column_names(header, name)
    _refuse_open_quote(utf8, separator, name)
    table, ragged = _parse(utf8, separator, names, name)
    table, repeated = without_headers(table, header)
    ragged = tuple(sorted((*ragged, *repeated)))
    num_lines = utf8.count(b"\n") + (not utf8.endswith(b"\n"))
    lines_differ = num_lines != table.num_rows + 1
    if len(names) == 1 and (num_blank := _num_blank(utf8)):
        notices.append(Doubt(f'{name}: {num_blank:,} blank lines are no rows; an empty cell of one column is ""'))
    return Delimited(table, separator, ragged, (*notices, *renamed), utf8 if lines_differ else None)


def _num_blank(utf8: bytes) -> int:
    """Blank lines between others; 0 where cells may hold some."""
    return 0 if b'"' in utf8 else sum(not line.strip() for line in utf8.strip().split(b"\n"))


def as_utf8(raw: bytes, name: str, encoding: str | None = None) -> tuple[bytes, list[str]]:
    """The text as UTF-8 with ordinary line ends and no byte order mark, and what was changed to get there.

    encoding: of a text that is no UTF-8. Raises DataError for such a text where none is named, as a guess would put wrong
    letters into it unseen; and where the one that is named does not fit or is unknown.
    """
    notices: list[str] = []
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raw = raw.decode("utf-16").encode()
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if raw.startswith(b"PK\x03\x04"):
        raise DataError(f"{name}: this is a zip archive or an Excel workbook, not text. Export it as CSV.")
    if num_nul := raw.count(b"\0"):
        if num_nul > len(raw) / 10:
            raise DataError(f"{name}: {num_nul:,} of {len(raw):,} bytes are zero: no text. Export it as CSV.")
        line = raw.count(b"\n", 0, raw.index(b"\0")) + 1
        raw = raw.replace(b"\0", b"")
        notices.append(Doubt(f"{name}: removed {num_nul:,} zero bytes, the first on line {line}"))
    if num_returns := raw.count(b"\r") - raw.count(b"\r\n"):
        # Old Macintosh files end lines in CR alone; elsewhere a lone CR is rubbish in a cell and would cut the line.
        raw = raw.replace(b"\r", b"\n") if b"\n" not in raw else re.sub(rb"\r(?!\n)", b" ", raw)
        notices.append(Doubt(f"{name}: replaced {num_returns:,} lone carriage returns"))
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if encoding is None:
            raise DataError(
                f"{_place(raw, name, error)} is not UTF-8. Name the encoding of the file: --encoding {_likely(raw)} (what "
                "Western programs write most often), or save it as UTF-8."
            ) from None
        notices.append(f"{_place(raw, name, error)} is not UTF-8; read as {encoding} (--encoding)")
        raw = _decoded(raw, name, encoding).encode()
    return raw, notices


def _decoded(raw: bytes, name: str, encoding: str) -> str:
    try:
        return raw.decode(encoding)
    except LookupError:
        raise DataError(
            f"--encoding {encoding}: no such encoding. Known are utf-8, cp1252, latin-1, cp1251 ..."
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{_place(raw, name, error)} is not {encoding} either. Name another --encoding.") from None


def _likely(raw: bytes) -> str:
    """The Windows superset of Latin-1, as browsers read it; plain Latin-1 where that has no letter."""
    try:
        raw.decode("cp1252")
    except UnicodeDecodeError:
        return "latin-1"
    return "cp1252"


def _place(raw: bytes, name: str, error: UnicodeDecodeError) -> str:
    """The file, the line and the byte at which decoding stopped."""
    return f"{name} line {raw.count(bytes([10]), 0, error.start) + 1}: byte {raw[error.start]:#04x}"


def _sample(utf8: bytes) -> str:
    """The first lines of the file, whole."""
    if len(utf8) <= SAMPLE_BYTES:
        return utf8.decode()
    head, _, _ = utf8[:SAMPLE_BYTES].rpartition(b"\n")
    return (head or utf8[:SAMPLE_BYTES]).decode(errors="ignore")


def _records(text: str, separator: str) -> Iterator[list[str]]:
    """Records that are not blank."""
    with _long_cells():
        yield from (record for record in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if record)


@contextmanager
def _long_cells() -> Iterator[None]:
    """Lift the csv module's limit of 131,072 characters a cell for a while: a genome is longer."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def detect_separator(sample: str) -> str:
    """The separator that cuts most of the first records into as many cells as the header, the more cells the better."""

    def fit(separator: str) -> tuple[float, int]:
        counts = [len(record) for record, _ in zip(_records(sample, separator), range(SAMPLE_RECORDS), strict=False)]
        return (sum(count == counts[0] for count in counts) / len(counts), counts[0]) if counts[0] > 1 else (0.0, 1)

    best = max(SEPARATORS, key=fit)
    return best if fit(best)[1] > 1 else NO_SEPARATOR


def column_names(header: list[str], name: str) -> tuple[list[str], list[str]]:
    """Unique, stripped column names and notices. Raises DataError if the first record looks like data."""
    stripped = [cell.strip() for cell in header]
    numbers = [cell for cell in stripped if NUMBER.match(cell)]
    if numbers and all(NUMBER.match(cell) or cell in UNKNOWN for cell in stripped):
        shown = ", ".join(stripped[:6])
        raise DataError(
            f"{name} line 1: the column names look like data ({shown}). Add a header line with a name for each column."
        )
    notices: list[str] = []
    if len(numbers) > 1:
        shown = ", ".join(numbers[:3])
        said = f"{name} line 1: {len(numbers)} column names are numbers ({shown}): is the header line missing?"
        notices.append(Doubt(said))
    unique, renamed = unique_names(stripped)
    if renamed:
        notices.append(Doubt(f"{name} line 1: repeated or empty column names became {', '.join(renamed)}"))
    return unique, notices


def unique_names(names: list[str]) -> tuple[list[str], list[str]]:
    """Names made unique ("y", "y.1"; "unnamed 3" for an empty third), and those that had to change."""
    filled = [name or f"unnamed {position}" for position, name in enumerate(names, start=1)]
    seen: Counter[str] = Counter()
    taken = set(filled)
    unique = []
    for name in filled:
        new = name
        while seen[name] and new in taken:
            new = f"{name}.{seen[name]}"
            seen[name] += 1
        seen[name] += 1
        taken.add(new)
        unique.append(new)
    return unique, [new for new, old in zip(unique, names, strict=True) if new != old]


def _refuse_open_quote(utf8: bytes, separator: str, name: str) -> None:
    """A quote that opens a cell and never closes swallows the rest of the file. Only an odd count can hide one."""
    if utf8.count(b'"') % 2 == 0:
        return
    reader = csv.reader(io.StringIO(utf8.decode(), newline=""), delimiter=separator, strict=True)
    line = 1
    try:
        with _long_cells():
            for _ in reader:
                line = reader.line_num + 1
    except csv.Error as error:
        if "unexpected end" in str(error):
            raise DataError(f'{name} line {line}: a quote (") opens a cell and never closes. Close it.') from None


def _parse(utf8: bytes, separator: str, names: list[str], name: str) -> tuple[pa.Table, tuple[tuple[int, str], ...]]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(utf8),
            arrow_csv.ReadOptions(column_names=names, skip_rows_after_names=1, block_size=1 << 24),
            arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=b'"' in utf8),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        )
    except pa.ArrowInvalid:
        return _parse_ragged(utf8.decode(), separator, names, name)
    return table, ()


def _parse_ragged(
    text: str, separator: str, names: list[str], name: str
) -> tuple[pa.Table, tuple[tuple[int, str], ...]]:
    """Record by record (ten times slower), so that lines with too few or too many cells can be named."""
    import pyarrow as pa

    records = list(_records(text, separator))[1:]
    width = len(names)
    ragged = tuple(
        (position, f"{len(record)} cells, but the header has {width}")
        for position, record in enumerate(records)
        if len(record) != width
    )
    if len(ragged) > len(records) / 2:
        _, reason = ragged[0]
        raise DataError(f"{name}: {len(ragged):,} of {len(records):,} lines do not fit the header ({reason}). Mend it.")
    padded = [(record + [""] * width)[:width] for record in records]
    columns = list(zip(*padded, strict=True)) or [()] * width
    return pa.table({key: pa.array(cells, pa.string()) for key, cells in zip(names, columns, strict=True)}), ragged


def without_headers(table: pa.Table, header: list[str]) -> tuple[pa.Table, list[tuple[int, str]]]:
    """The table with records that repeat the header left empty, and their positions with the reason.

    Files that were joined hold such records, and one would turn a column of numbers into text. A single column is left as it
    is: there the name may be a value.
    """
    import pyarrow.compute as pc

    if table.num_columns < 2:
        return table, []
    repeats = pc.equal(table.column(0), header[0])
    for place in range(1, table.num_columns):
        if not pc.any(repeats).as_py():
            return table, []
        repeats = pc.and_(repeats, pc.equal(table.column(place), header[place]))
    positions = pc.indices_nonzero(repeats).to_pylist()
    for place, column_name in enumerate(table.column_names):
        table = table.set_column(place, column_name, pc.if_else(repeats, "", table.column(place)))
    return table, [(position, "repeats the header; were files joined?") for position in positions]


def record_lines(utf8: bytes, separator: str) -> list[int]:
    """The line of the file on which each record under the header starts; the header is line 1."""
    starts, line = [], 1
    reader = csv.reader(io.StringIO(utf8.decode(), newline=""), delimiter=separator)
    with _long_cells():
        for record in reader:
            if record:
                starts.append(line)
            line = reader.line_num + 1
    return starts[1:]
