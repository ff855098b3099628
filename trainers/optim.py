"""Optimizers by name, with one group of parameters per learning rate and weight decay.

Roles (`contract.Role`) decide: embeddings, norms and biases are never decayed, the head may have a rate of its own, and
layers nearer to the input may learn more slowly. A parameter without a role does not train.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from trainers.contract import Role
from trainers.errors import UsageError, did_you_mean
from trainers.settings import Gradient

DECAYED = ("matrix", "head")


def make_optimizer(model: torch.nn.Module, roles: Mapping[str, Role], settings: Gradient) -> torch.optim.Optimizer:
    """The optimizer of `settings` over the parameters that have a role; all others stop requiring gradients.

    Each group also holds `peak_lr`, and `names` and `are_heads`, one a parameter. Raises ValueError for roles of
    parameters that the model does not have.
    """
    groups = parameter_groups(trained_parameters(model, roles), roles, settings)
    if settings.freeze_epochs > 0 and not any(any(group["are_heads"]) for group in groups):
        raise UsageError(
            f"train.freeze_epochs is {settings.freeze_epochs}, but this model has no head that could learn alone. "
            "Set it to 0: --set train.freeze_epochs=0"
        )
    device = next(iter(groups[0]["params"])).device
    # Fused costs a quarter of the loop over tensors, and torch has it for these devices only.
    fused = device.type in ("cpu", "cuda")
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=settings.momentum, nesterov=settings.momentum > 0, fused=fused)
    return torch.optim.AdamW(groups, betas=settings.betas, eps=settings.eps, fused=fused)


def trained_parameters(model: torch.nn.Module, roles: Mapping[str, Role]) -> dict[str, torch.nn.Parameter]:
    """Parameters with a role, by name, tied ones once; turns gradients on for these and off for all others."""
    every = dict(model.named_parameters(remove_duplicate=False))
    for name in roles:
        if name not in every:
            raise ValueError(f"roles() names {name!r}, which the model does not have.{did_you_mean(name, every)}")
    trained = {name: parameter for name, parameter in every.items() if name in roles}
    unique = {id(parameter): name for name, parameter in reversed(trained.items())}
    for parameter in every.values():
        parameter.requires_grad_(id(parameter) in unique)
    if not unique:
        raise ValueError("roles() names no parameter, so there is nothing to train.")
    return {name: trained[name] for name in trained if name in unique.values()}


def parameter_groups(
    parameters: Mapping[str, torch.nn.Parameter], roles: Mapping[str, Role], settings: Gradient
) -> list[dict[str, Any]]:
    """Groups of parameters with equal peak learning rate and weight decay, as few as can be: each costs 0.1 ms a step."""
    deepest = max(roles[name].depth for name in parameters)
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in parameters.items():
        role = roles[name]
        key = (peak_lr(role, deepest, settings), decay_of(role, parameter.ndim, settings))
        group = groups.setdefault(key, {"params": [], "names": [], "are_heads": []})
        group["params"].append(parameter)
        group["names"].append(name)
        group["are_heads"].append(role.kind == "head")
    return [{**group, "lr": lr, "peak_lr": lr, "weight_decay": decay} for (lr, decay), group in groups.items()]


def peak_lr(role: Role, deepest: int, settings: Gradient) -> float:
    """The highest learning rate of a parameter: lr * layer_decay ** (layers between it and the head).

    Source: Howard & Ruder 2018, arXiv 1801.06146, section 3.2 (discriminative fine-tuning).
    """
    if role.kind == "head" and settings.head_lr is not None:
        return settings.head_lr
    return settings.lr * settings.layer_decay ** (deepest - role.depth)


def decay_of(role: Role, num_dimensions: int, settings: Gradient) -> float:
    """Weight decay of a parameter: none for embeddings and for everything with one dimension (norms, biases)."""
    return settings.weight_decay if role.kind in DECAYED and num_dimensions >= 2 else 0.0


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group to `factor` of its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def set_head_only(optimizer: torch.optim.Optimizer, head_only: bool) -> None:
    """Let only the head learn, or everything: frozen parameters get no gradient, so backward stops at the head."""
    for group in optimizer.param_groups:
        for parameter, is_head in zip(group["params"], group["are_heads"], strict=True):
            parameter.requires_grad_(is_head or not head_only)


def all_parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """Every parameter of every group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def named_parameters(optimizer: torch.optim.Optimizer) -> Iterable[tuple[str, torch.nn.Parameter]]:
    """(name, parameter) over all groups."""
    for group in optimizer.param_groups:
        yield from zip(group["names"], group["params"], strict=True)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's memory (moments, step counts) by `PARAMETER/KEY`; learning rates follow from progress."""
    return {
        f"{name}/{key}": value
        for name, parameter in named_parameters(optimizer)
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Give the optimizer the memory that `optimizer_tensors` returned."""
    by_name = dict(named_parameters(optimizer))
    optimizer.state.clear()
    for path, value in tensors.items():
        name, key = path.rsplit("/", 1)
        parameter = by_name[name]
        optimizer.state[parameter][key] = laid_out_like(parameter, value)


def laid_out_like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A copy of `value` on the parameter's device, in its memory layout where the shapes agree.

    Fused optimizers walk parameter and moments by address: with channels_last weights and moments read back row by row
    they would pair the wrong elements, in silence. A copy, as a tensor in a mapped file would go when the file goes.
    """
    if value.shape != parameter.shape:
        return value.to(parameter.device).clone()
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
