"""Recipe, facts, machine and the user's wishes become one frozen Plan; every value remembers where it came from."""

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from domains.contract import Facts
from trainers.contract import JSON, Machine, Plan
from trainers.errors import MissingError, UsageError, did_you_mean
from trainers.settings import OPTIMIZER_DEFAULTS, SETTINGS
from zoo.registry import Recipe

_BLOCKS = ("options", "train")
_BUDGETS = ("epochs", "steps", "seconds")


@dataclass(frozen=True)
class Wishes:
    """What the user asked for beyond the recipe. `sets` maps dotted paths ("train.lr") to values."""

    sets: Mapping[str, Any] = field(default_factory=dict)
    epochs: float | None = None
    budget: float | None = None
    precision: str | None = None
    device: str = "auto"
    seed: int = 0
    shard: bool | None = None


def domain_of(recipe: Recipe) -> Any:
    """The module of a recipe's data type, which is light. Raises MissingError naming the extra that is not installed."""
    return _module(f"domains.{recipe.name.split('/')[0]}.data", recipe)


def parts_of(recipe: Recipe) -> tuple[Any, Any]:
    """The modules of a recipe's data type and of its model family, which may take seconds and hundreds of megabytes to import.
    Raises MissingError naming the extra that is not installed."""
    return domain_of(recipe), _module(recipe.module, recipe)


def _module(name: str, recipe: Recipe) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("zoo", "domains", "trainers"):
            raise
        raise missing_package(error, recipe.needs.extra) from None


def missing_package(error: ModuleNotFoundError, extra: str) -> MissingError:
    """The error for a package of an extra that is not here."""
    return MissingError(
        f"Package {error.name!r} is not installed. Install it with: pip install 'domain-model-zoo[{extra}]'"
    )


def plan_run(recipe: Recipe, facts: Facts, *, machine: Machine, wishes: Wishes, demo: Mapping[str, Any]) -> Plan:
    """Fix everything before training.

    demo: the overrides of the recipe's demo ({"options": ..., "train": ...}), empty when the user brought data.
    Raises UsageError for an unknown path or value, MissingError where weights are not to be had.
    """
    _, family = parts_of(recipe)
    options, settings, origins = chosen(recipe, wishes, demo)
    estimates = family.plan(facts, options, settings, machine)
    if foreign := _foreign_rate(settings, origins):
        estimates = {**estimates, "notes": [*estimates.get("notes", ()), foreign]}
    return Plan(
        recipe=recipe.name,
        type=facts.type,
        task=facts.task,
        module=recipe.module,
        options=options.model_dump(mode="json"),
        settings=settings.model_dump(mode="json"),
        facts=facts.as_json(),
        machine=machine,
        seed=wishes.seed,
        estimates=estimates,
        origins=origins,
    )


def _foreign_rate(settings: Any, origins: Mapping[str, str]) -> str:
    """What to say where the user's optimizer gets the rate that the recipe has for another; else an empty text."""
    named = [origins.get(f"train.{name}") for name in ("optimizer", "lr")]
    own = OPTIMIZER_DEFAULTS.get(getattr(settings, "optimizer", ""), {}).get("lr")
    if named != ["--set", "recipe"] or own is None:
        return ""
    return (
        f"train.lr={settings.lr:g} is the recipe's, made for another optimizer; {settings.optimizer} usually begins with "
        f"{own:g} from nothing: --set train.lr=..."
    )


def chosen(recipe: Recipe, wishes: Wishes, demo: Mapping[str, Any]) -> tuple[Any, Any, dict[str, str]]:
    """Options and settings, validated, and where each value came from. Raises UsageError for an unknown path or value."""
    _, family = parts_of(recipe)
    trainer = SETTINGS[recipe.train["trainer"]]
    wished = _wished(wishes, trainer)
    _refuse_two_budgets(wished)
    layers = [("recipe", _tree(recipe.options, recipe.train)), ("demo", _tree(**demo)), *wished]
    merged, origins = _merged(layers)
    options = validated(family.Options, merged["options"], "options", recipe.name)
    return options, validated(trainer, merged["train"], "train", recipe.name), origins


def with_settings(plan: Plan, sets: Mapping[str, Any]) -> Plan:
    """The plan with some `train.` settings changed, for predicting with a run that is finished."""
    layers = [("", _tree({}, plan.settings)), *(("--set", _nested(path, value)) for path, value in sets.items())]
    merged, _ = _merged(layers)
    if merged["options"]:
        raise UsageError("A finished run keeps its options; only train. settings can be set now.")
    settings = validated(SETTINGS[plan.settings["trainer"]], merged["train"], "train", plan.recipe)
    return replace(plan, settings=settings.model_dump(mode="json"))


def parse_sets(pairs: Sequence[str]) -> dict[str, Any]:
    """`["train.lr=1e-4", "options.weights=none"]` as a mapping; values are JSON where they parse, else text."""
    found = {}
    for pair in pairs:
        path, equals, text = pair.partition("=")
        if not equals or not path:
            raise UsageError(f"--set {pair!r}: write it as path=value, for example --set train.lr=0.001.")
        try:
            found[path.strip()] = json.loads(text)
        except ValueError:
            found[path.strip()] = text
        except RecursionError:
            raise UsageError(f"--set {path}: {text[:20]}... is nested too deeply.") from None
    return found


def validated(schema: type[BaseModel], values: Mapping[str, Any], block: str, recipe: str) -> Any:
    """`values` as the pydantic class `schema`. Raises UsageError naming each wrong key with its value."""
    try:
        return schema.model_validate(dict(values))
    except ValidationError as error:
        raise UsageError("; ".join(_complaint(schema, fault, block, recipe) for fault in error.errors())) from None


def _complaint(schema: type[BaseModel], fault: Any, block: str, recipe: str) -> str:
    path = ".".join([block, *map(str, fault["loc"])])
    if fault["type"] == "extra_forbidden":
        known = _fields(schema, fault["loc"][:-1])
        near = did_you_mean(str(fault["loc"][-1]), known)
        return f"Unknown setting {path!r} of {recipe}.{near} Known: {', '.join(known)}."
    return f"{path} = {fault['input']!r}: {fault['msg']} (recipe {recipe})"


def _fields(schema: Any, path: Sequence[Any]) -> list[str]:
    for name in path:
        schema = schema.model_fields[name].annotation
    return list(schema.model_fields)


def _tree(options: Mapping[str, Any] | None = None, train: Mapping[str, Any] | None = None) -> JSON:
    return {"options": dict(options or {}), "train": dict(train or {})}


def _wished(wishes: Wishes, trainer: Any) -> list[tuple[str, JSON]]:
    """The user's layers, flags first, so that --set has the last word."""
    layers: list[tuple[str, JSON]] = []
    for flag in ("epochs", "budget", "precision", "shard"):
        value = getattr(wishes, flag)
        if value is not None:
            paths = trainer.flags.get(flag)
            if paths is None:
                raise UsageError(f"--{flag} means nothing to a recipe trained by {trainer.__name__.lower()}.")
            layers += [(f"--{flag}", _nested(f"train.{path}", v)) for path, v in paths(value).items()]
    return layers + [("--set", _nested(path, value)) for path, value in wishes.sets.items()]


def _refuse_two_budgets(layers: Sequence[tuple[str, JSON]]) -> None:
    """Raise UsageError where the user names two different budgets for one training: which one ends it?"""
    named: dict[str, dict[str, str]] = {}
    for origin, layer in layers:
        for path in _paths(layer):
            block, _, name = path.rpartition(".")
            if name in _BUDGETS:
                named.setdefault(block, {})[name] = f"{origin} ({path})"
    for found in named.values():
        if len(found) > 1:
            raise UsageError(f"{' and '.join(found.values())} are two budgets. Give one of {', '.join(_BUDGETS)}.")


def _paths(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The paths to values that are not None."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name


def _nested(path: str, value: Any) -> JSON:
    block, _, rest = path.partition(".")
    if block not in _BLOCKS or not rest:
        near = did_you_mean(block, _BLOCKS)
        raise UsageError(f"--set {path}: paths begin with options. or train.{near}")
    for name in reversed(path.split(".")):
        value = {name: value}
    return {**_tree(), **value}


def _merged(layers: Sequence[tuple[str, JSON]]) -> tuple[JSON, dict[str, str]]:
    merged, origins = _tree(), dict[str, str]()
    for origin, layer in layers:
        _merge(merged, layer, origin, "", origins)
    return merged, origins


def _merge(into: JSON, layer: Mapping[str, Any], origin: str, prefix: str, origins: dict[str, str]) -> None:
    for name, value in layer.items():
        if isinstance(value, Mapping):
            into[name] = dict(into[name]) if isinstance(into.get(name), Mapping) else {}
            _merge(into[name], value, origin, f"{prefix}{name}.", origins)
        else:
            if name in _BUDGETS and value is not None:  # one budget at a time: the last one named
                into.update({other: None for other in _BUDGETS if into.get(other) is not None})
            into[name] = value
            origins[prefix + name] = origin
