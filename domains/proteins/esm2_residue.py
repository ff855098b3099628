"""Fine-tune ESM-2 to label every residue: last states, dropout, one linear layer on each.

Lin et al. 2023 read structure from these states; Elnaggar et al. 2020 (ProtTrans) label secondary structure so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional

from domains.contract import Facts
from domains.proteins import esm2_finetune
from domains.proteins.residue_labels import UNKNOWN_LABEL
from domains.shared.esm import empty_encoder, encoder_roles
from domains.shared.proteins.esm2 import NUM_ADDED_TOKENS, last_states, tokens
from domains.shared.proteins.esm2_weights import load_encoder, read_config
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.gradient import GradientLearner
from trainers.settings import Gradient

TINY: JSON = esm2_finetune.TINY
NOT_COUNTED = -100
"""Target of residues whose label nobody knows, of start, end and padding."""


class Options(BaseModel):
    """The `options:` block of proteins/esm2-residue."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field(
        "facebook/esm2_t12_35M_UR50D", description="hub id, fair-esm name, folder, file, run, random:6x320"
    )
    max_residues: int = Field(1022, gt=0, description="longer sequences are read in several parts of like length")
    dropout: float = Field(0.1, ge=0, lt=1, description="of the states, before the head")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates as for a label a sequence. Raises MissingError where the weights are not to be had."""
    found = esm2_finetune.plan(facts, esm2_finetune.Options(**options.model_dump()), settings, machine)
    # Nothing is cropped here.
    return {**found, "notes": [note for note in found["notes"] if "are cropped" not in note]}


def build(plan: Plan) -> GradientLearner:
    """A fresh learner; weights are read when training starts."""
    return GradientLearner(plan, lambda _: _statistics(plan), lambda *found: _task(plan, *found))


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote: architecture and all weights are in the folder."""
    return GradientLearner.load(plan, folder, lambda *found: _task(plan, *found))


def _statistics(plan: Plan) -> JSON:
    return {"config": read_config(plan.options["weights"]), "labels": list(plan.facts["classes"])}


def _task(plan: Plan, fitted: JSON, pretrained: bool) -> ResidueTask:
    # The weights are read again only where a fresh run starts from them; a snapshot or a run brings all.
    config = fitted["config"]
    encoder = load_encoder(plan.options["weights"]) if pretrained else empty_encoder(config)
    network = ResidueClassifier(encoder, config["hidden_size"], len(fitted["labels"]), plan.options["dropout"])
    return ResidueTask(network, tuple(fitted["labels"]), config["num_hidden_layers"], plan.options["max_residues"])


class ResidueClassifier(nn.Module):
    """Encoder, dropout, linear head on every token: (B, L) token numbers -> (B, L, labels)."""

    def __init__(self, encoder: nn.Module, width: int, num_labels: int, dropout: float) -> None:
        super().__init__()
        self.encoder, self.dropout, self.head = encoder, nn.Dropout(dropout), nn.Linear(width, num_labels)

    def forward(self, numbers_BL: Tensor) -> Tensor:
        out: Tensor = self.head(self.dropout(last_states(self.encoder, numbers_BL)))
        return out


class ResidueTask:
    """Meets `contract.Task`: a label a residue. An example is a part of a sequence with the numbers of its labels."""

    couples_rows = False
    min_rows = 1

    def __init__(self, model: nn.Module, labels: tuple[str, ...], num_layers: int, max_residues: int) -> None:
        self.model, self.labels, self.num_layers, self.max_residues = model, labels, num_layers, max_residues

    def roles(self) -> Mapping[str, Role]:
        names = [name for name, _ in self.model.get_submodule("encoder").named_parameters()]
        found = encoder_roles(names, self.num_layers, prefix="encoder.")
        return {**found, **{f"head.{part}": Role("head", self.num_layers + 1) for part in ("weight", "bias")}}

    def examples(self, train: Any, folder: Path) -> Sequence[tuple[str, np.ndarray]]:
        place = {UNKNOWN_LABEL: NOT_COUNTED, **{label: number for number, label in enumerate(self.labels)}}
        found = []
        for sequence, labels in zip(train.column("sequence"), train.target(), strict=True):
            numbers = np.array([place[label] for label in labels], np.int64)
            found += [(sequence[a:b], numbers[a:b]) for a, b in self._bounds(sequence)]
        return [each for each in found if (each[1] != NOT_COUNTED).any()]

    def sizes(self, examples: Sequence[tuple[str, np.ndarray]]) -> Sequence[int]:
        return [len(part) + NUM_ADDED_TOKENS for part, _ in examples]

    def draw(self, examples: Sequence[tuple[str, np.ndarray]], rngs: Sequence[np.random.Generator]) -> Batch:
        numbers, _ = tokens([part for part, _ in examples], max_residues=self.max_residues)
        targets = torch.full(numbers.shape, NOT_COUNTED)
        for row, (_, labels) in enumerate(examples):
            targets[row, 1 : 1 + len(labels)] = torch.from_numpy(labels)
        return Batch((numbers, targets), {"cross_entropy": float((targets != NOT_COUNTED).sum())})

    def loss(self, model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Mapping[str, Tensor]:
        numbers, targets = inputs
        scores = model(numbers).float().flatten(0, 1)
        total = functional.cross_entropy(scores, targets.flatten(), ignore_index=NOT_COUNTED, reduction="sum")
        return {"cross_entropy": total}

    def row_sizes(self, rows: Any) -> Sequence[int]:
        return [len(sequence) + NUM_ADDED_TOKENS for sequence in rows.column("sequence")]

    def collate(self, rows: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Parts padded, the row of each, and the residues of each."""
        sequences = list(rows.column("sequence"))
        parts = [(row, a, b) for row, sequence in enumerate(sequences) for a, b in self._bounds(sequence)]
        numbers, _ = tokens([sequences[row][a:b] for row, a, b in parts], max_residues=self.max_residues)
        owners = torch.tensor([row for row, _, _ in parts], dtype=torch.long)
        return numbers, owners, torch.tensor([b - a for _, a, b in parts], dtype=torch.long)

    def predict(self, model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor]) -> Predictions:
        numbers, owners, lengths = inputs
        best = model(numbers).argmax(dim=2).cpu().numpy() if len(numbers) else np.empty((0, 0), np.int64)
        found: list[list[str]] = [[] for _ in range(int(owners.max()) + 1 if len(owners) else 0)]
        for part, owner, length in zip(best, owners.tolist(), lengths.tolist(), strict=True):
            found[owner] += [self.labels[number] for number in part[1 : 1 + length]]
        return Predictions.of_tags(found, self.labels)

    def _bounds(self, sequence: str) -> list[tuple[int, int]]:
        """Where parts of like length begin and end."""
        num = max(1, -(-len(sequence) // self.max_residues))
        return list(pairwise(np.linspace(0, len(sequence), num + 1).round().astype(int).tolist()))
