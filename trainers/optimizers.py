"""Which optimizer a name means: torch's own, our Muon, or the kept library pytorch-optimizer."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from trainers.errors import MissingError, UsageError
from trainers.muon import MuonAdamW
from trainers.settings import Gradient

Groups = list[dict[str, Any]]
Dtype = torch.dtype | None


def optimizer_of(groups: Groups, settings: Gradient, dtype: torch.dtype | None = None) -> torch.optim.Optimizer:
    """The optimizer that `settings.optimizer` names, over groups with `lr`, `weight_decay` and `kind`.

    dtype: the format in which the run multiplies matrices, for optimizers that do so too; None: that of the parameters.
    Raises MissingError where its package is missing, UsageError where it cannot run on the parameters' device.
    """
    return MAKERS[settings.optimizer](groups, settings, dtype)


def device_of(groups: Groups) -> torch.device:
    """Where the parameters are."""
    return groups[0]["params"][0].device  # type: ignore[no-any-return]


def is_fused(groups: Groups) -> bool:
    """Whether torch has a fused kernel, which costs a quarter of the loop over tensors, for the parameters' device."""
    return device_of(groups).type in ("cpu", "cuda")


def adamw(groups: Groups, settings: Gradient, dtype: Dtype) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, betas=settings.betas, eps=settings.eps, fused=is_fused(groups))


def sgd(groups: Groups, settings: Gradient, dtype: Dtype) -> torch.optim.Optimizer:
    nesterov = settings.momentum > 0
    return torch.optim.SGD(groups, momentum=settings.momentum, nesterov=nesterov, fused=is_fused(groups))


def muon(groups: Groups, settings: Gradient, dtype: Dtype) -> torch.optim.Optimizer:
    if not any(group["kind"] == "muon" for group in groups):
        raise UsageError(
            "train.optimizer is muon+adamw, but this model has no two-dimensional parameter with the role matrix for "
            "Muon. Use --set train.optimizer=adamw"
        )
    return MuonAdamW(groups, betas=settings.betas, eps=settings.eps, momentum=settings.momentum, dtype=dtype)


def adafactor(groups: Groups, settings: Gradient, dtype: Dtype) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(groups)


def adamw_8bit(groups: Groups, settings: Gradient, dtype: Dtype) -> torch.optim.Optimizer:
    if device_of(groups).type != "cuda":
        raise UsageError(
            f"train.optimizer is adamw-8bit, which needs a CUDA GPU; this training runs on {device_of(groups).type}. "
            "Use --set train.optimizer=adamw, or adafactor to save memory."
        )
    module = needed("bitsandbytes", "adamw-8bit", extra="optimizers-8bit")
    return module.optim.AdamW8bit(groups, betas=settings.betas, eps=settings.eps)  # type: ignore[no-any-return]


def kept(name: str, arguments: Callable[[Gradient], Mapping[str, Any]]) -> Callable[..., torch.optim.Optimizer]:
    """A maker for the class `name` of pytorch-optimizer, which is imported (five seconds) only when it is used."""

    def make(groups: Groups, settings: Gradient, dtype: Dtype) -> torch.optim.Optimizer:
        module = needed("pytorch_optimizer", settings.optimizer)
        return getattr(module, name)(groups, **arguments(settings))  # type: ignore[no-any-return]

    return make


def needed(module: str, optimizer: str, extra: str = "optimizers") -> ModuleType:
    """The package behind an optimizer. Raises MissingError with the line that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingError(
            f"train.optimizer is {optimizer}, which needs a package that is not installed ({error}). "
            f"Install it: pip install 'domain-model-zoo[{extra}]'"
        ) from error


def _betas(settings: Gradient) -> dict[str, Any]:
    return {"betas": settings.betas}


def _betas_eps(settings: Gradient) -> dict[str, Any]:
    return {"betas": settings.betas, "eps": settings.eps}


MAKERS: Mapping[str, Callable[[Groups, Gradient, Dtype], torch.optim.Optimizer]] = {
    "adamw": adamw,
    "sgd": sgd,
    "muon+adamw": muon,
    "adafactor": adafactor,
    "adamw-8bit": adamw_8bit,
    # The gradient is clipped by the loop already.
    "lamb": kept("Lamb", lambda settings: {**_betas_eps(settings), "max_grad_norm": 0.0}),
    "lars": kept("LARS", lambda settings: {"momentum": settings.momentum}),
    "lion": kept("Lion", _betas),
    "schedule-free": kept("ScheduleFreeAdamW", _betas_eps),
    "soap": kept("SOAP", _betas_eps),
}
