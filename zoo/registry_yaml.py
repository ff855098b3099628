"""Strict reading of registry.yaml: YAML without its traps, inheritance, and the check against the records.

PyYAML reads 3e-4 as text and `no` as false, keeps the last of two equal keys, and follows aliases and tags. All of
these are errors here, found on the composed nodes of the C loader (the pure Python loader is many times slower).
"""

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from trainers.errors import UsageError, did_you_mean
from zoo.registry import (
    Cell,
    DataType,
    Demo,
    Dispute,
    Evidence,
    Needs,
    Note,
    Recipe,
    Registry,
    Scaling,
    Source,
    Tree,
    field_names,
)

# libyaml's loader; PyYAML built without it still reads the file, only more slowly.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_MERGED = ("options", "train", "needs")
_SHOWN_FAULTS = 10


@dataclass(frozen=True, kw_only=True)
class Base:
    """What an entry that only others extend may hold."""

    __pydantic_config__ = {"extra": "forbid", "strict": True}  # noqa: RUF012 - pydantic reads it from the class
    extends: str | None = None
    module: str = ""
    tasks: tuple[str, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    needs: Needs | None = None
    licence: str | None = None


def checked_tree(content: bytes, where: str) -> Tree:
    """Read, resolve `extends`, and check; the result holds only dicts, lists, text, numbers and truth values.

    where: the file's name for error messages.  Raises UsageError.
    """
    try:
        return _checked_tree(content.decode())
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start}). Save it as UTF-8.") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not valid YAML: {error}. Mend the line named.") from None
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _checked_tree(text: str) -> Tree:
    root = yaml.compose(text, Loader=_Loader)
    if root is None:
        raise UsageError("the file is empty. It needs types, cells, recipes and sources.")
    tree = _plain(root, "", set())
    _demand_mappings(tree)
    tree = _resolved(tree)
    _check(Registry, tree)
    _check_modules(tree)
    return tree


# --- YAML nodes to plain values -------------------------------------------------------------------------------------


def _fault(node: Any, path: str, says: str) -> UsageError:
    return UsageError(f"line {node.start_mark.line + 1}, {path or 'top level'}: {says}")


def _plain(node: Any, path: str, seen: set[int]) -> Any:
    """The value of a composed node; `seen` holds nodes met before, so that an alias shows as a second meeting."""
    if id(node) in seen:
        raise _fault(node, path, "an alias (*name) points here. Write the value out, or use `extends`.")
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, path)
    if node.tag not in (_TAG + "map", _TAG + "seq"):
        raise _fault(node, path, f"the tag {node.tag!r} is not allowed. Remove it.")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, f"{path}[{index}]", seen) for index, item in enumerate(node.value)]
    return _mapping(node, path, seen)


def _mapping(node: Any, path: str, seen: set[int]) -> Tree:
    result: Tree = {}
    for key_node, value_node in node.value:
        name = key_node.value
        here = f"{path}.{name}" if path else str(name)
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _TAG + "str":
            raise _fault(key_node, here, f"the key {name!r} is not text. Put it in quotes.")
        if name in result:
            raise _fault(key_node, here, "this key occurs twice. Remove one.")
        result[name] = _plain(value_node, here, seen)
    return result


def _scalar(node: Any, path: str) -> Any:
    plain = not node.style  # the C loader says "", the Python one None
    if plain and node.tag in _READERS:
        return _READERS[node.tag](node, path)
    if plain or node.tag != _TAG + "str":
        raise _fault(node, path, f"{node.value!r} is read as {node.tag.rpartition(':')[2]}. Quote it if text is meant.")
    return str(node.value)


def _text(node: Any, path: str) -> str:
    try:
        number = float(node.value)
    except ValueError:
        return str(node.value)
    raise _fault(
        node, path, f"YAML reads {node.value} as text. Write {_yaml_float(number)}, or quote it if text is meant."
    )


def _yaml_float(number: float) -> str:
    """`number` written so that YAML reads a number: with a point before the exponent, and a sign in it."""
    mantissa, _, exponent = repr(number).partition("e")
    mantissa += "" if "." in mantissa else ".0"
    return f"{mantissa}e{int(exponent):+d}" if exponent else mantissa


def _truth(node: Any, path: str) -> bool:
    if node.value not in ("true", "false"):
        raise _fault(
            node, path, f"YAML reads {node.value} as a truth value. Write true or false, or quote it if text is meant."
        )
    return bool(node.value == "true")


def _whole(node: Any, path: str) -> int:
    digits = node.value.lstrip("+-").replace("_", "")
    if not digits.isdecimal() or (digits.startswith("0") and digits != "0"):
        raise _fault(node, path, f"YAML reads {node.value} in another base. Write a plain decimal number, or quote it.")
    return int(node.value.replace("_", ""))


def _real(node: Any, path: str) -> float:
    try:
        return float(node.value.replace("_", ""))
    except ValueError:
        raise _fault(node, path, f"{node.value} is no finite decimal number. Write one like 2.0e-5.") from None


_READERS: dict[str, Callable[[Any, str], Any]] = {
    _TAG + "str": _text,
    _TAG + "bool": _truth,
    _TAG + "int": _whole,
    _TAG + "float": _real,
}


# --- inheritance ----------------------------------------------------------------------------------------------------


def _demand_mappings(tree: Any) -> None:
    """The least shape that resolving needs; all else is left to the check against the records."""
    for section in ("types", "cells", "recipes", "sources"):
        if not isinstance(tree, dict) or not isinstance(tree.get(section), dict):
            raise UsageError(f"{section}: missing or no mapping. The file needs types, cells, recipes and sources.")
    for name, node in tree["recipes"].items():
        if not isinstance(node, dict):
            raise UsageError(f"recipes.{name}: must be a mapping.")


def merged(parent: Tree, child: Tree) -> Tree:
    """`child` over `parent`, mappings inside them merged in the same way."""
    both = {key: merged(parent[key], child[key]) for key in child if _both_mappings(parent, child, key)}
    return {**parent, **child, **both}


def _both_mappings(parent: Tree, child: Tree, key: str) -> bool:
    return isinstance(parent.get(key), dict) and isinstance(child[key], dict)


def _resolved(tree: Tree) -> Tree:
    """Fill in what recipes inherit; entries whose name starts with an underscore become `bases`."""
    nodes: dict[str, Tree] = tree["recipes"]
    bases = {name: node for name, node in nodes.items() if name.startswith("_")}
    for name, node in bases.items():
        _check(Base, node, f"recipes.{name}")
    recipes = {name: _with_parents(name, nodes) for name in nodes if name not in bases}
    return {**tree, "recipes": recipes, "bases": {name: node.get("extends") for name, node in bases.items()}}


def _with_parents(name: str, nodes: dict[str, Tree]) -> Tree:
    own, chain = nodes[name], [name]
    result: Tree = {"needs": {}, **own, "name": name}
    while parent := nodes[chain[-1]].get("extends"):
        if parent not in nodes:
            raise UsageError(f"recipes.{chain[-1]}.extends: no entry {parent!r}.{did_you_mean(str(parent), nodes)}")
        if parent in chain:
            raise UsageError(f"recipes.{name}.extends: goes round in a circle: {' -> '.join([*chain, parent])}.")
        chain.append(parent)
        result = _inherited(nodes[parent], result)
    return result


def _inherited(parent: Tree, child: Tree) -> Tree:
    """Settings merge; what describes one recipe (status, demo, evidence) is its own; the rest is taken if absent."""
    passed = {
        key: value for key, value in parent.items() if key not in ("status", "about", "demo", "scaling", "evidence")
    }
    settings = {key: merged(passed.get(key, {}), child.get(key, {})) for key in _MERGED if key in {*passed, *child}}
    return {**passed, **child, **settings}


# --- the check against the records ----------------------------------------------------------------------------------


@functools.cache
def _adapter(record: type) -> TypeAdapter[Any]:
    return TypeAdapter(record)


def _check(record: type, tree: Tree, path: str = "") -> None:
    """Hold a tree against a record. Through JSON, because strict dataclasses take mappings only from there."""
    try:
        _adapter(record).validate_json(json.dumps(tree))
    except ValidationError as error:
        faults = list(_faults(error, path))
        more = f"\n  and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
        raise UsageError("\n  ".join(["does not fit:", *faults[:_SHOWN_FAULTS]]) + more) from None


def _faults(error: ValidationError, path: str) -> Iterator[str]:
    known = [
        name
        for record in (Cell, DataType, Demo, Dispute, Evidence, Note, Recipe, Scaling, Source)
        for name in field_names(record)
    ]
    for fault in error.errors(include_url=False):
        where = ".".join(str(part) for part in ([path] if path else []) + list(fault["loc"]))
        if fault["type"] == "unexpected_keyword_argument":
            yield f"{where}: unknown key.{did_you_mean(str(fault['loc'][-1]), known)}"
        else:
            yield f"{where}: {fault['msg']}, found {fault['input']!r:.80}"


def _check_modules(tree: Tree) -> None:
    """A registry is data: it may only name modules of `domains`."""
    for name, node in tree.get("recipes", {}).items():
        module = node.get("module", "")
        if module and not module.startswith("domains."):
            raise UsageError(f"recipes.{name}.module: {module!r} does not lie in `domains.`. Name a module there.")
        if module and not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(f"recipes.{name}.module: {module!r} is no module name.")
        if node["status"] == "ready" and not module:
            raise UsageError(
                f"recipes.{name}: ready, but names no module. Add `module: domains...` or mark it planned."
            )
