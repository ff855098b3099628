"""Train a GPT and its tokenizer on running text from nothing, and let it continue prompts.

The corpus becomes token numbers on disk once. Short documents are packed into rows by best fit and kept apart by masks;
one long text is read in windows that begin anywhere. Scores come from overlapping windows. See `gpt` for the model,
`shards` for rows, `scale` for sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional

from domains.contract import Facts
from domains.text import gpt, gpt_folder, packing
from domains.text.bpe import Tokenizer
from domains.text.dedupe import refusal_of
from domains.text.generation import continued
from domains.text.scale import GOOD_EPOCHS, Size, size_of
from domains.text.token_store import TokenStore, opened
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role, Watch
from trainers.errors import UsageError
from trainers.gradient import CHECKPOINTS, GradientLearner
from trainers.settings import Gradient

TINY: JSON = {
    "options": {
        "depth": 2,
        "width": 32,
        "head_size": 16,
        "context": 32,
        "vocabulary": 300,
        "stride": 16,
        "new_tokens": 4,
        "windows": "SL",
    },
    "train": {"epochs": 8, "batch_size": 16, "lr": 0.02, "precision": "fp32", "compile": "off"},
}
BYTES_PER_PARAMETER = 16
# Activations kept for the backward pass, per token, layer and width (Korthikanti et al. 2022, arXiv 2205.05198, eq. 2,
# less the attention matrix), in bytes with 16-bit activations.
ACTIVATION_BYTES = 34
LONG_DOCUMENTS = 8
"""Documents of this many windows on average are not packed: masks would cost more than their few joints harm."""
WINDOWS_AT_ONCE = 32
BITS = 1 / math.log(2)


class Options(BaseModel):
    """The `options:` block of text/gpt-pretrain. Depth is the one dial; the rest follows unless it is said."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    depth: int | None = Field(None, ge=1, description="layers; None: as many as the corpus is enough for, 4 at least")
    width: int | None = Field(None, ge=8, description="None: 64 a layer, in whole heads")
    head_size: int = Field(128, ge=8, description="channels of a head, even")
    kv_heads: int | None = Field(None, ge=1, description="heads of keys and values; None: as many as query heads")
    vocabulary: int | None = Field(None, ge=257, description="tokens; None: by the size of the corpus")
    context: int = Field(256, ge=8, description="tokens that the model reads at once")
    windows: str = Field("L", description="a letter a layer, repeated: S sees half the context, L all of it")
    feed_forward: Literal["relu2", "swiglu"] = "relu2"
    value_embeddings: bool | None = Field(None, description="None: where text is not scarce")
    is_tied: bool = Field(False, description="one table for embedding and head")
    logit_cap: float | None = Field(15.0, gt=0)
    z_loss: float = Field(0.0, ge=0)
    dropout: float | None = Field(
        None, ge=0, lt=1, description="of what a layer adds; None: 0.2 where text is scarce, else 0"
    )
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


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from the bytes of the corpus. Raises UsageError where the shape does not fit together."""
    try:
        size = size_of(facts, options)
    except ValueError as error:
        raise UsageError(f"options: {error}") from None
    config = size.config
    examples = max(1, int(size.tokens / config.max_length))
    steps = settings.steps or math.ceil((settings.epochs or GOOD_EPOCHS) * examples / settings.batch_size)
    rows = settings.micro_batch_size or settings.batch_size
    activations = rows * config.max_length * (config.depth * config.width * ACTIVATION_BYTES + 12 * config.vocab_size)
    notes = [size.note(_epochs(settings, size))]
    if settings.seconds is not None:
        notes.append("a budget in seconds: how many passes they are enough for shows when training has begun")
    return {
        "num_parameters": int(size.params),
        "num_steps": steps if settings.seconds is None else None,
        "flops_per_epoch": int(6 * size.params * size.tokens),
        "memory_bytes": int(BYTES_PER_PARAMETER * size.params + activations),
        "shape": {"depth": config.depth, "width": config.width, "vocabulary": config.vocab_size},
        "notes": notes,
    }


def _epochs(settings: Gradient, size: Size) -> float | None:
    if settings.steps is not None:
        return settings.steps * settings.batch_size * size.config.max_length / size.tokens
    return settings.epochs if settings.seconds is None else None


def build(plan: Plan) -> PretrainLearner:
    """A fresh learner; the tokenizer is trained when training starts."""
    return PretrainLearner(
        GradientLearner(plan, lambda train: _statistics(plan, train), lambda *made: _task(plan, *made))
    )


def load(plan: Plan, folder: Path) -> PretrainLearner:
    """The learner that `save` wrote: tokenizer and weights are in the folder."""
    return PretrainLearner(GradientLearner.load(plan, folder, lambda *made: _task(plan, *made)))


class PretrainLearner:
    """A `GradientLearner` whose saved folder transformers' tokenizers and `gpt_folder.load` can read too."""

    resumable = True

    def __init__(self, learner: GradientLearner) -> None:
        self.learner = learner

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Train; see `trainers.loop`."""
        actual = self.learner.fit(train, valid, watch)
        return {**actual, "left_out": getattr(self.learner.task, "left_out", {})}

    def predict(self, rows: Any) -> Predictions:
        """Bits of each shard, or the continuation of each prompt."""
        return self.learner.predict(rows)

    def save(self, folder: Path) -> None:
        """Weights and statistics, and beside them config.json and the tokenizer's files."""
        self.learner.save(folder)
        assert self.learner.statistics is not None
        gpt_folder.describe(folder, self.learner.statistics)


def _statistics(plan: Plan, train: Any) -> JSON:
    """The tokenizer, and the shape with the vocabulary that it really has."""
    options, facts = Options.model_validate(plan.options), Facts.from_json(plan.facts)
    size = size_of(facts, options)
    tokenizer = Tokenizer.trained_on(train, size.config.vocab_size)
    config = {**vars(size.config), "vocab_size": tokenizer.size}
    return {"config": config, "tokenizer": tokenizer.as_json(), "packs": packs(facts, options)}


def packs(facts: Facts, options: Options) -> bool:
    """Whether documents are packed and masked: where they are short against the context."""
    if options.packing != "auto":
        return options.packing == "documents"
    # Four bytes a token: what longer documents have is windows enough.
    return facts.sizes["mean_document_bytes"] < LONG_DOCUMENTS * 4 * options.context


def _task(plan: Plan, fitted: JSON, _: bool) -> CorpusTask:
    return CorpusTask(
        gpt.GPT(gpt.GPTConfig(**fitted["config"])),
        Tokenizer.from_json(fitted["tokenizer"]),
        Options.model_validate(plan.options),
        packs=fitted["packs"],
        seed=plan.seed,
    )


class CorpusTask:
    """Meets `contract.Task`. An example is the number of a packed row, or of a window."""

    couples_rows = False
    min_rows = 1

    model: nn.Module

    def __init__(self, model: gpt.GPT, tokenizer: Tokenizer, options: Options, *, packs: bool, seed: int) -> None:
        self.model, self.network, self.tokenizer, self.options, self.packs, self.seed = (
            model,
            model,
            tokenizer,
            options,
            packs,
            seed,
        )
        self.length = model.config.max_length
        self.left_out: JSON = {}
        self.store: TokenStore | None = None
        self.rows: packing.Rows | None = None

    def roles(self) -> Mapping[str, Role]:
        return gpt.roles(self.network)

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
        return Batch(inputs, self._counts(float(inputs[1].numel())))

    def _packed(self, examples: Sequence[int], rows: packing.Rows) -> Batch:
        assert self.store is not None
        shape = (len(examples), self.length)
        inputs, targets = np.zeros(shape, np.int64), np.full(shape, gpt.IGNORED, np.int64)
        documents = np.full(shape, -1, np.int64)
        for at, row in enumerate(examples):
            filled = 0
            for number, (begin, size) in enumerate(rows.spans(row)):
                part = slice(filled, filled + size)
                inputs[at, part] = self.store.tokens[begin : begin + size]
                targets[at, part] = self.store.tokens[begin + 1 : begin + size + 1]
                documents[at, part] = number
                filled += size
        counts = self._counts(float((targets != gpt.IGNORED).sum()))
        return Batch(tuple(torch.from_numpy(each) for each in (inputs, targets, documents)), counts)

    def _counts(self, num_targets: float) -> dict[str, float]:
        return {"cross_entropy": num_targets, **({"z": num_targets} if self.options.z_loss else {})}

    def loss(self, model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor | None]) -> Mapping[str, Tensor]:
        tokens, targets, documents = inputs
        return gpt.losses(model(tokens, documents), targets, self.options.z_loss)

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
            return Predictions.of_texts([self._completion(model, prompt, device) for prompt in inputs])
        return Predictions.of_numbers(np.array([self._bits(model, documents, device) for documents in inputs]))

    def _completion(self, model: nn.Module, prompt: str, device: torch.device) -> str:
        start = np.array([self._start()])
        numbers = np.concatenate([start, self.tokenizer.encode(prompt)])
        options = self.options
        found = continued(
            model,
            numbers.tolist(),
            num_new=options.new_tokens,
            length=self.length,
            stop=self.tokenizer.bos,
            temperature=options.temperature,
            top_k=options.top_k,
            seed=[self.seed, *prompt.encode()],
            device=device,
        )
        return self.tokenizer.decode(found)

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
        inputs, targets = np.zeros(shape, np.int64), np.full(shape, gpt.IGNORED, np.int64)
        for row, (tokens, following, first) in enumerate(windows):
            # Behind a shorter window stand zeros, which nothing before them sees.
            inputs[row, : len(tokens)] = tokens
            targets[row, first : len(tokens)] = following[first:]
        logits = model(torch.from_numpy(inputs).to(device)).float()
        wanted = torch.from_numpy(targets).to(device).flatten()
        return float(functional.cross_entropy(logits.flatten(0, 1), wanted, ignore_index=gpt.IGNORED, reduction="sum"))
