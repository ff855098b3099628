"""Running text as rows: shards of consecutive text, read from their files when they are asked for.

A shard is a run of pieces; a piece is a stretch of one file (bytes of a text file, whole lines of JSON lines, rows of
Parquet or of a frame). Only offsets are kept, so memory does not grow with the text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from trainers.errors import DataError

BEFORE_BYTES = 16_384
"""So much text before a shard goes with it, as context that is not scored: more than a window holds."""
SHARDS = 200
SMALLEST_SHARD, LARGEST_SHARD = 4 << 10, 1 << 20
PARQUET_ROWS_AT_ONCE = 256


class Piece(NamedTuple):
    """A stretch of the source at position `source` in the list of sources. num_bytes: of its text in UTF-8.
    continues: it begins inside a document."""

    source: int
    start: int
    stop: int
    num_bytes: int
    continues: bool


class Source(Protocol):
    """One file (or frame) of a corpus."""

    @property
    def name(self) -> str: ...

    def pieces(self, num: int, size: int) -> Iterator[Piece]:
        """The whole source in order, in pieces of about `size` bytes. num: what it calls itself in the pieces."""

    def documents(self, start: int, stop: int) -> Iterator[str]:
        """The documents of a piece; of a text file, the one text."""

    def before(self, start: int) -> str:
        """The end of the text in front of `start` in the same document, BEFORE_BYTES at most."""


@dataclass(frozen=True)
class TextFile:
    """A file of plain text: one document, cut at blank lines, else at line ends, else between characters."""

    path: Path
    name: str
    encoding: str = "utf-8"

    def pieces(self, num: int, size: int) -> Iterator[Piece]:
        end, first = self.path.stat().st_size, 3 if _has_mark(self.path) else 0
        with self.path.open("rb") as file:
            start = first
            while start < end:
                file.seek(start)
                block = file.read(size + 1)
                kept = block if start + len(block) >= end else block[: cut_of(block[:size])]
                num_bytes = len(kept) if self.encoding == "utf-8" else len(kept.decode(self.encoding).encode())
                yield Piece(num, start, start + len(kept), num_bytes, start > first)
                start += len(kept)

    def documents(self, start: int, stop: int) -> Iterator[str]:
        yield self._text(start, stop)

    def before(self, start: int) -> str:
        first = 3 if _has_mark(self.path) else 0
        raw = self._raw(max(first, start - BEFORE_BYTES), start)
        while raw and self.encoding == "utf-8" and raw[0] & 0xC0 == 0x80:
            raw = raw[1:]  # begins inside a character
        return raw.decode(self.encoding)

    def _text(self, start: int, stop: int) -> str:
        return self._raw(start, stop).decode(self.encoding)

    def _raw(self, start: int, stop: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(max(0, stop - start))


@dataclass(frozen=True)
class JsonLinesFile:
    """A file with one JSON object a line; each holds one document under `key`."""

    path: Path
    name: str
    key: str

    def pieces(self, num: int, size: int) -> Iterator[Piece]:
        with self.path.open("rb") as file:
            start = at = num_bytes = 0
            for number, line in enumerate(file, start=1):
                at += len(line)
                num_bytes += len(self._document(line, number).encode())
                if num_bytes >= size:
                    yield Piece(num, start, at, num_bytes, False)
                    start, num_bytes = at, 0
            if num_bytes:
                yield Piece(num, start, at, num_bytes, False)

    def documents(self, start: int, stop: int) -> Iterator[str]:
        with self.path.open("rb") as file:
            file.seek(start)
            while file.tell() < stop:
                if text := self._document(file.readline()):
                    yield text

    def before(self, start: int) -> str:
        return ""

    def _document(self, line: bytes, number: int | None = None) -> str:
        if not line.strip():
            return ""
        try:
            text = json.loads(line.decode("utf-8-sig")).get(self.key)
        except (ValueError, AttributeError) as error:
            raise DataError(f"{self.path} line {number}: no JSON object ({error}). Mend or remove it.") from None
        # Half a character (a cut emoji) is legal in JSON and in no encoding.
        return "" if text is None else str(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file; each row holds one document in column `key`."""

    path: Path
    name: str
    key: str

    def pieces(self, num: int, size: int) -> Iterator[Piece]:
        start = row = num_bytes = 0
        for text in self._texts(0):
            row += 1
            num_bytes += len(text.encode())
            if num_bytes >= size:
                yield Piece(num, start, row, num_bytes, False)
                start, num_bytes = row, 0
        if num_bytes:
            yield Piece(num, start, row, num_bytes, False)

    def documents(self, start: int, stop: int) -> Iterator[str]:
        for _, text in zip(range(stop - start), self._texts(start), strict=False):
            if text:
                yield text

    def before(self, start: int) -> str:
        return ""

    def _texts(self, start: int) -> Iterator[str]:
        """Every row from number `start` on; whole row groups before it are not read."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path) as file:
            skipped, groups = start, list[int]()
            for group in range(file.num_row_groups):
                num_rows = file.metadata.row_group(group).num_rows
                if not groups and skipped >= num_rows:
                    skipped -= num_rows
                else:
                    groups.append(group)
            for batch in file.iter_batches(PARQUET_ROWS_AT_ONCE, row_groups=groups, columns=[self.key]):
                values = batch.column(0)
                for text in values.slice(min(skipped, len(values))).to_pylist():
                    yield "" if text is None else str(text)
                skipped = max(0, skipped - len(values))


@dataclass(frozen=True, eq=False)
class Texts:
    """Documents in memory (a DataFrame, CSV): for small corpora."""

    texts: Sequence[str]
    name: str

    def pieces(self, num: int, size: int) -> Iterator[Piece]:
        start = num_bytes = 0
        for row, text in enumerate(self.texts, start=1):
            num_bytes += len(text.encode())
            if num_bytes >= size:
                yield Piece(num, start, row, num_bytes, False)
                start, num_bytes = row, 0
        if num_bytes:
            yield Piece(num, start, len(self.texts), num_bytes, False)

    def documents(self, start: int, stop: int) -> Iterator[str]:
        return (text for text in self.texts[start:stop] if text)

    def before(self, start: int) -> str:
        return ""


def cut_of(block: bytes) -> int:
    """Where to cut `block` so that whole paragraphs stay together: after its last blank line in the second half, else
    after its last line end, else before a character that may not be whole."""
    half = len(block) // 2
    for mark in (b"\n\n", b"\n"):
        if (at := block.rfind(mark, half)) >= 0:
            return at + len(mark)
    at = len(block)
    while at > 1 and at > len(block) - 4 and block[at - 1] & 0xC0 == 0x80:
        at -= 1
    return at - 1 if at > 1 and block[at - 1] >= 0xC0 else len(block)


def _has_mark(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(3) == b"\xef\xbb\xbf"


def shard_size(num_bytes: int) -> int:
    """Bytes of a shard: 1/200 of the corpus, but 4 KiB at least and 1 MiB at most."""
    return min(LARGEST_SHARD, max(SMALLEST_SHARD, num_bytes // SHARDS))


@dataclass(frozen=True, eq=False)
class CorpusTable:
    """Shards as a `domains.contract.Table`.

    pieces: (pieces, 5) int64, the fields of `Piece`.   bounds: (shards + 1,) where each shard begins in `pieces`.
    chosen: shard numbers of the rows.   names: of all shards.
    """

    sources: Sequence[Source]
    pieces: np.ndarray
    bounds: np.ndarray
    names: np.ndarray
    chosen: np.ndarray
    context: Mapping[str, Any] = field(default_factory=dict)
    has_target: bool = True

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def ids(self) -> np.ndarray:
        """ "FILE:NUMBER" of each shard, the number counted from 0 in the file where it begins."""
        found: np.ndarray = self.names[self.chosen]
        return found

    def __getitem__(self, position: int) -> Mapping[str, Any]:
        return {"text": "\n".join(self.documents(position)), "before": self.before(position)}

    def documents(self, position: int) -> Iterator[str]:
        """The documents of a row, in order; the first and the last may be parts of one."""
        for piece in self._pieces(position):
            yield from self.sources[piece.source].documents(piece.start, piece.stop)

    def before(self, position: int) -> str:
        """The text in front of the row's first document, where that document began earlier."""
        piece = next(self._pieces(position))
        return self.sources[piece.source].before(piece.start) if piece.continues else ""

    def continues(self, position: int) -> bool:
        """Whether the row begins inside a document."""
        return next(self._pieces(position)).continues

    def column(self, name: str) -> Any:
        """All texts at once: for small tables."""
        if name != "text":
            raise DataError(f"A corpus has no column {name!r}, only text.")
        return [self[position]["text"] for position in range(len(self))]

    def take(self, positions: Sequence[int] | np.ndarray) -> CorpusTable:
        """The shards at `positions`, in that order."""
        return replace(self, chosen=self.chosen[np.asarray(positions, dtype=np.int64)])

    def without_target(self) -> CorpusTable:
        """The same shards; how many bytes they have is no longer told (their text tells, but nobody counts)."""
        return replace(self, has_target=False)

    def target(self) -> np.ndarray:
        """(rows,) float64 UTF-8 bytes of each shard's documents. Raises DataError without a target."""
        if not self.has_target:
            raise DataError("these shards come without their number of bytes.")
        return self.num_bytes()

    def num_bytes(self) -> np.ndarray:
        """(rows,) float64 UTF-8 bytes of each shard."""
        totals = np.concatenate([[0], np.cumsum(self.pieces[:, 3])])
        found: np.ndarray = totals[self.bounds[self.chosen + 1]] - totals[self.bounds[self.chosen]]
        return found.astype(np.float64)

    def fingerprint(self) -> str:
        """What identifies these shards: names and offsets."""
        digest = hashlib.sha256(np.ascontiguousarray(self.pieces).tobytes())
        digest.update(np.ascontiguousarray(self.chosen).tobytes())
        digest.update("\n".join(source.name for source in self.sources).encode())
        return digest.hexdigest()

    def _pieces(self, position: int) -> Iterator[Piece]:
        shard = int(self.chosen[position])
        for source, start, stop, num_bytes, continues in self.pieces[
            self.bounds[shard] : self.bounds[shard + 1]
        ].tolist():
            yield Piece(source, start, stop, num_bytes, bool(continues))


def table_of(
    sources: Sequence[Source], total_bytes: int, context: Mapping[str, Any], walls: Set[int] = frozenset()
) -> CorpusTable:
    """Cut the sources into shards of about `shard_size(total_bytes)`; small files share one, but none reaches into a
    source whose position is in `walls`."""
    size = shard_size(total_bytes)
    pieces: list[Piece] = []
    bounds, names, filled, count = [0], [], 0, 0
    for num, source in enumerate(sources):
        count = 0
        if filled and num in walls:
            bounds.append(len(pieces))
            filled = 0
        for piece in source.pieces(num, size):
            if filled == 0:
                names.append(f"{source.name}:{count}")
            pieces.append(piece)
            filled, count = filled + piece.num_bytes, count + 1
            if filled >= size / 2:
                bounds.append(len(pieces))
                filled = 0
    if filled:
        bounds.append(len(pieces))
    table = np.array(pieces, dtype=np.int64).reshape(-1, 5)
    every = np.arange(len(bounds) - 1)
    return CorpusTable(sources, table, np.array(bounds), np.array(names, dtype=object), every, dict(context))
