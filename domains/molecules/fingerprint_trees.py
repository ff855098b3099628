"""The family `molecules/fingerprint-trees`: fingerprints and descriptors with random forests, extremely randomised trees,
boosted trees, or their mean.

The strong rival of graph networks on small and noisy sets: Jiang et al. 2021, J Cheminform 13:12; Deng et al. 2023, Nature
Communications 14:6395. Each of several targets has models of its own, on the rows where it is known.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from domains.contract import Facts
from domains.molecules.fingerprints import Features, feature_matrix, widths
from domains.molecules.targets import MULTILABEL, MULTIREGRESSION
from domains.molecules.tree_members import (
    BoostedMember,
    Column,
    ForestMember,
    Member,
    boosted_member,
    forest_member,
    loaded_member,
)
from trainers.contract import JSON, Learner, Machine, Plan, Predictions, Watch, known_labels
from trainers.errors import DataError, InterruptedByUser, MissingError, StoppedError
from trainers.settings import Trees

Kind = Literal["forest", "extra", "boosting"]
KINDS: tuple[Kind, ...] = ("forest", "extra", "boosting")
FORESTS, CHOICE = "forests.safetensors", "choice.json"
BASE_BYTES = 400 << 20
BYTES_A_CELL = 4
TINY: JSON = {
    "options": {"features": ["ecfp"], "num_bits": 256, "num_trees": 20, "model": "auto"},
    "train": {"rounds": 30, "early_stopping": 10, "lr": 0.3, "max_depth": 3},
}


class Options(BaseModel):
    """The `options:` block of molecules/fingerprint-trees. The `train:` block is that of the boosted trees."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    features: tuple[Features, ...] = Field(("ecfp", "descriptors"), min_length=1, description="blocks side by side")
    radius: int = Field(2, ge=0, le=6, description="bonds around an atom, in ecfp and fcfp: 2 is ECFP4")
    num_bits: int = Field(1024, ge=16, description="of each hashed fingerprint")
    model: Kind | Literal["blend", "auto"] = Field(
        "auto",
        description="extra: extremely randomised trees; blend: the mean of all three; auto: the mean that validates best",
    )
    seeds: int = Field(1, ge=1, description="models of each kind, whose answers are averaged")
    num_trees: int = Field(500, ge=1, description="of a forest")
    max_features: float | None = Field(None, gt=0, le=1, description="share tried at a split; None: root, or a third")
    min_leaf: int | None = Field(None, ge=1, description="rows of a leaf at least; None: 2 for classes, 1 for numbers")
    class_weights: Literal["none", "balanced"] = Field("none", description="forests only")


def plan(facts: Facts, options: Options, settings: Trees, machine: Machine) -> JSON:
    """Memory and notes; MissingError without XGBoost where it is asked for."""
    if options.model not in ("forest", "extra") and find_spec("xgboost") is None:
        raise MissingError("xgboost is not installed. Install it with: pip install 'domain-model-zoo[molecules]'")
    num_features = sum(widths(options.features, options.num_bits))
    return {
        "memory_bytes": BASE_BYTES + 2 * facts.num_rows * num_features * BYTES_A_CELL,
        "notes": [f"{num_features:,} features of each molecule: {', '.join(options.features)}"],
    }


def build(plan: Plan) -> Learner:
    """A fresh learner."""
    return FingerprintTrees(plan)


def load(plan: Plan, folder: Path) -> Learner:
    """The learner saved in `folder`."""
    from safetensors.numpy import load_file

    learner, choice = FingerprintTrees(plan), json.loads((folder / CHOICE).read_text())
    arrays = load_file(folder / FORESTS)
    learner.members = {
        name: loaded_member(name, choice["scale"][name], folder, plan, arrays) for name in choice["members"]
    }
    learner.constant = {int(at): value for at, value in choice["constant"].items()}
    learner.kinds = tuple(choice["kinds"])
    return learner


class FingerprintTrees:
    """Meets `contract.Learner`. members: by name, KIND.TARGET.SEED.   constant: targets of which all known rows agree.
    cache: where descriptors are kept; set by `fit`."""

    resumable = False

    def __init__(self, plan: Plan) -> None:
        self.plan, self.options = plan, Options.model_validate(plan.options)
        self.facts = Facts.from_json(plan.facts)
        self.members: dict[str, Member] = {}
        self.constant: dict[int, float] = {}
        self.kinds: tuple[str, ...] = ()
        self.cache: Path | None = None
        self._known: tuple[tuple[str, ...], np.ndarray] | None = None

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Grow every member, then keep the kinds that validate best (or those that were asked for)."""
        began, self.cache = time.monotonic(), watch.cache
        x, targets = self._matrix(train), self._targets(train)
        held = (self._matrix(valid), self._targets(valid)) if len(valid) else None
        watch.log(kind="features", rows=len(x), columns=x.shape[1], seconds=round(time.monotonic() - began, 3))
        asked = tuple(kind for kind in KINDS if self.options.model in (kind, "blend", "auto"))
        rounds = 0
        for number, column in enumerate(targets):
            known = np.isfinite(column)
            if len(np.unique(column[known])) < 2:
                self.constant[number] = float(column[known].mean()) if known.any() else 0.0
                continue
            side = Column(x[known], column[known], _held(held, number), self._num_classes)
            for kind in asked:
                for seed in range(self.options.seeds):
                    _raise_if_asked(watch, len(self.members))
                    rounds += self._grow(kind, number, seed, side, watch)
        self.kinds = asked
        if self.options.model == "auto" and held is not None:
            self.kinds = self._best(valid, watch)
        self._forget()
        seconds = time.monotonic() - began
        return {"num_steps": rounds, "chosen": list(self.kinds), "seconds_train": round(seconds, 3)}

    def _best(self, valid: Any, watch: Watch) -> tuple[str, ...]:
        """The kinds whose mean validates best; of equal ones the most."""
        sign = 1 if watch.higher_is_better else -1
        matrix = self._matrix(valid)
        answers = {kind: self._answers(kind, matrix) for kind in KINDS}
        scores: dict[tuple[str, ...], float] = {}
        for size in range(1, len(KINDS) + 1):
            for kinds in combinations(KINDS, size):
                score = watch.score(valid, self._together([answers[kind] for kind in kinds]))
                scores[kinds] = -np.inf if score is None else sign * score
                watch.log(kind="choice", model="+".join(kinds), score=score)
        return max(scores, key=lambda kinds: (scores[kinds], len(kinds)))

    def _forget(self) -> None:
        """Drop what the choice leaves out, and the features."""
        self._known = None
        self.members = {name: each for name, each in self.members.items() if name.partition(".")[0] in self.kinds}

    def _matrix(self, rows: Any) -> np.ndarray:
        smiles = tuple(rows.column("smiles"))
        if self._known is None or self._known[0] != smiles:
            options = self.options
            found = feature_matrix(
                smiles, options.features, radius=options.radius, num_bits=options.num_bits, cache=self.cache
            )
            self._known = (smiles, found)
        return self._known[1]

    def _targets(self, rows: Any) -> list[np.ndarray]:
        """One column a target: numbers of classes, 0 and 1, or numbers; NaN where nobody knows."""
        target = rows.target()
        if self.facts.task == MULTILABEL:
            return list(known_labels(target, self.facts.classes).T)
        if self.facts.task == MULTIREGRESSION:
            return list(np.array(target.tolist(), np.float64).T)
        if self.facts.task == "regression":
            return [np.asarray(target, np.float64)]
        place = {name: number for number, name in enumerate(self.facts.classes)}
        unknown = sorted({str(name) for name in target if str(name) not in place})
        if unknown:
            raise DataError(
                f"classes {', '.join(unknown)} are in no training row. Use another split or drop those rows."
            )
        return [np.array([place[str(name)] for name in target], np.float64)]

    @property
    def _num_classes(self) -> int:
        """Of one target; 0 for numbers."""
        return {"classification": len(self.facts.classes), MULTILABEL: 2}.get(self.facts.task, 0)

    def _grow(self, kind: str, number: int, seed: int, side: Column, watch: Watch) -> int:
        """Add one member; how many trees it took."""
        name, own = f"{kind}.{number}.{seed}", self.plan.seed + seed
        if kind != "boosting":
            cores, extremely = self.plan.machine.cores, kind == "extra"
            self.members[name] = forest_member(side, self.options, extremely=extremely, seed=own, cores=cores)
            return self.options.num_trees
        self.members[name], num_rounds = boosted_member(side, self.plan, seed=own, watch=watch)
        return num_rounds

    def predict(self, rows: Any) -> Predictions:
        """The mean over seeds within a kind, then over kinds."""
        matrix = self._matrix(rows)
        return self._together([self._answers(kind, matrix) for kind in self.kinds])

    def _together(self, kinds: list[list[np.ndarray]]) -> Predictions:
        """Answers from those of kinds, each with (rows, outputs) a target."""
        answers = [np.mean(of_target, axis=0) for of_target in zip(*kinds, strict=True)]
        if self.facts.task == "classification":
            return Predictions.of_labels(answers[0], self.facts.classes)
        columns = np.column_stack([answer[:, -1] for answer in answers])
        if self.facts.task == MULTILABEL:
            return Predictions.of_label_sets(columns, self.facts.classes)
        if self.facts.task == MULTIREGRESSION:
            return Predictions.of_number_rows(columns, self.facts.schema["targets"])
        return Predictions.of_numbers(columns)

    @property
    def _num_targets(self) -> int:
        return {MULTILABEL: len(self.facts.classes), MULTIREGRESSION: len(self.facts.schema["targets"])}.get(
            self.facts.task, 1
        )

    def _answers(self, kind: str, matrix: np.ndarray) -> list[np.ndarray]:
        """(rows, outputs) a target: the mean over the seeds of one kind."""
        return [
            np.full((len(matrix), 1), self.constant[number])
            if number in self.constant
            else np.asarray(np.mean([each.answers(matrix) for each in self._of(kind, number)], axis=0))
            for number in range(self._num_targets)
        ]

    def _of(self, kind: str, number: int) -> Iterator[Member]:
        return (each for name, each in self.members.items() if name.startswith(f"{kind}.{number}."))

    def save(self, folder: Path) -> None:
        """forests.safetensors, a folder with XGBoost's own file for each boosted member, and choice.json."""
        from safetensors.numpy import save_file

        folder.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, np.ndarray] = {}
        for name, member in self.members.items():
            if isinstance(member, ForestMember):
                arrays.update(member.forest.arrays(f"{name}."))
            elif isinstance(member, BoostedMember):
                member.save(folder / name)
        save_file(arrays, folder / FORESTS)
        (folder / CHOICE).write_text(json.dumps(self._choice()), encoding="utf-8")

    def _choice(self) -> Mapping[str, Any]:
        return {
            "kinds": list(self.kinds),
            "members": list(self.members),
            "scale": {name: member.scale for name, member in self.members.items()},
            "constant": self.constant,
        }


def _held(held: tuple[np.ndarray, list[np.ndarray]] | None, number: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The validation rows where one target is known; None without any."""
    if held is None or not (known := np.isfinite(held[1][number])).any():
        return None
    return held[0][known], held[1][number][known]


def _raise_if_asked(watch: Watch, done: int) -> None:
    if reason := watch.should_stop():
        text = f"Stopped after {done} models ({reason}). Nothing is kept of them; resuming starts again."
        raise InterruptedByUser(text) if reason == "interrupt" else StoppedError(text)
