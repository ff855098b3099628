"""Operations of a transformer with gradients written by hand, for CPUs.

There these small operations cost more than the products of matrices, and what they cost is passes over memory: torch's
own chains make two to four times as many, keep more for backward, and attention backwards in bfloat16 takes 20 times as
long as in float32. On CUDA a compiler or a kernel fuses them, so torch's own are used.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

NORM_EPS = 1e-6
"""Said, because torch's own depends on the number format: 0.008 in bfloat16."""
EXACT = (torch.float32, torch.float64)
Mask = Tensor | BlockMask | None


def normed(x: Tensor) -> Tensor:
    """Scale the last dimension to a root mean square of 1 (Zhang & Sennrich 2019, arXiv 1910.07467), without weights."""
    if x.device.type == "cpu" and x.dtype in EXACT:
        found: Tensor = _Normed.apply(x)
        return found
    return functional.rms_norm(x, (x.size(-1),), eps=NORM_EPS)


class _Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = (length.square() / x.size(-1) + NORM_EPS).rsqrt()
        y: Tensor = x * scale
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        y, scale = ctx.saved_tensors
        along = (grad * y).mean(dim=-1, keepdim=True)
        return torch.addcmul(grad, y, along, value=-1).mul_(scale)


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0) ** 2. Source: So et al. 2021, arXiv 2109.08668."""
    found: Tensor = _SquaredRelu.apply(x) if x.device.type == "cpu" else x.relu().square()
    return found


class _SquaredRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        scaled: Tensor = (grad * positive).mul_(2)
        return scaled


def rotation(num_positions: int, head_size: int, base: float) -> Tensor:
    """(2, T, 1, E/2): cosine and sine of position * base ** (-2 i / E).

    Source: Su et al. 2021, arXiv 2104.09864, section 3.2.2.
    """
    rates = base ** -(torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.cos(), angles.sin()]).float()[:, :, None]


def as_pairs(x_BTHE: Tensor) -> Tensor:
    """(B, T, H, E/2, 2)."""
    return x_BTHE.view(*x_BTHE.shape[:-1], -1, 2)


def rotated(x_BTHE: Tensor, rotation_2T1E: Tensor) -> Tensor:
    """Turn every two neighbouring channels by their position's angle: products of queries and keys then depend on
    distance only. On a CPU as complex numbers, and never in less than float32."""
    if x_BTHE.device.type == "cpu":
        x_BTHE = x_BTHE if x_BTHE.dtype in EXACT else x_BTHE.float()
        pairs = torch.view_as_complex(as_pairs(x_BTHE))
        # One turn for each head: a product of equal shapes runs through memory in one piece.
        turns = torch.complex(*rotation_2T1E.to(x_BTHE.dtype).unbind()).expand(pairs.shape[1:]).contiguous()
        return torch.view_as_real(pairs * turns).flatten(-2)
    cosine, sine = rotation_2T1E.to(x_BTHE.dtype).unbind()
    first, second = as_pairs(x_BTHE).unbind(-1)
    return torch.stack([first * cosine - second * sine, second * cosine + first * sine], dim=-1).flatten(-2)


def document_blocks(documents_BT: Tensor, window: int) -> BlockMask:
    """Which blocks of positions FlexAttention must look at: each sees its own document, up to itself, `window` back."""

    def is_seen(row: Tensor, head: Tensor, at: Tensor, back: Tensor) -> Tensor:
        is_near: Tensor = (at >= back) & (at - back < window)
        return is_near & (documents_BT[row, at] == documents_BT[row, back])

    num_rows, length = documents_BT.shape
    return create_block_mask(is_seen, num_rows, None, length, length, device=documents_BT.device)


def attended(query_BTHE: Tensor, key_BTKE: Tensor, value_BTKE: Tensor, mask: Mask) -> Tensor:
    """(B, T, H, E): every query's mean of the values it may see, by the softmax of its products with their keys.

    mask: True where it may; blocks go to FlexAttention (Dong et al. 2024, arXiv 2412.05496); None: all up to itself.
    K may divide H.
    """
    if isinstance(mask, BlockMask):
        inputs = [each.transpose(1, 2) for each in (query_BTHE, key_BTKE, value_BTKE.to(query_BTHE.dtype))]
        found_BHTE = flex_attention(*inputs, block_mask=mask, enable_gqa=key_BTKE.size(2) != query_BTHE.size(2))
        return found_BHTE.transpose(1, 2)  # type: ignore[union-attr]
    is_on_cpu = query_BTHE.device.type == "cpu"
    if is_on_cpu and query_BTHE.dtype not in EXACT:
        query_BTHE, key_BTKE = query_BTHE.float(), key_BTKE.float()
    with torch.autocast("cpu", enabled=False) if is_on_cpu else contextlib.nullcontext():
        found_BHTE = functional.scaled_dot_product_attention(
            query_BTHE.transpose(1, 2),
            key_BTKE.transpose(1, 2),
            value_BTKE.to(query_BTHE.dtype).transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=key_BTKE.size(2) != query_BTHE.size(2),
        )
    return found_BHTE.transpose(1, 2)
