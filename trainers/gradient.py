"""A learner around a task: everything that a gradient recipe need not write itself.

A recipe gives two functions: `statistics(train)`, all that is fitted on the training rows, as plain values; and
`make_task(statistics, pretrained)`, the model with its losses. Training, resuming, saving and predicting follow.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainers import experience, loop
from trainers.checkpoint import Snapshots, load_weights, unique_weights, write_json, write_json_whole, write_tensors
from trainers.contract import JSON, Plan, Predictions, Task, Watch
from trainers.distributed import ALONE, Ranks, shares, whole
from trainers.empty import fill, give_storage, without_storage
from trainers.errors import DivergedError
from trainers.feed import size_order
from trainers.memory import is_out_of_memory, no_more_memory
from trainers.parts import Parts
from trainers.precision import autocast, lay_out, layout_of, placed
from trainers.settings import Gradient

STATISTICS, WEIGHTS = "statistics.json", "model.safetensors"
CHECKPOINTS = "checkpoints"


class GradientLearner:
    """Meets `contract.Learner` with a `contract.Task`.

    statistics: everything fitted, from training rows only; computed once in `fit`, kept as JSON.
    make_task: `pretrained` says whether to load weights from the hub; False where a snapshot or a run brings them.
    brings_all: False where those bring trained weights only (adapters), and the task finds the others itself.
    """

    resumable = True

    def __init__(
        self,
        plan: Plan,
        statistics: Callable[[Any], JSON],
        make_task: Callable[[JSON, bool], Task],
        *,
        brings_all: bool = True,
    ) -> None:
        self.plan, self.compute_statistics, self.make_task = plan, statistics, make_task
        self.brings_all = brings_all
        self.settings = Gradient.model_validate(plan.settings)
        self.batch = EvaluationBatch(self.settings.eval_batch_size)
        self.ranks = ALONE
        self.statistics: JSON | None = None
        self.task: Task | None = None

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Train, or continue from the newest whole snapshot in `watch.folder`; see `loop.train` for the errors."""
        folder, self.batch.say = watch.folder / CHECKPOINTS, watch.log
        ranks = self.ranks = Ranks.of(watch, shard=self.settings.shard)
        snapshots = Snapshots(folder, watch.log, ranks)
        with seeded(self.plan.seed), memory_told():
            snapshot = snapshots.newest()
            statistics = self.statistics = ranks.first_alone(
                lambda: kept_statistics(folder / STATISTICS, lambda: self.compute_statistics(train), watch.log)
            )
            self.task = ranks.first_alone(lambda: self._made(statistics, pretrained=snapshot is None))
            actual = self._trained(train, valid, watch, snapshots, snapshot)
            self._end_sharing()
            return actual

    def _end_sharing(self) -> None:
        """From now on this process predicts alone, with a whole model."""
        if self.ranks.is_sharded:
            assert self.task is not None
            assert self.statistics is not None
            weights = {name: whole(value.detach()) for name, value in unique_weights(self.task.model).items()}
            self.task = self._made(self.statistics, pretrained=False)
            load_weights(self.task.model, weights)
        self.ranks = ALONE

    def _made(self, statistics: JSON, *, pretrained: bool) -> Task:
        """The task with its model on the device; the parameters are yet to be filled where it is not `pretrained`."""
        device = self.plan.machine.device
        if pretrained or not self.brings_all:
            task = self.make_task(statistics, pretrained)
        else:
            with without_storage():
                task = self.make_task(statistics, False)
            give_storage(task.model, device)
        task.model.to(device)
        lay_out(task.model, layout_of(self.settings))
        return task

    def _trained(self, train: Any, valid: Any, watch: Watch, snapshots: Snapshots, snapshot: Path | None) -> JSON:
        assert self.task is not None
        task, said = self.task, JSON()

        def foretell(parts: Parts) -> None:
            if snapshot is None and self.ranks.is_alone:
                said.update(experience.foretold(task, parts, self.plan, valid, watch))

        actual = loop.train(
            self.task,
            train,
            self.settings,
            machine=self.plan.machine,
            seed=self.plan.seed,
            watch=watch,
            evaluate=self._evaluation(valid, watch),
            snapshots=snapshots,
            snapshot=snapshot,
            ranks=self.ranks,
            foretell=foretell,
        )
        return {**actual, **experience.gained(said, actual, self.plan, watch)}

    def predict(self, rows: Any) -> Predictions:
        """The answer to every row, in order."""
        if self.task is None:
            raise RuntimeError("predict() before fit() or load(): there is no model yet.")
        return predict_rows(self.task, rows, self.settings, self.plan, self.batch, self.ranks)

    def predict_soft(self, rows: Any) -> Predictions:
        """As `predict`; by tasks that have `is_soft`, with answers that have a mean."""
        if not hasattr(self.task, "is_soft"):
            return self.predict(rows)
        task: Any = self.task
        task.is_soft = True
        try:
            return self.predict(rows)
        finally:
            task.is_soft = False

    def save(self, folder: Path) -> None:
        """Write statistics.json and model.safetensors (weights and buffers, tied ones once)."""
        if self.task is None or self.statistics is None:
            raise RuntimeError("save() before fit() or load(): there is no model yet.")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / STATISTICS, self.statistics)
        # Not safetensors' save_model: which name of a tied weight it keeps differs from process to process.
        weights = unique_weights(self.task.model)
        write_tensors(folder / WEIGHTS, {name: value.detach().contiguous() for name, value in weights.items()})

    @classmethod
    def load(cls, plan: Plan, folder: Path, make_task: Callable[[JSON, bool], Task]) -> GradientLearner:
        """The learner that `save` wrote into `folder`; reads nothing else."""
        statistics = json.loads((folder / STATISTICS).read_text())
        learner = cls(plan, lambda _: statistics, make_task)
        learner.statistics = statistics
        with seeded(plan.seed):
            learner.task = learner._made(statistics, pretrained=False)
        fill(learner.task.model, folder / WEIGHTS)
        learner.task.model.eval()
        return learner

    def _evaluation(self, valid: Any, watch: Watch) -> Callable[[], float | None] | None:
        if valid is None or len(valid) == 0:
            return None
        rows = valid.without_target() if hasattr(valid, "without_target") else valid

        def evaluate() -> float | None:
            answers = self.predict(rows)
            if all(answers.problems):
                raise no_answer_is_finite(answers, self.settings.lr)
            return self.ranks.told(watch.score(valid, answers) if self.ranks.is_first else None)

        return evaluate


def no_answer_is_finite(answers: Predictions, lr: float) -> DivergedError:
    """The error for a model that answers nothing any more."""
    return DivergedError(
        f"Training diverged: of {len(answers):,} validation rows none has a finite answer ({answers.problems[0]}). Lower "
        f"the learning rate: --set train.lr={lr / 5:.2g}, or compute exactly: --set train.precision=fp32"
    )


@dataclass
class EvaluationBatch:
    """How many rows are predicted at once; halved for good when memory runs out."""

    size: int
    say: Callable[..., None] = lambda **event: None

    def halve(self, error: Exception) -> None:
        """Half as many from now on. Raises DoesNotFitError where there is one row already."""
        if self.size == 1:
            raise no_more_memory(error, "predicting a single row") from error
        self.size //= 2
        self.say(kind="warning", text=f"Out of memory while predicting: now {self.size} rows at once.")


def predict_rows(
    task: Task, rows: Any, settings: Gradient, plan: Plan, at_once: EvaluationBatch, ranks: Ranks
) -> Predictions:
    """Predict in batches of like size and put the answers back into the order of the rows.

    Several processes predict some of the batches each, and all get all answers.
    """
    device = torch.device(plan.machine.device)
    order = size_order(task.row_sizes(rows), len(rows))

    def answers(batch: np.ndarray) -> Predictions | None:
        try:
            inputs = placed(task.collate(rows.take(batch.tolist())), device, layout_of(settings))
            return task.predict(task.model, inputs)
        except Exception as error:
            if not is_out_of_memory(error) or not ranks.is_alone:
                raise
            at_once.halve(error)
            return None

    task.model.eval()
    parts: list[Predictions] = []
    # no_grad, not inference_mode: models cache tables (rotary angles) in their first forward, and training refuses
    # tensors made in inference mode.
    with torch.no_grad(), autocast(settings.precision, plan.machine):
        if not ranks.is_alone:
            return shared_answers(answers, order, at_once.size, ranks)
        start = 0
        while not parts or start < len(order):
            batch = order[start : start + at_once.size]
            if (found := answers(batch)) is not None:
                parts.append(found)
                start += len(batch)
    return Predictions.joined(parts).take(np.argsort(order))


def shared_answers(
    answers: Callable[[np.ndarray], Predictions | None], order: np.ndarray, num_at_once: int, ranks: Ranks
) -> Predictions:
    """`predict_rows` among several processes: batches are dealt, and what is computed only to keep step is dropped."""
    batches = [order[start : start + num_at_once] for start in range(0, max(1, len(order)), num_at_once)]
    found = [(answers(batch), counts) for batch, counts in shares(batches, ranks)]
    by_rank = ranks.collected([each for each, counts in found if counts])
    joined = [by_rank[number % ranks.world][number // ranks.world] for number in range(len(batches))]
    return Predictions.joined(joined).take(np.argsort(order))


def kept_statistics(path: Path, compute: Callable[[], JSON], say: Callable[..., None] = lambda **event: None) -> JSON:
    """The statistics in `path`, with their hash; computed and written there first if there are none or they changed.

    Always as read back from JSON, so that a fresh run and a resumed one hold the same values (lists, text keys).
    """
    if path.exists():
        try:
            kept = json.loads(path.read_text())
            if kept["sha256"] == _hash_of(kept["statistics"]):
                return dict(kept["statistics"])
        except (ValueError, KeyError, TypeError):
            pass
        say(
            kind="warning", text=f"{path.name} has changed since it was written: computed again from the training rows."
        )
    found = json.loads(json.dumps(compute()))
    write_json_whole(path, {"sha256": _hash_of(found), "statistics": found})
    return dict(found)


def _hash_of(values: JSON) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def memory_told() -> Iterator[None]:
    """Turn what says that memory ran out into a `DoesNotFitError`."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise no_more_memory(error, "training") from error
        raise


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Start every global generator from `seed`, and give the caller's states back afterwards."""
    python, host = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(host)
