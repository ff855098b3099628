"""Train a language model of the ESM-2 architecture from nothing on the user's own sequences: masked residues are told.

With labels (--target) it then learns these, as `esm2_finetune` does from that start. Alone (--task masked-lm) the run is a
checkpoint for esm2-finetune, esm2-embed-head, esm2-variant-effect (options.weights=RUN) and for transformers (RUN/model).
Lin et al. 2023, Science 379:1123, supplement A.1: of 15 % of the residues 80 % masked, 10 % replaced, 10 % left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from domains.contract import Baseline, Facts
from domains.proteins import esm2_finetune
from domains.proteins.esm2_finetune import ACTIVATION_BYTES, BYTES_PER_PARAMETER
from domains.proteins.unlabelled import TASK
from domains.shared.esm import num_parameters
from domains.shared.masked import MaskedTask, Noise, fixed_places
from domains.shared.proteins.esm2 import (
    END,
    MASK,
    NUM_ADDED_TOKENS,
    PAD,
    RESIDUE_TOKENS,
    START,
    VOCABULARY,
    esm2_config,
)
from domains.shared.proteins.masked_esm import MaskedEsm, roles, write_config
from domains.shared.proteins.residues import STANDARD
from trainers.contract import JSON, Learner, Machine, Plan, Predictions, Watch
from trainers.gradient import GradientLearner
from trainers.outcome import ClassWeights
from trainers.phases import TwoPhases
from trainers.settings import DEFAULT_EPOCHS, Gradient, Phases

_SMALL: JSON = {"batch_size": 8, "micro_batch_tokens": 2048, "precision": "fp32", "compile": "off"}
TINY: JSON = {
    "options": {"layers": 2, "width": 32, "max_residues": 64, "dropout": 0.0},
    "train": {
        "pretrain": {**_SMALL, "epochs": 15, "lr": 1e-2},
        "tune": {**_SMALL, "lr": 3e-3, "head_lr": 1e-2, "layer_decay": 1.0},
    },
}
SHARE, REPLACED, KEPT = 0.15, 0.10, 0.10
WIDTH_A_LAYER, HEAD_SIZE, MOST_HEADS = 40, 16, 20
"""ESM-2's: 20 heads, of 16 numbers in the smallest; 12 layers of width 480."""
LEAST_LAYERS, MOST_LAYERS = 4, 12
RESIDUES_PER_PARAMETER = 20.0
"""Hoffmann et al. 2022, arXiv 2203.15556, table 3: of causal models of text, for masked ones of proteins a first guess."""
FEW_ROWS = 100_000


class Options(BaseModel):
    """The `options:` block of proteins/protein-lm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: int | None = Field(None, ge=1, description="None: as many as the sequences are enough for")
    width: int | None = Field(None, ge=16, multiple_of=16, description="of states; None: 40 a layer")
    max_residues: int = Field(512, gt=0, description="of a window; longer sequences are read in several")
    dropout: float = Field(0.1, ge=0, lt=1, description="of the pooled state, before the head that learns labels")
    class_weights: ClassWeights = "none"


def plan(facts: Facts, options: Options, settings: Phases, machine: Machine) -> JSON:
    """Estimates from lengths and shape."""
    config = config_of(facts, options)
    first = pretraining(facts.task, settings)
    steps = [first.planned_steps(facts.num_rows)]
    if facts.task != TASK:
        steps.append(settings.phase("tune").planned_steps(facts.num_rows))
    rows = first.micro_batch_size or first.batch_size
    widest = min(rows * (options.max_residues + 2), first.micro_batch_tokens or rows * (options.max_residues + 2))
    total = num_parameters(config)
    return {
        "num_parameters": total,
        "num_steps": None if None in steps else sum(step for step in steps if step is not None),
        "flops_per_epoch": int(6 * total * facts.sizes["total_residues"]),
        "memory_bytes": int(
            BYTES_PER_PARAMETER * total
            + 2 * widest * config["num_hidden_layers"] * config["hidden_size"] * ACTIVATION_BYTES
        ),
        "notes": notes(facts, config, first),
    }


def notes(facts: Facts, config: JSON, first: Gradient) -> list[str]:
    """The shape, what it learns from, and what would be better for few rows."""
    often = f"read {first.epochs or DEFAULT_EPOCHS:g} times"
    if first.seconds or first.steps:
        often = f"for {first.seconds:g} seconds" if first.seconds else f"for {first.steps:,} steps"
    found = [
        f"{config['num_hidden_layers']} layers of width {config['hidden_size']}, on "
        f"{facts.sizes['total_residues'] / 1e6:.3g}M residues, {often}"
    ]
    if facts.num_rows < FEW_ROWS:
        found.append(
            f"{facts.num_rows:,} training sequences are few to learn a language from: below {FEW_ROWS:,} ESM-2, which saw "
            "65 million, is the better start (proteins/esm2-embed-head, proteins/esm2-finetune)"
        )
    return found


def config_of(facts: Facts, options: Options) -> JSON:
    """The architecture: ESM-2's, as large as the sequences are enough for where the options do not say."""
    layers = options.layers or _layers_for(facts.sizes["total_residues"])
    width = options.width or WIDTH_A_LAYER * layers // HEAD_SIZE * HEAD_SIZE
    heads = max(h for h in range(1, min(MOST_HEADS, width // HEAD_SIZE) + 1) if width % (2 * h) == 0)
    return esm2_config(layers=layers, width=width, heads=heads)


def _layers_for(num_residues: float) -> int:
    """The most layers whose parameters have RESIDUES_PER_PARAMETER in DEFAULT_EPOCHS passes."""
    enough = [
        layers
        for layers in range(LEAST_LAYERS, MOST_LAYERS + 1)
        if 12 * layers * (WIDTH_A_LAYER * layers) ** 2 * RESIDUES_PER_PARAMETER <= num_residues * DEFAULT_EPOCHS
    ]
    return max(enough, default=LEAST_LAYERS)


def pretraining(task: str, settings: Phases) -> Gradient:
    """Settings of the first training. Alone it has the whole --budget, and --epochs are its own."""
    if task != TASK:
        return settings.phase("pretrain")
    whole = settings.model_copy(update={"pretrain_share": 1.0}).phase("pretrain")
    named = settings.tune.epochs
    return whole if named is None else whole.model_copy(update={"epochs": named, "steps": None, "seconds": None})


def build(plan: Plan) -> Learner:
    """A fresh learner; weights are drawn when training starts."""
    first = Pretraining(plan)
    return first if plan.task == TASK else TwoPhases(first, lambda folder: esm2_finetune.build(_tuning(plan, folder)))


def load(plan: Plan, folder: Path) -> Learner:
    """The learner that `save` wrote."""
    if plan.task != TASK:
        return esm2_finetune.load(_tuning(plan, folder), folder)
    first = Pretraining(plan)
    first.learner = GradientLearner.load(first.learner.plan, folder, lambda fitted, _: _task(plan, fitted))
    return first


def baselines(plan: Plan) -> tuple[Baseline, ...]:
    """Residues by their frequency, asked of the same masked ones."""
    return (unigram(plan.options["max_residues"]),) if plan.task == TASK else ()


def unigram(max_residues: int) -> Baseline:
    """Every residue with its share of the training residues as its probability."""

    def fit(train: Any) -> Callable[[Any], Predictions]:
        windows = SequenceWindows(max_residues)
        inner = np.concatenate([window[1:-1] for window in windows.of_training(train)])
        counts = np.bincount(inner, minlength=len(VOCABULARY)) + 1.0
        nats = -np.log(counts / counts.sum())

        def answer(rows: Any) -> Predictions:
            found = [nats[window[fixed_places(window, SHARE)]].mean() for window in windows.of_rows(rows)]
            return Predictions.of_numbers(np.array(found))

        return answer

    return Baseline("unigram", "every residue by its frequency in the training rows", fit)


def _tuning(plan: Plan, folder: Path) -> Plan:
    """The plan of the second training, which begins from the checkpoint in `folder`."""
    settings = Phases.model_validate(plan.settings).phase("tune")
    options = {name: plan.options[name] for name in ("max_residues", "dropout", "class_weights")}
    return replace(plan, options={**options, "weights": str(folder)}, settings=settings.model_dump(mode="json"))


class Pretraining:
    """Masked residues of the training sequences. Meets `contract.Learner`, and `phases.First` where labels follow."""

    name, metric, resumable = "pretrain", "masked_cross_entropy", True

    def __init__(self, plan: Plan) -> None:
        settings = pretraining(plan.task, Phases.model_validate(plan.settings))
        facts, options = Facts.from_json(plan.facts), Options.model_validate(plan.options)
        self.learner = GradientLearner(
            replace(plan, settings=settings.model_dump(mode="json")),
            lambda train: {"config": config_of(facts, options)},
            lambda fitted, _: _task(plan, fitted),
        )

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Train; see `trainers.loop`."""
        return self.learner.fit(train, valid, watch)

    def predict(self, rows: Any) -> Predictions:
        """Nats that a masked residue of each row costs."""
        return self.learner.predict(rows)

    def score(self, rows: Any, predictions: Predictions) -> float | None:
        """Mean nats of a masked residue over the rows, each row alike."""
        values = predictions.values[[not problem for problem in predictions.problems]]
        return float(values.mean()) if len(values) else None

    def save(self, folder: Path) -> None:
        """What `load` needs, and beside it the config with which transformers and the other recipes read the folder."""
        self.learner.save(folder)
        assert self.learner.statistics is not None
        write_config(self.learner.statistics["config"], folder)


def _task(plan: Plan, fitted: JSON) -> MaskedTask:
    letters = tuple(RESIDUE_TOKENS[letter] for letter in STANDARD)
    noise = Noise(MASK, SHARE, replaced=REPLACED, kept=KEPT, letters=letters)
    num_layers = fitted["config"]["num_hidden_layers"]
    windows = SequenceWindows(plan.options["max_residues"])
    return MaskedTask(MaskedEsm(fitted["config"]), windows, noise, lambda model: roles(model, num_layers))


@dataclass(frozen=True)
class SequenceWindows:
    """Meets `shared.masked.Windows`: sequences in windows of at most `max_residues`, start and end around each."""

    max_residues: int

    def of_training(self, train: Any) -> list[np.ndarray]:
        return [window for sequence in train.column("sequence") for window in self._cut(sequence)]

    def of_rows(self, rows: Any) -> list[np.ndarray]:
        return [self._window(sequence[: self.max_residues]) for sequence in rows.column("sequence")]

    def padded(self, windows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        width = max((len(window) for window in windows), default=NUM_ADDED_TOKENS)
        numbers = np.full((len(windows), width), PAD, np.int64)
        for row, window in zip(numbers, windows, strict=True):
            row[: len(window)] = window
        numbers_BL = torch.from_numpy(numbers)
        return numbers_BL, numbers_BL != PAD

    def _cut(self, sequence: str) -> list[np.ndarray]:
        """Windows of like length."""
        num = -(-len(sequence) // self.max_residues)
        bounds = np.linspace(0, len(sequence), num + 1).round().astype(int)
        return [self._window(sequence[start:end]) for start, end in pairwise(bounds)]

    def _window(self, sequence: str) -> np.ndarray:
        return np.array([START, *(RESIDUE_TOKENS[letter] for letter in sequence), END], np.int32)
