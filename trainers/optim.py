"""One group of parameters per learning rate and weight decay, what moves them in a step, and an optimizer's memory.

Roles (`contract.Role`) decide: embeddings, norms and biases are never decayed, every role may have a rate of its own,
and layers nearer to the input may learn more slowly. A parameter without a role does not train. Which name means which
optimizer is in `optimizers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from trainers.contract import JSON, Role
from trainers.distributed import like, whole
from trainers.errors import UsageError, did_you_mean
from trainers.optimizers import optimizer_of
from trainers.settings import Gradient

DECAYED = ("matrix", "head")
WIDTH_OF_RATES = 768
FROM_SETTINGS = ("params", "names", "are_heads", "kind", "peak_lr", "peak_decay", "lr", "weight_decay")
"""What a group holds that is no memory: it comes from model, settings and progress."""


def make_optimizer(
    model: torch.nn.Module, roles: Mapping[str, Role], settings: Gradient, dtype: torch.dtype | None = None
) -> torch.optim.Optimizer:
    """The optimizer of `settings` over the parameters that have a role; all others stop requiring gradients.

    dtype: see `optimizers.optimizer_of`.
    Each group also holds `peak_lr` and `peak_decay`, and `names` and `are_heads`, one a parameter. Raises
    ValueError for roles of parameters that the model does not have, and what `optimizers.optimizer_of` raises.
    """
    groups = parameter_groups(trained_parameters(model, roles), roles, settings)
    if settings.freeze_epochs > 0 and not any(any(group["are_heads"]) for group in groups):
        raise UsageError(
            f"train.freeze_epochs is {settings.freeze_epochs}, but this model has no head that could learn alone. "
            "Set it to 0: --set train.freeze_epochs=0"
        )
    return optimizer_of(groups, settings, dtype)


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
    scale = width_scale(parameters, roles)
    groups: dict[tuple[float, float, str], dict[str, Any]] = {}
    for name, parameter in parameters.items():
        role, kind = used_as(roles[name], parameter.ndim, settings)
        lr = peak_lr(role, deepest, settings) * (scale if role.kind in settings.width_scaled else 1.0)
        is_decayed = kind == "muon" or settings.optimizer != "muon+adamw"
        decay = decay_of(role, parameter.ndim, settings) if is_decayed else 0.0
        start = {"params": [], "names": [], "are_heads": [], "lr": lr, "weight_decay": decay, "kind": kind}
        group = groups.setdefault((lr, decay, kind), {**start, "peak_lr": lr, "peak_decay": decay})
        group["params"].append(parameter)
        group["names"].append(name)
        group["are_heads"].append(role.kind == "head")
    return list(groups.values())


def used_as(role: Role, num_dimensions: int, settings: Gradient) -> tuple[Role, str]:
    """The role that decides rate and decay, and which half of muon+adamw moves the parameter: "muon" or "adamw".

    Muon takes matrices. A kernel of more dimensions moves by AdamW, at the rate of scalars: the rate of the matrices
    is that of a step of norm 1.
    """
    if settings.optimizer != "muon+adamw" or role.kind != "matrix":
        return role, "adamw"
    return (role, "muon") if num_dimensions == 2 else (Role("scalar", role.depth), "adamw")


def width_scale(parameters: Mapping[str, torch.nn.Parameter], roles: Mapping[str, Role]) -> float:
    """(model width / 768) ** -0.5; the width is that of the embedding, else of the commonest matrix.

    Source: nanochat, https://github.com/karpathy/nanochat, setup_optimizer; 768 is the width its rates were tuned at.
    """
    for kind in ("embedding", "matrix", "head"):
        widths = [p.shape[1] for name, p in parameters.items() if roles[name].kind == kind and p.ndim >= 2]
        if widths:
            return float((max(set(widths), key=widths.count) / WIDTH_OF_RATES) ** -0.5)
    return 1.0


def peak_lr(role: Role, deepest: int, settings: Gradient) -> float:
    """The highest learning rate of a parameter: its role's rate, or lr * layer_decay ** (layers from it to the head).

    Source: Howard & Ruder 2018, arXiv 1801.06146, section 3.2 (discriminative fine-tuning).
    """
    own = {"head": settings.head_lr, "embedding": settings.embedding_lr, "scalar": settings.scalar_lr}.get(role.kind)
    return (own or settings.lr) * (settings.layer_decay ** (deepest - role.depth) if role.kind != "head" else 1.0)


def decay_of(role: Role, num_dimensions: int, settings: Gradient) -> float:
    """Weight decay of a parameter: none for embeddings and for everything with one dimension (norms, biases)."""
    return settings.weight_decay if role.kind in DECAYED and num_dimensions >= 2 else 0.0


def set_rates(optimizer: torch.optim.Optimizer, lr: float, decay: float = 1.0, momentum: float | None = None) -> None:
    """Set every group to the share `lr` of its peak rate and `decay` of its weight decay; and the momentum, if given."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * lr
        group["weight_decay"] = group["peak_decay"] * decay
        if momentum is not None and ("momentum" in group or group["kind"] == "muon"):
            group["momentum"] = momentum


def set_head_only(optimizer: torch.optim.Optimizer, head_only: bool) -> None:
    """Let only the head learn, or everything: frozen parameters get no gradient, so backward stops at the head."""
    for group in optimizer.param_groups:
        for parameter, is_head in zip(group["params"], group["are_heads"], strict=True):
            parameter.requires_grad_(is_head or not head_only)


def step(optimizer: torch.optim.Optimizer, skip: bool | torch.Tensor) -> None:
    """Move the parameters unless `skip`. On a device `skip` is a tensor, which optimizers with the marks of automatic
    mixed precision obey there; others make the host wait for it."""
    if isinstance(skip, torch.Tensor) and getattr(optimizer, "_step_supports_amp_scaling", False):
        optimizer.found_inf = skip.float()  # type: ignore[attr-defined]
        optimizer.step()
    elif not bool(skip):
        optimizer.step()


def gradient_norm(parameters: Iterable[torch.nn.Parameter], clip: float | None) -> torch.Tensor:
    """The norm of all gradients together, which are then clipped to `clip`, if given."""
    if clip is not None:
        return whole(torch.nn.utils.clip_grad_norm_(parameters, clip))
    return whole(torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None]))


def all_parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """Every parameter of every group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def named_parameters(optimizer: torch.optim.Optimizer) -> Iterable[tuple[str, torch.nn.Parameter]]:
    """(name, parameter) over all groups."""
    for group in optimizer.param_groups:
        yield from zip(group["names"], group["params"], strict=True)


def optimizer_memory(optimizer: torch.optim.Optimizer) -> tuple[JSON, dict[str, torch.Tensor]]:
    """All that the optimizer remembers (moments, step counts, lists of them) as plain values and tensors by path.

    Rates are left out: they follow from progress. Raises TypeError, with its name, for memory of any other kind.
    """
    tensors: dict[str, torch.Tensor] = {}
    state = {
        name: {key: taken_apart(value, f"{name}/{key}", tensors) for key, value in optimizer.state[parameter].items()}
        for name, parameter in named_parameters(optimizer)
        if parameter in optimizer.state
    }
    groups = [
        {key: taken_apart(value, key, {}) for key, value in group.items() if key not in FROM_SETTINGS}
        for group in optimizer.param_groups
    ]
    return {"state": state, "groups": groups}, tensors


def load_optimizer_memory(optimizer: torch.optim.Optimizer, memory: JSON, tensors: Mapping[str, torch.Tensor]) -> None:
    """Give the optimizer what `optimizer_memory` returned."""
    optimizer.state.clear()
    for name, parameter in named_parameters(optimizer):
        for key, value in memory["state"].get(name, {}).items():
            value = put_together(value, tensors, parameter.device)
            optimizer.state[parameter][key] = like(value, parameter) if torch.is_tensor(value) else value
    for group, values in zip(optimizer.param_groups, memory["groups"], strict=True):
        group.update({key: put_together(value, {}, torch.device("cpu")) for key, value in values.items()})


def taken_apart(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """`value` for JSON; tensors go into `tensors` and leave path, place and layout behind."""
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        # The layout too: products of the same numbers in another order of memory differ in their last bits.
        strides = None if value.is_contiguous() else value.stride()
        return {"tensor": path, "on_host": value.device.type == "cpu", "strides": strides}
    if isinstance(value, list | tuple):
        parts = [taken_apart(part, f"{path}/{at}", tensors) for at, part in enumerate(value)]
        return {"tuple": parts} if isinstance(value, tuple) else parts
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"The optimizer keeps {path} as {type(value).__name__}, which a snapshot cannot hold.")


def put_together(value: Any, tensors: Mapping[str, torch.Tensor], device: torch.device) -> Any:
    """What `taken_apart` took apart; tensors on `device`, but those of the host stay there."""
    if isinstance(value, dict) and "tensor" in value:
        found, device = tensors[value["tensor"]], torch.device("cpu") if value["on_host"] else device
        # Copied: a tensor that lies in a mapped file would go when the file goes.
        empty = torch.empty_strided(found.shape, value["strides"] or found.stride(), dtype=found.dtype, device=device)
        return empty.copy_(found)
    if isinstance(value, dict):
        return tuple(put_together(part, tensors, device) for part in value["tuple"])
    return [put_together(part, tensors, device) for part in value] if isinstance(value, list) else value
