"""The network of the plan: MONAI's DynUNet, with every deep head at its own resolution."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from domains.medical.configure import SMALLEST_EDGE, Configuration
from domains.shared.convolutions import keep_thin_volumes_in_float32
from trainers.errors import MissingError


class Unet(nn.Module):
    """DynUNet's blocks and weights with a forward pass of our own: MONAI enlarges the deep outputs to full resolution, which
    costs time and memory for labels that can be made smaller instead.

    x: (B, C, D, H, W), D = 1 in two dimensions. Training gives a list of logits (B, K, d, h, w) from full resolution down;
    otherwise the first alone.
    """

    def __init__(self, plan: Configuration, num_channels: int, num_classes: int) -> None:
        make = _dynunet()
        super().__init__()
        first = 3 - plan.dimensions
        strides, kernels = ([list(each[first:]) for each in found] for found in (plan.strides, plan.kernels))
        net = make(
            plan.dimensions,
            num_channels,
            num_classes,
            kernels,
            strides,
            strides[1:],
            filters=plan.features,
            deep_supervision=True,
            deep_supr_num=len(strides) - 2,
        )
        self.is_flat = plan.dimensions == 2
        self.encoder = nn.ModuleList([net.input_block, *net.downsamples, net.bottleneck])
        self.decoder = net.upsamples
        self.heads = nn.ModuleList([net.output_block, *net.deep_supervision_heads])
        with_channel_norms(self)
        if plan.dimensions == 3 and plan.patch[0] // math.prod(stride[0] for stride in plan.strides) < SMALLEST_EDGE:
            keep_thin_volumes_in_float32(self)  # by a plan that a person edited

    def forward(self, x: torch.Tensor) -> torch.Tensor | list[torch.Tensor]:
        x = x.squeeze(2) if self.is_flat else x
        skips = []
        for block in self.encoder:
            x = block(x)
            skips.append(x)
        skips.pop()
        outputs = []
        for at, block in enumerate(self.decoder):
            level = len(self.decoder) - 1 - at
            x = block(x, skips.pop())
            if level == 0 or (self.training and level < len(self.heads)):
                y = self.heads[level](x)
                outputs.append(y.unsqueeze(2) if self.is_flat else y)
        outputs.reverse()
        return outputs if self.training else outputs[0]


def _dynunet() -> Any:
    """MONAI's class. Imported when it is used: MONAI imports all of itself, 10 CPU-seconds that reading and checking data
    need not wait for."""
    try:
        from monai.networks.nets.dynunet import DynUNet
    except ModuleNotFoundError as error:
        raise MissingError(
            f"Package {error.name!r} is not installed. Install it with: pip install 'domain-model-zoo[medical]'"
        ) from None
    return DynUNet


def with_channel_norms(model: nn.Module) -> None:
    """Replace instance norms by group norms of one channel a group, in place: the same arithmetic.

    PyTorch's group norm reads channels last without copying, and compiled with the activation behind it it costs next to
    nothing: a patch of 40 x 56 x 40 at 32 features takes .28 CPU-s compiled in this way, .58 with instance norms as they are.
    """
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.InstanceNorm2d | nn.InstanceNorm3d):
                setattr(module, name, nn.GroupNorm(child.num_features, child.num_features, eps=child.eps))
