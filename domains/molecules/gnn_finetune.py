"""The family `molecules/gnn-finetune`: a pretrained graph network learns a new question, with a new last layer.

The head learns alone first, so that its random start does not spoil what was pretrained (Kumar et al. 2022,
arXiv 2202.10054, section 3); then all of it, layers nearer to the input more slowly.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from domains.contract import Facts
from domains.molecules import chemprop
from domains.molecules.gnn_scratch import GraphTask, estimates, num_outputs, outcome_of
from domains.molecules.graphs import Shelf
from domains.molecules.networks import Architecture, GraphNetwork
from domains.molecules.pretrained import ADMET, fill, overlap_notes, source
from trainers.contract import JSON, Machine, Plan
from trainers.gradient import GradientLearner
from trainers.outcome import ClassWeights, Outcome
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"weights": "random:3x32", "dropout": 0.0},
    "train": {
        "epochs": 20,
        "batch_size": 16,
        "lr": 5e-3,
        "layer_decay": 1.0,
        "freeze_epochs": 0,
        "precision": "fp32",
        "compile": "off",
    },
}


class Options(BaseModel):
    """The `options:` block of molecules/gnn-finetune."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field(
        ADMET,
        description="run of molecules/gnn-scratch, chemprop's .pt or .ckpt, chemeleon, admet-ai:regression/0, random:3x304",
    )
    start: Literal["pretrained", "random"] = Field(
        "pretrained", description="random: the same network, drawn anew, to see what pretraining brings"
    )
    dropout: float = Field(0.0, ge=0, lt=1)
    hidden: int = Field(300, ge=0, description="width of a new hidden layer where the weights bring none; 0: no layer")
    class_weights: ClassWeights = "none"


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Steps, parameters, memory and provenance. Raises MissingError where the weights are not to be had."""
    found = source(options.weights)
    shape = _shape(found.shape, options)
    with torch.device("meta"):
        network = GraphNetwork(shape, num_outputs(facts), 0)
    names = tuple(facts.schema["targets"])
    is_random = options.start == "random"
    notes = ["options.start=random: nothing pretrained is used"] if is_random else overlap_notes(found, names)
    return {**estimates(facts, settings, network, shape), "weights": found.reference, "notes": notes}


def build(plan: Plan) -> GradientLearner:
    """A fresh learner; weights are read when training starts."""
    options = Options.model_validate(plan.options)

    def statistics(train: Any) -> JSON:
        shape = _shape(source(options.weights).shape, options)
        return {"outcome": outcome_of(plan, train).as_json(), "architecture": asdict(shape)}

    return GradientLearner(plan, statistics, lambda values, pretrained: _task(plan, values, pretrained))


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote: architecture and all weights are in the folder."""
    return GradientLearner.load(plan, folder, lambda values, pretrained: _task(plan, values, pretrained))


def _shape(found: Architecture, options: Options) -> Architecture:
    shape = replace(found, dropout=options.dropout)
    if shape.hidden_layers or not options.hidden:
        return shape
    return replace(shape, hidden=options.hidden, hidden_layers=1)


def _task(plan: Plan, fitted: JSON, pretrained: bool) -> GraphTask:
    shape, outcome = Architecture(**fitted["architecture"]), Outcome.from_json(fitted["outcome"])
    network = GraphNetwork(shape, outcome.width, 0)
    if pretrained and plan.options["start"] == "pretrained":
        fill(network, source(plan.options["weights"]).weights)
    features = chemprop.features(shape.features) if shape.network == "chemprop" else None
    return GraphTask(network, outcome, None, Shelf(False, features))
