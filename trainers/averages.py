"""Averaged weights beside the trained ones: which there are, and the model carrying them for a while.

Two kinds: a moving average that the loop keeps (train.ema), and the average that schedule-free optimizers define
themselves. Buffers (running means of BatchNorm) stay those of training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch

from trainers.distributed import like
from trainers.errors import UsageError
from trainers.optim import named_parameters
from trainers.settings import Gradient

Tensors = Mapping[str, torch.Tensor]


class Averages(Protocol):
    """Averaged weights of the trained parameters. `replaces_raw`: the trained ones themselves are no candidates."""

    replaces_raw: bool

    def update(self, step: int) -> None:
        """Take in the weights after step number `step` (from 0)."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """The averages by parameter name."""

    def load(self, tensors: Tensors) -> None:
        """Go on from what `tensors` returned."""


def averages_of(optimizer: torch.optim.Optimizer, settings: Gradient) -> Averages | None:
    """The averages these settings ask for; None without. Raises UsageError where two would be kept."""
    if settings.optimizer == "schedule-free":
        if settings.ema is not None:
            raise UsageError("train.optimizer=schedule-free averages weights itself: --set train.ema=null")
        return ScheduleFree(optimizer)
    return None if settings.ema is None else Ema(optimizer, settings.ema)


def warmed_decay(decay: float, step: int) -> float:
    """The share of the past at step number `step` (from 0): short memory at first, so that the start is forgotten.

    Source: TensorFlow's tf.train.ExponentialMovingAverage, argument num_updates.
    """
    return min(decay, (1 + step) / (10 + step))


class Ema:
    """A moving average of every trained parameter; costs one copy of them."""

    replaces_raw = False

    def __init__(self, optimizer: torch.optim.Optimizer, decay: float) -> None:
        self.decay = decay
        self.parameters = dict(named_parameters(optimizer))
        self.values = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        weight = 1 - warmed_decay(self.decay, step)
        torch._foreach_lerp_(list(self.values.values()), list(self.parameters.values()), weight)

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.values)

    def load(self, tensors: Tensors) -> None:
        for name, value in self.values.items():
            value.copy_(like(tensors[name], value))


class ScheduleFree:
    """The average x that a schedule-free optimizer keeps implicitly, from its weights y and its iterates z.

    Source: Defazio et al. 2024, arXiv 2405.15682, equation 1: y = (1 - beta) z + beta x.
    """

    replaces_raw = True

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def update(self, step: int) -> None:
        """Nothing: the optimizer did."""

    @torch.no_grad()
    def tensors(self) -> dict[str, torch.Tensor]:
        return {
            name: self._average(parameter, group["betas"][0])
            for group in self.optimizer.param_groups
            for name, parameter in zip(group["names"], group["params"], strict=True)
        }

    def load(self, tensors: Tensors) -> None:
        """Nothing: the optimizer's own memory holds it."""

    def _average(self, parameter: torch.Tensor, beta: float) -> torch.Tensor:
        state: Mapping[str, Any] = self.optimizer.state.get(parameter, {})
        return parameter.lerp(state["z"], 1 - 1 / beta) if "z" in state else parameter.detach().clone()


@contextlib.contextmanager
def carrying(model: torch.nn.Module, averages: Averages) -> Iterator[None]:
    """Give the model the averages, and its own weights back afterwards, bit by bit."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    values = averages.tensors()
    own = {name: parameters[name].detach().clone() for name in values}
    set_weights(model, values)
    try:
        yield
    finally:
        set_weights(model, own)


@torch.no_grad()
def set_weights(model: torch.nn.Module, values: Tensors) -> None:
    """Copy `values` into the parameters of these names."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, value in values.items():
        parameters[name].copy_(like(value, parameters[name]))
