"""A language model as a frozen encoder of proteins: the mean of the residues' last states, one vector a sequence.

What is lost to attention pooling on location: Stark et al. 2021.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from domains.shared.proteins.language_models import RANDOM_KINDS, language_model
from domains.shared.weights import random_shape, resolve_reference
from trainers.contract import JSON, Plan
from trainers.errors import MissingError
from trainers.precision import autocast, autocast_dtype
from trainers.settings import Embed


def reference_of(spec: str, seed: int) -> JSON:
    """By what the encoder of a spec is found again; random weights are drawn from the seed. Raises MissingError."""
    return random_reference(spec, seed) if _is_random(spec) else language_model(spec).find(spec).reference()


def random_reference(spec: str, seed: int) -> JSON:
    """By what random weights are found again: they are drawn anew, and compared by their hash."""
    return {
        "id": spec,
        "path": "",
        "revision": f"seed {seed}",
        "sha256": _tensors_sha256(_drawn(spec, seed)),
        "seed": seed,
    }


@dataclass(frozen=True)
class FrozenCosts:
    """What encoding needs, for a plan.   width: of a vector.   memory_bytes: of the weights and one batch's states."""

    num_parameters: int
    width: int
    memory_bytes: int


def frozen_costs(spec: str, encode_tokens: int, max_residues: int) -> FrozenCosts:
    """Estimates from the architecture; no tensor is read. encode_tokens: padded tokens of a batch.

    Raises MissingError for weights that are not to be had, DataError for those of another kind of model.
    """
    model = language_model(spec)
    config = model.read_config(spec)
    width, num_parameters = int(config[model.width]), model.num_parameters(config)
    states = encode_tokens * model.numbers_per_token(config, max_residues + model.num_added_tokens)
    return FrozenCosts(num_parameters, width, 4 * (num_parameters + states))


class FrozenModel:
    """The language model of a reference, loaded when it is first asked for.

    spec: where its weights are, or how they are drawn.   kind: its family.   Raises MissingError where they are gone or have
    changed.
    """

    def __init__(self, reference: JSON, device: str) -> None:
        self.reference, self.device = reference, device
        is_drawn = _is_random(reference["id"])
        self.spec = str(reference["id"] if is_drawn else resolve_reference(reference).path)
        self.kind = language_model(self.spec)

    @cached_property
    def network(self) -> nn.Module:
        """In evaluation mode, on the device."""
        if not _is_random(self.spec):
            return self.kind.load_encoder(self.spec).to(self.device)
        encoder = _drawn(self.spec, self.reference["seed"])
        if _tensors_sha256(encoder) != self.reference["sha256"]:
            raise MissingError(
                f"The random weights {self.spec} of this run cannot be drawn again: another version of torch or "
                "transformers draws others. Train again, from weights that are kept."
            )
        return encoder.to(self.device)


class ProteinEncoder:
    """Meets `trainers.embed.Encoder`. A full cache needs no network: that is loaded with the first sequence to encode."""

    def __init__(self, plan: Plan, reference: JSON) -> None:
        self.plan, self.frozen = plan, FrozenModel(reference, plan.machine.device)
        self.settings = Embed.model_validate(plan.settings)
        self.max_residues = plan.options["max_residues"]
        self.model = self.frozen.kind
        self.width = int(self.model.read_config(self.frozen.spec)[self.model.width])

    @property
    def reference(self) -> JSON:
        return self.frozen.reference

    @property
    def identity(self) -> str:
        """Weights, pooling, and what the numbers depend on; not the device, whose rounding is far below what matters."""
        dtype = autocast_dtype(self.settings.precision, self.plan.machine)
        return f"{self.model.name} mean v1|{self.reference['sha256']}|{self.max_residues}|{dtype}"

    def keys(self, rows: Any) -> list[bytes]:
        sequences = (self.model.read_as(sequence[: self.max_residues]) for sequence in rows.column("sequence"))
        return [sequence.encode("ascii") for sequence in sequences]

    def sizes(self, rows: Any) -> Sequence[int]:
        return [len(key) + self.model.num_added_tokens for key in self.keys(rows)]

    def encode(self, rows: Any) -> np.ndarray:
        numbers, is_residue = self.model.tokens(list(rows.column("sequence")), max_residues=self.max_residues)
        device = torch.device(self.plan.machine.device)
        with torch.inference_mode(), autocast(self.settings.precision, self.plan.machine):
            vectors = self.model.pooled(self.frozen.network, numbers.to(device), is_residue.to(device))
            return vectors.float().cpu().numpy()


def _is_random(spec: str) -> bool:
    return random_shape(spec, RANDOM_KINDS) is not None


def _drawn(spec: str, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return language_model(spec).load_encoder(spec)


def _tensors_sha256(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()
