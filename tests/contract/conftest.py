"""One tiny run per ready recipe and task, trained once and shared by the batteries."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from contract import tiny

from zoo import run
from zoo.finished import Run
from zoo.registry import load_registry


@dataclass(frozen=True)
class Tried:
    """A finished tiny run with what it was trained on."""

    recipe: str
    task: str
    data: Any
    target: str | None
    sets: dict[str, Any]
    run: Run


def ready_cases() -> list[tuple[str, str]]:
    """(recipe, task) of everything the registry calls ready."""
    recipes = load_registry().recipes.values()
    return [(recipe.name, task) for recipe in recipes if recipe.status == "ready" for task in recipe.tasks]


def tiny_sets(recipe: str) -> dict[str, Any]:
    """The family's TINY overrides as --set paths."""
    family = importlib.import_module(str(load_registry().get(recipe).module))
    return dict(tiny.paths_of(family.TINY))


def train_tiny(recipe: str, task: str, folder: Path, **more: Any) -> Tried:
    """Train a recipe on the tiny data of its type."""
    data, target = tiny.made(recipe, task, folder)
    sets = tiny.sets(recipe, task, data, target, folder)
    done = run.train(
        recipe,
        data,
        **{"target": target, "task": task, "set": sets, "fast": True, "out": folder / "run", **more},
    )
    return Tried(recipe, task, data, target, sets, done)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Keep embeddings and pictures of the tests out of the user's cache."""
    patch = pytest.MonkeyPatch()
    patch.setenv("ZOO_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="session", params=ready_cases(), ids=lambda case: "-".join(case))
def tried(request, tmp_path_factory):
    return train_tiny(*request.param, tmp_path_factory.mktemp("tiny"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A battery that is skipped did not check its recipe, and must not look green."""
    report = yield
    if report.skipped and "tried" in item.fixturenames:
        report.outcome, report.longrepr = "failed", f"{item.nodeid} was skipped: every ready recipe passes the battery."
    return report
