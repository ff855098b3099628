"""Number formats as a policy: what settings and machine make of `auto`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from trainers.contract import Machine
from trainers.errors import MissingError, UsageError
from trainers.settings import Gradient

FP8_FROM = (8, 9)
"""The compute capability from which Nvidia's GPUs multiply in FP8: Ada; Hopper is 9.0."""


def autocast_dtype(precision: str, machine: Machine) -> torch.dtype | None:
    """The format of matrix products under autocast, None for plain float32."""
    if precision != "auto":
        return {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp16": torch.float16}.get(precision)
    if machine.bf16:
        return torch.bfloat16
    if torch.device(machine.device).type != "cuda" or not torch.cuda.is_available():
        return None
    # GPUs before Ampere multiply in float16 only.
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def products_in(precision: str, machine: Machine) -> torch.dtype | None:
    """The format in which an optimizer may multiply matrices: bfloat16 where the run has it, else that of the matrices.

    Not float16: what an optimizer multiplies is not scaled.
    """
    return torch.bfloat16 if autocast_dtype(precision, machine) is torch.bfloat16 else None


def loss_scaler(precision: str, machine: Machine) -> torch.amp.GradScaler:
    """What keeps small gradients from vanishing in float16; it does nothing in other formats.

    Source: Micikevicius et al. 2018, arXiv 1710.03740, section 3.2.
    """
    is_fp16 = autocast_dtype(precision, machine) is torch.float16
    return torch.amp.GradScaler(torch.device(machine.device).type, enabled=is_fp16)


def autocast(precision: str, machine: Machine) -> contextlib.AbstractContextManager[Any]:
    """A context in which the model computes in the planned format; weights and sums stay float32."""
    dtype = autocast_dtype(precision, machine)
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(torch.device(machine.device).type, dtype=dtype)


@contextlib.contextmanager
def matmul_precision(precision: str, machine: Machine) -> Iterator[None]:
    """Let float32 products on CUDA use TF32, unless float32 was asked for by name; afterwards all is as before."""
    if torch.device(machine.device).type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def with_fp8_products(model: torch.nn.Module, machine: Machine) -> None:
    """Have the linear layers of `model` multiply in FP8 with scales found on the fly; weights stay float32.

    Layers whose sides are no multiples of 16 stay as they are: the kernels have no others.
    Raises UsageError on devices without FP8, MissingError without torchao.
    Source: Micikevicius et al. 2022, arXiv 2209.05433.
    """
    if torch.device(machine.device).type != "cuda" or torch.cuda.get_device_capability() < FP8_FROM:
        raise UsageError(
            f"train.precision is fp8, which needs a GPU of Nvidia's Hopper or Ada generation or later; this is "
            f"{machine.name or machine.device}. Use --precision bf16."
        )
    try:
        from torchao.float8 import convert_to_float8_training
    except ImportError:
        raise MissingError("train.precision is fp8, which needs torchao: pip install 'domain-model-zoo[fp8]'") from None

    def fits(part: torch.nn.Module, name: str) -> bool:
        return isinstance(part, torch.nn.Linear) and part.in_features % 16 == 0 and part.out_features % 16 == 0

    convert_to_float8_training(model, module_filter_fn=fits)


CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By the number of dimensions: pictures and volumes."""


def layout_of(settings: Gradient) -> torch.memory_format:
    """How pictures, volumes and kernels lie in memory: channels last where train.channels_last asks for it."""
    return torch.channels_last if settings.channels_last else torch.preserve_format


def lay_out(model: torch.nn.Module, layout: torch.memory_format) -> None:
    """Let kernels and buffers of pictures and volumes lie as `layout` says, in place. As Module.to does it, which cannot
    do both in one model, or volumes by the name of pictures."""
    for tensor in (*model.parameters(), *model.buffers()):
        if is_reordered(tensor, layout):
            tensor.data = tensor.data.to(memory_format=CHANNELS_LAST[tensor.ndim])


def placed(inputs: Any, device: torch.device, layout: torch.memory_format = torch.preserve_format) -> Any:
    """The same nested inputs with every tensor on `device`; CUDA copies run beside computing, from pinned memory.

    layout: of tensors (rows, channels, height, width) and (rows, channels, depth, height, width); others keep theirs.
    """
    if isinstance(inputs, torch.Tensor):
        if is_reordered(inputs, layout):
            inputs = inputs.contiguous(memory_format=CHANNELS_LAST[inputs.ndim])
        if device.type == "cuda":
            return inputs.pin_memory().to(device, non_blocking=True)
        return inputs if device.type == "cpu" else inputs.to(device)
    if device.type == "cpu" and layout is torch.preserve_format:
        return inputs
    if isinstance(inputs, Mapping) and type(inputs) is dict:
        return {key: placed(value, device, layout) for key, value in inputs.items()}
    if type(inputs) in (list, tuple):
        return type(inputs)(placed(value, device, layout) for value in inputs)
    if isinstance(inputs, tuple):
        return type(inputs)(*(placed(value, device, layout) for value in inputs))
    return inputs.to(device) if hasattr(inputs, "to") else inputs


def is_reordered(tensor: torch.Tensor, layout: torch.memory_format) -> bool:
    """Whether `layout` says how this tensor is to lie: a picture or a volume, and not just as it is."""
    return tensor.ndim in CHANNELS_LAST and layout is not torch.preserve_format
