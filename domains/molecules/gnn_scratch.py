"""The family `molecules/gnn-scratch`: a graph network (D-MPNN or GINE) trained from nothing, with descriptors by option."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from domains.contract import Facts
from domains.molecules.fingerprints import descriptor_names
from domains.molecules.graphs import Shelf
from domains.molecules.networks import Architecture, Ensemble, GraphNetwork
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.gradient import GradientLearner
from trainers.outcome import ClassWeights, Outcome, fit_outcome
from trainers.settings import Gradient

SHELF = "graphs.safetensors"
BASE_BYTES, BYTES_A_PARAMETER = 500 << 20, 16
BONDS_PER_ATOM = 2.2
"""Directed bonds; molecules have about as many bonds as atoms, and some rings."""
MOST_DEVIATIONS = 5.0
"""Standardised descriptors are cut there: one odd molecule must not rule."""
MEMBER = re.compile(r"^members\.\d+\.")
"""What the names of the tensors of an ensemble begin with."""
TINY: JSON = {
    "options": {"width": 32, "depth": 3, "hidden": 32, "dropout": 0.0},
    "train": {"epochs": 20, "batch_size": 16, "lr": 5e-3, "precision": "fp32", "compile": "off"},
}


class Options(BaseModel):
    """The `options:` block of molecules/gnn-scratch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: Literal["dmpnn", "gine"] = Field("dmpnn", description="messages on directed bonds, or on atoms")
    width: int = Field(300, ge=1, description="of the states")
    depth: int = Field(3, ge=1, description="layers of messages")
    hidden: int = Field(300, ge=1, description="width of the hidden layers on a molecule")
    hidden_layers: int = Field(1, ge=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    pooling: Literal["mean", "sum", "norm"] = Field("norm", description="over atoms; norm: sum over a typical size")
    descriptors: bool = Field(False, description="join RDKit's descriptors (about 10 ms a molecule, once)")
    ensemble: int = Field(1, ge=1, description="networks side by side, whose answers are averaged")
    class_weights: ClassWeights = "none"


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Steps, parameters and memory."""
    with torch.device("meta"):
        network = _network(options, num_outputs(facts))
    notes = [f"{len(descriptor_names())} RDKit descriptors are joined"] if options.descriptors else []
    return {**estimates(facts, settings, network, architecture(options), options.ensemble), "notes": notes}


def estimates(facts: Facts, settings: Gradient, network: nn.Module, shape: Architecture, num_members: int = 1) -> JSON:
    """Steps, parameters and memory of training a network, or several, of this shape."""
    num_parameters = sum(parameter.numel() for parameter in network.parameters())
    rows = settings.micro_batch_size or settings.batch_size
    floats = num_members * facts.sizes["median_atoms"] * rows * shape.width * shape.depth * 6 * (1 + BONDS_PER_ATOM)
    steps = settings.planned_steps(facts.num_rows)
    return {
        "num_parameters": num_parameters,
        "memory_bytes": int(
            BASE_BYTES + BYTES_A_PARAMETER * num_parameters + 4 * floats + 60 * facts.sizes["total_atoms"]
        ),
        **({} if steps is None else {"num_steps": steps}),
    }


def build(plan: Plan) -> GradientLearner:
    """A fresh learner."""
    shelf = Shelf(plan.options["descriptors"])  # one for both: descriptors are dear
    return GradientLearner(
        plan, lambda train: _statistics(plan, train, shelf), lambda values, _: _task(plan, values, shelf)
    )


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote."""
    shelf = Shelf(plan.options["descriptors"])
    return GradientLearner.load(plan, folder, lambda values, _: _task(plan, values, shelf))


def num_outputs(facts: Facts) -> int:
    """Of the network, for one molecule: classes, labels or numbers."""
    return len(facts.classes) or max(1, len(facts.schema["targets"]))


def _network(options: Options, num_outputs: int) -> nn.Module:
    shape, num_descriptors = architecture(options), len(descriptor_names()) if options.descriptors else 0
    members = [GraphNetwork(shape, num_outputs, num_descriptors) for _ in range(options.ensemble)]
    return Ensemble(members) if len(members) > 1 else members[0]


def architecture(options: Options) -> Architecture:
    """The shape of the network that these options name."""
    return Architecture(**options.model_dump(exclude={"descriptors", "ensemble", "class_weights"}))


def _statistics(plan: Plan, train: Any, shelf: Shelf) -> JSON:
    """The outcome, and mean and deviation of each descriptor over the training rows."""
    shape = architecture(Options.model_validate(plan.options))
    found: JSON = {"outcome": outcome_of(plan, train).as_json(), "architecture": asdict(shape)}
    if plan.options["descriptors"]:
        places = shelf.places(train.column("smiles").tolist())
        values = shelf.descriptors[places].astype(np.float64)
        spread = values.std(axis=0)
        found["descriptors"] = {
            "mean": values.mean(axis=0).tolist(),
            "std": np.where(spread > 0, spread, 1.0).tolist(),
        }
    return found


def outcome_of(plan: Plan, train: Any) -> Outcome:
    """What the targets of the training rows mean to a network."""
    facts = Facts.from_json(plan.facts)
    names = facts.classes or (facts.schema["targets"] if len(facts.schema["targets"]) > 1 else ())
    return fit_outcome(train.target(), facts.classes, plan.options["class_weights"], names=tuple(names))


def _task(plan: Plan, fitted: JSON, shelf: Shelf) -> GraphTask:
    options, outcome = Options.model_validate(plan.options), Outcome.from_json(fitted["outcome"])
    return GraphTask(_network(options, outcome.width), outcome, fitted.get("descriptors"), shelf)


class GraphTask:
    """Meets `trainers.contract.Task`. An example is (place on the shelf, encoded target); a batch is one graph."""

    couples_rows = False
    min_rows = 1

    def __init__(self, model: nn.Module, outcome: Outcome, descriptors: Mapping[str, Any] | None, shelf: Shelf) -> None:
        self.model, self.outcome, self.shelf = model, outcome, shelf
        self.scale = None if descriptors is None else (np.array(descriptors["mean"]), np.array(descriptors["std"]))

    def roles(self) -> Mapping[str, Role]:
        """Tables of kinds are embeddings, matrices of layers are matrices, the last layer is the head."""
        return {name: role_of(name, parameter) for name, parameter in self.model.named_parameters()}

    def examples(self, train: Any, folder: Path) -> Sequence[tuple[int, Any]]:
        """Graphs are made once and kept in `folder` for a run that resumes."""
        self._restore(folder / SHELF)
        places = self.shelf.places(train.column("smiles").tolist())
        self._keep(folder / SHELF)
        return list(zip(places.tolist(), self.outcome.encoded(train.target()), strict=True))

    def _restore(self, path: Path) -> None:
        from safetensors.numpy import load_file

        if path.exists():
            self.shelf.restore(load_file(path))

    def _keep(self, path: Path) -> None:
        from safetensors.numpy import save_file

        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.tmp")
            save_file(self.shelf.arrays(), temporary)
            temporary.replace(path)

    def sizes(self, examples: Sequence[Any]) -> None:
        """Nothing is padded, so buckets of like size would gain nothing."""

    def draw(self, examples: Sequence[tuple[int, Any]], rngs: Sequence[np.random.Generator]) -> Batch:
        """One graph of all molecules, and their targets."""
        encoded = np.array([target for _, target in examples])
        graph = self._graph(np.array([place for place, _ in examples]))
        return Batch((graph, torch.from_numpy(encoded)), self.outcome.counts(encoded))

    def loss(self, model: nn.Module, inputs: tuple[tuple[Tensor, ...], Tensor]) -> Mapping[str, Tensor]:
        """Totals by term; what nobody knows of counts in none."""
        graph, encoded = inputs
        return self.outcome.totals(model(*graph), encoded)

    def row_sizes(self, rows: Any) -> None:
        """Nothing is padded."""

    def collate(self, rows: Any) -> tuple[Tensor, ...]:
        """One graph of these rows."""
        return self._graph(self.shelf.places(rows.column("smiles").tolist()))

    def predict(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> Predictions:
        """Answers in the terms of the target."""
        return self.outcome.predictions(model(*inputs))

    def _graph(self, places: np.ndarray) -> tuple[Tensor, ...]:
        found = {name: torch.from_numpy(value) for name, value in self.shelf.graphs.batch(places).items()}
        size = torch.from_numpy(np.diff(self.shelf.graphs.first_atom)[places]).float()
        more = torch.zeros(len(places), 0)
        if self.scale is not None:
            standard = (self.shelf.descriptors[places] - self.scale[0]) / self.scale[1]
            more = torch.from_numpy(np.clip(standard, -MOST_DEVIATIONS, MOST_DEVIATIONS).astype(np.float32))
        return found["atoms"], found["bonds"], found["edges"].long(), found["molecule"], size, more


def role_of(name: str, parameter: Tensor) -> Role:
    """Of a tensor of a `GraphNetwork`, or of one in an ensemble."""
    name = MEMBER.sub("", name)
    if name.startswith("head."):
        return Role("head", 3)
    if ".table." in name:
        return Role("embedding", 0)
    if ".W_i." in name:  # chemprop's first layer
        return Role("matrix" if parameter.ndim == 2 else "scalar", 0)
    depth = 2 if name.startswith("hidden.") else 1
    return Role("matrix" if parameter.ndim == 2 and math.prod(parameter.shape) > 0 else "scalar", depth)
