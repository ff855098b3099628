"""The zoo: from data to a recommended, trained and honestly scored model.

Nothing heavy is imported here; each function brings in what it needs when it is called.
"""

import dataclasses
import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.recommend import Recommendation
    from zoo.registry import Recipe

__version__ = "0.1.0"
__all__ = ["get", "load", "lookup", "plan", "recommend", "resume", "train"]


class _Package(ModuleType):
    """Importing the submodule zoo.plan would hide the function zoo.plan behind it; functions of this file stay."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def recommend(type: str, n: int, **facts: Any) -> "Recommendation":
    """The recipe for `n` rows of `type`, with reasons; facts as in `zoo.recommend.Question` (task, length, device ...)."""
    answer: Recommendation = _part("recommend").recommend(type, n, **facts)
    return answer


def get(name: str) -> "Recipe":
    """The recipe called `name`, for example "proteins/esm2-finetune"."""
    found: Recipe = _part("registry").get(name)
    return found


def lookup(*, type: str, n: int, **facts: Any) -> "Recipe":
    """The recipe that `recommend` would name, without its reasons."""
    return recommend(type, n, **facts).recipe


def plan(recipe: str, data: Any = None, **more: Any) -> Any:
    """The frozen plan of `train` with the same arguments (with folds or seeds that of the first run, and what all need in
    `estimates["all_runs"]`); reads the data and writes nothing."""
    from domains.contract import Request

    given = _checked("plan", _part("run").train, {"recipe": recipe, "data": data, **more})
    wishes = _part("plan").Wishes
    asked = Request(**_taken(given, Request))
    wished = wishes(sets=given.pop("set", None) or {}, **_taken(given, wishes))
    _refuse_unknown("plan", given, ["recipe", "data", "split", "folds", "seeds", "skip_bad", "fast", "say"])
    return _part("many").prepare(**given, request=asked, wishes=wished).plan


def train(recipe: str, data: Any = None, **more: Any) -> Any:
    """Train `recipe` on a file, folder or DataFrame (None: its demo); the run, as `zoo.run.train` returns it.

    folds=5 or seeds=5 makes several runs in one folder: scores over all of them, and answers by their mean.
    """
    run = _part("run").train
    return run(**_checked("train", run, {"recipe": recipe, "data": data, **more}))


def resume(folder: Any, **more: Any) -> Any:
    """Continue the run in `folder` where it stopped (data=frame where it learned from a DataFrame); the run."""
    run = _part("run").resume
    return run(**_checked("resume", run, {"folder": folder, **more}))


def load(folder: Any, **more: Any) -> Any:
    """The run (or runs: folds, seeds) in `folder`, ready to predict, as `zoo.ensemble.load` returns it."""
    made = _part("ensemble").load
    return made(**_checked("load", made, {"folder": folder, **more}))


def _checked(name: str, function: Any, given: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _part("arguments").checked(name, function, given)
    return found


def _refuse_unknown(function: str, given: dict[str, Any], known: list[str]) -> None:
    errors = importlib.import_module("trainers.errors")
    for name in given:
        if name not in known:
            near = errors.did_you_mean(name, known)
            raise errors.UsageError(f"zoo.{function}() has no argument {name!r}.{near} Known: {', '.join(known)}.")


def _taken(more: dict[str, Any], record: Any) -> dict[str, Any]:
    """Take from `more` the arguments that are fields of `record`."""
    return {item.name: more.pop(item.name) for item in dataclasses.fields(record) if item.name in more}


def _part(name: str) -> ModuleType:
    return importlib.import_module(f"zoo.{name}")
