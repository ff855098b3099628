"""Models whose weights come from a file: built without storage for them, then filled tensor by tensor, so that a large model
is never held twice nor drawn at random for nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook


@contextlib.contextmanager
def without_storage() -> Iterator[None]:
    """Parameters of modules that are made inside have shape and format, but no numbers (they are on the meta device).

    Buffers are real: what a constructor computes (rotary angles, relative positions) is in no file.
    """

    def emptied(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta or type(parameter) is not nn.Parameter:
            return parameter  # tied ones stay tied
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    hook = register_module_parameter_registration_hook(emptied)  # type: ignore[arg-type]  # it may return a parameter
    try:
        yield
    finally:
        hook.remove()


def give_storage(model: nn.Module, device: torch.device | str) -> None:
    """Memory on `device` for each parameter that has none, in place; what is in it means nothing yet. Tied ones stay tied.

    In a model that is split among processes each gets its own parts only.
    """
    made: dict[int, nn.Parameter] = {}
    for part in model.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in made:
                    empty = torch.empty_like(parameter, device=device)
                    made[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
                part._parameters[name] = made[id(parameter)]


@torch.no_grad()
def fill(model: nn.Module, file: Path) -> None:
    """Give the model the weights and buffers in a safetensors file, one at a time.

    Raises ValueError for names that are missing or too many, and for other shapes.
    """
    own = model.state_dict(keep_vars=True)
    with safe_open(file, framework="pt") as tensors:
        names = set(tensors.keys())
        given = {id(own[name]) for name in names & own.keys()}
        missing = [name for name in own if id(own[name]) not in given]
        if wrong := sorted([*missing, *(names - own.keys())]):
            raise ValueError(f"{file} belongs to another model; they differ in {', '.join(wrong[:5])}.")
        for name in names:
            tensor = tensors.get_tensor(name)
            if tensor.shape != own[name].shape:
                raise ValueError(f"{file}: {name} is {tuple(tensor.shape)}, the model has {tuple(own[name].shape)}.")
            own[name].copy_(tensor)
