"""What a stranger may have written about a timm network, checked before timm sees it: its name, arguments, and pictures.

A run folder or a config.json may come from anywhere, and timm takes names and arguments that lead it to other files or to the
hub. Here is the one list of what may pass, for the command line and for what is stored alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import timm

from trainers.contract import JSON
from trainers.errors import DataError, UsageError, did_you_mean

MOST_SIDE = 2048
"""Pixels of a side that a network sees; `options.image_size` has the same bound."""
_MOST = 8192
"""Of any number: widths, heads and sides of published networks stay below."""
_OURS = (
    *("num_classes", "in_chans", "features_only", "out_indices", "feature_cfg", "model_cfg", "model_name", "variant"),
    *("checkpoint_path", "cache_dir", "kwargs_filter", "scriptable", "exportable", "no_jit"),
)
"""What a recipe sets itself, or what makes timm read other files."""
_NAME = re.compile(r"\w+(\.[\w-]+)?")


def check_network(name: str) -> None:
    """Raise UsageError unless timm knows the network (a tag after a dot is allowed)."""
    if not _NAME.fullmatch(name) or not timm.is_model(name.split(".")[0]):
        near = did_you_mean(name, timm.list_models())
        raise UsageError(f"options.network={name}: timm {timm.__version__} has no such network.{near}")


def arg_problem(args: Mapping[str, Any]) -> str:
    """Why these arguments may not go to timm; "" where they may: plain values, none of them the recipe's own."""
    for name, value in args.items():
        if (name, value) == ("in_chans", 3):  # timm writes it into every config.json that it saves
            continue
        if name in _OURS or name.startswith("pretrained"):
            return f"{name!r} is not yours to set: it is fixed by the recipe, or would read other files"
        values = value if isinstance(value, list | tuple) else [value]
        if not all(each is None or isinstance(each, bool | int | float | str) for each in values):
            return f"{name!r} is {value!r}, no number, text or list of them"
        if not all(abs(each) <= _MOST for each in values if isinstance(each, int | float)):  # NaN too
            return f"{name!r} is {value!r}; {_MOST} is the most"
    return ""


def check_stored(backbone: JSON) -> None:
    """Raise DataError for a network that a run or a folder describes and `options` would not be allowed to."""
    network, args = backbone.get("network"), backbone.get("args")
    if not isinstance(network, str) or not isinstance(args, dict):
        raise DataError(f"the stored network is {network!r} with {args!r}, no name and arguments. Train it again.")
    try:
        check_network(network)
    except UsageError:
        raise DataError(f"the stored network {network!r} is no plain name of timm's. Nothing was loaded.") from None
    if problem := arg_problem(args):
        raise DataError(f"the stored arguments of {network}: {problem}. Nothing was loaded.")


def stored_side(pictures: Mapping[str, Any]) -> int:
    """The side of the square that a network sees, in pixels. Raises DataError for one that no plan would give."""
    size = pictures.get("input_size")
    side = size[-1] if isinstance(size, list | tuple) and size else None
    if not isinstance(side, int) or not 0 < side <= MOST_SIDE:
        raise DataError(f"the stored input_size is {size!r}, not [3, side, side] with {MOST_SIDE} pixels at most.")
    return side
