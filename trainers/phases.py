"""Two trainings in one run: a first that learns from the rows without their target, a second that begins where it ended.

    checkpoints/first/              snapshots of the first training, gone when it is done
    checkpoints/first-done/         what it saved: the second reads its weights there
    checkpoints/                    snapshots of the second, as of any training

Each is a whole `Learner` with its own statistics, snapshots and seed, so a kill at any moment costs what it costs them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from trainers.checkpoint import write_json
from trainers.contract import JSON, Learner, Predictions, Watch
from trainers.distributed import Ranks
from trainers.gradient import CHECKPOINTS

FIRST, DONE, FIGURES = "first", "first-done", "first.json"
SUMMED = ("num_steps", "num_samples", "seconds_train", "seconds_evaluate", "seconds_compile", "compiled_graphs")


class First(Protocol):
    """A learner that is never asked to predict. name: what its events are called.   metric, score: what chooses its
    weights among evaluations, on validation rows; lower is better."""

    name: str
    metric: str

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON: ...
    def save(self, folder: Path) -> None: ...
    def score(self, rows: Any, predictions: Predictions) -> float | None: ...


class TwoPhases:
    """Meets `contract.Learner`. make_second: the second learner, given the folder that the first one saved.

    `save` keeps that folder too, below `model/` under the name of the first: other recipes may begin from it.
    """

    resumable = True

    def __init__(self, first: First, make_second: Callable[[Path], Learner]) -> None:
        self.first, self.make_second = first, make_second
        self.second: Learner | None = None
        self.done: Path | None = None

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Train twice, or go on where a snapshot was left; figures of the first stand under its name."""
        done = watch.folder / CHECKPOINTS / DONE
        if not done.exists():
            self._learn_first(train, valid, watch, done)
        figures: JSON = json.loads((done / FIGURES).read_text())
        self.done, self.second = done, self.make_second(done)
        second = self.second.fit(train, valid, After(watch, figures["num_steps"]))
        sums = {name: figures[name] + second[name] for name in SUMMED if name in figures and name in second}
        return {**second, **sums, self.first.name: figures}

    def _learn_first(self, train: Any, valid: Any, watch: Watch, done: Path) -> None:
        figures = self.first.fit(train, valid, Before(watch, self.first))
        if watch.rank == 0:
            work = done.with_name(done.name + ".tmp")
            shutil.rmtree(work, ignore_errors=True)
            self.first.save(work)
            write_json(work / FIGURES, figures)
            work.rename(done)  # whole or not at all
            shutil.rmtree(watch.folder / CHECKPOINTS / FIRST, ignore_errors=True)
        Ranks.of(watch).wait()

    def predict(self, rows: Any) -> Predictions:
        """The answers of the second."""
        return self._trained().predict(rows)

    def save(self, folder: Path) -> None:
        """What the second saves, and beside it what the first did."""
        self._trained().save(folder)
        if self.done is not None:
            shutil.copytree(self.done, folder / self.first.name, ignore=shutil.ignore_patterns(FIGURES))

    def _trained(self) -> Learner:
        if self.second is None:
            raise RuntimeError("predict() or save() before fit(): there is no model yet.")
        return self.second


class Before:
    """The run as the first learner sees it: a folder and a deciding score of its own; its events name it."""

    higher_is_better = False

    def __init__(self, watch: Watch, first: First) -> None:
        self.watch, self.first = watch, first
        self.folder, self.cache = watch.folder / CHECKPOINTS / FIRST, watch.cache
        self.metric, self.score = first.metric, first.score
        self.rank, self.world = watch.rank, watch.world
        self.should_stop = watch.should_stop

    def log(self, **event: Any) -> None:
        """Hand the event on, with the name of the phase."""
        self.watch.log(**{**event, "phase": self.first.name})


class After:
    """The run as the second learner sees it: its steps are counted on from those of the first."""

    def __init__(self, watch: Watch, num_steps: int) -> None:
        self.watch, self.num_steps = watch, num_steps
        self.folder, self.cache, self.metric = watch.folder, watch.cache, watch.metric
        self.higher_is_better = watch.higher_is_better
        self.rank, self.world = watch.rank, watch.world
        self.score, self.should_stop = watch.score, watch.should_stop

    def log(self, **event: Any) -> None:
        """Hand the event on, its steps counted over the whole run."""
        counted = {name: event[name] + self.num_steps for name in ("step", "best_step") if event.get(name) is not None}
        self.watch.log(**{**event, **counted})
