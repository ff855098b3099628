"""Fine-tune a BERT-like encoder on labelled texts: pooled last states, dropout, one linear layer.

Devlin et al. 2019, arXiv 1810.04805, section 4.1; the mean over tokens is what sentence encoders were trained with
(Reimers & Gurevych 2019, arXiv 1908.10084, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from domains.contract import Facts
from domains.shared.pooled import PooledEncoder, pooled_roles
from domains.shared.tokens import TextTokenizer, of_words
from domains.shared.weights import random_shape
from domains.text import encoder_weights as encoders
from domains.text.estimates import cropping_notes, encoder_estimates
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.gradient import GradientLearner
from trainers.outcome import ClassWeights, Outcome, fit_outcome
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"weights": "random:2x32", "max_tokens": 64, "dropout": 0.0},
    "train": {
        "epochs": 6,
        "batch_size": 16,
        "lr": 3e-3,
        "head_lr": 1e-2,
        "layer_decay": 1.0,
        "micro_batch_tokens": 2048,
        "precision": "fp32",
        "compile": "off",
    },
}


class Options(BaseModel):
    """The `options:` block of text/encoder-classify."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field("sentence-transformers/all-MiniLM-L6-v2", description="hub id, folder, demo, or random:2x64")
    max_tokens: int = Field(256, ge=4, description="longer texts are cropped at the end; start and end token included")
    pooling: Literal["mean", "first"] = Field("mean", description="mean of all tokens, or the first one's state (CLS)")
    dropout: float = Field(0.1, ge=0, lt=1, description="of the pooled state, before the head")
    encoder_dropout: float = Field(0.0, ge=0, lt=1, description="inside the encoder, except on attention")
    class_weights: ClassWeights = "none"


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from lengths and architecture. Raises MissingError where the weights are not to be had, UsageError for
    more tokens than the encoder has positions."""
    notes = cropping_notes(facts, options.weights, options.max_tokens)
    return {**encoder_estimates(facts, options, settings, facts.num_outputs), "notes": notes}


def build(plan: Plan) -> GradientLearner:
    """A fresh learner; weights are read when training starts, and what is cropped is told then."""
    learner = GradientLearner(
        plan,
        lambda train: _statistics(plan, train),
        lambda values, pretrained: _task(
            plan, values, pretrained, lambda text: learner.batch.say(kind="warning", text=text)
        ),
    )
    return learner


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote: architecture, tokenizer and all weights are in the folder."""
    return GradientLearner.load(
        plan, folder, lambda values, pretrained: _task(plan, values, pretrained, lambda text: None)
    )


def _statistics(plan: Plan, train: Any) -> JSON:
    """Everything fitted or read: outcome, architecture, tokenizer."""
    spec, config = plan.options["weights"], encoders.read_config(plan.options["weights"])
    is_random = random_shape(spec) is not None
    tokenizer = of_words(list(train.column("text"))) if is_random else encoders.load_tokenizer(spec, config)
    outcome = fit_outcome(train.target(), plan.facts["classes"], plan.options["class_weights"])
    return {"config": config, "outcome": outcome.as_json(), **tokenizer.as_json()}


def _task(plan: Plan, fitted: JSON, pretrained: bool, say: Callable[[str], None]) -> TextTask:
    # The weights are read again only where a fresh run starts from them; a snapshot or a run brings all.
    options, config = Options.model_validate(plan.options), fitted["config"]
    if pretrained:
        encoder = encoders.load_encoder(options.weights, config, options.encoder_dropout)
    else:
        encoder = encoders.empty_encoder(config, options.encoder_dropout)
    outcome = Outcome.from_json(fitted["outcome"])
    network = PooledEncoder(encoder, config["hidden_size"], outcome.width, options)
    return TextTask(network, outcome, TextTokenizer.from_json(fitted), options.max_tokens, say)


class TextTask:
    """Meets `contract.Task`: one label or number a text. An example is (token numbers, encoded target)."""

    couples_rows = False
    min_rows = 1

    def __init__(
        self,
        model: nn.Module,
        outcome: Outcome,
        tokenizer: TextTokenizer,
        max_tokens: int,
        say: Callable[[str], None],
    ) -> None:
        self.model, self.outcome, self.tokenizer, self.max_tokens, self.say = model, outcome, tokenizer, max_tokens, say
        self.known: dict[str, np.ndarray] = {}

    def roles(self) -> Mapping[str, Role]:
        return pooled_roles(self.model)

    def examples(self, train: Any, folder: Path) -> Sequence[tuple[np.ndarray, Any]]:
        encoded = self.tokenizer.encode(list(train.column("text")), self.max_tokens)
        if num := int(encoded.is_cropped.sum()):
            self.say(
                f"{num:,} of {len(train):,} training texts are longer than {self.max_tokens} tokens; what follows is "
                "not read (options.max_tokens)"
            )
        return list(zip(encoded.numbers, self.outcome.encoded(train.target()), strict=True))

    def sizes(self, examples: Sequence[tuple[np.ndarray, Any]]) -> Sequence[int]:
        return [len(numbers) for numbers, _ in examples]

    def draw(self, examples: Sequence[tuple[np.ndarray, Any]], rngs: Sequence[np.random.Generator]) -> Batch:
        encoded = np.array([target for _, target in examples])
        inputs = (*self.tokenizer.padded([numbers for numbers, _ in examples]), torch.from_numpy(encoded))
        return Batch(inputs, self.outcome.counts(encoded))

    def loss(self, model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor]) -> Mapping[str, Tensor]:
        numbers, is_token, encoded = inputs
        return self.outcome.totals(model(numbers, is_token), encoded)

    def row_sizes(self, rows: Any) -> Sequence[int]:
        return [len(numbers) for numbers in self._numbers(list(rows.column("text")))]

    def collate(self, rows: Any) -> tuple[Tensor, Tensor]:
        return self.tokenizer.padded(self._numbers(list(rows.column("text"))))

    def predict(self, model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Predictions:
        return self.outcome.predictions(model(*inputs))

    def _numbers(self, texts: list[str]) -> list[np.ndarray]:
        """Token numbers; those of the rows that are being predicted are kept, as they are asked for twice."""
        if any(text not in self.known for text in texts):
            self.known = dict(zip(texts, self.tokenizer.encode(texts, self.max_tokens).numbers, strict=True))
        return [self.known[text] for text in texts]
