"""A corpus as token numbers on disk: written once, in a stream, and read through a memory map."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainers.contract import JSON

TOKENS, STARTS, MARKER = "tokens.bin", "starts.bin", "store.json"


@dataclass(frozen=True)
class TokenStore:
    """tokens: (tokens,) uint16 or uint32, memory-mapped; BOS before every document.   starts: (documents,) int64, where
    each BOS is.   left_out: documents by the reason why they are not here."""

    tokens: np.ndarray
    starts: np.ndarray
    left_out: JSON

    def document(self, number: int) -> tuple[int, int]:
        """Where document `number` begins (its BOS) and ends."""
        stop = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.tokens)
        return int(self.starts[number]), int(stop)


class Words(Protocol):
    """A tokenizer.   size: of the vocabulary.   bos: the token in front of a document.   line: that of a line end."""

    size: int
    bos: int
    line: int

    def encode(self, text: str) -> np.ndarray:
        """(tokens,) int64, none of them special."""

    def decode(self, numbers: Sequence[int] | np.ndarray) -> str:
        """The text of these tokens."""

    def as_json(self) -> JSON:
        """What identifies it."""


Refusal = Callable[[str], str | None]
"""Why a document is left out, or None."""


def opened(folder: Path, rows: Any, tokenizer: Words, refusal: Refusal | None, rule: str) -> TokenStore:
    """The tokens of `rows`, from `folder` if they were written there whole by the same rule, else written now.

    A killed writer leaves no marker, so what it wrote is written again.
    """
    wanted = fingerprint(rows, tokenizer, rule)
    marker = folder / MARKER
    if not marker.exists() or json.loads(marker.read_text())["fingerprint"] != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        marker.unlink(missing_ok=True)
        written = _write(folder, rows, tokenizer, refusal)
        temporary = marker.with_suffix(".part")
        temporary.write_text(json.dumps({**written, "fingerprint": wanted}))
        temporary.replace(marker)
    facts = json.loads(marker.read_text())
    tokens = np.memmap(folder / TOKENS, dtype=facts["dtype"], mode="r", shape=(facts["num_tokens"],))
    starts = np.fromfile(folder / STARTS, dtype=np.int64)
    return TokenStore(tokens, starts, facts["left_out"])


def fingerprint(rows: Any, tokenizer: Words, rule: str) -> str:
    """What decides the tokens: the shards, the tokenizer, and what is left out."""
    text = json.dumps([rows.fingerprint(), tokenizer.as_json(), rule], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _write(folder: Path, rows: Any, tokenizer: Words, refusal: Refusal | None) -> JSON:
    dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
    num_tokens, left_out, is_refused = 0, dict[str, int](), False
    with (folder / TOKENS).open("wb") as tokens, (folder / STARTS).open("wb") as starts:
        for text, continues in _documents(rows):
            if not continues:  # the first part of a document decides for all of it
                reason = refusal(text) if refusal is not None else None
                is_refused = reason is not None
                if reason is not None:
                    left_out[reason] = left_out.get(reason, 0) + 1
            if is_refused:
                continue
            if not continues:
                starts.write(np.int64(num_tokens).tobytes())
            numbers = tokenizer.encode(text)
            numbers = numbers if continues else np.concatenate([[tokenizer.bos], numbers])
            tokens.write(numbers.astype(dtype).tobytes())
            num_tokens += len(numbers)
    return {"num_tokens": num_tokens, "dtype": dtype.name, "left_out": left_out}


def _documents(rows: Any) -> Iterator[tuple[str, bool]]:
    """Every document, or part of one; and whether it goes on from what was last yielded."""
    previous = None
    for row in range(len(rows)):
        is_next = previous is not None and int(rows.chosen[row]) == previous + 1
        for place, text in enumerate(rows.documents(row)):
            yield text, place == 0 and is_next and rows.continues(row)
        previous = int(rows.chosen[row])
