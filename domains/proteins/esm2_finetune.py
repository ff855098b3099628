"""Fine-tune ESM-2 as a whole or by adapters: mean of the residues' last states, dropout, one linear layer.

As in Schmirler et al. 2024 (Nature Communications 15:7407), who found LoRA (Hu et al. 2021, arXiv 2106.09685) as good
as training all weights. Options on top: balanced classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from domains.contract import Facts
from domains.proteins.adapters import is_adapter, num_adapted, with_adapters
from domains.proteins.estimates import length_notes, num_tokens_seen
from domains.shared.esm import empty_encoder, encoder_roles, num_parameters
from domains.shared.proteins.esm2 import NUM_ADDED_TOKENS, pooled, tokens
from domains.shared.proteins.esm2_weights import find, load_encoder, read_config
from domains.shared.weights import random_notes, weights_facts
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.gradient import GradientLearner
from trainers.outcome import Outcome, fit_outcome
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"weights": "random:2x32", "max_residues": 64, "dropout": 0.0},
    "train": {
        "epochs": 4,
        "batch_size": 16,
        "lr": 3e-3,
        "head_lr": 1e-2,
        "layer_decay": 1.0,
        "micro_batch_tokens": 2048,
        "precision": "fp32",
        "compile": "off",
    },
}
# AdamW in float32: weight, gradient and two moments.
BYTES_PER_PARAMETER = 16
# Activations kept for the backward pass, per token, layer and width; Korthikanti et al. 2022, arXiv 2205.05198, eq. 2,
# less the attention matrix, which sdpa does not keep. In bytes with 16-bit activations.
ACTIVATION_BYTES = 34
LEAST_ADAPTER_LR = 1e-4


class Options(BaseModel):
    """The `options:` block of proteins/esm2-finetune."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field(
        "facebook/esm2_t12_35M_UR50D", description="hub id, fair-esm name, folder, file, run, random:6x320"
    )
    max_residues: int = Field(1022, gt=0, description="longer sequences are cropped at the end")
    dropout: float = Field(0.1, ge=0, lt=1, description="of the pooled state, before the head")
    class_weights: Literal["none", "balanced"] = "none"
    method: Literal["all", "lora"] = Field(
        "all", description="train all weights, or adapters beside those of the encoder"
    )
    rank: int = Field(8, ge=1, description="of the adapters")
    alpha: float = Field(16.0, gt=0, description="adapters are scaled by alpha / rank")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from lengths and architecture. Raises MissingError where the weights are not to be had."""
    config = read_config(options.weights)
    total = num_parameters(config) + (config["hidden_size"] + 1) * (len(facts.classes) or 1)
    rows = settings.micro_batch_size or settings.batch_size
    widest = rows * (min(int(facts.sizes["longest"]), options.max_residues) + NUM_ADDED_TOKENS)
    num_tokens = min(widest, settings.micro_batch_tokens or widest)
    activations = num_tokens * config["num_hidden_layers"] * config["hidden_size"] * ACTIVATION_BYTES
    trained = total if options.method == "all" else num_adapted(config, options.rank) + total - num_parameters(config)
    return {
        "num_parameters": total,
        "num_trained": trained,
        "num_steps": settings.planned_steps(facts.num_rows),
        "flops_per_epoch": 6 * total * num_tokens_seen(facts, options.max_residues),
        "memory_bytes": 4 * total
        + (BYTES_PER_PARAMETER - 4) * trained
        + activations * (1 if settings.precision != "fp32" else 2),
        "weights": weights_facts(options.weights, find),
        "notes": [
            *random_notes(options.weights),
            *length_notes(facts, options.max_residues),
            *_rate_notes(options, settings),
        ],
    }


def _rate_notes(options: Options, settings: Gradient) -> list[str]:
    """Adapters begin at nothing and are few: rates for all weights hardly move them."""
    if options.method == "all" or settings.lr >= LEAST_ADAPTER_LR:
        return []
    return [f"train.lr={settings.lr:g} is one for all weights; adapters usually begin with 2e-4: --set train.lr=2e-4"]


def build(plan: Plan) -> GradientLearner:
    """A fresh learner; weights are read when training starts."""

    def statistics(train: Any) -> JSON:
        outcome = fit_outcome(train.target(), plan.facts["classes"], plan.options["class_weights"])
        return {"config": read_config(plan.options["weights"]), "outcome": outcome.as_json()}

    return GradientLearner(plan, statistics, lambda values, pretrained: _task(plan, values, pretrained))


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote: architecture and all weights are in the folder."""
    return GradientLearner.load(plan, folder, lambda values, pretrained: _task(plan, values, pretrained))


def _task(plan: Plan, statistics: JSON, pretrained: bool) -> SequenceTask:
    # The weights are read again only where a fresh run starts from them; a snapshot or a run brings all.
    encoder = load_encoder(plan.options["weights"]) if pretrained else empty_encoder(statistics["config"])
    if plan.options.get("method") == "lora":
        encoder = with_adapters(encoder, plan.options["rank"], plan.options["alpha"])
    outcome = Outcome.from_json(statistics["outcome"])
    network = PooledClassifier(encoder, statistics["config"]["hidden_size"], outcome.width, plan.options["dropout"])
    return SequenceTask(network, outcome, statistics["config"]["num_hidden_layers"], plan.options["max_residues"])


class PooledClassifier(nn.Module):
    """Encoder, mean over residues, dropout, linear head: (B, L) token numbers -> (B, outputs)."""

    def __init__(self, encoder: nn.Module, width: int, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.encoder, self.dropout, self.head = encoder, nn.Dropout(dropout), nn.Linear(width, num_outputs)

    def forward(self, numbers: Tensor, is_residue: Tensor) -> Tensor:
        out: Tensor = self.head(self.dropout(pooled(self.encoder, numbers, is_residue)))
        return out


class SequenceTask:
    """Meets `contract.Task`: one label or number a sequence."""

    couples_rows = False
    min_rows = 1

    def __init__(self, model: nn.Module, outcome: Outcome, num_layers: int, max_residues: int) -> None:
        self.model, self.outcome, self.num_layers, self.max_residues = model, outcome, num_layers, max_residues

    def roles(self) -> Mapping[str, Role]:
        names = [
            name.removeprefix("encoder.") for name, _ in self.model.named_parameters() if name.startswith("encoder.")
        ]
        found = encoder_roles(names, self.num_layers, prefix="encoder.")
        if any(is_adapter(name) for name in names):
            found = {name: role for name, role in found.items() if is_adapter(name)}
        return {**found, **{f"head.{part}": Role("head", self.num_layers + 1) for part in ("weight", "bias")}}

    def examples(self, train: Any, folder: Path) -> Sequence[tuple[str, Any]]:
        return list(zip(train.column("sequence"), self.outcome.encoded(train.target()), strict=True))

    def sizes(self, examples: Sequence[tuple[str, Any]]) -> Sequence[int]:
        return [self._size(sequence) for sequence, _ in examples]

    def draw(self, examples: Sequence[tuple[str, Any]], rngs: Sequence[np.random.Generator]) -> Batch:
        encoded = np.array([target for _, target in examples])
        inputs = (*self._tokens([sequence for sequence, _ in examples]), torch.from_numpy(encoded))
        return Batch(inputs, self.outcome.counts(encoded))

    def loss(self, model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor]) -> Mapping[str, Tensor]:
        numbers, is_residue, encoded = inputs
        return self.outcome.totals(model(numbers, is_residue), encoded)

    def row_sizes(self, rows: Any) -> Sequence[int]:
        return [self._size(sequence) for sequence in rows.column("sequence")]

    def collate(self, rows: Any) -> tuple[Tensor, Tensor]:
        return self._tokens(list(rows.column("sequence")))

    def predict(self, model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Predictions:
        return self.outcome.predictions(model(*inputs))

    def _size(self, sequence: str) -> int:
        return min(len(sequence), self.max_residues) + NUM_ADDED_TOKENS

    def _tokens(self, sequences: Sequence[str]) -> tuple[Tensor, Tensor]:
        return tokens(sequences, max_residues=self.max_residues)
