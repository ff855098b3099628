"""Fine-tune the Nucleotide Transformer as a whole: mean of the tokens' last states, dropout, one linear layer.

Dalla-Torre et al. 2024, Nature Methods. The encoder knows one strand at a time: training draws either strand of a sequence,
and an answer is the mean over both, so it is the same for a sequence and its reverse complement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from domains.contract import Facts
from domains.genomics.bases import reverse_complement
from domains.genomics.estimates import length_notes
from domains.genomics.kmer_tokens import PAD, START, K, numbers, places
from domains.genomics.nt_weights import find, load_encoder, read_model
from domains.genomics.strands import middle
from domains.shared.esm import empty_encoder, encoder_roles, num_parameters, pool_tokens
from domains.shared.weights import random_notes, weights_facts
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.errors import UsageError
from trainers.gradient import GradientLearner
from trainers.outcome import ClassWeights, Outcome, fit_outcome
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"weights": "random:1x32", "max_tokens": 64, "dropout": 0.0},
    "train": {
        "epochs": 20,
        "batch_size": 16,
        "lr": 1e-2,
        "head_lr": 2e-2,
        "layer_decay": 1.0,
        "micro_batch_tokens": None,
        "precision": "fp32",
        "compile": "off",
    },
}
# AdamW in float32; activations as in Korthikanti et al. 2022, arXiv 2205.05198, equation 2, less the attention matrix.
BYTES_PER_PARAMETER, ACTIVATION_BYTES = 16, 34

Strands = tuple[list[int], list[int]]


class Options(BaseModel):
    """The `options:` block of genomics/nucleotide-transformer-finetune."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field("InstaDeepAI/nucleotide-transformer-500m-human-ref", description="hub id, folder, random:2x64")
    max_tokens: int = Field(1000, gt=1, description="of six bases; longer sequences keep their middle")
    dropout: float = Field(0.1, ge=0, lt=1, description="of the pooled state, before the head")
    class_weights: ClassWeights = "none"


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from lengths and architecture. Raises MissingError where the weights are not to be had."""
    config = read_model(options.weights)["config"]
    _check_positions(config, options)
    total = num_parameters(config) + (config["hidden_size"] + 1) * facts.num_outputs
    longest = min(int(facts.sizes["longest"]) // K + 1, options.max_tokens)
    rows = settings.micro_batch_size or settings.batch_size
    widest = min(rows * longest, settings.micro_batch_tokens or rows * longest)
    activations = widest * config["num_hidden_layers"] * config["hidden_size"] * ACTIVATION_BYTES
    num_tokens = min(int(facts.sizes["total_bases"]) // K + facts.num_rows, facts.num_rows * options.max_tokens)
    return {
        "num_parameters": total,
        "num_steps": settings.planned_steps(facts.num_rows),
        "flops_per_epoch": 6 * total * num_tokens,
        "memory_bytes": BYTES_PER_PARAMETER * total + activations * (1 if settings.precision != "fp32" else 2),
        "weights": weights_facts(options.weights, find),
        "notes": [
            *random_notes(options.weights),
            *length_notes(facts, _most_bases(options)),
        ],
    }


def build(plan: Plan) -> GradientLearner:
    """A fresh learner; weights are read when training starts."""

    def statistics(train: Any) -> JSON:
        outcome = fit_outcome(train.target(), plan.facts["classes"], plan.options["class_weights"])
        return {**read_model(plan.options["weights"]), "outcome": outcome.as_json()}

    return GradientLearner(plan, statistics, lambda values, pretrained: _task(plan, values, pretrained))


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote: architecture, vocabulary and all weights are in the folder."""
    return GradientLearner.load(plan, folder, lambda values, pretrained: _task(plan, values, pretrained))


def _task(plan: Plan, statistics: JSON, pretrained: bool) -> StrandsTask:
    options, config = Options.model_validate(plan.options), statistics["config"]
    encoder = load_encoder(options.weights) if pretrained else empty_encoder(config)
    outcome, place = Outcome.from_json(statistics["outcome"]), places(statistics["vocabulary"])
    network = PooledNucleotides(encoder, config["hidden_size"], outcome.width, options.dropout, place)
    return StrandsTask(network, outcome, config["num_hidden_layers"], place, options)


def _most_bases(options: Options) -> int:
    return K * (options.max_tokens - 1)


def _check_positions(config: JSON, options: Options) -> None:
    # Positions are counted from behind the number of the padding token (transformers, EsmEmbeddings).
    most = config["max_position_embeddings"] - config["pad_token_id"] - 1
    if config.get("position_embedding_type") == "absolute" and options.max_tokens > most:
        raise UsageError(
            f"options.max_tokens: {options.max_tokens}, but these weights know {most} positions. Set at most {most}."
        )


class PooledNucleotides(nn.Module):
    """Encoder, mean over the tokens of bases, dropout, linear head: (B, L) token numbers -> (B, outputs)."""

    def __init__(
        self, encoder: nn.Module, width: int, num_outputs: int, dropout: float, place: Mapping[str, int]
    ) -> None:
        super().__init__()
        self.encoder, self.dropout, self.head = encoder, nn.Dropout(dropout), nn.Linear(width, num_outputs)
        self.pad, self.start = place[PAD], place[START]

    def forward(self, numbers_BL: Tensor) -> Tensor:
        is_token_BL = numbers_BL != self.pad
        states = self.encoder(input_ids=numbers_BL, attention_mask=is_token_BL.long()).last_hidden_state
        # Under autocast the mean must not fall back to 8 bits of precision.
        with torch.autocast(states.device.type, enabled=False):
            pooled_BD = pool_tokens(states, is_token_BL & (numbers_BL != self.start))
        out: Tensor = self.head(self.dropout(pooled_BD))
        return out


class StrandsTask:
    """Meets `contract.Task`: one label or number a sequence, read from either strand."""

    couples_rows = False
    min_rows = 1

    def __init__(
        self, model: nn.Module, outcome: Outcome, num_layers: int, place: Mapping[str, int], options: Options
    ) -> None:
        self.model, self.outcome, self.num_layers = model, outcome, num_layers
        self.place, self.options = place, options

    def roles(self) -> Mapping[str, Role]:
        own = [name for name, _ in self.model.encoder.named_parameters()]  # type: ignore[union-attr]
        found = encoder_roles(own, self.num_layers, prefix="encoder.")
        return {**found, **{f"head.{part}": Role("head", self.num_layers + 1) for part in ("weight", "bias")}}

    def examples(self, train: Any, folder: Path) -> Sequence[tuple[Strands, Any]]:
        strands = [self._strands(sequence) for sequence in train.column("sequence")]
        return list(zip(strands, self.outcome.encoded(train.target()), strict=True))

    def sizes(self, examples: Sequence[tuple[Strands, Any]]) -> Sequence[int]:
        return [max(map(len, strands)) for strands, _ in examples]

    def draw(self, examples: Sequence[tuple[Strands, Any]], rngs: Sequence[np.random.Generator]) -> Batch:
        encoded = np.array([target for _, target in examples])
        chosen = [strands[int(rng.integers(2))] for (strands, _), rng in zip(examples, rngs, strict=True)]
        return Batch((self._padded(chosen), torch.from_numpy(encoded)), self.outcome.counts(encoded))

    def loss(self, model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Mapping[str, Tensor]:
        numbers_BL, encoded = inputs
        return self.outcome.totals(model(numbers_BL), encoded)

    def row_sizes(self, rows: Any) -> Sequence[int]:
        return [max(map(len, self._strands(sequence))) for sequence in rows.column("sequence")]

    def collate(self, rows: Any) -> tuple[Tensor, Tensor]:
        strands = [self._strands(sequence) for sequence in rows.column("sequence")]
        return self._padded([one for one, _ in strands]), self._padded([other for _, other in strands])

    def predict(self, model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Predictions:
        one, other = inputs
        return self.outcome.predictions((model(one) + model(other)) / 2)

    def _strands(self, sequence: str) -> Strands:
        shown = middle(sequence, _most_bases(self.options))
        one, other = (
            numbers(strand, self.place, self.options.max_tokens) for strand in (shown, reverse_complement(shown))
        )
        return one, other

    def _padded(self, rows: Sequence[list[int]]) -> Tensor:
        found = np.full((len(rows), max(map(len, rows), default=1)), self.place[PAD], np.int64)
        for row, values in zip(found, rows, strict=True):
            row[: len(values)] = values
        return torch.from_numpy(found)
