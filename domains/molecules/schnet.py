"""The family `molecules/schnet`: networks over the positions of atoms, SchNet or DimeNet++, trained from nothing.

Positions are those of an SDF, in Å, all its hydrogens included, or conformers that RDKit makes. Numbers are learned as what a
sum over elements, fitted on the training rows, leaves of them: most of an energy is such a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from domains.contract import Facts
from domains.molecules.gnn_scratch import num_outputs
from domains.molecules.space_networks import DIMENET_CUTOFF, SCHNET_CUTOFF, DimeNet, SchNet
from domains.molecules.structures import NEAREST, Conformers, Structure, has_hydrogens, hydrogens, joined
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role, RoleKind, as_objects
from trainers.empty import without_storage
from trainers.errors import DataError
from trainers.gradient import GradientLearner
from trainers.outcome import ClassWeights, Outcome, fit_outcome
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"conformers": "etkdg", "width": 32, "depth": 2},
    "train": {"epochs": 20, "batch_size": 16, "lr": 5e-3, "precision": "fp32", "compile": "off"},
}
BASE_BYTES, BYTES_A_PARAMETER, BYTES_A_PAIR = 600 << 20, 16, 4 * 8
ATOMS_WITH_HYDROGENS = 2.0
"""Of all atoms to heavy ones, in organic molecules."""
LARGEST_ELEMENT = 94  # torch-geometric embeds 95 elements in DimeNet++
ELEMENTS = LARGEST_ELEMENT + 1
PLACEHOLDER = Structure(np.array([6], np.uint8), np.zeros((1, 3), np.float32))
"""In a batch for a row without positions; its answer is dropped."""
RIDGE = 1e-6


class Options(BaseModel):
    """The `options:` block of molecules/schnet."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: Literal["schnet", "dimenet++"] = "schnet"
    conformers: Literal["given", "etkdg"] = Field(
        "given", description="positions of the file (SDF, in Å), or made by RDKit from the SMILES (about 10 ms each)"
    )
    width: int = Field(128, ge=8)
    depth: int = Field(6, ge=1, description="layers of messages")
    cutoff: float | None = Field(None, gt=0, description="Å, how far atoms see; None: 10, of dimenet++ 5")
    pooling: Literal["auto", "sum", "mean"] = Field("auto", description="over atoms; auto: sum for numbers, else mean")
    element_sums: bool = Field(True, description="numbers: learn what a sum over elements leaves (energies)")
    class_weights: ClassWeights = "none"

    @property
    def reach(self) -> float:
        """Å."""
        return self.cutoff or (SCHNET_CUTOFF if self.network == "schnet" else DIMENET_CUTOFF)


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Steps, parameters and memory. Raises DataError where positions should be given and are not."""
    num_without = int(facts.schema.get("without_positions", facts.num_rows))
    if options.conformers == "given" and num_without:
        raise DataError(
            f"{num_without:,} of {facts.num_rows:,} training molecules have no three-dimensional positions. Give an SDF "
            "with them, or let RDKit make conformers: --set options.conformers=etkdg"
        )
    with without_storage():  # not the meta device: a constructor reads its own buffers
        network = _network(options, facts.task, num_outputs(facts))
    total = sum(parameter.numel() for parameter in network.parameters())
    atoms = ATOMS_WITH_HYDROGENS * facts.sizes["median_atoms"]
    rows = settings.micro_batch_size or settings.batch_size
    steps = settings.planned_steps(facts.num_rows)
    made = options.conformers == "etkdg"
    return {
        "num_parameters": total,
        **({} if steps is None else {"num_steps": steps}),
        "memory_bytes": int(
            BASE_BYTES + BYTES_A_PARAMETER * total + rows * atoms**2 * options.width * options.depth * BYTES_A_PAIR
        ),
        "notes": ["positions are conformers made by RDKit (ETKDG, MMFF94), not measured ones"]
        if made
        else ["positions are read as Å"],
    }


def build(plan: Plan) -> GradientLearner:
    """A fresh learner."""
    conformers = _conformers(plan)
    learner = GradientLearner(
        plan,
        lambda train: _statistics(plan, train, conformers),
        lambda values, _: _task(plan, values, conformers, lambda text: learner.batch.say(kind="warning", text=text)),
    )
    return learner


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote."""
    conformers = _conformers(plan)
    return GradientLearner.load(plan, folder, lambda values, _: _task(plan, values, conformers, lambda text: None))


def _conformers(plan: Plan) -> Conformers:
    return Conformers(plan.options["conformers"] == "etkdg", plan.seed)


def _network(options: Options, task: str, num: int) -> nn.Module:
    kind = SchNet if options.network == "schnet" else DimeNet
    is_number = task in ("regression", "multiregression")
    is_mean = options.pooling == "mean" or (options.pooling == "auto" and not is_number)
    return kind(options.width, options.depth, num, options.reach, is_mean=is_mean)


def _statistics(plan: Plan, train: Any, conformers: Conformers) -> JSON:
    facts = Facts.from_json(plan.facts)
    names = facts.classes or (facts.schema["targets"] if len(facts.schema["targets"]) > 1 else ())
    target, sums = train.target(), None
    if not facts.classes and plan.options["element_sums"]:
        counts, numbers = element_counts(conformers.of(train)), _as_matrix(target)
        sums = element_sums(counts, numbers)
        target = _as_target(numbers - counts @ sums, several=bool(names))
    outcome = fit_outcome(target, facts.classes, plan.options["class_weights"], names=tuple(names))
    return {
        "outcome": outcome.as_json(),
        "element_sums": None if sums is None else sums.tolist(),
        "hydrogens": hydrogens(conformers.of(train)),
    }


def _task(plan: Plan, fitted: JSON, conformers: Conformers, say: Callable[[str], None]) -> SpaceTask:
    options, outcome = Options.model_validate(plan.options), Outcome.from_json(fitted["outcome"])
    sums = None if fitted["element_sums"] is None else np.array(fitted["element_sums"])
    network, has = _network(options, plan.task, outcome.width), fitted.get("hydrogens", "some")
    return SpaceTask(network, outcome, sums, conformers, options.reach, say, hydrogens=has)


def element_counts(structures: Sequence[Structure | None]) -> np.ndarray:
    """(molecules, ELEMENTS) how many atoms of each element; zeros without a structure."""
    found = np.zeros((len(structures), ELEMENTS))
    for row, each in zip(found, structures, strict=True):
        if each is not None:
            row += np.bincount(np.minimum(each.elements, LARGEST_ELEMENT), minlength=ELEMENTS)
    return found


def element_sums(counts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """(ELEMENTS, targets) what each atom of an element adds to each target, by least squares over rows where it is known.
    counts: (rows, ELEMENTS).   numbers: (rows, targets), NaN where nobody knows."""
    found = np.zeros((counts.shape[1], numbers.shape[1]))
    for at, column in enumerate(numbers.T):
        known = np.isfinite(column)
        gram = counts[known].T @ counts[known]
        found[:, at] = np.linalg.solve(gram + RIDGE * np.eye(len(gram)), counts[known].T @ column[known])
    return found


def _as_matrix(target: np.ndarray) -> np.ndarray:
    return np.array([row if isinstance(row, tuple) else (row,) for row in target], np.float64)


def _as_target(numbers: np.ndarray, *, several: bool) -> np.ndarray:
    return as_objects([tuple(row) for row in numbers.tolist()]) if several else numbers[:, 0]


class SpaceTask:
    """Meets `contract.Task`. An example is (structure, encoded target)."""

    couples_rows = False
    min_rows = 1

    def __init__(
        self,
        model: nn.Module,
        outcome: Outcome,
        sums: np.ndarray | None,
        conformers: Conformers,
        cutoff: float,
        say: Callable[[str], None],
        *,
        hydrogens: str = "some",
    ) -> None:
        self.model, self.outcome, self.sums, self.conformers = model, outcome, sums, conformers
        self.cutoff, self.say, self.hydrogens = cutoff, say, hydrogens

    def roles(self) -> Mapping[str, Role]:
        """Tables of elements are embeddings, the last layer the head, matrices matrices."""
        return {name: _role(name, parameter) for name, parameter in self.model.named_parameters()}

    def examples(self, train: Any, folder: Path) -> Sequence[tuple[Structure, Any]]:
        """Rows with positions. Raises DataError where none has any; says how many are left out, and what looks odd."""
        structures, target = self.conformers.of(train), train.target()
        has = [each is not None for each in structures]
        if not any(has):
            raise DataError("RDKit makes no conformer of any training molecule. Use molecules/gnn-scratch.")
        if num := len(has) - sum(has):
            self.say(f"{num:,} of {len(has):,} training molecules have no positions and are left out")
        if self.hydrogens == "some" and (num := sum(bool(each.num_missing) for each in structures if each)):
            self.say(f"{num:,} of {len(has):,} training molecules lack hydrogens that others have")
        self._look([each for each in structures if each is not None])
        if self.sums is not None:
            numbers = _as_matrix(target) - element_counts(structures) @ self.sums
            target = _as_target(numbers, several=bool(self.outcome.names))
        encoded = self.outcome.encoded(target)
        return [(each, y) for each, y in zip(structures, encoded, strict=True) if each is not None]

    def _look(self, structures: Sequence[Structure]) -> None:
        nearest = float(np.median([each.nearest for each in structures]))
        if np.isfinite(nearest) and not NEAREST[0] < nearest < NEAREST[1]:
            self.say(
                f"the nearest two atoms of a molecule are {nearest:.3g} apart (median), where Å would give about 1.1: "
                "are these other units? Convert the file to Å"
            )

    def sizes(self, examples: Sequence[tuple[Structure, Any]]) -> Sequence[int]:
        """Pairs of atoms, about."""
        return [len(each.elements) ** 2 for each, _ in examples]

    def draw(self, examples: Sequence[tuple[Structure, Any]], rngs: Sequence[np.random.Generator]) -> Batch:
        """All molecules as one, and their targets."""
        encoded = np.array([target for _, target in examples])
        inputs = self._inputs([each for each, _ in examples])
        return Batch((inputs, torch.from_numpy(encoded)), self.outcome.counts(encoded))

    def loss(self, model: nn.Module, inputs: tuple[tuple[Tensor, ...], Tensor]) -> Mapping[str, Tensor]:
        """Totals by term; what nobody knows of counts in none."""
        graph, encoded = inputs
        return self.outcome.totals(model(*graph, len(encoded)), encoded)

    def row_sizes(self, rows: Any) -> None:
        """Nothing is padded."""

    def collate(self, rows: Any) -> tuple[tuple[Tensor, ...], list[str], np.ndarray]:
        """All molecules as one, why each has no answer ("" where it has), and what its elements add to each number."""
        found = self.conformers.of(rows)
        added = np.zeros((len(found), 1)) if self.sums is None else element_counts(found) @ self.sums
        return self._inputs([each or PLACEHOLDER for each in found]), [self._problem(each) for each in found], added

    def _problem(self, structure: Structure | None) -> str:
        if structure is None:
            return "no three-dimensional positions"
        if has_hydrogens(structure, self.hydrogens):
            return ""
        if self.hydrogens == "all":
            return f"{structure.num_missing} hydrogens have no positions; those of the training molecules had"
        return "hydrogens have positions; those of the training molecules had none"

    def predict(self, model: nn.Module, inputs: tuple[tuple[Tensor, ...], list[str], np.ndarray]) -> Predictions:
        """Answers in the terms and the unit of the target; none, with a problem, for rows without positions, or whose
        hydrogens are there or not there unlike in training."""
        graph, problems, added = inputs
        outputs = model(*graph, len(problems))
        found = _plus(self.outcome.predictions(outputs), np.asarray(added))
        return _without(found, problems) if any(problems) else found

    def _inputs(self, structures: Sequence[Structure]) -> tuple[Tensor, ...]:
        found = joined(structures, self.cutoff)
        elements = torch.from_numpy(np.minimum(found.elements, LARGEST_ELEMENT))
        positions, pairs, molecule = (torch.from_numpy(x) for x in (found.positions, found.pairs, found.molecule))
        return elements, positions, pairs, molecule


def _plus(found: Predictions, added: np.ndarray) -> Predictions:
    if found.kind == "number":
        return Predictions.of_numbers(found.values + added[:, 0])
    if found.kind == "numbers":
        assert found.scores is not None
        return Predictions.of_number_rows(found.scores + added, found.classes)
    return found


def _without(found: Predictions, said: Sequence[str]) -> Predictions:
    values, missing = found.values.copy(), np.array([bool(text) for text in said])
    values[missing] = np.nan if found.kind == "number" else None
    scores = None if found.scores is None else np.where(missing[:, None], np.nan, found.scores)
    problems = tuple(why or text for why, text in zip(said, found.problems, strict=True))
    return replace(found, values=values, scores=scores, problems=problems)


def _role(name: str, parameter: Tensor) -> Role:
    if name.startswith("head.") or ".output_blocks." in name:
        return Role("head", 2)
    if "emb" in name and parameter.ndim == 2 and parameter.shape[0] >= ELEMENTS:
        return Role("embedding", 0)
    kind: RoleKind = "matrix" if parameter.ndim == 2 else "scalar"
    return Role(kind, 1)
