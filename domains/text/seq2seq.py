"""Fine-tune an encoder-decoder on source and target texts; answers are written by beam search.

Raffel et al. 2020, arXiv 1910.10683, section 3.1 (T5); Lewis et al. 2020, arXiv 1910.13461 (BART).
Shapes: B rows, S source tokens, T target tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional

from domains.contract import Facts
from domains.shared.tokens import TextTokenizer
from domains.shared.weights import random_notes, random_shape, weights_facts
from domains.text import seq2seq_weights as models
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.errors import UsageError
from trainers.gradient import GradientLearner
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"weights": "random:1x32", "vocabulary": 300, "max_target_tokens": 24, "num_beams": 2, "dropout": 0.0},
    "train": {
        "epochs": 8,
        "batch_size": 16,
        "lr": 1e-2,
        "micro_batch_tokens": 4096,
        "precision": "fp32",
        "compile": "off",
    },
}
# AdamW in float32: weight, gradient and two moments.
BYTES_PER_PARAMETER = 16
CHARACTERS_PER_TOKEN = 4.0
"""Of English prose; the plan's guess, other languages have fewer."""
IGNORED = -100


class Options(BaseModel):
    """The `options:` block of text/seq2seq."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field(
        "google/flan-t5-small", description="hub id, folder, or random:3x256 (layers of each half, width)"
    )
    prefix: str = Field("", description="written before every source text: 'translate German to English: ' for T5")
    max_source_tokens: int = Field(256, ge=4, description="longer source texts are cropped at the end")
    max_target_tokens: int = Field(128, ge=4, description="longer targets are cropped; answers end here at the latest")
    vocabulary: int = Field(8000, ge=300, description="tokens of random weights, found in the training rows")
    dropout: float | None = Field(None, ge=0, lt=1, description="None: the model's own")
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    num_beams: int = Field(4, ge=1, description="beams when answering; 1 is greedy")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from lengths and architecture. Raises MissingError where the weights are not to be had, UsageError for
    more tokens than the model has positions."""
    config = models.read_config(options.weights, options.vocabulary)
    limit = models.most_tokens(config)
    for name in ("max_source_tokens", "max_target_tokens"):
        if getattr(options, name) > limit:
            raise UsageError(
                f"options.{name} is {getattr(options, name)}, but {options.weights} reads {limit} tokens at most: "
                f"--set options.{name}={limit}"
            )
    total = models.num_parameters(config)
    tokens = (facts.sizes["total_source"] + facts.sizes["total_target"]) / CHARACTERS_PER_TOKEN
    return {
        "num_parameters": total,
        "num_steps": settings.planned_steps(facts.num_rows),
        "flops_per_epoch": int(6 * total / 2 * tokens),  # each token passes one half
        "memory_bytes": BYTES_PER_PARAMETER * total,
        "weights": weights_facts(options.weights, models.find),
        "notes": _notes(facts, options),
    }


def _notes(facts: Facts, options: Options) -> list[str]:
    found = random_notes(options.weights)
    for name, limit in (("source", options.max_source_tokens), ("target", options.max_target_tokens)):
        longest = facts.sizes[f"longest_{name}"]
        if longest / CHARACTERS_PER_TOKEN > limit:
            found.append(
                f"the longest {name} text has {longest:,.0f} characters; they are cropped after {limit} tokens "
                f"(options.max_{name}_tokens), and training says how many"
            )
    return found


def build(plan: Plan) -> GradientLearner:
    """A fresh learner; weights are read when training starts."""
    learner = GradientLearner(
        plan,
        lambda train: _statistics(plan, train),
        lambda fitted, pretrained: make_task(
            plan, fitted, pretrained, lambda text: learner.batch.say(kind="warning", text=text)
        ),
    )
    return learner


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote: architecture, tokenizer and all weights are in the folder."""
    return GradientLearner.load(
        plan, folder, lambda fitted, pretrained: make_task(plan, fitted, pretrained, lambda text: None)
    )


def _statistics(plan: Plan, train: Any) -> JSON:
    options = Options.model_validate(plan.options)
    config = models.read_config(options.weights, options.vocabulary)
    if random_shape(options.weights) is None:
        return {"config": config, **models.load_tokenizer(options.weights, config)}
    texts = [*train.column("source"), *train.column("target")]
    tokenizer = models.made_tokenizer(texts, options.vocabulary)
    return {"config": {**config, "vocab_size": TextTokenizer.from_json(tokenizer).size}, **tokenizer}


def make_task(plan: Plan, fitted: JSON, pretrained: bool, say: Callable[[str], None]) -> Seq2SeqTask:
    """The task with its network, pretrained or to be filled. say: receives what is cropped."""
    options, config = Options.model_validate(plan.options), fitted["config"]
    if pretrained:
        network = models.load_network(options.weights, config, options.dropout)
    else:
        network = models.empty_network(config, options.dropout)
    return Seq2SeqTask(network, TextTokenizer.from_json(fitted), options, models.start_token(config), say)


class Seq2SeqTask:
    """Meets `contract.Task`. An example is (source token numbers, target token numbers), each with its end."""

    couples_rows = False
    min_rows = 1

    def __init__(
        self, model: nn.Module, tokenizer: TextTokenizer, options: Options, start: int, say: Callable[[str], None]
    ) -> None:
        self.model, self.tokenizer, self.options, self.start, self.say = model, tokenizer, options, start, say

    def roles(self) -> Mapping[str, Role]:
        return models.roles(self.model)

    def examples(self, train: Any, folder: Path) -> Sequence[tuple[np.ndarray, np.ndarray]]:
        sides = []
        for name in ("source", "target"):
            limit = getattr(self.options, f"max_{name}_tokens")
            encoded = self.tokenizer.encode(self._texts(train, name), limit)
            if num := int(encoded.is_cropped.sum()):
                self.say(
                    f"{num:,} of {len(train):,} {name} texts are longer than {limit} tokens; what follows is not read"
                )
            sides.append(encoded.numbers)
        return list(zip(*sides, strict=True))

    def sizes(self, examples: Sequence[tuple[np.ndarray, np.ndarray]]) -> Sequence[int]:
        return [len(source) + len(target) for source, target in examples]

    def draw(self, examples: Sequence[tuple[np.ndarray, np.ndarray]], rngs: Sequence[np.random.Generator]) -> Batch:
        source, is_source = self.tokenizer.padded([source for source, _ in examples])
        target, is_target = self.tokenizer.padded([target for _, target in examples])
        before = torch.cat([torch.full_like(target[:, :1], self.start), target[:, :-1]], dim=1)
        inputs = (source, is_source, before, target.masked_fill(~is_target, IGNORED))
        return Batch(inputs, {"cross_entropy": float(is_target.sum())})

    def loss(self, model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor, Tensor]) -> Mapping[str, Tensor]:
        source_BS, is_source_BS, before_BT, target_BT = inputs
        out = model(
            input_ids=source_BS, attention_mask=is_source_BS.long(), decoder_input_ids=before_BT, use_cache=False
        )
        logits_NV = out.logits.flatten(0, 1).float()
        smoothing = self.options.label_smoothing
        total = functional.cross_entropy(
            logits_NV, target_BT.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
        )
        return {"cross_entropy": total}

    def row_sizes(self, rows: Any) -> Sequence[int]:
        return [len(text) for text in rows.column("source")]

    def collate(self, rows: Any) -> tuple[Tensor, Tensor]:
        texts = self._texts(rows, "source")
        return self.tokenizer.padded(self.tokenizer.encode(texts, self.options.max_source_tokens).numbers)

    def predict(self, model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Predictions:
        source_BS, is_source_BS = inputs
        if not len(source_BS):
            return Predictions.of_texts([])
        writer: Any = model
        written = writer.generate(
            input_ids=source_BS,
            attention_mask=is_source_BS.long(),
            num_beams=self.options.num_beams,
            max_new_tokens=self.options.max_target_tokens,
            do_sample=False,
        )
        decode = self.tokenizer.tokenizer.decode_batch
        return Predictions.of_texts([text.strip() for text in decode(written.tolist(), skip_special_tokens=True)])

    def _texts(self, rows: Any, name: str) -> list[str]:
        prefix = self.options.prefix if name == "source" else ""
        return [prefix + str(text) for text in rows.column(name)]
