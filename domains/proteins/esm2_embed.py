"""Every sequence is embedded once by a frozen language model, ESM-2 or ProtT5; a small head learns on the vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from domains.contract import Facts
from domains.proteins.estimates import length_notes, num_tokens_seen
from domains.shared.proteins.embedder import ProteinEncoder, frozen_costs, reference_of
from domains.shared.proteins.esm2_weights import find
from domains.shared.weights import random_notes, weights_facts
from trainers.contract import JSON, Machine, Plan
from trainers.embed import EmbedLearner, Head
from trainers.settings import Embed

TINY: JSON = {
    "options": {"weights": "random:2x32", "max_residues": 64},
    "train": {"head": {"epochs": 8, "batch_size": 16, "lr": 1e-2, "precision": "fp32", "compile": "off"}},
}


class Options(BaseModel):
    """The `options:` block of proteins/esm2-embed-head and proteins/prott5-embed-head."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field(
        "facebook/esm2_t12_35M_UR50D",
        description="ESM-2 or ProtT5: hub id, fair-esm name, folder, file, run, random:6x320, random-t5:6x320",
    )
    max_residues: int = Field(1022, gt=0, description="longer sequences are cropped at the end")
    hidden: int = Field(0, ge=0, description="width of the head's hidden layer; 0: a linear head")
    dropout: float = Field(0.1, ge=0, lt=1)
    class_weights: Literal["none", "balanced"] = "none"


def plan(facts: Facts, options: Options, settings: Embed, machine: Machine) -> JSON:
    """Estimates from lengths and architecture. Raises MissingError where the weights are not to be had."""
    frozen = frozen_costs(options.weights, settings.encode_tokens, options.max_residues)
    outputs, width = len(facts.classes) or 1, frozen.width
    head = (
        (width + 1) * outputs if not options.hidden else (width + 1) * options.hidden + (options.hidden + 1) * outputs
    )
    steps = settings.head.steps or round((settings.head.epochs or 10) * facts.num_rows / settings.head.batch_size)
    return {
        "num_parameters": head,
        "num_parameters_frozen": frozen.num_parameters,
        "num_steps": steps,
        "encoding_flops": 2 * frozen.num_parameters * num_tokens_seen(facts, options.max_residues),
        "memory_bytes": frozen.memory_bytes + 4 * facts.num_rows * width,
        "weights": weights_facts(options.weights, find),
        "notes": [*random_notes(options.weights), *length_notes(facts, options.max_residues)],
    }


def build(plan: Plan) -> EmbedLearner:
    """A fresh learner. Raises MissingError where the weights are not to be had."""
    return EmbedLearner(plan, ProteinEncoder(plan, reference_of(plan.options["weights"], plan.seed)), _head(plan))


def load(plan: Plan, folder: Path) -> EmbedLearner:
    """The learner that `save` wrote. Raises MissingError where the encoder's weights are gone or have changed."""
    return EmbedLearner.load(plan, folder, lambda reference: ProteinEncoder(plan, reference), _head(plan))


def _head(plan: Plan) -> Head:
    options = plan.options
    return Head(options["hidden"], options["dropout"], options["class_weights"])
