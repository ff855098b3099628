"""The family `molecules/drug-target`: two towers, a graph network over the molecule and a frozen ESM-2 over the protein,
joined by layers that answer for the pair. Each protein is embedded once, also across runs.

Two encoders side by side: Ozturk et al. 2018, arXiv 1801.10193; a graph network in place of the one over SMILES: Nguyen et al.
2021, 10.1093/bioinformatics/btaa921.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from domains.contract import Facts
from domains.molecules.gnn_scratch import GraphTask, estimates, num_outputs, role_of
from domains.molecules.graphs import Shelf
from domains.molecules.networks import Architecture, GraphNetwork
from domains.shared.proteins.embedder import ProteinEncoder, frozen_costs, reference_of
from domains.shared.proteins.esm2_weights import find
from domains.shared.sequences import cropped_notes
from domains.shared.weights import random_notes, weights_facts
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.embed import EmbedLearner, HeadNetwork, VectorRows, scale_of
from trainers.outcome import ClassWeights, Outcome, fit_outcome
from trainers.settings import Embed

TINY: JSON = {
    "options": {
        "weights": "random:2x32",
        "max_residues": 64,
        "width": 32,
        "depth": 2,
        "protein_width": 16,
        "hidden": 32,
        "dropout": 0.0,
    },
    "train": {"head": {"epochs": 20, "batch_size": 16, "lr": 5e-3, "precision": "fp32", "compile": "off"}},
}


class Options(BaseModel):
    """The `options:` block of molecules/drug-target."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field(
        "facebook/esm2_t12_35M_UR50D",
        description="ESM-2 or ProtT5, as for proteins/esm2-embed-head",
    )
    max_residues: int = Field(1022, gt=0, description="longer proteins are cropped at the end")
    protein_width: int = Field(128, ge=1, description="of the protein where the towers join")
    network: Literal["dmpnn", "gine"] = Field("dmpnn", description="messages on directed bonds, or on atoms")
    width: int = Field(128, ge=1, description="of the molecule's states")
    depth: int = Field(3, ge=1, description="layers of messages")
    hidden: int = Field(256, ge=1, description="width of the layers that join the towers")
    hidden_layers: int = Field(2, ge=1, description="that join the towers; without any they could only be added up")
    dropout: float = Field(0.1, ge=0, lt=1)
    pooling: Literal["mean", "sum", "norm"] = Field("norm", description="over atoms; norm: sum over a typical size")
    class_weights: ClassWeights = "none"


def plan(facts: Facts, options: Options, settings: Embed, machine: Machine) -> JSON:
    """Estimates from sizes and architecture. Raises MissingError where the weights are not to be had."""
    frozen = frozen_costs(options.weights, settings.encode_tokens, options.max_residues)
    width = frozen.width
    with torch.device("meta"):
        network = TwoTowers(options, {"mean": [0.0] * width, "std": [1.0] * width}, num_outputs(facts))
    found = estimates(facts, settings.head, network, _architecture(options))
    proteins = replace(facts, num_rows=int(facts.sizes["num_proteins"]))
    cropped = cropped_notes(
        proteins, options.max_residues, f"{options.max_residues} residues", "are cropped", "options.max_residues"
    )
    return {
        **found,
        "num_parameters_frozen": frozen.num_parameters,
        "encoding_flops": int(2 * frozen.num_parameters * facts.sizes["total_residues"]),
        "memory_bytes": found["memory_bytes"] + frozen.memory_bytes + 4 * facts.num_rows * width,
        "weights": weights_facts(options.weights, find),
        "notes": [*random_notes(options.weights), *cropped],
    }


def build(plan: Plan) -> EmbedLearner:
    """A fresh learner. Raises MissingError where the weights are not to be had."""
    encoder = ProteinEncoder(plan, reference_of(plan.options["weights"], plan.seed))
    return EmbedLearner(plan, encoder, _towers(plan))


def load(plan: Plan, folder: Path) -> EmbedLearner:
    """The learner that `save` wrote. Raises MissingError where the encoder's weights are gone or have changed."""
    return EmbedLearner.load(plan, folder, lambda reference: ProteinEncoder(plan, reference), _towers(plan))


def _towers(plan: Plan) -> Towers:
    return Towers(Options.model_validate(plan.options))


def _architecture(options: Options) -> Architecture:
    shared = {field.name for field in fields(Architecture)} & set(Options.model_fields)
    return Architecture(**options.model_dump(include=shared))


class TwoTowers(nn.Module):
    """The graph network of the molecule, whose joining layers see the protein beside the molecule.

    scale: mean and deviation of each dimension of the protein's vector over the training rows.
    """

    def __init__(self, options: Options, scale: JSON, num_outputs: int) -> None:
        super().__init__()
        shape = {"hidden": 0, "dropout": options.dropout}
        self.protein = HeadNetwork({**scale, **shape}, options.protein_width)
        self.joint = GraphNetwork(_architecture(options), num_outputs, options.protein_width)

    def forward(self, *inputs: Tensor) -> Tensor:
        """(pairs, outputs). inputs: those of `GraphNetwork`, but last the vectors of the proteins, (pairs, width)."""
        *graph, vectors_MV = inputs
        out: Tensor = self.joint(*graph, self.protein(vectors_MV).relu())
        return out


@dataclass(frozen=True)
class Towers:
    """Meets `trainers.embed.OnVectors`: the vectors are the proteins'."""

    options: Options

    def statistics(self, train: VectorRows, facts: JSON) -> JSON:
        """The scale of the proteins' vectors, and the targets', from the training rows."""
        outcome = fit_outcome(train.target(), facts["classes"], self.options.class_weights)
        return {"scale": scale_of(train.vectors), "outcome": outcome.as_json()}

    def task(self, statistics: JSON, pretrained: bool) -> PairTask:
        """A fresh network."""
        outcome = Outcome.from_json(statistics["outcome"])
        return PairTask(TwoTowers(self.options, statistics["scale"], outcome.width), outcome)


class PairTask:
    """Meets `trainers.contract.Task` on `VectorRows`: graphs as in gnn-scratch, and the proteins' vectors."""

    couples_rows = False
    min_rows = 1

    def __init__(self, model: nn.Module, outcome: Outcome) -> None:
        self.model, self.outcome = model, outcome
        self.molecules = GraphTask(model, outcome, None, Shelf(False))

    def roles(self) -> Mapping[str, Role]:
        """The tower of the protein learns like the first layers of the other."""
        return {name: role_of(name.removeprefix("joint."), value) for name, value in self.model.named_parameters()}

    def examples(self, train: VectorRows, folder: Path) -> Sequence[tuple[Any, np.ndarray]]:
        """(what gnn-scratch takes of a molecule, the protein's vector) of each row."""
        return list(zip(self.molecules.examples(train, folder), train.vectors, strict=True))

    def sizes(self, examples: Sequence[Any]) -> None:
        """Nothing is padded."""

    def draw(self, examples: Sequence[tuple[Any, np.ndarray]], rngs: Sequence[np.random.Generator]) -> Batch:
        """One graph of all molecules, the proteins' vectors, and the targets."""
        batch = self.molecules.draw([molecule for molecule, _ in examples], rngs)
        graph, encoded = batch.inputs
        return Batch((_joined(graph, np.stack([vector for _, vector in examples])), encoded), batch.counts)

    def loss(self, model: nn.Module, inputs: tuple[tuple[Tensor, ...], Tensor]) -> Mapping[str, Tensor]:
        """Totals by term."""
        return self.outcome.totals(model(*inputs[0]), inputs[1])

    def row_sizes(self, rows: Any) -> None:
        """Nothing is padded."""

    def collate(self, rows: Any) -> tuple[Tensor, ...]:
        """The same without targets."""
        return _joined(self.molecules.collate(rows), rows.column("vector"))

    def predict(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> Predictions:
        """Answers in the terms of the target."""
        return self.outcome.predictions(model(*inputs))


def _joined(graph: Sequence[Tensor], vectors: np.ndarray) -> tuple[Tensor, ...]:
    """The inputs of `TwoTowers`: vectors where `GraphNetwork` has descriptors."""
    return (*graph[:-1], torch.from_numpy(np.ascontiguousarray(vectors)))
