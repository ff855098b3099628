"""A small U-Net that says where a picture on its way is heading, given the time and the class.

Source: Ho et al. 2020, arXiv 2006.11239, appendix B (residual blocks with group norms, time added inside, attention at the
coarsest level); Dhariwal and Nichol 2021, arXiv 2105.05233, for the class beside the time and a scale beside the shift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

_GROUPS = 8
_SLOWEST = 10_000.0


class FlowNetwork(nn.Module):
    """x: (B, 3, side, side), times: (B,) in [0, 1], classes: (B,) from 0, the last for none -> (B, 3, side, side).

    widths: channels of each level, the side halved from one to the next.
    """

    def __init__(self, num_classes: int, widths: Sequence[int]) -> None:
        super().__init__()
        width = 4 * widths[0]
        self.num_waves = widths[0] // 2
        self.time = nn.Sequential(nn.Linear(2 * self.num_waves, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(num_classes + 1, width)
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down = nn.ModuleList()
        before = widths[0]
        for each in widths:
            self.down.append(_Block(before, each, width))
            before = each
        self.middle = nn.ModuleList([_Block(before, before, width), _Attention(before), _Block(before, before, width)])
        self.up = nn.ModuleList()
        for each in reversed(widths):
            self.up.append(_Block(before + each, each, width))
            before = each
        self.norm = nn.GroupNorm(_GROUPS, before)
        self.last = nn.Conv2d(before, 3, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor, times: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        told = self.time(_waves(times, self.num_waves)) + self.classes(classes)
        x = self.first(x)
        kept = []
        for level, block in enumerate(self.down):
            x = block(F.avg_pool2d(x, 2) if level else x, told)
            kept.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, told)), told)
        for level, block in enumerate(self.up):
            x = F.interpolate(x, scale_factor=2.0, mode="nearest") if level else x
            x = block(torch.cat([x, kept.pop()], dim=1), told)
        found: torch.Tensor = self.last(F.silu(self.norm(x)))
        return found


def _waves(times: torch.Tensor, half: int) -> torch.Tensor:
    """(B, 2 half) sines and cosines; times are seen from 0 to 1000 as in Ho et al."""
    rates = torch.exp(-math.log(_SLOWEST) * torch.arange(half, device=times.device) / half)
    angles = 1000 * times[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class _Block(nn.Module):
    def __init__(self, num_in: int, num_out: int, told: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(_GROUPS, num_in), nn.GroupNorm(_GROUPS, num_out)])
        self.convs = nn.ModuleList(
            [nn.Conv2d(num_in, num_out, 3, padding=1), nn.Conv2d(num_out, num_out, 3, padding=1)]
        )
        self.told = nn.Linear(told, 2 * num_out)
        self.beside = nn.Conv2d(num_in, num_out, 1)

    def forward(self, x: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        y = self.convs[0](F.silu(self.norms[0](x)))
        scale, shift = self.told(F.silu(told))[:, :, None, None].chunk(2, dim=1)
        y = self.convs[1](F.silu(self.norms[1](y) * (1 + scale) + shift))
        found: torch.Tensor = self.beside(x) + y
        return found


class _Attention(nn.Module):
    def __init__(self, num: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(_GROUPS, num)
        self.into, self.out = nn.Linear(num, 3 * num), nn.Linear(num, num)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.norm(x).flatten(2).transpose(1, 2)
        query, key, value = self.into(rows).chunk(3, dim=2)
        seen = F.scaled_dot_product_attention(query, key, value)
        found: torch.Tensor = x + self.out(seen).transpose(1, 2).reshape(x.shape)
        return found
