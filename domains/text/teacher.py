"""A finished run as a teacher: what it answers, and how small a student its own layers make.

What a run folder holds is read here as plain files; that its test rows stay held out is seen to by whoever splits (see
`domains.contract.Family.follows`).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file
from torch import Tensor, from_numpy

from domains.contract import Facts
from domains.text import encoder_weights as encoders
from trainers.contract import JSON, Learner, Machine, Plan
from trainers.errors import DataError, MissingError, UsageError
from trainers.gradient import STATISTICS, WEIGHTS

FAMILIES = {
    "domains.text.encoder": "text/encoder-classify",
    "domains.text.encoder_ner": "text/encoder-ner",
    "domains.text.encoder_scratch": "text/encoder-scratch",
    "domains.text.distil": "text/distil",
    "domains.text.distil_tag": "text/distil-tag",
}
"""Those whose model is an encoder with one linear layer, on a pooled state or on every token."""
WHOLE_TEXTS = ("classification", "regression")
SMALLEST = 1e-12
"""A probability that counts as zero still has a logarithm."""


@dataclass(frozen=True)
class Teacher:
    """A run folder and its plan."""

    folder: Path
    plan: Plan

    @classmethod
    def of(cls, run: str, tasks: Sequence[str] = WHOLE_TEXTS) -> Teacher:
        """The teacher in a run folder. Raises MissingError where there is none, UsageError for one of other tasks."""
        folder = Path(run)
        if not (folder / "plan.json").is_file() or not (folder / "model").is_dir():
            raise MissingError(f"options.teacher: {run}: no finished run of zoo train here. Train the teacher first.")
        teacher = cls(folder, Plan.from_json(json.loads((folder / "plan.json").read_text(encoding="utf-8"))))
        if teacher.plan.module not in FAMILIES or teacher.plan.task not in tasks:
            raise UsageError(
                f"options.teacher: {run} is a run of {teacher.plan.recipe} ({teacher.plan.task}); a teacher here is an "
                f"encoder trained for {' or '.join(tasks)}. text/distil learns classes and numbers, text/distil-tag tags."
            )
        return teacher

    def check(self, facts: Facts) -> None:
        """Raise UsageError where the teacher answers another question than `facts` asks."""
        theirs = Facts.from_json(self.plan.facts)
        for name in ("task", "target", "classes", "schema"):
            ours, known = getattr(facts, name), getattr(theirs, name)
            if ours != known:
                raise UsageError(
                    f"options.teacher: {self.folder} was trained for {name} {known!r}, and this is {ours!r}. Give the data "
                    "and flags that the teacher had."
                )

    def learner(self, machine: Machine) -> Learner:
        """The teacher, ready to predict on `machine`."""
        family = importlib.import_module(self.plan.module)
        found: Learner = family.load(replace(self.plan, machine=machine), self.folder / "model")
        return found

    def fitted(self) -> JSON:
        """What the teacher's learner kept as its statistics: config, tokenizer, outcome."""
        return dict(json.loads((self.folder / "model" / STATISTICS).read_text(encoding="utf-8")))

    def weights(self) -> dict[str, Tensor]:
        """The teacher's tensors, encoder and head."""
        return load_file(self.folder / "model" / WEIGHTS)

    @property
    def num_parameters(self) -> int:
        """Of encoder and head."""
        fitted = self.fitted()
        return encoders.num_parameters(fitted["config"]) + self.head_parameters(fitted["config"]["hidden_size"])

    def head_parameters(self, width: int) -> int:
        """Of a head on states of this width."""
        return (width + 1) * Facts.from_json(self.plan.facts).num_outputs


def soft_targets(teacher: Teacher, rows: Any, machine: Machine, kept: Path) -> np.ndarray:
    """(rows, classes) log probabilities of the teacher, or (rows, 1) its numbers; asked once and kept in the file `kept`.

    Raises DataError where the teacher has no finite answer.
    """
    return kept_or_told(kept, lambda: _told(teacher, rows, machine))


def kept_or_told(kept: Path, told: Callable[[], np.ndarray]) -> np.ndarray:
    """What stands in the file `kept`, written there first where there is none."""
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        work = kept.with_name(kept.name + ".tmp")
        save_file({"soft": from_numpy(np.ascontiguousarray(told()))}, work)
        work.replace(kept)
    return load_file(kept)["soft"].numpy()


def _told(teacher: Teacher, rows: Any, machine: Machine) -> np.ndarray:
    answers = teacher.learner(machine).predict(rows.without_target())
    if any(answers.problems):
        raise DataError(f"options.teacher: {teacher.folder} gives a row no answer: {max(answers.problems)}.")
    return answers.values.astype(np.float64)[:, None] if answers.scores is None else log_of(answers.scores)


def log_of(probabilities: np.ndarray) -> np.ndarray:
    """Logarithms of probabilities: logits but for a constant a row, which no softmax sees."""
    found: np.ndarray = np.log(np.maximum(probabilities, SMALLEST))
    return found


def chosen_layers(num_layers: int, num_kept: int) -> list[int]:
    """Which layers a student takes: evenly spread, the first and the last among them (of twelve for six: 0, 2, 4, 7, 9 and
    11, as DistilBERT's authors chose; Sanh et al. 2019, arXiv 1910.01108, section 3)."""
    return [round(at) for at in np.linspace(0, num_layers - 1, num_kept).tolist()]


def thinned(config: JSON, weights: dict[str, Tensor], kept: list[int]) -> tuple[JSON, dict[str, Tensor]]:
    """Config and tensors of the same network with only the layers `kept`, counted anew."""
    place = {layer: at for at, layer in enumerate(kept)}
    found = {}
    for name, tensor in weights.items():
        match = encoders.LAYER.search(name)
        if match is None:
            found[name] = tensor
        elif (layer := int(match[1])) in place:
            found[f"{name[: match.start(1)]}{place[layer]}{name[match.end(1) :]}"] = tensor
    depth = config["num_hidden_layers"]
    lists = {name: [value[at] for at in kept] for name, value in config.items() if _is_by_layer(value, depth)}
    counts: JSON = {name: len(kept) for name in ("num_hidden_layers", "n_layers") if name in config}
    return {**config, **lists, **counts}, found


def _is_by_layer(value: Any, depth: int) -> bool:
    return isinstance(value, list) and len(value) == depth
