"""Several runs of the one pipeline below one folder: the folds of a cross-validation, or seeds. Each is a whole run.

PARENT/fold-0 ...   runs as `zoo train --split fold-0-of-5` makes them, or seed-0 ... as `--seed 0` does
PARENT/many.json    what the runs are; written when all are planned, so that what has one can be resumed
PARENT/metrics.json scores on all out-of-fold answers (of seeds: their mean), and mean and deviation over the runs
PARENT/predictions.csv  of folds: the out-of-fold answer to every row, with its fold
How they are put together is in `zoo.many_scores`; how they predict as one in `zoo.ensemble`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from domains.contract import Facts, Request
from domains.folds import name_of
from trainers.contract import JSON
from trainers.errors import DataError, MissingError, StoppedError, UsageError, ZooError
from zoo import hardware, many_scores, report, saved, writers
from zoo.config_yaml import write_config
from zoo.ensemble import Ensemble
from zoo.job import Job, Material, Say, gather, planned, read_again, write_down
from zoo.plan import Wishes, domain_of

One = Callable[[Path, Job], Any]
"""Carries a job out in a folder that it was written down in."""
FOLDS, SEEDS = "folds", "seeds"
_ADDED_UP = ("num_steps", "seconds")
"""Estimates that all runs together need so many times."""


def kind_of(folds: int | None, seeds: int | None) -> str | None:
    """ "folds", "seeds", or None for a single run. Raises UsageError for both, for one run, and under torchrun."""
    if folds is not None and seeds is not None:
        raise UsageError("--folds and --seeds: one at a time. Seeds of one fold: --split fold-0-of-5 --seeds 5.")
    kind = FOLDS if folds is not None else SEEDS if seeds is not None else None
    if kind and (count := folds or seeds or 0) < 2:
        raise UsageError(f"--{kind} {count}: give 2 or more, usually 5 to 10.")
    if kind and hardware.rank_and_world()[1] > 1:
        one = "--split fold-0-of-5" if kind == FOLDS else "--seed 0"
        raise UsageError(f"--{kind} starts its runs one after the other. Under torchrun start each by itself: {one}.")
    return kind


def refuse_gap(folds: int | None, seeds: int | None) -> None:
    """Raise UsageError for --gap of several runs."""
    if (kind := kind_of(folds, seeds)) is not None:
        raise UsageError(
            f"--gap and --{kind}: one at a time. The runs at random: --split random --{kind} {folds or seeds}."
        )


def jobs_of(
    material: Material, wishes: Wishes, *, split: str | None, folds: int | None, seeds: int | None, say: Say
) -> list[Job]:
    """The runs, fixed but not begun; one where neither folds nor seeds are asked for. They share the budget."""
    kind, count = kind_of(folds, seeds), folds or seeds or 1
    if kind is None:
        return [planned(material, wishes, split=split, say=say)]
    wishes, say = replace(wishes, budget=wishes.budget and wishes.budget / count), _said_once(say)
    if kind == SEEDS:
        varied = [replace(wishes, seed=wishes.seed + k) for k in range(count)]
        return [planned(material, each, split=split, say=say) for each in varied]
    jobs = [planned(material, wishes, split=name_of(k, count, split), say=say) for k in range(count)]
    domain = domain_of(material.recipe)
    everything: Facts = domain.describe(material.usable.table, material.task, material.request)
    return [replace(job, pooled=everything) for job in jobs]


def prepare(
    recipe: str,
    data: Any = None,
    *,
    request: Request,
    wishes: Wishes,
    split: str | None = None,
    folds: int | None = None,
    seeds: int | None = None,
    skip_bad: bool = False,
    fast: bool = False,
    say: Say = None,
) -> Job:
    """`zoo.job.prepare`; of several runs the first, with what all of them need in its estimates."""
    material = gather(recipe, data, request=request, wishes=wishes, skip_bad=skip_bad, fast=fast, say=say)
    return with_total(jobs_of(material, wishes, split=split, folds=folds, seeds=seeds, say=say))


def with_total(jobs: Sequence[Job]) -> Job:
    """The first job, for showing; where there are several, with what all of them need together."""
    first = jobs[0]
    if len(jobs) == 1:
        return first
    found: JSON = {"runs": len(jobs)}
    for name in _ADDED_UP:
        values = [job.plan.estimates.get(name) for job in jobs]
        if all(isinstance(value, int | float) for value in values):
            found[name] = sum(values)
    if (seconds := first.plan.settings.get("seconds")) is not None:
        found["budget_seconds"] = seconds * len(jobs)
    return replace(first, plan=replace(first.plan, estimates={**first.plan.estimates, "all_runs": found}))


def begin(parent: Path, jobs: Sequence[Job]) -> list[Path]:
    """Write all jobs down below `parent`; their folders."""
    first = jobs[0]
    kind = FOLDS if first.pooled else SEEDS
    names = [f"fold-{k}" if first.pooled else f"seed-{job.plan.seed}" for k, job in enumerate(jobs)]
    for name, job in zip(names, jobs, strict=True):
        (parent / name).mkdir()
        write_down(parent / name, job)
    facts = first.pooled.as_json() if first.pooled else first.plan.facts
    config = {name: value for name, value in first.config.items() if name not in ("seed", "split")}
    own = {
        "recipe": first.recipe.name,
        "kind": kind,
        "members": names,
        "type": first.plan.type,
        "task": first.plan.task,
    }
    write_config(parent / "config.yaml", config)
    saved.write_json(parent / saved.MANY, {"schema_version": saved.SCHEMA_VERSION, **own, "facts": facts})
    return [parent / name for name in names]


def train(jobs: Sequence[Job], parent: Path, one: One, say: Say) -> Ensemble:
    """Carry out `jobs` below the empty folder `parent`."""
    job_of = dict(zip(begin(parent, jobs), jobs, strict=True))
    return finish(parent, lambda folder: one(folder, job_of[folder]), say, is_new=True)


def resume(parent: Path, data: Any, one: One, say: Say) -> Ensemble:
    """Carry out the jobs in `parent` that are not finished. data: as for `zoo.run.resume`; it is read once for all."""
    whole = read_again(saved.members(parent)[0], data)
    writers.check_names(whole.config.get("loggers", ()))

    def carry_out(folder: Path) -> Any:
        (folder / "STOP").unlink(missing_ok=True)
        return one(folder, replace(read_again(folder, data, like=whole), pooled=pooled_facts(parent)))

    (parent / "STOP").unlink(missing_ok=True)
    return finish(parent, carry_out, say, is_new=False)


def pooled_facts(parent: Path) -> Facts | None:
    """The facts by which out-of-fold answers are scored; None for seeds, and for a folder that holds no runs."""
    if not saved.is_parent(parent):
        return None
    found = saved.read_json(parent / saved.MANY)
    return Facts.from_json(found["facts"]) if found["kind"] == FOLDS else None


def finish(parent: Path, carry_out: Callable[[Path], Any], say: Say, *, is_new: bool) -> Ensemble:
    """Carry out the runs that are not finished, then score them together and seal. carry_out(folder) finishes one.

    Raises what a run raises, naming it and how to go on; where nothing was learned, a new folder is removed.
    """
    folders = saved.members(parent)
    with saved.locked(parent):
        for number, folder in enumerate(folders):
            if saved.is_complete(folder):
                continue
            if say:
                say(f"{folder.name} ({number + 1} of {len(folders)})")
            _one(parent, folder, carry_out, may_discard=is_new)
        many_scores.write(parent, folders, pooled_facts(parent))
        saved.seal(parent)
        metrics, actual = (saved.read_json(parent / name) for name in ("metrics.json", "actual.json"))
        recipe = saved.read_json(parent / saved.MANY)["recipe"]
        saved.append_experiment(parent, report.experiment_row(parent, recipe, metrics, actual))
    return Ensemble(parent, metrics)


def _one(parent: Path, folder: Path, carry_out: Callable[[Path], Any], *, may_discard: bool) -> None:
    if (parent / "STOP").exists():
        raise StoppedError(
            f"{parent}: a file named STOP is there. What is done is kept. Go on with: zoo resume {parent}"
        )
    try:
        carry_out(folder)
    except ZooError as error:
        text = str(error).replace(f"zoo resume {folder}", f"zoo resume {parent}")
        if isinstance(error, UsageError | DataError | MissingError) and not _has_learned(parent):
            if may_discard:
                saved.discard(parent)
        elif f"zoo resume {parent}" not in text:
            text += f" The other runs are kept; when that is mended: zoo resume {parent}"
        raise type(error)(f"{folder.name}: {text}") from error


def _has_learned(parent: Path) -> bool:
    return any(saved.is_complete(folder) or saved.has_learned(folder) for folder in saved.members(parent))


def _said_once(say: Say) -> Say:
    """`say` that leaves out what it has said before: most of what there is to say holds for all runs."""
    seen = set[str]()

    def once(line: str) -> None:
        if say and line not in seen:
            seen.add(line)
            say(line)

    return once
