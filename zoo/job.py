"""From what was read to a training run that is fixed but not begun: split, plan; written down and read again."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from domains.contract import Facts, Keys, Reading, Request, Split
from domains.folds import divide
from trainers.contract import JSON, Machine, Plan
from trainers.errors import DataError, UsageError, did_you_mean
from zoo import doctor, hardware, report, saved
from zoo.config_yaml import read_config, write_config
from zoo.data_in import Usable, accepted, demo_of, named, refuse_unread, usable_rows
from zoo.data_print import fingerprint, moment, refuse_change, with_named_files
from zoo.data_report import report_lines, report_of
from zoo.plan import Wishes, chosen, domain_of, parts_of, plan_run
from zoo.registry import Recipe, load_registry

Say = Callable[[str], None] | None


@dataclass(frozen=True)
class Material:
    """What was read for a recipe, before it is split: usable rows, and what a split of them must respect.

    report: of the data, see `zoo.data_report`.
    keys: None where the recipe takes the split of another run.   is_group_named: by the user, not found in the data.
    fingerprint: of the data as it was read.
    demo: the overrides of the recipe's demo.
    """

    recipe: Recipe
    request: Request
    task: str
    usable: Usable
    keys: Keys | None
    report: JSON
    is_group_named: bool
    machine: Machine
    data: Any
    fingerprint: JSON
    demo: JSON
    skip_bad: bool
    fast: bool


@dataclass(frozen=True)
class Job:
    """A training run that is fixed but not begun: the data in its parts, and the plan.

    pooled: where the run is one of several whose test rows are scored together, the facts by which they are.
    """

    recipe: Recipe
    request: Request
    usable: Usable
    split: Split
    plan: Plan
    data: Any
    config: JSON = field(default_factory=dict)
    fingerprint: JSON = field(default_factory=dict)
    report: JSON = field(default_factory=dict)
    pooled: Facts | None = None

    def part(self, name: str) -> Any:
        """The rows of "train", "valid" or "test"."""
        return self.usable.table.take(getattr(self.split, name))


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
    wishes = wishes or Wishes()
    material = gather(recipe, data, request=request, wishes=wishes, skip_bad=skip_bad, fast=fast, say=say)
    return planned(material, wishes, split=split, say=say)


def gather(
    recipe: str,
    data: Any = None,
    *,
    request: Request | None = None,
    wishes: Wishes,
    skip_bad: bool = False,
    fast: bool = False,
    say: Say = None,
) -> Material:
    """Read the data and find what must stay together. Raises the error for whatever is wrong with the request."""
    entry, say = load_registry().ready(recipe), say or (lambda line: None)
    domain = domain_of(entry)
    if doctor.state_of(entry.needs.extra, doctor.requirements(doctor.own_requirements()))["missing"]:
        parts_of(entry)  # a package that the family needs is missed before the data are read
    demo: JSON = {}
    request = request or Request()
    if data is None and request != Request(task=request.task):
        raise UsageError("There is no --data, only what to do with it. Give --data FILE, or neither for the demo.")
    if data is None:
        data, request, demo = demo_of(entry, say)
    if not 0 <= wishes.seed < 2**32:
        raise UsageError(f"--seed {wishes.seed}: give a whole number from 0 to {2**32 - 1:,}.")
    machine = hardware.detect(wishes.device)
    data = accepted(data)
    refuse_unread(domain, request)
    if request.task is not None and request.task not in entry.tasks:
        near = did_you_mean(request.task, entry.tasks)
        raise UsageError(f"--task {request.task}: {recipe} does {', '.join(entry.tasks)}.{near}")
    if request.task is None and len(entry.tasks) == 1:
        request = replace(request, task=entry.tasks[0])  # a reader need not guess what can only be one thing
    reading, print_of_data = _read(domain, data, request)
    _check_task(entry, reading.task)
    usable = usable_rows(reading, data, skip_bad=skip_bad)
    tell(usable.notices, say)
    is_named = request.group is not None
    request = replace(request, group=request.group or reading.group)
    follows = hasattr(parts_of(entry)[1], "follows")
    keys = None if follows else domain.keys(usable.table, reading.task, request, fast=fast)
    if request.order is not None and keys is not None and keys.order is None and keys.rule != "given":
        raise UsageError(f"--order {request.order}: {recipe} cannot split such rows by time. Leave --order out.")
    report = report_of(domain, usable, reading, request, keys)
    for line in (*report_lines(report), *_unsaid(report)):
        say(f"data: {line}")
    return Material(
        entry, request, reading.task, usable, keys, report, is_named, machine, data, print_of_data, demo, skip_bad, fast
    )


def planned(material: Material, wishes: Wishes, *, split: str | None = None, say: Say = None) -> Job:
    """Split, describe and plan what was read."""
    entry, request, usable, say = material.recipe, material.request, material.usable, say or (lambda line: None)
    domain, family = parts_of(entry)
    if material.keys is None:
        run = Path(family.follows(chosen(entry, wishes, material.demo)[0]))
        parts = split_of(run, usable, data=material.data, fingerprint=material.fingerprint, rule=split)
    else:
        is_named = material.is_group_named
        parts = divide(material.keys, len(usable.table), seed=wishes.seed, rule=split, named=is_named)
    tell(parts.evidence["warnings"], say)
    if "optimistic" in parts.evidence:
        say(f"split: optimistic scores: {parts.evidence['optimistic']}")
    facts = domain.describe(usable.table.take(parts.train), material.task, request)
    plan = plan_run(entry, facts, machine=material.machine, wishes=wishes, demo=material.demo)
    tell(plan.estimates.get("notes", ()), say)
    config = {
        "recipe": entry.name,
        "data": str(Path(material.data).absolute()) if isinstance(material.data, str | Path) else None,
        "demo": bool(material.demo),
        "request": {name: value for name, value in asdict(request).items() if name != "facts"},
        "split": split,
        "skip_bad": material.skip_bad,
        "fast": material.fast,
        "options": plan.options,
        "train": plan.settings,
        "origins": dict(plan.origins),
        "seed": plan.seed,
    }
    return Job(entry, request, usable, parts, plan, material.data, config, material.fingerprint, material.report)


def _unsaid(report: JSON) -> list[str]:
    """Warnings of a report that were no notices before."""
    return [f"warning: {line}" for line in report["warnings"] if line not in report["notices"]]


def write_down(folder: Path, job: Job) -> None:
    """Write all of a job into its run folder; plan.json last, so that what has one can be resumed."""
    ids = np.asarray(job.usable.table.ids, dtype=object)
    parts = {name: ids[getattr(job.split, name)].tolist() for name in ("train", "valid", "test")}
    groups = job.split.group.tolist() if len(np.unique(job.split.group)) < len(ids) else None
    data = {
        "schema_version": saved.SCHEMA_VERSION,
        "fingerprint": job.fingerprint,
        **job.report,
        "plan_notes": list(job.plan.estimates.get("notes", ())),
    }
    split = {"rule": job.split.rule, "seed": job.plan.seed, **job.split.evidence, "ids": parts, "group": groups}
    write_config(folder / "config.yaml", job.config)
    saved.write_json(folder / "split.json", split)
    saved.write_json(folder / "data.json", data)
    saved.write_json(folder / "env.json", report.environment(job.plan.machine))
    saved.write_json(folder / "plan.json", job.plan.as_json())


def read_again(folder: Path, data: Any, like: Job | None = None) -> Job:
    """The job that `write_down` left, with its data read again and checked against the fingerprint.

    like: a job of the same data, whose rows then need not be read once more.
    """
    config = read_config(folder / "config.yaml")
    plan = Plan.from_json(saved.read_json(folder / "plan.json"))
    entry, request = load_registry().get(plan.recipe), Request(**config["request"])
    if like is not None:
        split = _split_again(folder, like.usable)
        return Job(entry, like.request, like.usable, split, plan, like.data, config)
    if config["demo"]:
        data, request, _ = demo_of(entry, lambda line: None)
    data = config["data"] if data is None else data
    if data is None:
        raise UsageError(
            f"{folder}: this run was trained on a DataFrame; give it again: zoo.resume('{folder}', data=frame)."
        )
    domain = domain_of(entry)
    reading, print_of_data = _read(domain, accepted(data), request, stored=saved.read_json(folder / "data.json"))
    usable = usable_rows(reading, data, skip_bad=config["skip_bad"])
    return Job(entry, request, usable, _split_again(folder, usable), plan, data, config, print_of_data)


def _read(domain: Any, data: Any, request: Request, *, stored: JSON | None = None) -> tuple[Reading, JSON]:
    """What `domain` reads, and the fingerprint of just that.

    stored: data.json of a run that these must be the data of. Raises DataError where they are not, or change meanwhile.
    """
    before = moment(data, request)
    found = fingerprint(data, request)
    known = found if stored is None else stored["fingerprint"]
    _refuse_other(found, {name: known.get(name) for name in found}, data)
    reading = domain.read(data, request)
    refuse_change(before, moment(data, request))
    found = with_named_files(found, reading.files)
    if stored is not None:
        _refuse_other(found, known, data)
    return reading, found


def _refuse_other(found: JSON, known: JSON, data: Any) -> None:
    if found != known:
        raise DataError(f"{named(data)}: changed since the run began, so it cannot continue exactly. Train again.")


def split_of(run: Path, usable: Usable, *, data: Any, fingerprint: JSON, rule: str | None) -> Split:
    """The split of a finished run on the same data: what was held out there stays held out.

    Raises UsageError where `run` is no finished run or `rule` asks for another split, DataError for other data.
    """
    saved.verify(run)
    if saved.is_parent(run):
        raise UsageError(f"{run} holds several runs, each with a split of its own. Name one: {saved.members(run)[0]}")
    if rule is not None:
        raise UsageError(
            f"--split {rule}: this recipe learns from {run} and takes its split. Leave --split and --folds out."
        )
    if fingerprint != saved.read_json(run / "data.json")["fingerprint"]:
        raise DataError(
            f"{named(data)}: not the data that {run} was trained on, so nobody knows which rows it was judged on. Give "
            "the same file or frame."
        )
    try:
        split = _split_again(run, usable)
    except KeyError as error:
        raise DataError(
            f"{run}: its row {error.args[0]!r} is not among these. Give the flags that it was trained with "
            "(--id-column, --skip-bad)."
        ) from None
    return replace(split, evidence={**split.evidence, "because": f"that of {run}: {split.evidence['because']}"})


def _split_again(folder: Path, usable: Usable) -> Split:
    stored = saved.read_json(folder / "split.json")
    place = {name: position for position, name in enumerate(usable.table.ids)}

    def positions(part: str) -> np.ndarray:
        return np.sort(np.array([place[name] for name in stored["ids"][part]], np.int64))

    group = np.arange(len(place)) if stored["group"] is None else np.asarray(stored["group"])
    evidence = {name: value for name, value in stored.items() if name not in ("rule", "seed", "ids", "group")}
    return Split(stored["rule"], positions("train"), positions("valid"), positions("test"), group, evidence)


def warn(line: str) -> None:
    """Say it as a Python warning, where nobody gave a `say`."""
    warnings.warn(line, stacklevel=4)


def tell(notices: Sequence[str], say: Say) -> None:
    """Say what was noticed in the data."""
    for notice in notices:
        if say:
            say(f"data: {notice}")


def _check_task(recipe: Recipe, task: str) -> None:
    if task not in recipe.tasks:
        known = ", ".join(recipe.tasks)
        raise UsageError(
            f"{recipe.name} does {known}, and this data asks for {task}. Say --task or choose another recipe."
        )
