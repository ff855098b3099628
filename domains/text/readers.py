"""Files and frames of texts as a frame with a text column; which column that is, is decided here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from domains.contract import Request
from domains.shared.frames import FrameReading, choose_column, read_frame
from domains.shared.roles import id_texts
from trainers.errors import DataError

USUAL_NAMES = ("text", "sentence", "content", "document", "body", "review", "message", "abstract")
"""Kept as in the file at the first reading; another column costs a second one."""
ID_NAMES = ("id", "name", "identifier", "document_id", "doc_id", "uid", "uuid")
_CODES = tuple(name for name in ID_NAMES if name != "name")
"""Those that are never the text itself where another column may be."""
_FLAG = "--column text=NAME"


@dataclass(frozen=True)
class Raw:
    """reading: rows in file order.   text, id_column: columns of it (id_column None: rows are counted).
    notices: what was decided here."""

    reading: FrameReading
    text: str
    id_column: str | None
    notices: tuple[str, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """The rows."""
        return self.reading.frame


def read_raw(data: Any, request: Request) -> Raw:
    """Read CSV, TSV, JSON lines, Parquet or a DataFrame; cells of the text column stay as they are, "None" and "NA" too.

    Raises DataError where no column holds text.
    """
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(Path(data))
    if request.labels is not None:
        raise DataError(f"--labels {request.labels}: only for FASTA files. Put the labels into a column of {where}.")
    taken = {request.target, request.group, request.order, request.id_column}
    wanted = request.columns.get("text") or (request.facts.schema["text"] if request.facts else None)
    kept = {wanted} if wanted else set(USUAL_NAMES)
    ids = id_texts(request, _CODES)
    reading = read_frame(data, text_columns=sorted((kept - taken) | ids), encoding=request.encoding)
    text, notices = _text_column(reading.frame, wanted, request, where)
    if kept & set(reading.frame.columns) - taken != {text}:
        reading = read_frame(data, text_columns=[text, *ids], encoding=request.encoding)
    return Raw(reading, text, _id_column(reading.frame, request, text, where), notices)


def _text_column(frame: pd.DataFrame, wanted: str | None, request: Request, where: str) -> tuple[str, tuple[str, ...]]:
    """The wanted column, else the one with the longest texts, announced."""
    if "text" in request.columns or (wanted is not None and wanted in frame.columns):
        return choose_column(frame, str(wanted), where, _FLAG), ()
    taken = {request.target, request.group, request.order, request.id_column, "split"}
    lengths = {name: _mean_length(frame[name]) for name in map(str, frame.columns) if name not in taken}
    texts = {name: length for name, length in lengths.items() if length > 0}
    texts = {name: length for name, length in texts.items() if name.lower() not in _CODES} or texts
    known = ", ".join(map(str, frame.columns))
    if not texts:
        raise DataError(f"{where}: no column holds text. Columns: {known}. Name one with {_FLAG}.")
    if wanted is not None and len(texts) > 1:
        raise DataError(f"{where}: no column {wanted!r}, which was read in training. Columns: {known}. Rename one.")
    longest = max(texts, key=lambda name: texts[name])
    others = f", the longest of {len(texts)} columns with text" if len(texts) > 1 else ""
    return longest, (f"texts are read from column {longest!r}{others}",)


def _mean_length(values: pd.Series) -> float:
    """Characters a filled cell; 0 for numbers and dates."""
    kinds = pd.api.types
    if kinds.is_numeric_dtype(values.dtype) or kinds.is_datetime64_any_dtype(values.dtype):
        return 0.0
    lengths = values.dropna().astype(str).str.len()
    return float(lengths.mean()) if len(lengths) else 0.0


def _id_column(frame: pd.DataFrame, request: Request, text: str, where: str) -> str | None:
    if request.id_column and (request.facts is None or request.id_column in frame.columns):
        return choose_column(frame, request.id_column, where, "--id-column")
    by_name = {str(name).lower(): str(name) for name in reversed(list(frame.columns))}
    found = next((by_name[name] for name in ID_NAMES if name in by_name), None)
    return None if found in (None, text, request.target, request.group) or not _is_id(frame[found]) else found


def _is_id(values: pd.Series) -> bool:
    return bool(values.is_unique and values.notna().all() and (values.astype(str).str.strip() != "").all())


def other_columns(frame: pd.DataFrame, raw: Raw, request: Request) -> Sequence[str]:
    """Columns that may be the target where none was named."""
    taken = {raw.text, raw.id_column, request.group, request.order, "split", None}
    return [str(name) for name in frame.columns if name not in taken]
