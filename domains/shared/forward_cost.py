"""What a network costs, from its shapes alone: built and run on torch's meta device, where no number is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode


class Cost(NamedTuple):
    """flops: of one forward pass of one picture.   num_activations: numbers that layers put out on the way."""

    num_parameters: int
    flops: int
    num_activations: int


def forward_cost(make: Callable[[], torch.nn.Module], side: int) -> Cost:
    """The cost of the network `make` returns, for one picture of `side` x `side` pixels."""
    sizes: list[int] = []

    def count(_module: torch.nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, torch.Tensor):
            sizes.append(output.numel())

    with torch.device("meta"), torch.no_grad():
        model = make().eval().requires_grad_(False)  # views of parameters that ask for gradients confuse the counter
        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(count)
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, side, side))
    return Cost(sum(p.numel() for p in model.parameters()), int(counter.get_total_flops()), sum(sizes))
