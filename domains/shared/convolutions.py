"""What training needs to know of batch norms, convolutions and last layers, whichever network they are in."""

from __future__ import annotations

from contextlib import nullcontext

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
            keep_in_float32(module)


def keep_in_float32(module: torch.nn.Module) -> None:
    """Let a layer of one input compute in float32 under autocast."""
    module.forward = _Float32Forward(module)


def keep_thin_volumes_in_float32(model: torch.nn.Module) -> None:
    """Let convolutions over volumes compute in float32 on a CPU where every place of the kernel touches the padding: at most
    twice the padding deep.

    There oneDNN's gradient of the weights in bfloat16 holds values that were never written (PyTorch 2.14: kernel 3, padding 1,
    2 voxels deep; kernel 5, padding 2, 2 to 4 deep), and training takes NaN or 1e30 for a gradient.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Conv3d) and any(module.padding):
            module.forward = _ThinForward(module)  # type: ignore[method-assign,assignment]


class _Float32Forward:
    """A layer's own forward outside autocast. A class, so that deep copies of the model take it along."""

    def __init__(self, layer: torch.nn.Module) -> None:
        self.layer = layer

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            answer: torch.Tensor = type(self.layer).forward(self.layer, x.float())
            return answer


class _ThinForward:
    """A convolution's own forward, outside autocast for thin volumes on a CPU."""

    def __init__(self, convolution: torch.nn.Conv3d) -> None:
        self.convolution = convolution

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        padding = self.convolution.padding
        thin = x.device.type == "cpu" and not isinstance(padding, str) and x.shape[2] <= 2 * padding[0]
        with torch.autocast(x.device.type, enabled=False) if thin else nullcontext():
            return type(self.convolution).forward(self.convolution, x.float() if thin else x)
