"""`zoo check`: proves that the registry is complete, reachable, sourced, and that ready recipes can be built.

What one entry may look like is checked while reading (`zoo.registry_yaml`); here is what only the whole can show.
"""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from zoo.recommend import AT_LEAST, BELOW, CONDITIONS, Question, first_match
from zoo.registry import Cell, Recipe, Registry

_OUR_PACKAGES = ("zoo", "domains", "trainers")
# What a family module must offer (see domains/contract.py).
_FAMILY_PARTS = ("Options", "TINY", "plan", "build", "load")


@dataclass(frozen=True, kw_only=True)
class Report:
    """How much was checked, what is wrong, and what could not be checked here."""

    counts: Mapping[str, int]
    problems: tuple[str, ...]
    not_checked: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The shape that `zoo check --json` prints."""
        lists = {"problems": list(self.problems), "not_checked": list(self.not_checked)}
        return {"schema_version": 1, "ok": not self.problems, **self.counts, **lists}


def check_registry(registry: Registry) -> Report:
    """Check everything that can be checked on this machine."""
    problems = [*structure_problems(registry)]
    ready = [recipe for recipe in registry.recipes.values() if recipe.status == "ready"]
    not_checked: list[str] = []
    num_checked = 0
    for recipe in ready:
        found, missing = _module_problems(recipe)
        problems += found
        not_checked += missing
        num_checked += not found and not missing
    counts = {
        "types": len(registry.types),
        "cells": sum(len(cells) for cells in registry.cells.values()),
        "questions": sum(1 for _ in _questions(registry)),
        "recipes_ready": len(ready),
        "recipes_planned": len(registry.recipes) - len(ready),
        "sources": len(registry.sources),
        "options_checked": num_checked,
    }
    return Report(counts=counts, problems=tuple(problems), not_checked=tuple(not_checked))


def structure_problems(registry: Registry) -> Iterator[str]:
    """What is wrong with the registry as a whole, whatever is installed here."""
    yield from _section_problems(registry)
    yield from _name_problems(registry)
    for name, cells in registry.cells.items():
        if name in registry.types:
            yield from _reach_problems(registry, name)
            for index, cell in enumerate(cells):
                yield from _cell_problems(registry, name, index, cell)
    yield from _source_problems(registry)
    yield from _use_problems(registry)


def _section_problems(registry: Registry) -> Iterator[str]:
    for name in registry.types.keys() ^ registry.cells.keys():
        here, there = ("types", "cells") if name in registry.types else ("cells", "types")
        yield f"{here}.{name}: missing in {there}"
    for name, recipe in registry.recipes.items():
        if recipe.type not in registry.types or "/" not in name:
            yield f"recipes.{name}: the name must be TYPE/NAME with a known type"


def _name_problems(registry: Registry) -> Iterator[str]:
    """Tasks and recipe names that exist nowhere else."""
    tasks = {name: set(data_type.tasks) for name, data_type in registry.types.items()}
    for name, recipe in registry.recipes.items():
        for task in set(recipe.task_args) - set(recipe.tasks):
            yield f"recipes.{name}.task_args: {task!r} is none of its tasks"
        for task in set(recipe.tasks) - tasks.get(recipe.type, set(recipe.tasks)):
            yield f"recipes.{name}.tasks: {task!r} is no task of type {recipe.type}"


def _questions(registry: Registry) -> Iterator[Question]:
    """Every (type, task) at 0 and on both sides of every threshold: nothing between two thresholds can differ."""
    for name, data_type in registry.types.items():
        bounds = {cell.below for cell in registry.cells.get(name, ()) if cell.below}
        sizes = sorted({0, *bounds, *(bound - 1 for bound in bounds)})
        for task in (None, *data_type.tasks):
            for n in sizes:
                yield Question(type=name, n=n, task=task)


def _reach_problems(registry: Registry, name: str) -> Iterator[str]:
    """Sizes without an answer, and cells that never answer."""
    cells = registry.cells[name]
    for question in _questions(registry):
        if question.type == name and first_match(cells, question) is None:
            yield f"cells.{name}: no cell for n = {question.n:,} and task {question.task}"
    for index, cell in enumerate(cells):
        if not any(first_match(cells, question) == index for question in _best_questions(registry, name, cell)):
            yield f"cells.{name}[{index}] ({cell.recipe}): can never fire; an earlier cell always matches first"


def _best_questions(registry: Registry, name: str, cell: Cell) -> Iterator[Question]:
    """The questions that give `cell` its best chance: its own conditions just met and nothing else stated."""
    facts = {fact: _met(bound, getattr(cell, bound)) for bound, fact in CONDITIONS.items()}
    for question in _questions(registry):
        fits = question.task is not None and (cell.task == "any" or question.task in cell.task)
        if question.type == name and fits:
            yield Question(type=name, n=question.n, task=question.task, **facts)


def _met(bound: str, limit: Any) -> Any:
    if limit is None:
        return None
    return limit if bound in AT_LEAST or bound not in BELOW else limit - 1


def _cell_problems(registry: Registry, name: str, index: int, cell: Cell) -> Iterator[str]:
    where = f"cells.{name}[{index}]"
    tasks = registry.types[name].tasks if cell.task == "any" else cell.task
    for task in set(tasks) - set(registry.types[name].tasks):
        yield f"{where}.task: {task!r} is no task of type {name}"
    for recipe in (cell.recipe, cell.runner_up):
        if recipe is not None and recipe not in registry.recipes:
            yield f"{where}: no recipe {recipe!r}"
    for task in set(tasks) - set(registry.recipes[cell.recipe].tasks if cell.recipe in registry.recipes else tasks):
        yield f"{where}: {cell.recipe} does not do {task}"
    if not cell.evidence:
        yield f"{where}: no evidence"
    if (cell.runner_up is None) != (cell.choose_runner_up_if is None) or cell.runner_up == cell.recipe:
        yield f"{where}: runner_up and choose_runner_up_if belong together, and the runner-up is another recipe"


def _cited(registry: Registry) -> Iterator[tuple[str, str]]:
    """Every (place, source) of the registry."""
    for name, cells in registry.cells.items():
        for index, cell in enumerate(cells):
            cited = [item.source for item in cell.evidence] + [item.source for item in cell.disputed]
            yield from ((f"cells.{name}[{index}]", source) for source in cited)
    for name, recipe in registry.recipes.items():
        yield from ((f"recipes.{name}", item.source) for item in recipe.evidence)
        yield from ((f"recipes.{name}.scaling", item.source) for item in [recipe.scaling] if item)
    for name, data_type in registry.types.items():
        yield from ((f"types.{name}", note.source) for note in data_type.notes)


def _source_problems(registry: Registry) -> Iterator[str]:
    cited = list(_cited(registry))
    for place, source in cited:
        if source not in registry.sources:
            yield f"{place}: no source {source!r}"
    for name in registry.sources.keys() - {source for _, source in cited}:
        yield f"sources.{name}: nobody cites it"
    for name, entry in registry.sources.items():
        if entry.kind == "paper" and not (entry.url or "").startswith("https://"):
            yield f"sources.{name}: a paper needs a url that starts with https://"
        if entry.kind == "measured" and not entry.command:
            yield f"sources.{name}: a measurement needs the command that repeats it"


def _use_problems(registry: Registry) -> Iterator[str]:
    parents = {recipe.extends for recipe in registry.recipes.values()} | set(registry.bases.values())
    for name in registry.bases.keys() - parents:
        yield f"recipes.{name}: a base that nothing extends"
    for recipe in registry.recipes.values():
        if recipe.status == "ready" and not recipe.evidence:
            yield f"recipes.{recipe.name}: ready, but without evidence for its numbers"


# --- modules, options and settings of ready recipes -----------------------------------------------------------------


def _module_problems(recipe: Recipe) -> tuple[list[str], list[str]]:
    """(problems, reasons why it could not be checked) of one ready recipe."""
    try:
        family = importlib.import_module(recipe.module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _OUR_PACKAGES:
            return [f"recipes.{recipe.name}.module: no module {error.name}"], []
        return [], [f"{recipe.name}: not checked: extra {recipe.needs.extra} missing ({error.name})"]
    lacking = [part for part in _FAMILY_PARTS if not hasattr(family, part)]
    if lacking:
        return [f"recipes.{recipe.name}: {recipe.module} lacks {', '.join(lacking)}"], []
    return [*_settings_problems(recipe, family)], []


def _settings_problems(recipe: Recipe, family: Any) -> Iterator[str]:
    """Options and settings that the family or its trainer refuses, the demo's included."""
    from trainers.settings import SETTINGS

    trainer = recipe.train.get("trainer")
    if trainer not in SETTINGS:
        yield f"recipes.{recipe.name}.train.trainer: {trainer!r} is none of {', '.join(SETTINGS)}"
        return
    demo_options, demo_train = (recipe.demo.options, recipe.demo.train) if recipe.demo else ({}, {})
    for block, schema, values in (
        ("options", family.Options, recipe.options),
        ("train", SETTINGS[trainer], recipe.train),
        ("demo.options", family.Options, {**recipe.options, **demo_options}),
        ("demo.train", SETTINGS[trainer], _with_budget(recipe.train, demo_train)),
    ):
        yield from (f"recipes.{recipe.name}.{block}{fault}" for fault in _refused(schema, values))


def _with_budget(train: Mapping[str, Any], demo: Mapping[str, Any]) -> dict[str, Any]:
    """The demo's settings over the recipe's; a budget that the demo names takes the place of the recipe's."""
    budgets = {"epochs", "steps", "seconds"}
    kept = {key: value for key, value in train.items() if not (key in budgets and budgets & set(demo))}
    return {**kept, **demo}


def _refused(schema: type[BaseModel], values: Mapping[str, Any]) -> Iterator[str]:
    try:
        schema.model_validate(dict(values))
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            yield f"{''.join(f'.{part}' for part in fault['loc'])}: {fault['msg']}, found {fault['input']!r:.80}"
