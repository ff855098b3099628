"""A U-Net whose way down is a network of timm: its maps at every resolution, and a plain way up.

Source: Ronneberger et al. 2015, arXiv 1505.04597; group norms in place of batch norms on the way up, because batches of masks
are small.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from domains.shared import timm_backbone as nets
from domains.shared.weights import Weights
from trainers.contract import JSON
from trainers.errors import UsageError

_GROUPS = 8
_FEWEST_MAPS = 3


class Unet(nn.Module):
    """x: (B, 3, H, W) -> logits (B, K, H, W). H and W: multiples of the encoder's largest stride.

    width: channels of the finest level of the way up; each level below has twice as many, `most` at most.
    """

    def __init__(self, backbone: JSON, num_classes: int, *, width: int, most: int, weights: Weights | None) -> None:
        super().__init__()
        encoder: Any = nets.build_network(backbone, 0, weights=weights)
        levels = maps_of(encoder, backbone["network"])
        # What lies behind the last map is not used, and would have no gradient.
        encoder.prune_intermediate_layers(levels, prune_norm=True, prune_head=True)
        self.encoder, self.levels = encoder, levels
        channels = [int(encoder.feature_info[level]["num_chs"]) for level in levels]
        blocks, below = [], channels[-1]
        for at in reversed(range(len(channels) - 1)):
            out = min(most, width * 2**at)
            blocks.append(_Up(below + channels[at], out))
            below = out
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.Conv2d(below, num_classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.encoder.forward_intermediates(x, indices=self.levels, intermediates_only=True)
        y = maps.pop()
        for block in self.blocks:
            y = block(y, maps.pop())
        return F.interpolate(self.last(y), size=x.shape[2:], mode="bilinear", align_corners=False)


def maps_of(encoder: Any, name: str) -> list[int]:
    """The last map at each resolution. Raises UsageError for a network that has fewer than three resolutions."""
    strides = [int(info["reduction"]) for info in getattr(encoder, "feature_info", [])]
    levels = [at for at, stride in enumerate(strides) if at + 1 == len(strides) or strides[at + 1] != stride]
    if len(levels) < _FEWEST_MAPS or not hasattr(encoder, "prune_intermediate_layers"):
        raise UsageError(
            f"options.network={name}: a U-Net needs maps at {_FEWEST_MAPS} resolutions or more, and it gives {len(levels)}. "
            "Choose a convolutional or hierarchical network."
        )
    return levels


class _Up(nn.Module):
    """Enlarge, join with the map of the way down, two convolutions."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(num_in, num_out, 3, padding=1, bias=False)
        self.second = nn.Conv2d(num_out, num_out, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(_GROUPS, num_out) for _ in range(2)])

    def forward(self, x: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
        x = F.interpolate(x, size=beside.shape[2:], mode="nearest")
        x = F.relu(self.norms[0](self.first(torch.cat([x, beside], dim=1))))
        return F.relu(self.norms[1](self.second(x)))
