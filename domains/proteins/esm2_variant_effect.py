"""The effect of mutations without any training: how much less likely ESM-2 finds the new residue than the one that was there.

Meier et al. 2021, section 3 (ESM-1v): "masked" takes both likelihoods where the position is masked, one pass a position;
"wild-type" from one pass over the untouched protein. Several changes add up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from domains.contract import Baseline, Facts
from domains.proteins import blosum, changes
from domains.proteins.changes import Change
from domains.proteins.mutants import aligned_mutants
from domains.shared.esm import num_parameters
from domains.shared.fasta import is_fasta, read_fasta
from domains.shared.proteins.esm2 import MASK, NUM_ADDED_TOKENS, PAD, RESIDUE_TOKENS, tokens
from domains.shared.proteins.esm2_weights import find, load_masked, masked_reference, read_config
from domains.shared.proteins.residues import cleaned
from domains.shared.weights import random_notes, random_shape, resolve_reference, weights_facts
from trainers.checkpoint import write_json
from trainers.contract import JSON, Machine, Plan, Predictions, Watch
from trainers.errors import DataError, UsageError
from trainers.precision import autocast
from trainers.settings import ZeroShot

TINY: JSON = {"options": {"weights": "random:2x32", "max_residues": 64}, "train": {"precision": "fp32"}}
FILE = "variant_effect.json"
_MOST_SHOWN = 5


class Options(BaseModel):
    """The `options:` block of proteins/esm2-variant-effect."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field(
        "facebook/esm2_t33_650M_UR50D", description="hub id, fair-esm name, folder, file, run, random:6x320"
    )
    wild_type: str = Field(
        "", description='its sequence, or a FASTA file with it alone; "": a column, or the usual residues'
    )
    marginal: Literal["masked", "wild-type"] = Field(
        "masked", description="wild-type: one pass in place of one a position"
    )
    max_residues: int = Field(1022, gt=0, description="of longer proteins the stretch around each position is read")


def plan(facts: Facts, options: Options, settings: ZeroShot, machine: Machine) -> JSON:
    """Estimates. Raises MissingError where the weights are not to be had, UsageError for a wild type that is no protein."""
    config = read_config(options.weights)
    wild = wild_type_of(options.wild_type)
    encoder = num_parameters(config)
    length = min(len(wild) or int(facts.sizes["longest"]), options.max_residues) + NUM_ADDED_TOKENS
    passes = length if options.marginal == "masked" else 1
    tokens_at_once = max(settings.encode_tokens, length)
    return {
        "num_parameters": 0,
        "num_parameters_frozen": encoder,
        "num_steps": 0,
        "encoding_flops": 2 * encoder * passes * length,
        "memory_bytes": 4 * encoder + 4 * tokens_at_once * (8 * config["hidden_size"] + config["vocab_size"]),
        "weights": weights_facts(options.weights, find),
        "notes": [
            *random_notes(options.weights),
            "nothing is trained: the score on all rows, not only the test rows, is zoo evaluate RUN --data FILE",
        ],
    }


def wild_type_of(option: str) -> str:
    """The sequence that options.wild_type gives, "" for none. Raises UsageError for what is no protein."""
    if not option:
        return ""
    if is_fasta(Path(option)):
        records = read_fasta(Path(option))
        if len(records) != 1:
            raise UsageError(
                f"options.wild_type: {option} holds {len(records)} sequences; give a file with the wild type alone."
            )
        option = records[0].text
    found = cleaned([option])
    if found.reasons:
        raise UsageError(f"options.wild_type: {found.reasons[0]}. Give a sequence, or a FASTA file (.fasta).")
    return found.sequences[0]


def build(plan: Plan) -> ZeroShotLearner:
    """A learner that only has to find the wild type."""
    spec = plan.options["weights"]
    reference = masked_reference(spec, plan.seed) if random_shape(spec) else find(spec).reference()
    return ZeroShotLearner(plan, reference, wild_type_of(plan.options["wild_type"]))


def load(plan: Plan, folder: Path) -> ZeroShotLearner:
    """The learner that `save` wrote. Raises MissingError where the weights are gone or have changed."""
    values = json.loads((folder / FILE).read_text())
    return ZeroShotLearner(plan, values["weights"], values["wild_type"])


def baselines(plan: Plan) -> tuple[Baseline, ...]:
    """No effect at all; and what substitutions do on average in all proteins."""
    wild = wild_type_of(plan.options["wild_type"])

    def zero(train: Any) -> Callable[[Any], Predictions]:
        return lambda rows: Predictions.of_numbers(np.zeros(len(rows)))

    def table(train: Any) -> Callable[[Any], Predictions]:
        known = wild or consensus(train)
        return lambda rows: answers(resolved(rows, known), _blosum_effect)

    return (
        Baseline("no effect", "always 0", zero),
        Baseline("BLOSUM62", "score of the new residue in place of the old one less that of staying", table),
    )


def _blosum_effect(wild: str, found: Sequence[Change]) -> float:
    return sum(blosum.score(each.lost, each.gained) - blosum.score(each.lost, each.lost) for each in found)


@dataclass(frozen=True)
class Resolved:
    """A row as changes of a wild type, or why it cannot be (`problem`)."""

    wild: str = ""
    changes: tuple[Change, ...] = ()
    problem: str = ""


def consensus(train: Any) -> str:
    """The usual residue at each position of the training rows, "" where they have wild types of their own or do not
    align."""
    sequences = [sequence for sequence in train.column("sequence") if sequence]
    variants = aligned_mutants(sequences)
    return variants.consensus if variants else ""


def resolved(rows: Any, known: str) -> list[Resolved]:
    """Each row's changes of its own wild type, else of the `known` one. A whole sequence counts more than a name."""
    parts = (rows.column(name).tolist() for name in ("mutant", "sequence", "wild_type"))
    return [_resolved(mutant, sequence, wild or known) for mutant, sequence, wild in zip(*parts, strict=True)]


def _resolved(mutant: str, sequence: str, wild: str) -> Resolved:
    if not wild:
        return Resolved(problem="no wild type is known")
    try:
        found = changes.between(wild, sequence) if sequence else changes.checked(changes.parsed(mutant), wild)
    except ValueError as error:
        return Resolved(problem=str(error))
    return Resolved(wild, tuple(found))


def _refuse_other_wild_type(wild: str, *parts: Any) -> None:
    """Raise DataError where mutants by name alone do not fit the wild type; rows that bring their own were checked."""
    wrong = []
    for rows in parts:
        of_names = rows.column("mutant").where((rows.column("sequence") == "") & (rows.column("wild_type") == ""), "")
        for row, name in zip(rows.ids, of_names, strict=True):
            if name and (problem := _resolved(name, "", wild).problem):
                wrong.append(f"row {row}: {problem}")
    if wrong:
        raise DataError(
            f"{len(wrong):,} mutants do not fit the wild type ({'; '.join(wrong[:_MOST_SHOWN])}). Mend or leave out these "
            "rows, or give another protein with --set options.wild_type=SEQUENCE."
        )


def answers(found: Sequence[Resolved], effect: Callable[[str, Sequence[Change]], float]) -> Predictions:
    """One number a row; those that could not be resolved say why."""
    values = np.array([np.nan if each.problem else effect(each.wild, each.changes) for each in found], np.float64)
    problems = tuple(each.problem for each in found)
    told = Predictions.of_numbers(values)
    return Predictions("number", values, None, (), tuple(a or b for a, b in zip(problems, told.problems, strict=True)))


class ZeroShotLearner:
    """Meets `contract.Learner`. wild: "" where training rows must tell it."""

    resumable = False

    def __init__(self, plan: Plan, reference: JSON, wild: str) -> None:
        self.plan, self.reference, self.wild = plan, reference, wild
        self.settings = ZeroShot.model_validate(plan.settings)
        self.options = Options.model_validate(plan.options)
        self.network: nn.Module | None = None
        self.known: dict[tuple[str, int], np.ndarray] = {}

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Find the wild type; nothing is learned. Raises DataError where nobody knows it."""
        started = time.monotonic()
        self.wild = self.wild or consensus(train)
        if not self.wild and not all(train.column("wild_type")):
            raise DataError(
                "Which protein are these variants of? The rows do not align. Give it with --set options.wild_type=SEQUENCE "
                "(or a FASTA file), or as a column called wild_type."
            )
        _refuse_other_wild_type(self.wild, train, valid)
        return {"num_steps": 0, "num_parameters": 0, "seconds_train": round(time.monotonic() - started, 3)}

    def predict(self, rows: Any) -> Predictions:
        """Nats by which each row is likelier than its wild type: the lower, the more harm."""
        found = resolved(rows, self.wild)
        for wild in {each.wild for each in found if each.changes}:
            self._look_up(wild, sorted({change.at for each in found if each.wild == wild for change in each.changes}))
        return answers(found, self._effect)

    def save(self, folder: Path) -> None:
        """Where the weights are and which wild type was found; the weights are not copied."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FILE, {"weights": self.reference, "wild_type": self.wild})

    def _effect(self, wild: str, found: Sequence[Change]) -> float:
        total = 0.0
        for change in found:
            scores = self.known[wild, change.at]
            total += float(scores[RESIDUE_TOKENS[change.gained]] - scores[RESIDUE_TOKENS[change.lost]])
        return total

    def _look_up(self, wild: str, positions: Sequence[int]) -> None:
        """Scores of every residue at these positions, kept for later rows."""
        new = [at for at in positions if (wild, at) not in self.known]
        rows_at_once = max(1, self.settings.encode_tokens // (min(len(wild), self.options.max_residues) + 2))
        if self.options.marginal == "wild-type" and len(wild) <= self.options.max_residues:
            self._pass(wild, [(0, new)])
            return
        for start in range(0, len(new), rows_at_once):
            batch = new[start : start + rows_at_once]
            self._pass(wild, [(_window_start(at, len(wild), self.options.max_residues), [at]) for at in batch])

    def _pass(self, wild: str, windows: Sequence[tuple[int, Sequence[int]]]) -> None:
        """One forward pass over stretches of the wild type; of each the scores at some positions are kept."""
        if self.network is None:
            self.network = self._loaded()
        most = self.options.max_residues
        numbers, _ = tokens([wild[start : start + most] for start, _ in windows], max_residues=most)
        width, wanted = numbers.shape[1], [(row, start, at) for row, (start, ats) in enumerate(windows) for at in ats]
        places = torch.tensor([row * width + 1 + at - start for row, start, at in wanted], dtype=torch.long)
        if self.options.marginal == "masked":
            numbers.view(-1)[places] = MASK
        is_token, device = numbers != PAD, self.plan.machine.device
        with torch.inference_mode(), autocast(self.settings.precision, self.plan.machine):
            scores = self.network(numbers.to(device), is_token.to(device), places.to(device)).double().cpu().numpy()
        self.known.update({(wild, at): row for (_, _, at), row in zip(wanted, scores, strict=True)})

    def _loaded(self) -> nn.Module:
        spec = (
            self.reference["id"] if random_shape(self.reference["id"]) else str(resolve_reference(self.reference).path)
        )
        return load_masked(spec, self.reference).to(self.plan.machine.device).eval()


def _window_start(at: int, length: int, most: int) -> int:
    """Where the stretch of `most` residues begins that has position `at` in its middle as far as the ends allow."""
    return max(0, min(at - most // 2, length - most))
