"""Running text without labels: reading files into shards, the split by position, bits per byte, and rivals.

A row is a shard (`domains.text.shards`). What is predicted of a shard is the number of bits a model needs for it; its
target is its number of UTF-8 bytes, so a score is bits / bytes, whatever the tokens. A finished run is asked with prompts
instead: one a row, to be continued.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Baseline, Facts, Keys, Metric, Reading, Request
from domains.shared.frames import JSON_SUFFIXES, PARQUET_SUFFIXES, FrameTable, read_frame
from domains.shared.paths import is_hidden
from domains.shared.roles import PARTS
from domains.text import byte_models
from domains.text.readers import USUAL_NAMES, read_raw
from domains.text.shards import (
    SMALLEST_SHARD,
    CorpusTable,
    JsonLinesFile,
    ParquetFile,
    Source,
    TextFile,
    Texts,
    table_of,
)
from trainers.contract import Predictions
from trainers.errors import DataError, UsageError

SHAPE = "corpus"
TASK = "generation"
TARGET = "bytes"
"""The name of the target, by which evaluating (which has one) differs from completing prompts."""
TEST_SHARE, VALID_SHARE = 0.10, 0.02
MOST_VALID_BYTES = 4 << 20
FRAME_SUFFIXES = (".csv", ".tsv", ".tab")
PACKED_SUFFIXES = (".gz", ".zip", ".bz2", ".xz", ".zst", ".tar", ".7z")
BINARY_SHARE = 0.1
"""Share of zero bytes from which a file is called no text."""
_BLOCK = 1 << 20


def read(data: Any, request: Request) -> Reading:
    """Read text files, JSON lines, Parquet, CSV, a folder of them, or a DataFrame as shards; with `request.facts` and no
    target, prompts: one line of a text file or one row of a table each.

    Raises DataError for what holds no text, UsageError for a target (a corpus has none).
    """
    if request.facts is not None and request.target is None:
        return _prompts(data, request)
    if request.target not in (None, TARGET):
        raise UsageError(f"--target {request.target}: running text has no target; every next token is predicted.")
    for flag, value in (("--group", request.group), ("--order", request.order), ("--labels", request.labels)):
        if value is not None:
            raise UsageError(f"{flag} {value}: running text is split by its position in the corpus; leave {flag} out.")
    notices: list[str] = []
    table = whole_table(data, request, notices)
    named = [_named_part(source.name) for source in table.sources]
    if request.facts is None and len(set(named)) > 1 and named_parts(table) is None:
        called = " and ".join(sorted(set(named) - {""}))
        notices.append(
            f"files or folders are called {called}, but that counts only where one is called test and others are to learn "
            "from: all is split as one corpus"
        )
    parts = part_of_each(table)
    held_out = table.take(np.flatnonzero(parts != "train"))
    table = replace(table, context={"shape": SHAPE, "held_out": _Hashes(held_out)})
    few = f"a row is a shard of {SMALLEST_SHARD:,} bytes of text at least: bring {3 * SMALLEST_SHARD:,} bytes or more"
    return Reading(table, TASK, TARGET, (), tuple(notices), few=few)


def whole_table(data: Any, request: Request, notices: list[str]) -> CorpusTable:
    """All the text there is as shards, however little; `notices` gets what there is to say. Raises DataError for none."""
    sources = _sources(data, request, notices)
    named = [_named_part(source.name) for source in sources]
    walls = {num for num in range(1, len(sources)) if named[num] != named[num - 1]}
    table = table_of(sources, sum(_size(source) for source in sources), {"shape": SHAPE}, walls)
    if not len(table):
        raise DataError(f"{_name(data)}: there is no text in it.")
    return table


def keys(table: Any, task: str, request: Request, *, fast: bool) -> Keys:
    """The end of the corpus is the test, pieces all over the rest are the validation part; files or folders that are
    called train, valid and test are respected."""
    if isinstance(table, FrameTable):
        return Keys()
    given = part_of_each(table)
    if named_parts(table) is not None:
        because = "files or folders are called so"
    else:
        because = (
            f"the last {TEST_SHARE:.0%} of the corpus by bytes is the test part, {VALID_SHARE:.0%} in pieces all over the "
            "rest the validation part; no test text is seen by tokenizer or model"
        )
    sizes = table.num_bytes()
    evidence = {"bytes": {name: int(sizes[given == name].sum()) for name in ("train", "valid", "test")}}
    return Keys("given", because, given=given.tolist(), evidence=evidence)


def describe(train: CorpusTable, task: str, request: Request) -> Facts:
    """Sizes of the training shards: bytes, and documents guessed from the first shards."""
    seen = train.take(range(min(16, len(train))))
    lengths = [len(text.encode()) for row in range(len(seen)) for text in seen.documents(row)]
    starts = sum(not seen.continues(row) for row in range(len(seen)))
    sizes = {
        "total_bytes": float(train.num_bytes().sum()),
        "mean_document_bytes": float(np.sum(lengths) / max(1, len(lengths) - (len(seen) - starts))),
        "largest_shard_bytes": float(train.num_bytes().max()),
    }
    return Facts("text", task, TARGET, len(train), (), sizes, {"shape": SHAPE, "text": "text", "id_column": None})


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Bits per byte: comparable between tokenizers, and with compressors (8 is no model at all)."""
    return (Metric("bits_per_byte", "bits", False, _bits_and_bytes, _bits_per_byte),)


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """Bytes by their frequency; then bytes after the five before them."""
    return byte_models.unigram(), byte_models.ngram()


def _bits_and_bytes(truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    return np.column_stack([predictions.values.astype(np.float64), truth.astype(np.float64)])


def _bits_per_byte(stats: np.ndarray) -> float:
    return float(stats[:, 0].sum() / stats[:, 1].sum())


def part_of_each(table: CorpusTable) -> np.ndarray:
    """(shards,) "train", "valid" or "test", by names of files or else by position; each part has a shard where three
    are."""
    found = named_parts(table)
    if found is None:
        found = np.full(len(table), "train", dtype=object)
        found[_last(table.num_bytes(), TEST_SHARE)] = "test"
    if not (found == "valid").any():
        train = np.flatnonzero(found == "train")
        if not len(train):
            return found
        share = VALID_SHARE / (1 - TEST_SHARE)
        found[train[_spread(table.num_bytes()[train], share, MOST_VALID_BYTES)]] = "valid"
    return found


def named_parts(table: CorpusTable) -> np.ndarray | None:
    """The part that the name of each shard's file (or a folder above it) says; None where no name says test."""
    by_source = [_named_part(source.name) for source in table.sources]
    if "test" not in by_source or not {"train", ""} & set(by_source):
        return None
    first = table.pieces[table.bounds[table.chosen], 0]
    return np.array([by_source[source] or "train" for source in first], dtype=object)


def _named_part(name: str) -> str:
    words = [Path(part).name.split(".")[0].lower() for part in Path(name).parts]
    return next((PARTS[word] for word in words if word in PARTS), "")


def _last(sizes: np.ndarray, share: float) -> np.ndarray:
    """Positions at the end that hold about `share` of the sum, one at least."""
    after = np.cumsum(sizes[::-1])[::-1]  # bytes from here to the end
    positions = np.flatnonzero(after - sizes / 2 <= share * sizes.sum())
    return positions if len(positions) else np.array([len(sizes) - 1])


def _spread(sizes: np.ndarray, share: float, most: float) -> np.ndarray:
    """Positions at even distances that hold about `share` of the sum and `most` at most, one at least.

    Not one piece: the end of a corpus is one chapter, author or file, and a snapshot chosen by it is chosen by that; and
    training could not reach up to the test part, whose names and words begin there.
    """
    number = max(1, round(min(share * sizes.sum(), most) / sizes.mean()))
    places = (np.arange(number) + 0.5) / number * sizes.sum()
    return np.unique(np.searchsorted(np.cumsum(sizes), places))


# --- sources --------------------------------------------------------------------------------------------------------


def _sources(data: Any, request: Request, notices: list[str]) -> list[Source]:
    if isinstance(data, pd.DataFrame):
        return [_frame_source(data, "DataFrame", request, notices)]
    path = Path(data)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder.")
    if path.is_file():
        return [_source(path, path.name, request, notices)]
    files = sorted(file for file in path.rglob("*") if file.is_file() and not is_hidden(file.relative_to(path)))
    if not files:
        raise DataError(f"{path}: the folder holds no files.")
    found = []
    for file in files:
        name = file.relative_to(path).as_posix()
        try:
            found.append(_source(file, name, request, notices))
        except DataError as error:
            notices.append(f"left out: {error}")
    if not found:
        raise DataError(f"{path}: none of its {len(files)} files is text. {notices[-1]}")
    return found


def _source(path: Path, name: str, request: Request, notices: list[str]) -> Source:
    suffix = path.suffix.lower()
    if suffix in PACKED_SUFFIXES:
        raise DataError(f"{path}: packed files are not read in place. Unpack it first.")
    if suffix in JSON_SUFFIXES:
        return JsonLinesFile(path, name, _json_key(path, request))
    if suffix in PARQUET_SUFFIXES:
        return ParquetFile(path, name, _parquet_key(path, request))
    if suffix in FRAME_SUFFIXES:
        return _frame_source(path, name, request, notices)
    return TextFile(path, name, _encoding(path, notices))


def _frame_source(data: Any, name: str, request: Request, notices: list[str]) -> Source:
    # As in training, also when a run is evaluated: its text may have come from files without columns.
    raw = read_raw(data, replace(request, target=None, facts=None))
    notices += [*raw.reading.notices, *raw.notices]
    if raw.reading.ragged:
        position, reason = raw.reading.ragged[0]
        where = f"{raw.reading.places[position]}: {reason}"
        raise DataError(
            f"{len(raw.reading.ragged):,} rows do not fit the table, the first is {where}. Mend or remove them."
        )
    return Texts(raw.frame[raw.text].astype(str).tolist(), name)


def _encoding(path: Path, notices: list[str]) -> str:
    """UTF-8 if the whole file is, else the Windows superset of Latin-1. Raises DataError for what is no text."""
    decoder, num_nul, at = codecs.getincrementaldecoder("utf-8")(), 0, 0
    encoding = "utf-8"
    for block in _blocks(path):
        if at == 0 and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError(f"{path}: UTF-16. Convert it to UTF-8: iconv -f UTF-16 -t UTF-8 {path.name}")
        num_nul += block.count(b"\0")
        if encoding == "utf-8":
            try:
                decoder.decode(block, final=at + len(block) >= path.stat().st_size)
            except UnicodeDecodeError as error:
                # latin-1, not cp1252: every byte is a character in it, wherever a shard is cut.
                encoding = "latin-1"
                notices.append(f"{path.name}: byte {error.object[error.start]:#04x} is not UTF-8; read as Latin-1")
        at += len(block)
    if num_nul > BINARY_SHARE * max(1, at):
        raise DataError(f"{path}: {num_nul:,} of {at:,} bytes are zero: no text.")
    return encoding


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _json_key(path: Path, request: Request) -> str:
    """The key that holds the text: the one that was named, a usual name, or the longest text of the first line."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first = next((line for line in file if line.strip()), "")
    try:
        found = json.loads(first)
    except ValueError as error:
        raise DataError(f"{path} line 1: not JSON ({error}). Write one object a line: {{'text': '...'}}") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} line 1: no object with a text, such as {{'text': '...'}}.")
    return _text_name(path, {name: value for name, value in found.items() if isinstance(value, str)}, found, request)


def _parquet_key(path: Path, request: Request) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a Parquet file that can be read ({str(error).splitlines()[0]}).") from None
    texts = {each.name: "" for each in schema if pa.types.is_string(each.type) or pa.types.is_large_string(each.type)}
    return _text_name(path, texts, schema.names, request)


def _text_name(path: Path, texts: Mapping[str, str], every: Sequence[str] | Mapping[str, Any], request: Request) -> str:
    wanted = request.columns.get("text")
    if wanted is not None:
        if wanted not in every:
            raise DataError(
                f"{path}: no column {wanted!r}. Columns: {', '.join(every)}. Choose with --column text=NAME."
            )
        return wanted
    usual = next((name for name in USUAL_NAMES if name in texts), None)
    if not texts:
        raise DataError(f"{path}: no column holds text. Columns: {', '.join(every)}. Name one with --column text=NAME.")
    return usual or max(texts, key=lambda name: len(texts[name]))


def _size(source: Source) -> int:
    if isinstance(source, Texts):
        return sum(len(text.encode()) for text in source.texts)
    return int(source.path.stat().st_size)  # type: ignore[attr-defined]


def _name(data: Any) -> str:
    return "DataFrame" if isinstance(data, pd.DataFrame) else str(data)


class _Hashes:
    """Hashes of the held-out documents, so that copies of them can be left out of training; never their text."""

    def __init__(self, held_out: CorpusTable) -> None:
        self._rows = held_out

    def apply(self, hashed: Any) -> Iterator[Any]:
        """hashed(document) of each held-out document that is whole."""
        for row in range(len(self._rows)):
            for place, text in enumerate(self._rows.documents(row)):
                if place or not self._rows.continues(row):
                    yield hashed(text)


# --- prompts --------------------------------------------------------------------------------------------------------


def _prompts(data: Any, request: Request) -> Reading:
    """One prompt a row: lines of a text file, or a column of a table called prompt, text, or the only one with text."""
    suffix = "" if isinstance(data, pd.DataFrame) else Path(data).suffix.lower()
    is_table = isinstance(data, pd.DataFrame) or suffix in (*FRAME_SUFFIXES, *JSON_SUFFIXES, *PARQUET_SUFFIXES)
    ids, texts, places, notices, ragged = (_rows_of if is_table else _lines_of)(data, request)
    reasons = {**{i: "no prompt" for i, text in enumerate(texts) if not str(text).strip()}, **ragged}
    bad = [BadRow(i, places[i], reason) for i, reason in sorted(reasons.items())]
    frame = pd.DataFrame({"text": np.array(texts, dtype=object)})
    table = FrameTable(frame, np.array(ids, dtype=object), None, {"shape": SHAPE, "prompts": True})
    return Reading(table, TASK, None, tuple(bad), tuple(notices))


_Prompts = tuple[Sequence[str], Sequence[str], Sequence[str], Sequence[str], Mapping[int, str]]
"""Ids, texts, places, notices, and why rows do not fit their table."""


def _rows_of(data: Any, request: Request) -> _Prompts:
    names = read_frame(data, encoding=request.encoding).frame.columns
    column = next((name for name in ("prompt", "text") if name in names), None)
    columns = {"text": column, **request.columns} if column else dict(request.columns)
    raw = read_raw(data, Request(id_column=request.id_column, columns=columns, encoding=request.encoding))
    texts = raw.frame[raw.text].tolist()
    ids = list(map(str, range(len(texts)) if raw.id_column is None else raw.frame[raw.id_column]))
    return ids, texts, raw.reading.places, (*raw.reading.notices, *raw.notices), dict(raw.reading.ragged)


def _lines_of(data: Any, request: Request) -> _Prompts:
    path, notices = Path(data), list[str]()
    if not path.is_file():
        raise DataError(f"{path}: no such file. Prompts are one line each of a text file, or rows of a table.")
    encoding = _encoding(path, notices)
    texts = path.read_text(encoding="utf-8-sig" if encoding == "utf-8" else encoding).split("\n")
    texts = [text.rstrip("\r") for text in (texts[:-1] if texts[-1] == "" else texts)]
    places = [f"{path.name} line {number}" for number in range(1, len(texts) + 1)]
    return [str(at) for at in range(len(texts))], texts, places, notices, {}
