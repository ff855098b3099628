"""Fine-tune a BERT-like encoder to tag words: last states, dropout, one linear layer on the first piece of each word.

Devlin et al. 2019, arXiv 1810.04805, section 5.3. Answers are the most probable well-formed tags (`tags.best_tags`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional

from domains.contract import Facts
from domains.shared.tokens import TextTokenizer, of_words
from domains.shared.weights import random_notes, random_shape
from domains.text import encoder_weights as encoders
from domains.text.estimates import encoder_estimates
from domains.text.pieces import Window, WordPieces
from domains.text.tags import best_tags
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.gradient import GradientLearner
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"weights": "random:2x32", "max_tokens": 64, "dropout": 0.0},
    "train": {
        "epochs": 6,
        "batch_size": 8,
        "lr": 5e-3,
        "head_lr": 1e-2,
        "layer_decay": 1.0,
        "micro_batch_tokens": 2048,
        "precision": "fp32",
        "compile": "off",
    },
}
NOT_COUNTED = -100
"""Target of pieces that are no word's first, of context, of start, end and padding."""


class Options(BaseModel):
    """The `options:` block of text/encoder-ner."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field("sentence-transformers/all-MiniLM-L6-v2", description="hub id, folder, demo, or random:2x64")
    max_tokens: int = Field(256, ge=8, description="longer sentences are read in windows that overlap")
    dropout: float = Field(0.1, ge=0, lt=1, description="of the states, before the head")
    encoder_dropout: float = Field(0.0, ge=0, lt=1, description="inside the encoder, except on attention")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from lengths and architecture. Raises MissingError where the weights are not to be had, UsageError for
    more tokens than the encoder has positions."""
    estimates = encoder_estimates(facts, options, settings, facts.num_outputs)
    return {**estimates, "notes": random_notes(options.weights)}


def build(plan: Plan) -> GradientLearner:
    """A fresh learner; weights are read when training starts."""
    return GradientLearner(plan, lambda train: _statistics(plan, train), lambda *found: _task(plan, *found))


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote: architecture, tokenizer and all weights are in the folder."""
    return GradientLearner.load(plan, folder, lambda *found: _task(plan, *found))


def _statistics(plan: Plan, train: Any) -> JSON:
    """Everything fitted or read: tags, architecture, tokenizer."""
    spec, config = plan.options["weights"], encoders.read_config(plan.options["weights"])
    is_random = random_shape(spec) is not None
    tokenizer = of_words(list(train.column("text"))) if is_random else encoders.load_tokenizer(spec, config)
    return {"config": config, "tags": list(plan.facts["classes"]), **tokenizer.as_json()}


def _task(plan: Plan, fitted: JSON, pretrained: bool) -> TaggingTask:
    # The weights are read again only where a fresh run starts from them; a snapshot or a run brings all.
    options, config = Options.model_validate(plan.options), fitted["config"]
    if pretrained:
        encoder = encoders.load_encoder(options.weights, config, options.encoder_dropout)
    else:
        encoder = encoders.empty_encoder(config, options.encoder_dropout)
    network = TaggingEncoder(encoder, config["hidden_size"], len(fitted["tags"]), options.dropout)
    return TaggingTask(network, tuple(fitted["tags"]), WordPieces(TextTokenizer.from_json(fitted), options.max_tokens))


class TaggingEncoder(nn.Module):
    """Encoder, dropout, linear head on every token: (B, L) token numbers -> (B, L, tags)."""

    def __init__(self, encoder: nn.Module, width: int, num_tags: int, dropout: float) -> None:
        super().__init__()
        self.encoder, self.dropout, self.head = encoder, nn.Dropout(dropout), nn.Linear(width, num_tags)

    def forward(self, numbers_BL: Tensor, is_token_BL: Tensor) -> Tensor:
        states_BLD = self.encoder(input_ids=numbers_BL, attention_mask=is_token_BL.long()).last_hidden_state
        out: Tensor = self.head(self.dropout(states_BLD))
        return out


class TaggingTask:
    """Meets `contract.Task`: a tag a word. An example is a window with the numbers of its words' tags."""

    couples_rows = False
    min_rows = 1

    def __init__(self, model: nn.Module, tags: tuple[str, ...], pieces: WordPieces) -> None:
        self.model, self.tags, self.pieces = model, tags, pieces
        self.known: dict[tuple[str, ...], list[Window]] = {}

    def roles(self) -> Mapping[str, Role]:
        found = encoders.encoder_roles(self.model.get_submodule("encoder"), prefix="encoder.")
        depth = 1 + max(role.depth for role in found.values())
        return {**found, "head.weight": Role("head", depth), "head.bias": Role("head", depth)}

    def examples(self, train: Any, folder: Path) -> Sequence[tuple[Window, np.ndarray]]:
        place = {tag: number for number, tag in enumerate(self.tags)}
        cut = self.pieces.windows(list(train.column("words")))
        return [
            (window, np.array([place[tag] for tag in tags[window.begin : window.begin + len(window.first)]], np.int64))
            for windows, tags in zip(cut, train.target(), strict=True)
            for window in windows
        ]

    def sizes(self, examples: Sequence[tuple[Window, np.ndarray]]) -> Sequence[int]:
        return [len(window.numbers) for window, _ in examples]

    def draw(self, examples: Sequence[tuple[Window, np.ndarray]], rngs: Sequence[np.random.Generator]) -> Batch:
        numbers, is_token = self.pieces.tokenizer.padded([window.numbers for window, _ in examples])
        targets = torch.full(numbers.shape, NOT_COUNTED)
        for row, (window, tags) in enumerate(examples):
            targets[row, window.first] = torch.from_numpy(tags)
        return Batch((numbers, is_token, targets), {"cross_entropy": float(sum(len(tags) for _, tags in examples))})

    def loss(self, model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor]) -> Mapping[str, Tensor]:
        numbers, is_token, targets = inputs
        scores = model(numbers, is_token).float().flatten(0, 1)
        total = functional.cross_entropy(scores, targets.flatten(), ignore_index=NOT_COUNTED, reduction="sum")
        return {"cross_entropy": total}

    def row_sizes(self, rows: Any) -> Sequence[int]:
        return [sum(len(window.numbers) for window in windows) for windows in self._windows(rows)]

    def collate(self, rows: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Windows padded; (words, 2) window and token of each word; (rows,) words of each row."""
        by_row = self._windows(rows)
        windows = [window for found in by_row for window in found]
        numbers, is_token = self.pieces.tokenizer.padded([window.numbers for window in windows])
        places = [np.stack([np.full(len(w.first), at), w.first], axis=1) for at, w in enumerate(windows)]
        num_words = torch.tensor([sum(len(window.first) for window in found) for found in by_row], dtype=torch.long)
        return numbers, is_token, torch.from_numpy(np.concatenate([np.empty((0, 2), np.int64), *places])), num_words

    def predict(self, model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor, Tensor]) -> Predictions:
        return Predictions.of_tags([best_tags(row, self.tags) for row in self.word_logs(model, inputs)], self.tags)

    def word_logs(self, model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor, Tensor]) -> list[np.ndarray]:
        """(words, tags) float64 log probabilities of each row, from what `collate` made of them."""
        numbers, is_token, places, num_words = inputs
        if not len(numbers):
            return []
        scores = model(numbers, is_token).float()[places[:, 0], places[:, 1]].log_softmax(dim=1)
        return np.split(scores.double().cpu().numpy(), np.cumsum(num_words.cpu().numpy())[:-1])

    def _windows(self, rows: Any) -> list[list[Window]]:
        """Windows; those of the rows that are being predicted are kept, as they are asked for twice."""
        sentences = [tuple(words) for words in rows.column("words")]
        if any(words not in self.known for words in sentences):
            self.known = dict(zip(sentences, self.pieces.windows(sentences), strict=True))
        return [self.known[words] for words in sentences]
