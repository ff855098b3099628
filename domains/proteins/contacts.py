"""Contacts between residues from the attention of a frozen ESM-2: a logistic regression on every head's map, made symmetric and
corrected for what each residue attracts on average. Rao et al. 2021, "Transformer protein language models are unsupervised
structure learners" (ICLR; 10.1101/2020.12.15.422761), which had twenty proteins and a sparse penalty; here it is on squares.

Shapes: H heads, L residues, P pairs of them at least `LEAST` apart, C = layers x H maps.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from domains.contract import Facts
from domains.proteins.contact_pairs import LEAST, contact_map, is_contact, pair_places
from domains.proteins.estimates import length_notes, num_tokens_seen
from domains.shared.esm import num_parameters
from domains.shared.proteins.embedder import FrozenModel, reference_of
from domains.shared.proteins.esm2 import NUM_ADDED_TOKENS, tokens
from domains.shared.proteins.esm2_weights import find, read_config
from domains.shared.weights import random_notes, weights_facts
from trainers.checkpoint import write_json
from trainers.contract import JSON, Machine, Plan, Predictions, Watch
from trainers.errors import DataError, InterruptedByUser, StoppedError
from trainers.precision import autocast
from trainers.settings import Probe

TINY: JSON = {"options": {"weights": "random:2x64", "max_residues": 64}, "train": {"precision": "fp32"}}
STATE, TENSORS = "contacts.json", "contacts.safetensors"


class Options(BaseModel):
    """The `options:` block of proteins/contacts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field(
        "facebook/esm2_t33_650M_UR50D", description="hub id, fair-esm name, folder, file, run, random:6x320"
    )
    max_residues: int = Field(1022, gt=LEAST, description="longer sequences are cropped at the end")


def plan(facts: Facts, options: Options, settings: Probe, machine: Machine) -> JSON:
    """Estimates. Raises MissingError where the weights are not to be had, DataError where they are no ESM-2."""
    config = read_config(options.weights)
    encoder, num_maps = num_parameters(config), config["num_hidden_layers"] * config["num_attention_heads"]
    longest = min(int(facts.sizes["longest"]), options.max_residues) + NUM_ADDED_TOKENS
    num_examples = min(settings.max_examples, facts.num_rows * longest**2 // 2)
    # All maps of the longest protein; the examples in single precision, standardised in double, and what solving takes:
    # measured 16 bytes a number on 8 proteins of 250 residues.
    maps_bytes, examples_bytes = 4 * num_maps * longest**2, 16 * num_maps * num_examples
    return {
        "num_parameters": num_maps + 1,
        "num_parameters_frozen": encoder,
        "num_steps": settings.steps,
        "encoding_flops": 2 * encoder * num_tokens_seen(facts, options.max_residues),
        "memory_bytes": 4 * encoder + maps_bytes + examples_bytes,
        "weights": weights_facts(options.weights, find),
        "notes": [*random_notes(options.weights), *length_notes(facts, options.max_residues)],
    }


def build(plan: Plan) -> ContactLearner:
    """A fresh learner. Raises MissingError where the weights are not to be had."""
    return ContactLearner(plan, reference_of(plan.options["weights"], plan.seed))


def load(plan: Plan, folder: Path) -> ContactLearner:
    """The learner that `save` wrote. Raises MissingError where the encoder's weights are gone or have changed."""
    from safetensors.numpy import load_file

    learner = ContactLearner(plan, json.loads((folder / STATE).read_text(encoding="utf-8"))["weights"])
    learner.state = load_file(folder / TENSORS)
    return learner


def corrected(maps_HLL: Tensor) -> Tensor:
    """Attention both ways together, less the product of what both residues attract in all (average product correction).

    Dunn et al. 2008, 10.1093/bioinformatics/btm604, for mutual information.
    """
    both = maps_HLL + maps_HLL.transpose(1, 2)
    attracted_HL = both.sum(dim=2)
    expected = attracted_HL[:, :, None] * attracted_HL[:, None, :] / attracted_HL.sum(dim=1)[:, None, None]
    return both - expected


class ContactLearner:
    """Meets `contract.Learner`. Solved in one go, so `fit` never continues.

    state: "weight" (C,) and "bias" (1,) of the log odds that two residues touch.
    """

    resumable = False

    def __init__(self, plan: Plan, reference: JSON) -> None:
        self.plan, self.frozen = plan, FrozenModel(reference, plan.machine.device)
        self.settings = Probe.model_validate(plan.settings)
        self.max_residues = plan.options["max_residues"]
        self.state: dict[str, np.ndarray] = {}

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Solve the regression on the pairs of as many proteins, in random order, as there are examples for.

        Nothing is chosen by validation rows.
        """
        from sklearn.linear_model import LogisticRegression

        began = time.monotonic()
        maps_PC, touches_P, num_proteins = self._examples(train, watch)
        if touches_P.all() or not touches_P.any():
            raise DataError(
                f"{num_proteins} training proteins, cropped to {self.max_residues} residues, hold no pair {LEAST} apart or "
                "more that touches, or none that does not: there is nothing to tell apart."
            )
        mean = maps_PC.mean(axis=0, dtype=np.float64)
        standard_PC = maps_PC - mean
        spread = np.sqrt(np.einsum("pc,pc->c", standard_PC, standard_PC) / len(standard_PC))
        spread[spread == 0] = 1.0
        standard_PC /= spread
        model = LogisticRegression(C=1 / self.settings.penalty, max_iter=self.settings.steps)
        model.fit(standard_PC, touches_P)
        weight = model.coef_[0] / spread
        self.state = {"weight": weight, "bias": model.intercept_ - weight @ mean}
        return {
            "num_steps": int(model.n_iter_.max()),
            "num_parameters": len(weight) + 1,
            "num_proteins": num_proteins,
            "num_examples": len(touches_P),
            "seconds_train": round(time.monotonic() - began, 3),
        }

    def predict(self, rows: Any) -> Predictions:
        """A `ContactMap` of each row."""
        found = []
        for sequence in rows.column("sequence"):
            seen = sequence[: self.max_residues]
            log_odds = self._pair_maps(seen) @ self.state["weight"] + self.state["bias"]
            found.append(contact_map(len(seen), log_odds))
        return Predictions.of_files(found)

    def save(self, folder: Path) -> None:
        """The regression, and a reference to the encoder: its weights are not changed, so not copied."""
        from safetensors.numpy import save_file

        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.state, folder / TENSORS)
        write_json(folder / STATE, {"weights": self.frozen.reference})

    def _examples(self, train: Any, watch: Watch) -> tuple[np.ndarray, np.ndarray, int]:
        """(P, C) corrected maps, (P,) whether the pairs touch, and of how many proteins they are."""
        sequences, texts = list(train.column("sequence")), train.target()
        maps, touches = list[np.ndarray](), list[np.ndarray]()
        num_examples, num_proteins = 0, 0
        for row in np.random.default_rng(self.plan.seed).permutation(len(sequences)):
            _raise_if_asked(watch)
            seen = sequences[row][: self.max_residues]
            is_full = num_examples + len(pair_places(len(seen))[0]) > self.settings.max_examples
            if is_full and any(each.any() for each in touches):
                break
            touches.append(is_contact(texts[row], len(seen)))
            maps.append(self._pair_maps(seen))
            num_examples, num_proteins = num_examples + len(touches[-1]), num_proteins + 1
            watch.log(kind="encoding", done=num_proteins, of=len(sequences))
        return np.concatenate(maps), np.concatenate(touches), num_proteins

    def _pair_maps(self, sequence: str) -> np.ndarray:
        """(P, C) float32 corrected maps of every head at the pairs of one protein. One at a time: nothing is padded."""
        network: Any = self.frozen.network
        if network.config._attn_implementation != "eager":
            network.set_attn_implementation("eager")  # other kernels do not keep the maps
        numbers_BL, _ = tokens([sequence], max_residues=self.max_residues)
        i, j = (torch.from_numpy(each).to(self.frozen.device) for each in pair_places(len(sequence)))
        with torch.inference_mode(), autocast(self.settings.precision, self.plan.machine):
            layers = network(input_ids=numbers_BL.to(self.frozen.device), output_attentions=True).attentions
            # The first and the last token are the start and the end.
            parts = [corrected(maps_BHLL[0, :, 1:-1, 1:-1].float())[:, i, j] for maps_BHLL in layers]
            return torch.cat(parts).T.contiguous().cpu().numpy()


def _raise_if_asked(watch: Watch) -> None:
    if reason := watch.should_stop():
        text = f"Stopped before the regression was solved ({reason}). Nothing is kept; resuming starts again."
        raise InterruptedByUser(text) if reason == "interrupt" else StoppedError(text)
