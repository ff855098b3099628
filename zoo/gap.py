"""`zoo train --gap`: the same recipe once more on a random split of the same rows, in a run of its own beside the first.

The difference says how much of a score at random is owed to rows like those that were learned from: the other molecules
of a scaffold, homologous proteins, more slices of a patient.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from domains.contract import Keys
from domains.folds import divide
from trainers.contract import JSON
from trainers.errors import UsageError
from zoo import hardware, saved
from zoo.job import Job, write_down
from zoo.plan import domain_of, parts_of

_AT_RANDOM = ("random", "stratified")


def check(job: Job) -> None:
    """Raise UsageError where there is no gap to show."""
    if job.split.rule in _AT_RANDOM:
        raise UsageError(f"--gap: the split of these rows is {job.split.rule} already. Leave --gap out.")
    if hasattr(parts_of(job.recipe)[1], "follows"):
        raise UsageError(f"--gap: {job.recipe.name} takes the split of the run it learns from. Leave --gap out.")
    if hardware.rank_and_world()[1] > 1:
        raise UsageError(
            "--gap trains two runs one after the other. Under torchrun start each by itself: --split random."
        )


def folder_beside(folder: Path) -> Path:
    """Where the run on the random split lies."""
    return folder.with_name(f"{folder.name}-random")


def scores_at_random(folder: Path, job: Job, carry_out: Callable[[Path, Job], Any]) -> JSON:
    """Train, or finish, the run on a random split beside `folder`; its scores on its own test rows.

    carry_out(folder, job) trains and seals.
    """
    beside, other = folder_beside(folder), at_random(job)
    if not saved.is_complete(beside):
        if not (beside / "plan.json").exists():
            write_down(saved.new_folder(job.recipe.name, beside), other)
        carry_out(beside, other)
    found = saved.read_json(beside / "metrics.json")
    return {"run": beside.name, "rule": other.split.rule, "num_rows": found["num_rows"], "test": found["test"]}


def at_random(job: Job) -> Job:
    """The same rows and settings, divided at random."""
    domain = domain_of(job.recipe)
    split = divide(Keys(), len(job.usable.table), seed=job.plan.seed, rule="random")
    facts = domain.describe(job.usable.table.take(split.train), job.plan.task, job.request)
    config = {**job.config, "split": "random", "gap": False}
    return replace(job, split=split, plan=replace(job.plan, facts=facts.as_json()), config=config)
