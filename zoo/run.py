"""The pipeline of every recipe: read, split, describe, plan, build, fit, judge, save. The same for all data types.

run = train("tabular/xgboost", data=frame, target="income")
run.predict(frame)
"""

import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from domains import metrics as scoring
from domains.contract import Baseline, Facts, Request
from trainers.contract import JSON, Learner, Predictions
from trainers.errors import DataError, InterruptedByUser, MissingError, StoppedError, UsageError
from trainers.settings import SETTINGS
from zoo import figures, hardware, many, report, saved, writers
from zoo import gap as gaps
from zoo.data_report import refuse_doubts
from zoo.ensemble import Ensemble
from zoo.finished import Run, load
from zoo.job import Job, Say, gather, read_again, warn, write_down
from zoo.many_scores import MODEL, keep_row_scores
from zoo.plan import Wishes, parts_of
from zoo.watch import RunWatch, bar_for


@dataclass(frozen=True)
class Display:
    """What a person sees of a run. say: receives lines, None is silent.   bar: a bar on stderr, if that is a terminal."""

    say: Say = None
    bar: bool = False


def train(
    recipe: str,
    data: Any = None,
    *,
    target: str | None = None,
    task: str | None = None,
    group: str | None = None,
    order: str | None = None,
    id_column: str | None = None,
    labels: str | Path | None = None,
    reference: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    encoding: str | None = None,
    split: str | None = None,
    set: Mapping[str, Any] | None = None,
    epochs: float | None = None,
    budget: float | None = None,
    precision: str | None = None,
    device: str = "auto",
    seed: int = 0,
    folds: int | None = None,
    seeds: int | None = None,
    gap: bool = False,
    shard: bool = False,
    skip_bad: bool = False,
    fast: bool = False,
    strict: bool = False,
    loggers: Sequence[str] = (),
    out: str | Path | None = None,
    say: Say = None,
    bar: bool = False,
) -> Run | Ensemble:
    """Train `recipe` on a file, folder or DataFrame (the recipe's demo when None) and return the finished run, or with
    folds or seeds the several runs of `zoo.many`.

    Arguments are the command line's flags (`zoo train --help`). loggers: names of `zoo.writers.KINDS` (--log).
    say: receives lines about progress, silent when None.   bar: shows a bar on stderr, if that is a terminal.
    gap: see `zoo.gap`.
    Under torchrun the first process reads, splits, scores and writes, and all of them train.
    """
    started = time.monotonic()
    loggers = writers.check_names(loggers)
    target = None if target is None else str(target)
    labels = None if labels is None else str(labels)
    reference = None if reference is None else str(Path(reference).absolute())
    request = Request(target, task, group, order, id_column, labels, reference, dict(columns or {}), encoding=encoding)
    wishes = Wishes(dict(set or {}), epochs, budget, precision, device, seed, shard or None)
    display = Display(say, bar)
    if isinstance(data, str | Path):
        saved.refuse_inside(data, out)

    def jobs() -> list[Job]:
        material = gather(recipe, data, request=request, wishes=wishes, skip_bad=skip_bad, fast=fast, say=say)
        found = many.jobs_of(material, wishes, split=split, folds=folds, seeds=seeds, say=say)
        if strict:
            refuse_doubts(material.report, [job.split for job in found])
        # What is wrong with the options shows before there is a folder.
        parts_of(material.recipe)[1].build(found[0].plan)
        if gap:
            many.refuse_gap(folds, seeds)
            gaps.check(found[0])
        return [replace(job, config={**job.config, "loggers": list(loggers), "gap": gap}) for job in found]

    def begun() -> tuple[Path, Job]:
        (job,) = jobs()
        folder = saved.new_folder(recipe, out)
        write_down(folder, job)
        return folder, job

    if many.kind_of(folds, seeds) is not None:
        return many.train(jobs(), saved.new_folder(recipe, out), partial(_one_of_many, display), say)
    return _finished(begun, data, display, started=started, is_new=True)


def _one_of_many(display: Display, folder: Path, job: Job) -> Run:
    return _finished(lambda: (folder, job), job.data, display, started=time.monotonic(), is_new=False)


def resume(folder: str | Path, *, data: Any = None, say: Say = None, bar: bool = False) -> Run | Ensemble:
    """Continue a run that was stopped or killed, exactly where its last snapshot left it; of several runs (folds, seeds)
    those that are not finished.

    data: only for runs on a DataFrame, which a folder cannot name. Raises UsageError for a finished run, DataError when
    the data is no longer what the run began with.
    """
    started, folder = time.monotonic(), Path(folder)
    if saved.is_complete(folder):
        raise UsageError(f"{folder}: this run is finished. Predict with: zoo predict {folder} NEW_DATA")
    if saved.is_parent(folder):
        return many.resume(folder, data, partial(_one_of_many, Display(say, bar)), say)

    def begun() -> tuple[Path, Job]:
        if not (folder / "plan.json").exists():
            raise UsageError(f"{folder}: nothing to resume (no plan.json).")
        job = replace(read_again(folder, data), pooled=many.pooled_facts(folder.parent))
        writers.check_names(job.config.get("loggers", ()))
        (folder / "STOP").unlink(missing_ok=True)
        return folder, job

    return _finished(begun, data, Display(say, bar), started=started, is_new=False)


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
    with saved.locked(folder):  # whoever is refused here leaves the folder to its owner
        try:
            yield
        except (UsageError, DataError, MissingError) as error:
            if saved.has_learned(folder):
                raise type(error)(
                    f"{error} What was learned is kept; when that is mended: zoo resume {folder}"
                ) from error
            if is_new:
                saved.discard(folder)  # leave no half-written run
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
        with distributed.losing_none(f" What was learned is kept; go on with: torchrun ... zoo.cli resume {folder}"):
            job = job or read_again(folder, data)
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
    beside = {report.AT_RANDOM: _at_random(folder, job, display)} if job.config.get("gap") else {}
    hardware.forget_gpu_peak()
    with writers.opened(job.config.get("loggers", ()), folder, report.settings_of(job.plan), say) as curves:
        learner, actual = _fit(folder, job, display, curves)
        scores, answers = _judge(job, learner, say)
        scores |= beside
        for problem in curves.write(actual.get("num_steps") or 0, report.scores_on_test(scores)):
            (say or warn)(f"warning: {problem}")
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
    report.write_predictions(folder / "predictions.csv", test.ids, answers[MODEL], test.target())
    if job.pooled is not None:
        keep_row_scores(folder, job, answers)
    plots = _plots(folder, job, answers[MODEL])
    saved.write_text(folder / "README.md", report.card(folder, job, scores, actual, plots))
    saved.seal(folder)
    saved.append_experiment(folder, report.experiment_row(folder, job.plan.recipe, scores, actual))
    return Run(folder, job.plan, scores, learner)


def _plots(folder: Path, job: Job, answers: Predictions) -> Mapping[str, str]:
    """Pictures for the card, {file: caption}: those of any run, and those that the data type knows."""
    test, into = job.part("test"), folder / report.PLOTS
    own: Any = getattr(parts_of(job.recipe)[0], "plots", lambda *_: {})
    return {
        **figures.draw(folder, answers, test.target(), into),
        **own(test, answers, Facts.from_json(job.plan.facts), into),
    }


def _at_random(folder: Path, job: Job, display: Display) -> JSON:
    """Scores of the same recipe on a random split, from a run of its own beside `folder`."""
    if display.say:
        display.say(f"gap: first the same on a random split, in {gaps.folder_beside(folder)}")

    def carry_out(beside: Path, other: Job) -> None:
        with _locked(beside, is_new=False):
            _finish(beside, other, display, started=time.monotonic())

    found = gaps.scores_at_random(folder, job, carry_out)
    if display.say:
        display.say(f"gap: now on the split by {job.split.rule}")
    return found


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


def _judge(job: Job, learner: Learner, say: Say) -> tuple[JSON, dict[str, Predictions]]:
    """metrics.json, and the answers on the test rows: of the model, and of each rival by its name. The
    baselines learn from the training rows alone."""
    domain, family = parts_of(job.recipe)
    facts = Facts.from_json(job.plan.facts)
    metrics = domain.metrics(facts)
    parts = {name: job.part(name) for name in ("train", "valid", "test")}

    def scored(name: str, predictions: Predictions) -> JSON:
        return scoring.scores(metrics, parts[name].target(), predictions, job.split.group[getattr(job.split, name)])

    answers = {MODEL: learner.predict(parts["test"].without_target())}
    valid = scored("valid", learner.predict(parts["valid"].without_target())) if len(parts["valid"]) else {}

    def rivals(what: str, found: Iterable[Baseline]) -> JSON:
        scores_of = {}
        for rival in found:
            if say:
                say(f"{what}: {rival.name} ({rival.about})")
            answers[rival.name] = rival.fit(parts["train"])(parts["test"].without_target())
            scores_of[rival.name] = scored("test", answers[rival.name])
        return scores_of

    own = getattr(family, "baselines", lambda plan: ())(job.plan)
    baselines = rivals("baseline", (*domain.baselines(facts), *own))
    references = rivals("reference", getattr(family, "references", lambda plan: ())(job.plan))
    if say and (num := sum(bool(problem) for problem in answers[MODEL].problems)):
        say(f"warning: {num:,} of {len(answers[MODEL]):,} test rows got no answer, and no score counts them")
    return {
        "schema_version": saved.SCHEMA_VERSION,
        "decides": metrics[0].name,
        "direction": "higher" if metrics[0].higher_is_better else "lower",
        "test": scored("test", answers[MODEL]),
        "valid": valid,
        "baseline": baselines,
        **({"reference": references} if references else {}),
        "num_rows": {name: len(rows) for name, rows in parts.items()},
    }, answers


def _cpu_seconds() -> float:
    own, children = os.times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.user + own.system + children.ru_utime + children.ru_stime
