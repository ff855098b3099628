"""From a question (type, size, task, limits) to an answer with its reasons. Pure: reads nothing but the registry."""

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from trainers.errors import UsageError, did_you_mean
from zoo.registry import Cell, DataType, Note, Recipe, Registry, load_registry

SCHEMA_VERSION = 1

DEVICES = ("edge", "cpu", "gpu")
LATENCIES = ("tight", "relaxed")

# Conditions of a cell: the field that holds the bound, and the fact of the question that it bounds.
AT_LEAST = {"min_length": "length", "min_series": "series", "min_channels": "channels"}
BELOW = {"below_audio_hours": "audio_hours"}
EQUAL = {"device": "device", "latency": "latency", "pretrained": "pretrained", "coordinates": "coordinates"}
CONDITIONS = {**AT_LEAST, **BELOW, **EQUAL}


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is known about the job. None means unknown, and then no condition on it holds.

    n: labelled rows, in the type's unit.  groups: independent ones among them (patients, families, speakers).
    length: of the longest row, in the type's length_unit.  audio_hours: of recordings.
    pretrained: whether a checkpoint for this kind of data exists.
    """

    type: str
    n: int
    groups: int | None = None
    task: str | None = None
    length: int | None = None
    series: int | None = None
    channels: int | None = None
    audio_hours: float | None = None
    device: str | None = None
    latency: str | None = None
    pretrained: bool | None = None
    coordinates: bool | None = None

    @property
    def effective_n(self) -> int:
        """What the rows are worth: their groups where they are known, else each for itself.

        m rows of a group that agree by rho are worth m / (1 + (m - 1) rho) independent ones (the design effect: Kish,
        Survey Sampling, 1965, section 5.4). rho is not known before there are scores, so the careful end counts, rho = 1.
        """
        return self.n if self.groups is None else min(self.n, self.groups)


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The next number of rows, of groups where those count, at which another cell answers, and what it says."""

    at: int
    distance: int
    recipe: str


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A fact that was not stated and would change the answer."""

    option: str
    recipe: str


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """An answer with everything that led to it; `as_json` is the shape that `zoo recommend --json` prints."""

    question: Question
    task: str
    recipe: Recipe
    cell: Cell
    rule: str
    next_threshold: Threshold | None
    nearest_ready: Recipe | None
    next_command: str
    runner_up: Recipe | None
    asks: tuple[Asked, ...]
    unused: tuple[str, ...]
    notes: tuple[Note, ...]
    registry: Registry = field(repr=False)
    budget: dict[str, Any] | None = None  # see zoo.budget

    def __str__(self) -> str:
        return as_text(self)

    def as_json(self) -> dict[str, Any]:
        """Plain values only; new keys may be added, none change their meaning within a `schema_version`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "type": self.question.type,
            "n": self.question.n,
            "groups": self.question.groups,
            "effective_n": self.question.effective_n,
            "task": self.task,
            "task_assumed": self.question.task is None,
            "recipe": self.recipe.name,
            "status": self.recipe.status,
            "about": self.recipe.about,
            "rule": self.rule,
            "next_threshold": _fields(self.next_threshold),
            "because": self.cell.because,
            "evidence": [self._cited(item) for item in self.cell.evidence],
            "disputed": [self._cited(item) for item in self.cell.disputed],
            "runner_up": self._runner_up(),
            "needs": {**_fields(self.recipe.needs), "install": self.recipe.install},
            "nearest_ready": self.nearest_ready.name if self.nearest_ready else None,
            "would_change_it": [_fields(item) for item in self.asks],
            "unused": list(self.unused),
            "notes": [self._cited(item) for item in self.notes],
            "budget": self.budget,
            "next_command": self.next_command,
        }

    def _cited(self, item: Any) -> dict[str, Any]:
        """Evidence, dispute or note with the title, year and address of its source."""
        source = self.registry.sources[item.source]
        own = {"source": item.source, "where": getattr(item, "where", None), "says": item.says}
        return {**own, "title": source.title, "year": source.year, "url": source.url}

    def _runner_up(self) -> dict[str, Any] | None:
        if self.runner_up is None:
            return None
        return {
            "recipe": self.runner_up.name,
            "status": self.runner_up.status,
            "choose_if": self.cell.choose_runner_up_if,
        }


def _fields(record: Any) -> dict[str, Any]:
    return {item.name: getattr(record, item.name) for item in fields(record)} if record else record


# --- the choice -----------------------------------------------------------------------------------------------------


def recommend(type: str, n: int, *, registry: Registry | None = None, **facts: Any) -> Recommendation:
    """The recipe for `n` rows of `type`, with the rule that fired and the evidence.

    facts: any other field of `Question`.  Raises UsageError for an unknown type, task or fact, or an impossible value.
    """
    registry = registry or load_registry()
    unknown = [name for name in facts if name not in {item.name for item in fields(Question)}]
    if unknown:
        near = did_you_mean(unknown[0], (item.name for item in fields(Question)))
        raise UsageError(f"recommend: unknown fact {unknown[0]!r}.{near}")
    question = Question(type=type, n=n, **facts)
    _check_question(question, registry.type_of(type))
    return _answer(question, registry)


def with_data(answer: Recommendation, data: str, target: str | None) -> Recommendation:
    """The same answer with the next command naming the user's own file and target."""
    if answer.nearest_ready is None:
        return answer
    args = answer.registry.data_args(answer.nearest_ready, answer.task).split()
    chosen = dict(zip(args[::2], args[1::2], strict=True)) | {"--data": shlex.quote(data)}
    if target is not None:
        chosen["--target"] = shlex.quote(target)
    elif "--target" in chosen:
        chosen["--target"] = "COLUMN"
    words = ["zoo", "train", answer.nearest_ready.name, *(word for pair in chosen.items() for word in pair)]
    return replace(answer, next_command=" ".join(words) + _folds_words(answer.notes))


def _folds_words(notes: Sequence[Note]) -> str:
    """What the notes add to the command: the folds that a small set needs."""
    return "".join(f" --folds {note.folds}" for note in notes if note.folds is not None)


def _check_question(question: Question, data_type: DataType) -> None:
    """Refuse what nobody can mean; UsageError names the option."""
    for fact in ("n", "groups", "length", "series", "channels", "audio_hours"):
        _check_number(fact, getattr(question, fact))
    _check_choice("task", question.task, data_type.tasks)
    _check_choice("device", question.device, DEVICES)
    _check_choice("latency", question.latency, LATENCIES)


def _check_number(fact: str, value: Any) -> None:
    kinds = (int, float) if fact == "audio_hours" else (int,)
    if value is None and fact != "n":
        return
    # `not >= 0` rather than `< 0`: it refuses nan too.
    if isinstance(value, bool) or not isinstance(value, kinds) or not value >= 0:
        kind = "a number" if fact == "audio_hours" else "a whole number"
        raise UsageError(f"{fact} = {value!r}: must be {kind}, 0 or more.")


def _check_choice(fact: str, value: str | None, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        raise UsageError(f"{fact} = {value!r}: unknown.{did_you_mean(str(value), known)} Known: {', '.join(known)}.")


def first_match(cells: Sequence[Cell], question: Question) -> int | None:
    """The position of the first cell whose conditions all hold; half-open, so n = below is not below."""
    return next((index for index, cell in enumerate(cells) if holds(cell, question)), None)


def holds(cell: Cell, question: Question) -> bool:
    """Whether all conditions of `cell` hold, that on n included."""
    return holds_whatever_n(cell, question) and (cell.below is None or question.effective_n < cell.below)


def holds_whatever_n(cell: Cell, question: Question) -> bool:
    """Whether all conditions of `cell` but that on n hold; a task that nobody named fits every cell."""
    fits_task = cell.task == "any" or question.task is None or question.task in cell.task
    return fits_task and all(_condition_holds(cell, question, bound) for bound in CONDITIONS)


def _condition_holds(cell: Cell, question: Question, bound: str) -> bool:
    limit, fact = getattr(cell, bound), getattr(question, CONDITIONS[bound])
    if limit is None:
        return True
    if fact is None:
        return False
    if bound in AT_LEAST:
        return bool(fact >= limit)
    return bool(fact < limit) if bound in BELOW else bool(fact == limit)


def _answer(question: Question, registry: Registry) -> Recommendation:
    cells = registry.cells[question.type]
    chosen = first_match(cells, question)
    assert chosen is not None, f"{question}: no cell; `zoo check` proves that this cannot be"
    cell, data_type = cells[chosen], registry.types[question.type]
    task = question.task or (data_type.tasks[0] if cell.task == "any" else cell.task[0])
    recipe = registry.recipes[cell.recipe]
    near = recipe if recipe.status == "ready" else registry.nearest_ready(recipe, [task])
    notes = tuple(note for note in data_type.notes if note.below is None or question.effective_n < note.below)
    words = f"{registry.data_args(near, task)}{_folds_words(notes)}" if near else ""
    return Recommendation(
        question=question,
        task=task,
        recipe=recipe,
        cell=cell,
        rule=_rule(cells, chosen, question, data_type),
        next_threshold=_next_threshold(cells, chosen, question),
        nearest_ready=near,
        next_command=f"zoo train {near.name} {words}" if near else "zoo list --status ready",
        runner_up=registry.recipes[cell.runner_up] if cell.runner_up else None,
        asks=tuple(_asks(cells, chosen, question, data_type)),
        unused=tuple(_unused(cells, question)),
        notes=notes,
        registry=registry,
    )


def _next_threshold(cells: Sequence[Cell], chosen: int, question: Question) -> Threshold | None:
    for at in sorted({cell.below for cell in cells if cell.below and cell.below > question.effective_n}):
        other = first_match(cells, replace(question, n=at, groups=None))
        if other is not None and other != chosen:
            return Threshold(at=at, distance=at - question.effective_n, recipe=cells[other].recipe)
    return None


# --- in words -------------------------------------------------------------------------------------------------------


def _rule(cells: Sequence[Cell], chosen: int, question: Question, data_type: DataType) -> str:
    """The conditions of the chosen cell as a person would say them, the bounds of n first."""
    cell = cells[chosen]
    passed = [other.below for other in cells[:chosen] if other.below and holds_whatever_n(other, question)]
    parts = [_range(max(passed, default=0), cell.below)]
    parts += [] if cell.task == "any" else [f"task is {' or '.join(cell.task)}"]
    parts += [_condition(cell, bound, data_type) for bound in CONDITIONS if getattr(cell, bound) is not None]
    return "; ".join(parts)


def _range(low: int, high: int | None) -> str:
    if high is None:
        return f"n >= {low:,}" if low else "any n"
    return f"{low:,} <= n < {high:,}" if low else f"n < {high:,}"


def _condition(cell: Cell, bound: str, data_type: DataType) -> str:
    limit = getattr(cell, bound)
    words = {
        "min_length": f"rows of {limit:,} {data_type.length_unit} or more" if bound == "min_length" else "",
        "min_series": f"{limit} series or more",
        "min_channels": f"{limit} variables or more",
        "below_audio_hours": f"under {limit} hours of audio",
        "pretrained": "a pretrained checkpoint exists",
        "coordinates": "3-D coordinates are given",
    }
    return words.get(bound, f"{bound} is {limit}")


def _asks(cells: Sequence[Cell], chosen: int, question: Question, data_type: DataType) -> Iterator[Asked]:
    """Facts left open that would lead to another recipe, each with the value that does."""
    if question.task is None:
        yield from _changed(cells, chosen, question, "task", data_type.tasks)
    by_rows = first_match(cells, replace(question, groups=None))
    if by_rows is not None and cells[by_rows].recipe != cells[chosen].recipe:
        yield Asked(option="no --groups, each row for itself", recipe=cells[by_rows].recipe)
    for bound, fact in CONDITIONS.items():
        if getattr(question, fact) is None:
            limits = sorted({getattr(cell, bound) for cell in cells} - {None})
            yield from _changed(cells, chosen, question, fact, limits, below=bound in BELOW)


def _changed(
    cells: Sequence[Cell], chosen: int, question: Question, fact: str, values: Sequence[Any], *, below: bool = False
) -> Iterator[Asked]:
    named = {cells[chosen].recipe}
    for value in values:
        # Just below the bound is as good as any value that fulfils it.
        stated = replace(question, **{fact: value - 1 if below else value})
        other = first_match(cells, stated)
        if other is not None and cells[other].recipe not in named:
            named.add(cells[other].recipe)
            yield Asked(option=_option(fact, value, below=below), recipe=cells[other].recipe)


def _option(fact: str, value: Any, *, below: bool) -> str:
    flag = "--" + fact.replace("_", "-")
    if value is True:
        return flag
    if fact in AT_LEAST.values():
        return f"{flag} {value} or more"
    return f"{flag} under {value}" if below else f"{flag} {value}"


def _unused(cells: Sequence[Cell], question: Question) -> Iterator[str]:
    """Facts that were stated but that no cell of the type asks for."""
    for fact in CONDITIONS.values():
        bounds = [bound for bound, bounded in CONDITIONS.items() if bounded == fact]
        stated = getattr(question, fact) not in (None, False)
        if stated and not any(getattr(cell, bound) is not None for cell in cells for bound in bounds):
            yield f"--{fact.replace('_', '-')} decides nothing for {question.type}"


def as_text(answer: Recommendation, width: int = 100) -> str:
    """The answer for a terminal of `width` columns."""
    found = answer.as_json()
    lines = [f"{found['recipe']}  ({found['status']})", f"  {found['about']}", ""]
    for label, says in _labelled(answer, found):
        indent = " " * 14
        lines += textwrap.wrap(f"{label:<14}{says}", width, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines)


def _labelled(answer: Recommendation, found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    assumed = f" (task not given: taken as {answer.task})" if found["task_assumed"] else f", task {answer.task}"
    yield "rule", f"{answer.rule}; here n = {_size_words(answer.question)}{assumed}"
    yield "because", answer.cell.because
    yield "next", _threshold_words(answer.next_threshold, "rows" if answer.question.groups is None else "groups")
    if found["runner_up"]:
        other = found["runner_up"]
        yield "runner-up", f"{other['recipe']} ({other['status']}): choose it if {other['choose_if']}"
    yield from (("evidence", _reference(item)) for item in found["evidence"])
    yield from (("disputed", _reference(item)) for item in found["disputed"])
    yield from (("would change", f"{item.option}: {item.recipe}") for item in answer.asks)
    yield from (("unused", says) for says in answer.unused)
    yield from (("note", _reference(item)) for item in found["notes"])
    if answer.budget:
        yield from (("budget", answer.budget[key]) for key in ("says",) if key in answer.budget)
        yield from (("conflict", says) for says in answer.budget["conflicts"])
    yield "needs", answer.recipe.requirements or "not built yet"
    yield "command", _command_words(answer)


def _size_words(question: Question) -> str:
    if question.groups is None:
        return f"{question.n:,}"
    return (
        f"{question.effective_n:,}, as {question.n:,} rows of {question.groups:,} groups are worth no more for certain"
    )


def _threshold_words(threshold: Threshold | None, unit: str) -> str:
    if threshold is None:
        return "no further threshold in n"
    return f"{threshold.distance:,} more {unit} to the threshold at {threshold.at:,}: {threshold.recipe}"


def _reference(item: dict[str, Any]) -> str:
    where = f", {item['where']}" if item["where"] else ""
    return f"{item['says']} [{item['title']} ({item['year']}){where}{' ' + item['url'] if item['url'] else ''}]"


def _command_words(answer: Recommendation) -> str:
    if answer.recipe.status == "ready":
        return answer.next_command
    if answer.nearest_ready:
        return f"{answer.next_command}   (planned is not built; this is the nearest ready recipe)"
    return f"{answer.next_command}   (planned is not built, and no recipe of this type and task is ready)"
