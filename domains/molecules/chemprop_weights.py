"""Checkpoints of chemprop 2, read without chemprop and without running what they hold.

chemprop keeps its settings as objects of its own classes. Reading allows those names, but puts an inert record in the place
of each, so no code of the file or of a library runs. What our network cannot be is refused by name.
"""

from __future__ import annotations

import pickle
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from domains.molecules.chemprop import BOND_SIZES, MODES
from domains.molecules.networks import ACTIVATIONS, Architecture
from trainers.errors import DataError

_LIBRARIES = ("chemprop.", "lightning.", "torchmetrics.", "torch.nn.modules.", "numpy.")
_LAYER = re.compile(r"predictor\.ffn\.(\d+)\.\d+\.weight")
_POOLINGS = {"MeanAggregation": "mean", "SumAggregation": "sum", "NormAggregation": "norm"}
_MESSAGES = ("W_i.weight", "W_i.bias", "W_h.weight", "W_h.bias", "W_o.weight", "W_o.bias")


class Inert:
    """What stands for an object of a library: it keeps what the file says of it and does nothing."""

    stands_for = ""
    args: tuple[Any, ...] = ()

    def __new__(cls, *args: Any, **settings: Any) -> Inert:
        """Objects of a file are often made without `__init__`."""
        made = super().__new__(cls)
        made.args = args
        return made

    def __setstate__(self, state: Any) -> None:
        """What an object holds is not needed."""


@dataclass(frozen=True)
class Checkpoint:
    """shape: of our network.   weights: by our names; of the messages, and of hidden layers and head where they fit.
    columns: what it was trained to predict, as far as the file says."""

    shape: Architecture
    weights: Mapping[str, Tensor]
    columns: tuple[str, ...] = ()


def read(path: Path) -> Checkpoint:
    """The checkpoint in `path`: a model of chemprop, or messages alone as CheMeleon's.

    Raises DataError for what is none, wants other names, or is a network that ours cannot be.
    """
    found = _loaded(path)
    settings, state = found.get("hyper_parameters"), found.get("state_dict")
    if not isinstance(settings, Mapping) or not isinstance(state, Mapping):
        raise DataError(f"{path}: no checkpoint of chemprop 2 (no hyper_parameters and state_dict).")
    if "message_passing" not in settings:  # CheMeleon: messages alone; chemprop joins them to a mean
        shape = _messages_shape(path, settings, state)
        return Checkpoint(replace(shape, hidden_layers=0), _messages(path, state))
    prefix = "message_passing."
    inner = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    shape = _messages_shape(path, settings["message_passing"], inner)
    shape = _with_pooling(path, shape, settings)
    columns = found.get("output_columns") or ()
    fits = _activation(settings.get("predictor", {})) == shape.activation
    shape, rest = _with_hidden(shape, state if fits else {})
    return Checkpoint(shape, {**_messages(path, inner), **rest}, tuple(str(name) for name in columns))


def _loaded(path: Path) -> Mapping[str, Any]:
    import torch

    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        strange = [name for name in names if not name.startswith(_LIBRARIES)]
        if strange:
            raise DataError(f"{path}: refused, it names {strange[0]}, which no checkpoint of chemprop does.")
        with torch.serialization.safe_globals([_stand_in(name) for name in names]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: not a readable checkpoint ({str(error).strip().splitlines()[0][:120]}).") from None
    return found if isinstance(found, Mapping) else {}


def _stand_in(name: str) -> tuple[Any, str]:
    # torch fills only plain dictionaries; lightning's own is one with attributes.
    if name.endswith(".AttributeDict"):
        return OrderedDict, name
    return type(name.rsplit(".", 1)[1], (Inert,), {"stands_for": name}), name


def _messages_shape(path: Path, settings: Mapping[str, Any], state: Mapping[str, Tensor]) -> Architecture:
    kind = getattr(settings.get("cls"), "__name__", "BondMessagePassing")
    num_atom, num_bond = int(settings.get("d_v", 0)), int(settings.get("d_e", 0))
    unlike = [name for name in state if name not in _MESSAGES]
    reasons = {
        f"messages of {kind}": kind != "BondMessagePassing",
        "undirected bonds": bool(settings.get("undirected")),
        f"features of {num_atom} and {num_bond} numbers": num_atom not in MODES or num_bond != sum(BOND_SIZES),
        f"the tensor {next(iter(unlike), '')}": bool(unlike),
        f"the activation {_activation(settings)}": _activation(settings) not in ACTIVATIONS,
    }
    _refuse(path, reasons)
    return Architecture(
        network="chemprop",
        width=int(settings["d_h"]),
        depth=int(settings["depth"]),
        pooling="mean",
        features=MODES[num_atom],
        bias=bool(settings.get("bias")),
        activation=_activation(settings),
    )


def _activation(settings: Mapping[str, Any]) -> str:
    """Its name, however the file says it: as text, as a member of chemprop's enumeration, or as a module."""
    found = settings.get("activation", "relu")
    if isinstance(found, Inert):
        found = found.args[0] if found.args else found.stands_for.rsplit(".", 1)[1]
    return str(found).rsplit(".", 1)[-1].lower()


def _with_pooling(path: Path, shape: Architecture, settings: Mapping[str, Any]) -> Architecture:
    kind = getattr(settings["agg"].get("cls"), "__name__", "?")
    _refuse(path, {f"pooling by {kind}": kind not in _POOLINGS, "batch norm": bool(settings.get("batch_norm"))})
    return replace(shape, pooling=_POOLINGS[kind], typical_atoms=float(settings["agg"].get("norm", 100.0)))


def _refuse(path: Path, reasons: Mapping[str, bool]) -> None:
    if found := [name for name, holds in reasons.items() if holds]:
        raise DataError(f"{path}: a chemprop network with {found[0]}, which ours cannot be. Choose another checkpoint.")


def _messages(path: Path, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if missing := {"W_i.weight", "W_h.weight", "W_o.weight", "W_o.bias"} - set(state):
        raise DataError(f"{path}: the tensor {min(missing)} is missing. Fetch the checkpoint again.")
    return {f"messages.{name}": value for name, value in state.items()}


def _with_hidden(shape: Architecture, state: Mapping[str, Tensor]) -> tuple[Architecture, dict[str, Tensor]]:
    """Hidden layers and head of a network that saw nothing but the graph; without them where it saw more."""
    found = sorted((int(match[1]), name) for name in state if (match := _LAYER.fullmatch(name)))
    layers = [name.removesuffix(".weight") for _, name in found]
    widths = [state[f"{name}.weight"].shape[0] for name in layers[:-1]]
    fits = bool(layers) and state[f"{layers[0]}.weight"].shape[1] == shape.width and len(set(widths)) <= 1
    if not fits:
        return replace(shape, hidden_layers=0), {}
    ours = [f"hidden.{3 * at + 1}" for at in range(len(widths))] + ["head"]
    weights = {
        f"{our}.{part}": state[f"{their}.{part}"]
        for our, their in zip(ours, layers, strict=True)
        for part in ("weight", "bias")
    }
    return replace(shape, hidden=widths[0] if widths else shape.hidden, hidden_layers=len(widths)), weights
