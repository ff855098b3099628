"""What training needs to know of batch norms and depthwise convolutions, whichever network they are in."""

from __future__ import annotations

import torch


def batch_norms(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Every batch norm of the model; timm's BatchNormAct2d is one."""
    return [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]


def hold_statistics(model: torch.nn.Module) -> None:
    """Let batch norms use the statistics they have, in training, too."""
    for norm in batch_norms(model):
        norm.eval()


def keep_depthwise_in_float32(model: torch.nn.Module) -> None:
    """Let depthwise convolutions compute in float32 under autocast.

    oneDNN has no fast backward for them in bfloat16: a step of EfficientNet-Lite0 at 128 pixels costs 35 CPU-ms a
    picture this way, 87 with all in bfloat16, 43 with all in float32 (one Xeon core with AMX).
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d) and module.groups > 1:
            module.forward = _Float32Forward(module)  # type: ignore[method-assign,assignment]


class _Float32Forward:
    """A convolution's own forward outside autocast. A class, so that deep copies of the model take it along."""

    def __init__(self, convolution: torch.nn.Conv2d) -> None:
        self.convolution = convolution

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return type(self.convolution).forward(self.convolution, x.float())
