"""The pipeline of every recipe: read, split, describe, plan, build, fit, judge, save. The same for all data types.

run = train("tabular/xgboost", data=frame, target="income")
run.predict(frame)
"""

import os
import resource
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from domains import metrics as scoring
from domains.contract import Facts, Request, Split
from domains.splits import make_split
from trainers.contract import JSON, Learner, Plan, Predictions
from trainers.errors import DataError, InterruptedByUser, MissingError, StoppedError, UsageError, did_you_mean
from trainers.settings import SETTINGS
from zoo import hardware, report, saved, writers
from zoo.data_in import Usable, accepted, demo_of, fingerprint, usable_rows
from zoo.plan import Wishes, parts_of, plan_run, with_settings
from zoo.registry import Recipe, load_registry
from zoo.watch import RunWatch, bar_for

Say = Callable[[str], None] | None


@dataclass(frozen=True)
class Display:
    """What a person sees of a run. say: receives lines, None is silent.   bar: a bar on stderr, if that is a terminal."""

    say: Say = None
    bar: bool = False


@dataclass(frozen=True)
class Job:
    """A training run that is fixed but not begun: the data in its parts, and the plan."""

    recipe: Recipe
    request: Request
    usable: Usable
    split: Split
    plan: Plan
    data: Any
    config: JSON = field(default_factory=dict)

    def part(self, name: str) -> Any:
        """The rows of "train", "valid" or "test"."""
        return self.usable.table.take(getattr(self.split, name))


@dataclass(frozen=True)
class Run:
    """A finished run folder: scores, and predictions on new data."""

    folder: Path
    plan: Plan
    metrics: JSON
    _learner: Learner

    def predict(self, data: Any) -> Any:
        """Answers for every row of a file, folder or DataFrame, in order, as a DataFrame with the columns of
        predictions.csv (and the index of a DataFrame that was given). Rows that cannot be used say why in `problem`."""
        ids, predictions = self.answers(data, say=_warn)
        return report.prediction_frame(ids, predictions, like=data)

    def evaluate(
        self,
        data: Any,
        *,
        target: str | None = None,
        labels: str | None = None,
        skip_bad: bool = False,
        say: Say = None,
    ) -> JSON:
        """{metric: {value, low, high}} on labelled data. Raises DataError when rows cannot be used or lack the target."""
        domain, _ = parts_of(load_registry().get(self.plan.recipe))
        facts = Facts.from_json(self.plan.facts)
        request = self._request(target or facts.target, labels)
        usable = usable_rows(domain.read(accepted(data), request), data, skip_bad=skip_bad)
        _tell(usable.notices, say)
        table = usable.table
        group = domain.keys(table, self.plan.task, request, fast=True).group
        predictions = self._learner.predict(table.without_target())
        groups = np.arange(len(table)) if group is None else np.asarray(group)
        return scoring.scores(domain.metrics(facts), table.target(), predictions, groups)

    def _request(self, target: str | None, labels: str | None = None) -> Request:
        named = Request(**self._config()["request"])
        return replace(named, target=target, labels=labels, facts=Facts.from_json(self.plan.facts))

    def _config(self) -> JSON:
        return dict(yaml.safe_load((self.folder / "config.yaml").read_text(encoding="utf-8")))

    def answers(self, data: Any, *, say: Say = None) -> tuple[Any, Predictions]:
        """The ids and the answers of every row, in order; data None is the recipe's demo."""
        recipe = load_registry().get(self.plan.recipe)
        domain, _ = parts_of(recipe)
        if data is None and not self._config()["demo"]:
            raise UsageError("Which rows? Give a file or folder; only a run of the recipe's demo can predict without.")
        if data is None:
            data, _, _ = demo_of(recipe, say or (lambda line: None))
        reading = domain.read(accepted(data), self._request(None))
        _tell(reading.notices, say)
        reasons = {row.position: row.reason for row in reading.bad}
        good = np.array([i for i in range(len(reading.table)) if i not in reasons], dtype=np.int64)
        rows = reading.table.take(good).without_target()
        found = self._learner.predict(rows) if len(good) else None
        facts = Facts.from_json(self.plan.facts)
        return reading.table.ids, report.spread(found, good, len(reading.table), reasons, facts.classes)


def prepare(
    recipe: str,
    data: Any = None,
    *,
    request: Request | None = None,
    wishes: Wishes | None = None,
    split: str | None = None,
    skip_bad: bool = False,
    fast: bool = False,
    say: Say = None,
) -> Job:
    """Read, split, describe and plan; nothing is written. Raises the error for whatever is wrong with the request."""
    entry, wishes, say = load_registry().ready(recipe), wishes or Wishes(), say or (lambda line: None)
    domain, _ = parts_of(entry)
    demo: JSON = {}
    request = request or Request()
    if data is None and request != Request(task=request.task):
        raise UsageError("There is no --data, only what to do with it. Give --data FILE, or neither for the demo.")
    if data is None:
        data, request, demo = demo_of(entry, say)
    machine = hardware.detect(wishes.device)
    data = accepted(data)
    if request.task is not None and request.task not in entry.tasks:
        near = did_you_mean(request.task, entry.tasks)
        raise UsageError(f"--task {request.task}: {recipe} does {', '.join(entry.tasks)}.{near}")
    if request.task is None and len(entry.tasks) == 1:
        request = replace(request, task=entry.tasks[0])  # a reader need not guess what can only be one thing
    reading = domain.read(data, request)
    _check_task(entry, reading.task)
    usable = usable_rows(reading, data, skip_bad=skip_bad)
    _tell(usable.notices, say)
    table, task = usable.table, reading.task
    keys = domain.keys(table, task, request, fast=fast)
    parts = make_split(keys, len(table), seed=wishes.seed, rule=split, named=request.group is not None)
    _tell(parts.evidence["warnings"], say)
    if "optimistic" in parts.evidence:
        say(f"split: optimistic scores: {parts.evidence['optimistic']}")
    facts = domain.describe(table.take(parts.train), task, request)
    plan = plan_run(entry, facts, machine=machine, wishes=wishes, demo=demo)
    _tell(plan.estimates.get("notes", ()), say)
    config = {
        "recipe": recipe,
        "data": str(data) if isinstance(data, str | Path) else None,
        "demo": bool(demo),
        "request": {name: value for name, value in asdict(request).items() if name != "facts"},
        "split": split,
        "skip_bad": skip_bad,
        "fast": fast,
        "options": plan.options,
        "train": plan.settings,
        "origins": dict(plan.origins),
        "seed": plan.seed,
    }
    return Job(entry, request, usable, parts, plan, data, config)


def train(
    recipe: str,
    data: Any = None,
    *,
    target: str | None = None,
    task: str | None = None,
    group: str | None = None,
    order: str | None = None,
    id_column: str | None = None,
    labels: str | None = None,
    columns: Mapping[str, str] | None = None,
    split: str | None = None,
    set: Mapping[str, Any] | None = None,
    epochs: float | None = None,
    budget: float | None = None,
    precision: str | None = None,
    device: str = "auto",
    seed: int = 0,
    shard: bool = False,
    skip_bad: bool = False,
    fast: bool = False,
    loggers: Sequence[str] = (),
    out: str | Path | None = None,
    say: Say = None,
    bar: bool = False,
) -> Run:
    """Train `recipe` on a file, folder or DataFrame (the recipe's demo when None) and return the finished run.

    Arguments are the command line's flags (`zoo train --help`). loggers: names of `zoo.writers.KINDS` (--log).
    say: receives lines about progress, silent when None.   bar: shows a bar on stderr, if that is a terminal.
    Under torchrun the first process reads, splits, scores and writes, and all of them train.
    """
    started = time.monotonic()
    loggers = writers.check_names(loggers)
    target = None if target is None else str(target)
    request = Request(target, task, group, order, id_column, labels, dict(columns or {}))
    wishes = Wishes(dict(set or {}), epochs, budget, precision, device, seed, shard or None)

    def begun() -> tuple[Path, Job]:
        job = prepare(recipe, data, request=request, wishes=wishes, split=split, skip_bad=skip_bad, fast=fast, say=say)
        job = replace(job, config={**job.config, "loggers": list(loggers)})
        parts_of(job.recipe)[1].build(job.plan)  # what is wrong with the options shows before there is a folder
        folder = saved.new_folder(recipe, out)
        _write_start(folder, job)
        return folder, job

    return _finished(begun, data, Display(say, bar), started=started, is_new=True)


def resume(folder: str | Path, *, data: Any = None, say: Say = None, bar: bool = False) -> Run:
    """Continue a run that was stopped or killed, exactly where its last snapshot left it.

    data: only for runs on a DataFrame, which a folder cannot name. Raises UsageError for a finished run, DataError when
    the data is no longer what the run began with.
    """
    started, folder = time.monotonic(), Path(folder)

    def begun() -> tuple[Path, Job]:
        if saved.is_complete(folder):
            raise UsageError(f"{folder}: this run is finished. Predict with: zoo predict {folder} NEW_DATA")
        if not (folder / "plan.json").exists():
            raise UsageError(f"{folder}: nothing to resume (no plan.json).")
        job = _job_again(folder, data)
        writers.check_names(job.config.get("loggers", ()))
        (folder / "STOP").unlink(missing_ok=True)
        return folder, job

    return _finished(begun, data, Display(say, bar), started=started, is_new=False)


def load(folder: str | Path, *, device: str = "auto", sets: Mapping[str, Any] | None = None) -> Run:
    """A finished run, verified file by file. Raises DataError when a file changed, UsageError when it is no run.

    sets: settings of prediction to change, {"train.eval_batch_size": 1}.
    """
    folder = Path(folder)
    saved.verify(folder)
    plan = replace(Plan.from_json(saved.read_json(folder / "plan.json")), machine=hardware.detect(device))
    plan = with_settings(plan, sets or {})
    _, family = parts_of(load_registry().get(plan.recipe))
    return Run(folder, plan, saved.read_json(folder / "metrics.json"), family.load(plan, folder / "model"))


def _finished(
    begun: Callable[[], tuple[Path, Job]], data: Any, display: Display, *, started: float, is_new: bool
) -> Run:
    """Begin and finish a run, alone or with the other processes that torchrun started."""
    if hardware.rank_and_world()[1] > 1:
        return _finished_together(begun, data, display, started=started, is_new=is_new)
    folder, job = begun()
    with _locked(folder, is_new=is_new):
        return _finish(folder, job, display, started=started)


@contextmanager
def _locked(folder: Path, *, is_new: bool) -> Iterator[None]:
    try:
        with saved.locked(folder):
            yield
    except (UsageError, DataError, MissingError):
        if is_new:
            saved.discard(folder)  # nothing was learned: leave no half-written run
        raise


def _finished_together(
    begun: Callable[[], tuple[Path, Job]], data: Any, display: Display, *, started: float, is_new: bool
) -> Run:
    """`_finished` in one of several processes: the first begins and judges, the others train along and load the run."""
    from trainers import distributed

    device = hardware.detect().device
    with distributed.joined(distributed.own_device(device)) as rank:
        folder, job = begun() if rank == 0 else (Path(), None)
        folder = distributed.told_by_first(folder)
        job = job or _job_again(folder, data)
        machine = replace(job.plan.machine, device=distributed.own_device(job.plan.machine.device))
        job = replace(job, plan=replace(job.plan, machine=machine))
        if rank == 0:
            with _locked(folder, is_new=is_new):
                run = _finish(folder, job, display, started=started)
        else:
            _fit(folder, job, Display(), writers.Curves())
        distributed.told_by_first("done")
        return run if rank == 0 else load(folder)


def _finish(folder: Path, job: Job, display: Display, *, started: float) -> Run:
    """Fit, judge on the untouched test rows, save, seal."""
    cpu_before, say = _cpu_seconds(), display.say
    hardware.forget_gpu_peak()
    with writers.opened(job.config.get("loggers", ()), folder, report.settings_of(job.plan), say) as curves:
        learner, actual = _fit(folder, job, display, curves)
        scores, predictions = _judge(job, learner, say)
        for problem in curves.write(actual.get("num_steps") or 0, report.scores_on_test(scores)):
            (say or _warn)(f"warning: {problem}")
    test = job.part("test")
    learner.save(folder / "model")
    actual = {
        **report.EMPTY_ACTUAL,
        **actual,
        "seconds_total": round(time.monotonic() - started, 3),
        "cpu_seconds": round(_cpu_seconds() - cpu_before, 3),
        "peak_memory_bytes": hardware.peak_memory(),
        "peak_gpu_memory_bytes": hardware.peak_gpu_memory(),
    }
    saved.write_json(folder / "metrics.json", scores)
    saved.write_json(folder / "actual.json", actual)
    report.write_predictions(folder / "predictions.csv", test.ids, predictions, test.target())
    saved.write_text(folder / "README.md", report.card(folder, job, scores, actual))
    saved.seal(folder)
    saved.append_experiment(folder, report.experiment_row(folder, job.plan, scores, actual))
    return Run(folder, job.plan, scores, learner)


def _fit(folder: Path, job: Job, display: Display, curves: writers.Curves) -> tuple[Learner, JSON]:
    """The learner, trained on the training rows, seen and stopped by a person; and what happened, for actual.json."""
    domain, family = parts_of(job.recipe)
    rank, world = hardware.rank_and_world()
    trainer = SETTINGS[job.plan.settings["trainer"]]
    if world > 1 and not trainer.uses_many_processes:
        raise UsageError(
            f"torchrun started {world} processes, but {job.recipe.name} learns in one ({trainer.__name__.lower()}). "
            "Start it without torchrun."
        )
    learner = family.build(job.plan)
    metric = domain.metrics(Facts.from_json(job.plan.facts))[0]
    shown = bar_for(metric.name, job.plan.machine) if display.bar else None
    watch = RunWatch(folder, metric, display.say, bar=shown, curves=curves, rank=rank, world=world)
    try:
        with watch.hearing_signals(), shown or nullcontext():
            return learner, learner.fit(job.part("train"), job.part("valid"), watch)
    except (StoppedError, InterruptedByUser) as error:
        raise type(error)(str(error).replace("zoo resume RUN", f"zoo resume {folder}")) from None


def _judge(job: Job, learner: Learner, say: Say) -> tuple[JSON, Predictions]:
    """metrics.json, and the answers on the test rows. The baselines learn from the training rows alone."""
    domain, family = parts_of(job.recipe)
    facts = Facts.from_json(job.plan.facts)
    metrics = domain.metrics(facts)
    parts = {name: job.part(name) for name in ("train", "valid", "test")}

    def scored(name: str, predictions: Predictions) -> JSON:
        return scoring.scores(metrics, parts[name].target(), predictions, job.split.group[getattr(job.split, name)])

    test = learner.predict(parts["test"].without_target())
    valid = scored("valid", learner.predict(parts["valid"].without_target())) if len(parts["valid"]) else {}
    rivals = {}
    for baseline in (*domain.baselines(facts), *getattr(family, "baselines", lambda plan: ())(job.plan)):
        if say:
            say(f"baseline: {baseline.name} ({baseline.about})")
        rivals[baseline.name] = scored("test", baseline.fit(parts["train"])(parts["test"].without_target()))
    return {
        "schema_version": saved.SCHEMA_VERSION,
        "decides": metrics[0].name,
        "direction": "higher" if metrics[0].higher_is_better else "lower",
        "test": scored("test", test),
        "valid": valid,
        "baseline": rivals,
        "num_rows": {name: len(rows) for name, rows in parts.items()},
    }, test


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=4)


def _tell(notices: Sequence[str], say: Say) -> None:
    for notice in notices:
        if say:
            say(f"data: {notice}")


def _check_task(recipe: Recipe, task: str) -> None:
    if task not in recipe.tasks:
        known = ", ".join(recipe.tasks)
        raise UsageError(
            f"{recipe.name} does {known}, and this data asks for {task}. Say --task or choose another recipe."
        )


def _write_start(folder: Path, job: Job) -> None:
    ids = np.asarray(job.usable.table.ids, dtype=object)
    parts = {name: ids[getattr(job.split, name)].tolist() for name in ("train", "valid", "test")}
    groups = job.split.group.tolist() if len(np.unique(job.split.group)) < len(ids) else None
    data = {
        "schema_version": saved.SCHEMA_VERSION,
        "fingerprint": fingerprint(job.data, job.request),
        "num_rows_read": job.usable.num_read,
        "num_rows_used": len(ids),
        "bad_rows": job.usable.dropped,
        "notices": list(job.usable.notices),
        "classes": _class_counts(job.usable.table.target()) if job.plan.facts["classes"] else None,
    }
    split = {"rule": job.split.rule, "seed": job.plan.seed, **job.split.evidence, "ids": parts, "group": groups}
    saved.write_text(folder / "config.yaml", yaml.safe_dump(job.config, sort_keys=False, allow_unicode=True))
    saved.write_json(folder / "split.json", split)
    saved.write_json(folder / "data.json", data)
    saved.write_json(folder / "env.json", report.environment(job.plan.machine))
    saved.write_json(folder / "plan.json", job.plan.as_json())  # last: a folder with a plan can be resumed


def _class_counts(target: np.ndarray) -> JSON:
    """Rows of each class; where a row has several labels or tags, how often each occurs."""
    counts = Counter(name for value in target for name in (value if isinstance(value, tuple) else (str(value),)))
    return dict(sorted(counts.items()))


def _job_again(folder: Path, data: Any) -> Job:
    """The job that `train` wrote down, with its data read again and checked against the fingerprint."""
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    plan = Plan.from_json(saved.read_json(folder / "plan.json"))
    entry, request = load_registry().get(plan.recipe), Request(**config["request"])
    if config["demo"]:
        data, request, _ = demo_of(entry, lambda line: None)
    data = config["data"] if data is None else data
    if data is None:
        raise UsageError(
            f"{folder}: this run was trained on a DataFrame; give it again: zoo.resume(folder, data=frame)."
        )
    if fingerprint(data, request) != saved.read_json(folder / "data.json")["fingerprint"]:
        raise DataError(f"{data}: changed since the run began, so it cannot continue exactly. Train again.")
    domain, _ = parts_of(entry)
    usable = usable_rows(domain.read(accepted(data), request), data, skip_bad=config["skip_bad"])
    return Job(entry, request, usable, _split_again(folder, usable), plan, data, config)


def _split_again(folder: Path, usable: Usable) -> Split:
    stored = saved.read_json(folder / "split.json")
    place = {name: position for position, name in enumerate(usable.table.ids)}

    def positions(part: str) -> np.ndarray:
        return np.sort(np.array([place[name] for name in stored["ids"][part]], np.int64))

    group = np.arange(len(place)) if stored["group"] is None else np.asarray(stored["group"])
    evidence = {name: value for name, value in stored.items() if name not in ("rule", "seed", "ids", "group")}
    return Split(stored["rule"], positions("train"), positions("valid"), positions("test"), group, evidence)


def _cpu_seconds() -> float:
    own, children = os.times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.user + own.system + children.ru_utime + children.ru_stime
