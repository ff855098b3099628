"""Learning to predict every next token of running text: `contract.Task` for a GPT of ours and for models of transformers.

The corpus becomes token numbers on disk once. Short documents are packed into rows by best fit and kept apart by masks;
one long text is read in windows that begin anywhere. Scores come from overlapping windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from domains.contract import Facts
from domains.text import packing
from domains.text.dedupe import refusal_of
from domains.text.gpt import IGNORED
from domains.text.token_store import TokenStore, Words, opened
from trainers.contract import JSON, Batch, Predictions, Role
from trainers.errors import UsageError
from trainers.gradient import CHECKPOINTS

LONG_DOCUMENTS = 8
"""Documents of this many windows on average are not packed: masks would cost more than their few joints harm."""
WINDOWS_AT_ONCE = 32
BITS = 1 / math.log(2)


class CorpusOptions(BaseModel):
    """What recipes on running text share of their `options:` blocks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    context: int = Field(256, ge=8, description="tokens that the model reads at once")
    packing: Literal["auto", "documents", "stream"] = Field(
        "auto", description="documents: short ones share a row, masked; stream: windows anywhere in the running text"
    )
    dedupe: Literal["off", "exact", "near"] = Field(
        "exact", description="documents left out of training: copies of earlier or held-out ones"
    )
    quality: Literal["off", "gopher"] = Field("off", description="leave out documents by the rules of `dedupe.RULES`")
    stride: int | None = Field(
        None, ge=1, description="tokens that a window of an evaluation scores; None: half a context"
    )
    new_tokens: int = Field(128, ge=1, description="of a completion, at most")
    temperature: float = Field(0.8, ge=0, description="of a completion; 0: always the likeliest token")
    top_k: int | None = Field(50, ge=1, description="a completion draws from so many likeliest tokens")


def packs(facts: Facts, options: CorpusOptions) -> bool:
    """Whether documents are packed and masked: where they are short against the context."""
    if options.packing != "auto":
        return options.packing == "documents"
    # Four bytes a token: what longer documents have is windows enough.
    return facts.sizes["mean_document_bytes"] < LONG_DOCUMENTS * 4 * options.context


def check_corpus(facts: Facts) -> None:
    """Raise UsageError where the data are rows of prompts with answers."""
    if facts.schema["shape"] != "corpus":
        raise UsageError(
            "these data are prompts with answers, and this recipe reads running text. Use text/lora-finetune, or give the "
            "texts under a column of another name (text)."
        )


class Speaker(Protocol):
    """What differs between models of running text."""

    @property
    def network(self) -> nn.Module:
        """The model, fresh or loaded."""

    def roles(self) -> Mapping[str, Role]:
        """As `contract.Task.roles`."""

    def counts(self, num_targets: float) -> dict[str, float]:
        """What each of the totals of `costs` is divided by."""

    def costs(
        self, model: nn.Module, tokens_BT: Tensor, targets_BT: Tensor, documents_BT: Tensor | None
    ) -> Mapping[str, Tensor]:
        """Totals over the targets that are not IGNORED, `cross_entropy` in nats among them. model: `network`, perhaps
        compiled or wrapped.   documents_BT: number of its document at each position, -1 at padding; None: each row is
        one."""

    def completion(self, model: nn.Module, numbers: Sequence[int], seed: Sequence[int]) -> Sequence[int]:
        """What it writes behind `numbers`, the same for the same seed."""


class CorpusTask:
    """Meets `contract.Task`. An example is the number of a packed row, or of a window."""

    couples_rows = False
    min_rows = 1

    model: nn.Module

    def __init__(self, speaker: Speaker, tokenizer: Words, options: CorpusOptions, *, packs: bool, seed: int) -> None:
        self.model = speaker.network
        self.speaker, self.tokenizer, self.options, self.packs, self.seed = speaker, tokenizer, options, packs, seed
        self.length = options.context
        self.left_out: JSON = {}
        self.store: TokenStore | None = None
        self.rows: packing.Rows | None = None

    def roles(self) -> Mapping[str, Role]:
        return self.speaker.roles()

    def examples(self, train: Any, folder: Path) -> Sequence[int]:
        rule = f"{self.options.dedupe}/{self.options.quality}"
        refusal = refusal_of(self.options.dedupe, self.options.quality, train.context.get("held_out"))
        self.store = opened(folder / CHECKPOINTS / "tokens", train, self.tokenizer, refusal, rule)
        self.left_out = self.store.left_out
        if not self.packs:
            return range(max(1, (len(self.store.tokens) - 1) // self.length))
        spans = packing.cut_documents(self.store.starts, len(self.store.tokens), self.length)
        self.rows = packing.packed(*spans, self.length)
        return range(len(self.rows))

    def sizes(self, examples: Sequence[int]) -> Sequence[int] | None:
        """None: all rows are as long."""
        return None

    def draw(self, examples: Sequence[int], rngs: Sequence[np.random.Generator]) -> Batch:
        if self.rows is not None:
            return self._packed(examples, self.rows)
        assert self.store is not None
        tokens, length = self.store.tokens, min(self.length, len(self.store.tokens) - 1)
        starts = [
            min(at * self.length + int(rng.integers(self.length)), len(tokens) - length - 1)
            for at, rng in zip(examples, rngs, strict=True)
        ]
        every = torch.from_numpy(np.stack([tokens[start : start + length + 1] for start in starts]).astype(np.int64))
        inputs = every[:, :-1].contiguous(), every[:, 1:].contiguous(), None
        return Batch(inputs, self.speaker.counts(float(inputs[1].numel())))

    def _packed(self, examples: Sequence[int], rows: packing.Rows) -> Batch:
        assert self.store is not None
        shape = (len(examples), self.length)
        inputs, targets = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        documents = np.full(shape, -1, np.int64)
        for at, row in enumerate(examples):
            filled = 0
            for number, (begin, size) in enumerate(rows.spans(row)):
                part = slice(filled, filled + size)
                inputs[at, part] = self.store.tokens[begin : begin + size]
                targets[at, part] = self.store.tokens[begin + 1 : begin + size + 1]
                documents[at, part] = number
                filled += size
        counts = self.speaker.counts(float((targets != IGNORED).sum()))
        return Batch(tuple(torch.from_numpy(each) for each in (inputs, targets, documents)), counts)

    def loss(self, model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor | None]) -> Mapping[str, Tensor]:
        return self.speaker.costs(model, *inputs)

    def row_sizes(self, rows: Any) -> Sequence[int] | None:
        """None: shards are about as long."""
        return None

    def collate(self, rows: Any) -> Any:
        """Prompts as texts; of shards, (tokens, how many of them are context) of each document."""
        if rows.context.get("prompts"):
            return [str(text) for text in rows.column("text")]
        return [[each for each in self._documents(rows, row) if len(each[0]) > 1] for row in range(len(rows))]

    def _documents(self, rows: Any, row: int) -> list[tuple[np.ndarray, int]]:
        found = []
        for place, text in enumerate(rows.documents(row)):
            before = self._before(rows, row) if place == 0 and rows.continues(row) else np.array([self._start()])
            found.append((np.concatenate([before, self.tokenizer.encode(text)]), len(before)))
        return found

    def _before(self, rows: Any, row: int) -> np.ndarray:
        """The tokens in front of a shard that begins inside a document, as many as a window can hold."""
        # A token has a hundred bytes at most in practice, four on average: this much text fills any window.
        text = rows.before(row)[-16 * self.length :]
        return np.concatenate([[self._start()], self.tokenizer.encode(text)])[-self.length :]

    def _start(self) -> int:
        """What stands before the first token: BOS, or a line end where BOS was hardly ever seen."""
        return self.tokenizer.bos if self.packs else self.tokenizer.line

    def predict(self, model: nn.Module, inputs: Any) -> Predictions:
        device = next(model.parameters()).device
        if inputs and isinstance(inputs[0], str):
            return Predictions.of_texts([self._completion(model, prompt) for prompt in inputs])
        return Predictions.of_numbers(np.array([self._bits(model, documents, device) for documents in inputs]))

    def _completion(self, model: nn.Module, prompt: str) -> str:
        numbers = np.concatenate([[self._start()], self.tokenizer.encode(prompt)])
        return self.tokenizer.decode(self.speaker.completion(model, numbers.tolist(), [self.seed, *prompt.encode()]))

    def _bits(self, model: nn.Module, documents: list[tuple[np.ndarray, int]], device: torch.device) -> float:
        """Bits of all documents of one shard, from overlapping windows; the tokens that are context do not count."""
        stride = min(self.options.stride or max(1, self.length // 2), self.length)
        windows = [
            (numbers[begin:end], numbers[begin + 1 : end + 1], counted - begin)
            for numbers, num_before in documents
            for begin, end, counted in packing.overlapping(num_before, len(numbers), self.length, stride)
        ]
        windows.sort(key=lambda window: -len(window[0]))
        total = 0.0
        for at in range(0, len(windows), WINDOWS_AT_ONCE):
            total += self._nats(model, windows[at : at + WINDOWS_AT_ONCE], device)
        return total * BITS

    def _nats(self, model: nn.Module, windows: Sequence[Any], device: torch.device) -> float:
        shape = (len(windows), len(windows[0][0]))
        inputs, targets = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        for row, (tokens, following, first) in enumerate(windows):
            # Behind a shorter window stand zeros, which nothing before them sees.
            inputs[row, : len(tokens)] = tokens
            targets[row, first : len(tokens)] = following[first:]
        tokens, wanted = (torch.from_numpy(each).to(device) for each in (inputs, targets))
        return float(self.speaker.costs(model, tokens, wanted, None)["cross_entropy"].detach())
