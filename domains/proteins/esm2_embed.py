"""ESM-2 as a frozen encoder: every sequence is embedded once, a small head learns on the vectors.

Mean of the residues' last states. What is lost to attention pooling on location: Stark et al. 2021.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from domains.contract import Facts
from domains.proteins.esm2 import NUM_ADDED_TOKENS, pooled, tokens
from domains.proteins.esm2_weights import find, load_encoder, read_config
from domains.proteins.estimates import length_notes, num_tokens_seen
from domains.shared.esm import num_parameters
from domains.shared.weights import random_notes, random_shape, resolve_reference, weights_facts
from trainers.contract import JSON, Machine, Plan
from trainers.embed import EmbedLearner, Head
from trainers.errors import MissingError
from trainers.precision import autocast, autocast_dtype
from trainers.settings import Embed

TINY: JSON = {
    "options": {"weights": "random:2x32", "max_residues": 64},
    "train": {"head": {"epochs": 8, "batch_size": 16, "lr": 1e-2, "precision": "fp32", "compile": "off"}},
}


class Options(BaseModel):
    """The `options:` block of proteins/esm2-embed-head."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field(
        "facebook/esm2_t12_35M_UR50D", description="hub id, fair-esm name, folder, file, run, random:6x320"
    )
    max_residues: int = Field(1022, gt=0, description="longer sequences are cropped at the end")
    hidden: int = Field(0, ge=0, description="width of the head's hidden layer; 0: a linear head")
    dropout: float = Field(0.1, ge=0, lt=1)
    class_weights: Literal["none", "balanced"] = "none"


def plan(facts: Facts, options: Options, settings: Embed, machine: Machine) -> JSON:
    """Estimates from lengths and architecture. Raises MissingError where the weights are not to be had."""
    config = read_config(options.weights)
    outputs = len(facts.classes) or 1
    width = config["hidden_size"]
    head = (
        (width + 1) * outputs if not options.hidden else (width + 1) * options.hidden + (options.hidden + 1) * outputs
    )
    encoder = num_parameters(config)
    steps = settings.head.steps or round((settings.head.epochs or 10) * facts.num_rows / settings.head.batch_size)
    activations = settings.encode_tokens * (12 * width + 2 * config["intermediate_size"]) * 4
    return {
        "num_parameters": head,
        "num_parameters_frozen": encoder,
        "num_steps": steps,
        "encoding_flops": 2 * encoder * num_tokens_seen(facts, options.max_residues),
        "memory_bytes": 4 * encoder + activations + 4 * facts.num_rows * width,
        "weights": weights_facts(options.weights, find),
        "notes": [*random_notes(options.weights), *length_notes(facts, options.max_residues)],
    }


def build(plan: Plan) -> EmbedLearner:
    """A fresh learner. Raises MissingError where the weights are not to be had."""
    spec = plan.options["weights"]
    reference = random_reference(spec, plan.seed) if random_shape(spec) else find(spec).reference()
    return EmbedLearner(plan, Esm2Encoder(plan, reference), _head(plan))


def load(plan: Plan, folder: Path) -> EmbedLearner:
    """The learner that `save` wrote. Raises MissingError where the encoder's weights are gone or have changed."""
    return EmbedLearner.load(plan, folder, lambda reference: Esm2Encoder(plan, reference), _head(plan))


def random_reference(spec: str, seed: int) -> JSON:
    """By what random weights are found again: they are drawn anew, and compared by their hash."""
    return {
        "id": spec,
        "path": "",
        "revision": f"seed {seed}",
        "sha256": _tensors_sha256(_drawn(spec, seed)),
        "seed": seed,
    }


class Esm2Encoder:
    """Meets `trainers.embed.Encoder`."""

    def __init__(self, plan: Plan, reference: JSON) -> None:
        self.plan, self._reference = plan, reference
        self.settings = Embed.model_validate(plan.settings)
        self.max_residues = plan.options["max_residues"]
        self.width = int(read_config(self._spec)["hidden_size"])

    @property
    def reference(self) -> JSON:
        return self._reference

    @property
    def identity(self) -> str:
        """Weights, pooling, and what the numbers depend on; not the device, whose rounding is far below what matters."""
        dtype = autocast_dtype(self.settings.precision, self.plan.machine)
        return f"esm2 mean v1|{self._reference['sha256']}|{self.max_residues}|{dtype}"

    def keys(self, rows: Any) -> list[bytes]:
        return [sequence[: self.max_residues].encode("ascii") for sequence in rows.column("sequence")]

    def sizes(self, rows: Any) -> Sequence[int]:
        return [len(key) + NUM_ADDED_TOKENS for key in self.keys(rows)]

    def encode(self, rows: Any) -> np.ndarray:
        numbers, is_residue = tokens(list(rows.column("sequence")), max_residues=self.max_residues)
        device = torch.device(self.plan.machine.device)
        with torch.inference_mode(), autocast(self.settings.precision, self.plan.machine):
            return pooled(self.network, numbers.to(device), is_residue.to(device)).float().cpu().numpy()

    @cached_property
    def network(self) -> nn.Module:
        """Loaded when the first sequence is to be encoded: a full cache needs no network."""
        if random_shape(self._spec):
            encoder = _drawn(self._spec, self._reference["seed"])
            if _tensors_sha256(encoder) != self._reference["sha256"]:
                raise MissingError(
                    f"The random weights {self._spec} of this run cannot be drawn again: another version of torch or "
                    "transformers draws others. Train again, from weights that are kept."
                )
        else:
            encoder = load_encoder(self._spec)
        return encoder.to(self.plan.machine.device)

    @cached_property
    def _spec(self) -> str:
        if random_shape(self._reference["id"]):
            return str(self._reference["id"])
        return str(resolve_reference(self._reference).path)


def _head(plan: Plan) -> Head:
    options = plan.options
    return Head(options["hidden"], options["dropout"], options["class_weights"])


def _drawn(spec: str, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return load_encoder(spec)


def _tensors_sha256(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()
