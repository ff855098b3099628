"""Train a small convolutional network on DNA or RNA from nothing: classes or one number. Both strands give one answer.

Settings of registry.yaml were chosen on validation rows of 1,000 CTCF-like windows; see `strands` for the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn

from domains.contract import Facts
from domains.genomics.estimates import length_notes
from domains.genomics.strands import StrandNetwork, middle, padded_shares
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.gradient import GradientLearner
from trainers.outcome import ClassWeights, Outcome, fit_outcome
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"filters": 16, "motif": 7, "hidden": 16, "max_bases": 64, "dropout": 0.0},
    "train": {"epochs": 6, "batch_size": 16, "lr": 1e-2, "precision": "fp32", "compile": "off"},
}
BYTES_PER_PARAMETER = 16
STRANDS = 2


class Options(BaseModel):
    """The `options:` block of genomics/scratch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    filters: int = Field(32, gt=0, description="motif scanners, and the width of what follows")
    motif: int = Field(19, gt=0, description="bases that a scanner sees, an odd number")
    blocks: int = Field(0, ge=0, le=12, description="dilated convolutions after the scanners: motifs in company")
    hidden: int = Field(32, gt=0, description="units between the scanners and the answer")
    dropout: float = Field(0.3, ge=0, lt=1)
    max_bases: int = Field(10_000, gt=0, description="longer sequences keep their middle")
    class_weights: ClassWeights = "none"

    @field_validator("motif")
    @classmethod
    def _odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError(f"an even motif ({value}) has no middle base; take {value - 1} or {value + 1}")
        return value


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from lengths and architecture; nothing is read."""
    network = _network(options, facts.num_outputs)
    total = sum(parameter.numel() for parameter in network.parameters())
    bases = min(int(facts.sizes["longest"]), options.max_bases)
    rows = settings.micro_batch_size or settings.batch_size
    per_base = network.scan.weight.numel() + sum(part.mix.weight.numel() for part in _blocks(network))
    kept = 4 * STRANDS * bases * options.filters * (2 + 4 * options.blocks)  # float32 states that backward needs
    return {
        "num_parameters": total,
        "num_steps": settings.planned_steps(facts.num_rows),
        "flops_per_epoch": 6 * STRANDS * per_base * min(int(facts.sizes["total_bases"]), facts.num_rows * bases),
        "memory_bytes": BYTES_PER_PARAMETER * total + rows * kept,
        "notes": length_notes(facts, options.max_bases),
    }


def build(plan: Plan) -> GradientLearner:
    """A fresh learner."""

    def statistics(train: Any) -> JSON:
        return {"outcome": fit_outcome(train.target(), plan.facts["classes"], plan.options["class_weights"]).as_json()}

    return GradientLearner(plan, statistics, lambda values, _: _task(plan, values))


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote into `folder`."""
    return GradientLearner.load(plan, folder, lambda values, _: _task(plan, values))


def _task(plan: Plan, statistics: JSON) -> StrandTask:
    outcome, options = Outcome.from_json(statistics["outcome"]), Options.model_validate(plan.options)
    return StrandTask(_network(options, outcome.width), outcome, options.max_bases)


def _network(options: Options, num_outputs: int) -> StrandNetwork:
    shape = options.model_dump(include={"filters", "motif", "hidden", "dropout"})
    return StrandNetwork(**shape, num_blocks=options.blocks, num_outputs=num_outputs)


def _blocks(network: StrandNetwork) -> list[Any]:
    return list(network.blocks)


class StrandTask:
    """Meets `contract.Task`: one label or number a sequence."""

    couples_rows = False
    min_rows = 1

    def __init__(self, model: nn.Module, outcome: Outcome, max_bases: int) -> None:
        self.model, self.outcome, self.max_bases = model, outcome, max_bases

    def roles(self) -> Mapping[str, Role]:
        deepest = len(self.model.blocks) + 2  # type: ignore[arg-type]
        return {name: self._role(name, deepest) for name, _ in self.model.named_parameters()}

    def examples(self, train: Any, folder: Path) -> Sequence[tuple[str, Any]]:
        return list(zip(train.column("sequence"), self.outcome.encoded(train.target()), strict=True))

    def sizes(self, examples: Sequence[tuple[str, Any]]) -> Sequence[int] | None:
        return _unless_equal([self._size(sequence) for sequence, _ in examples])

    def draw(self, examples: Sequence[tuple[str, Any]], rngs: Sequence[np.random.Generator]) -> Batch:
        encoded = np.array([target for _, target in examples])
        inputs = (*padded_shares([sequence for sequence, _ in examples], self.max_bases), torch.from_numpy(encoded))
        return Batch(inputs, self.outcome.counts(encoded))

    def loss(self, model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor]) -> Mapping[str, Tensor]:
        bases, lengths, encoded = inputs
        return self.outcome.totals(model(bases, lengths), encoded)

    def row_sizes(self, rows: Any) -> Sequence[int]:
        return [self._size(sequence) for sequence in rows.column("sequence")]

    def collate(self, rows: Any) -> tuple[Tensor, Tensor]:
        return padded_shares(list(rows.column("sequence")), self.max_bases)

    def predict(self, model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Predictions:
        return self.outcome.predictions(model(*inputs))

    def _size(self, sequence: str) -> int:
        return max(1, len(middle(sequence, self.max_bases)))

    def _role(self, name: str, deepest: int) -> Role:
        if name.startswith("head."):
            return Role("head", deepest)
        depth = int(name.split(".")[1]) + 1 if name.startswith("blocks.") else deepest - 1 if "hidden" in name else 0
        return Role("scalar" if name.endswith("bias") or ".norm." in name else "matrix", depth)


def _unless_equal(sizes: list[int]) -> list[int] | None:
    return sizes if len(set(sizes)) > 1 else None
