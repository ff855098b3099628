"""Boosted trees as a Learner: one loop for XGBoost and LightGBM, which lie behind `trainers.tree_engines`.

Early stopping watches a proper loss of the validation part (log loss; RMSE for numbers), not the deciding metric:
accuracy and AUC move in jumps on few rows, say nothing about how honest the probabilities are, and stop too early or late.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainers.contract import JSON, Plan, Predictions, Rows, Watch
from trainers.errors import DataError, DivergedError, InterruptedByUser, StoppedError
from trainers.settings import Trees

ENCODER = "encoder.json"
TARGET = "target.json"
LOG_EVERY_SECONDS = 1.0
# Without rows to stop on, the default of 2,000 trees would only learn the noise by heart.
MAX_ROUNDS_UNWATCHED = 200


class Encoder(Protocol):
    """Rows as a float32 matrix; category numbers stand in the columns `categorical`, NaN is missing."""

    @property
    def categorical(self) -> tuple[int, ...]: ...
    def matrix(self, rows: Any) -> np.ndarray: ...
    def as_json(self) -> JSON: ...


class Forest(Protocol):
    """One engine's growing model."""

    def grow(self) -> None:
        """Add one tree (one a class)."""

    def valid_loss(self) -> float:
        """Log loss or RMSE on the validation part."""

    def keep(self, rounds: int) -> None:
        """Forget the trees after the first `rounds`, and the training data."""

    def predict(self, matrix: np.ndarray) -> np.ndarray:
        """(rows, classes) probabilities, (rows,) of the second class if there are two, or (rows,) numbers."""

    def save(self, folder: Path) -> None: ...


@dataclass(frozen=True)
class Sides:
    """What an engine starts from. x: (rows, features) float32.   y: class numbers or scaled numbers, float32.
    valid: the same of the validation part, or None.   num_classes: 0 for numbers."""

    x: np.ndarray
    y: np.ndarray
    valid: tuple[np.ndarray, np.ndarray] | None
    categorical: tuple[int, ...]
    num_classes: int


@dataclass(frozen=True)
class Target:
    """Class names and numbers, or the mean and deviation that bring a target to where float32 is exact: engines add
    float32 numbers, and a year or a price in the millions would lose its last digits."""

    classes: tuple[str, ...]
    mean: float = 0.0
    deviation: float = 1.0

    @classmethod
    def of(cls, values: np.ndarray, classes: tuple[str, ...]) -> Target:
        """Fit on the targets of the training rows."""
        if classes:
            return cls(classes)
        return cls((), float(np.mean(values)), float(np.std(values)) or 1.0)

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """(rows,) float32 for an engine. Raises DataError for a class that the training rows do not have."""
        if not self.classes:
            return ((values - self.mean) / self.deviation).astype(np.float32)
        place = {name: number for number, name in enumerate(self.classes)}
        unknown = sorted({str(name) for name in values if name not in place})
        if unknown:
            raise DataError(
                f"classes {', '.join(unknown)} are in no training row. Use another split or drop those rows."
            )
        return np.array([place[name] for name in values], np.float32)

    def predictions(self, answers: np.ndarray) -> Predictions:
        """What `Forest.predict` returned, in the terms of the target."""
        answers = np.asarray(answers, np.float64)
        if not self.classes:
            return Predictions.of_numbers(answers * self.deviation + self.mean)
        if answers.ndim == 1:
            answers = np.stack([1 - answers, answers], axis=1)
        return Predictions.of_labels(answers / answers.sum(axis=1, keepdims=True), self.classes)


@dataclass(frozen=True)
class Growth:
    """How boosting went. best_loss: in the engine's scale; NaN when there was nothing to measure it on."""

    num_rounds: int
    best_round: int
    best_loss: float
    why: str


def boost(
    forest: Forest, settings: Trees, *, watched: bool, watch: Watch, clock: Callable[[], float] = time.monotonic
) -> Growth:
    """Grow trees until the validation loss has not improved for `early_stopping` rounds, or the budget is spent.

    watched: whether there are validation rows.   best_round counts from 1: so many trees are worth keeping.
    Raises DivergedError on a loss that is not finite, StoppedError or InterruptedByUser when `watch` says to stop.
    """
    num_rounds = settings.rounds if watched or settings.early_stopping is None else MAX_ROUNDS_UNWATCHED
    num_rounds = min(num_rounds, settings.rounds)
    began = shown = clock()
    best_round, best_loss = 0, math.inf
    for done in range(1, num_rounds + 1):
        _raise_if_asked(watch, done - 1)
        forest.grow()
        loss = forest.valid_loss() if watched else math.nan
        if watched and not math.isfinite(loss):
            raise DivergedError(f"round {done}: the validation loss is {loss}. Lower train.lr or check the target.")
        if not watched or loss < best_loss:
            best_round, best_loss = done, loss
        now = clock()
        if now - shown >= LOG_EVERY_SECONDS:
            shown = now
            watch.log(kind="step", step=done, loss=loss, best=best_loss)
        if settings.early_stopping and done - best_round >= settings.early_stopping:
            return Growth(done, best_round, best_loss, f"no gain for {settings.early_stopping} rounds")
        if settings.seconds is not None and now - began >= settings.seconds:
            return Growth(done, best_round, best_loss, f"{settings.seconds:g} s are spent")
    return Growth(num_rounds, best_round, best_loss, f"all {num_rounds:,} rounds are done")


def _raise_if_asked(watch: Watch, done: int) -> None:
    if reason := watch.should_stop():
        text = f"Stopped after {done} rounds ({reason}). Nothing is kept of trees half grown; resuming starts again."
        raise InterruptedByUser(text) if reason == "interrupt" else StoppedError(text)


class TreesLearner:
    """A Learner around one engine and one encoder. Trees retrain in seconds and exactly, so `fit` never continues.

    start(sides, settings, plan) -> Forest: the engine.   encoder: rows to matrix, fitted on the training rows.
    """

    resumable = False

    def __init__(
        self, plan: Plan, start: Callable[[Sides, Trees, Plan], Forest], encoder: Encoder, fitted: Any = None
    ) -> None:
        self.plan = plan
        self.encoder = encoder
        self._start = start
        self._forest: Forest | None
        self._target: Target | None
        self._forest, self._target = fitted or (None, None)

    def fit(self, train: Rows, valid: Rows, watch: Watch) -> JSON:
        """Boost on `train`, stop by `valid` (which may be empty), keep the best round."""
        began = time.monotonic()
        settings = Trees(**self.plan.settings)
        sides = self._sides(train, valid)
        if sides.valid is None:
            watch.log(kind="warning", text="No validation rows: trees cannot stop early.")
        forest = self._start(sides, settings, self.plan)
        growth = boost(forest, settings, watched=sides.valid is not None, watch=watch)
        forest.keep(growth.best_round)
        self._forest = forest
        seconds = time.monotonic() - began
        watch.log(kind="fitted", step=growth.best_round, loss=growth.best_loss * self._unit(), why=growth.why)
        return {
            "num_steps": growth.num_rounds,
            "best_step": growth.best_round,
            "stopped": growth.why,
            "seconds_train": round(seconds, 3),
            "samples_per_second": round(len(train) * growth.num_rounds / max(seconds, 1e-9)),
        }

    def _sides(self, train: Any, valid: Any) -> Sides:
        answers = train.target()
        self._target = Target.of(answers, tuple(self.plan.facts["classes"]))
        watched = (self.encoder.matrix(valid), self._target.numbers(valid.target())) if len(valid) else None
        return Sides(
            self.encoder.matrix(train),
            self._target.numbers(answers),
            watched,
            self.encoder.categorical,
            len(self._target.classes),
        )

    def _unit(self) -> float:
        assert self._target is not None
        return self._target.deviation

    def predict(self, rows: Rows) -> Predictions:
        """One answer a row; a row of missing values gets one too."""
        assert self._forest is not None, "fit or load first"
        assert self._target is not None
        return self._target.predictions(self._forest.predict(self.encoder.matrix(rows)))

    def save(self, folder: Path) -> None:
        """The engine's own model file, the encoder and the target as JSON."""
        assert self._forest is not None, "fit first"
        assert self._target is not None
        folder.mkdir(parents=True, exist_ok=True)
        self._forest.save(folder)
        for name, state in ((ENCODER, self.encoder.as_json()), (TARGET, asdict(self._target))):
            (folder / name).write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")


def load_learner(
    plan: Plan, folder: Path, load_forest: Callable[[Path, Plan], Forest], make_encoder: Callable[..., Encoder]
) -> TreesLearner:
    """The learner that `save` wrote into `folder`; it predicts."""
    state = {name: json.loads((folder / name).read_text(encoding="utf-8")) for name in (ENCODER, TARGET)}
    target = Target(**{**state[TARGET], "classes": tuple(state[TARGET]["classes"])})

    def refuse(*_: Any) -> Forest:
        raise AssertionError("a loaded learner predicts; build a new one to fit")

    return TreesLearner(plan, refuse, make_encoder(**state[ENCODER]), (load_forest(folder, plan), target))
