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


SHORT = 512
"""Positions up to which the whole matrix of products is kept on a CPU."""


class _ShortAttention(torch.autograd.Function):
    """Softmax attention written out in products of matrices, for CPUs that multiply in bfloat16.

    torch's kernel multiplies in float32 there, backwards in bfloat16 20 times as slowly. At 8 x 256 positions and width
    256, forward and backward take 13 ms so and 34 ms by the kernel in float32.
    """

    @staticmethod
    def forward(ctx: Any, query_NTE: Tensor, key_NTE: Tensor, value_NTE: Tensor, bias_NTT: Tensor) -> Tensor:
        scores_NTT = torch.baddbmm(bias_NTT, query_NTE, key_NTE.mT, alpha=query_NTE.size(-1) ** -0.5)
        weights_NTT = scores_NTT.softmax(dim=-1)
        ctx.save_for_backward(query_NTE, key_NTE, value_NTE, weights_NTT)
        return torch.bmm(weights_NTT, value_NTE)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NTE: Tensor) -> tuple[Tensor | None, ...]:
        query_NTE, key_NTE, value_NTE, weights_NTT = ctx.saved_tensors
        of_weights = torch.bmm(grad_NTE, value_NTE.mT)
        of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights_NTT, -1, weights_NTT.dtype)
        of_scores = of_scores * query_NTE.size(-1) ** -0.5
        of_query, of_key = torch.bmm(of_scores, key_NTE), torch.bmm(of_scores.mT, query_NTE)
        return of_query, of_key, torch.bmm(weights_NTT.mT, grad_NTE), None


def attended_short(query_BTHE: Tensor, key_BTHE: Tensor, value_BTHE: Tensor, mask: Tensor | None) -> Tensor:
    """`attended` by `_ShortAttention`, in the type of the query."""
    num_rows, length, num_heads, _ = query_BTHE.shape
    is_hidden = torch.ones(length, length, dtype=torch.bool).triu(1) if mask is None else ~mask
    bias = torch.zeros(is_hidden.shape, dtype=query_BTHE.dtype).masked_fill_(is_hidden, float("-inf"))
    bias_NTT = bias.expand(num_rows, num_heads, length, length).reshape(-1, length, length)
    parts = [each.transpose(1, 2).reshape(-1, length, each.size(-1)) for each in (query_BTHE, key_BTHE, value_BTHE)]
    found_NTE: Tensor = _ShortAttention.apply(*parts, bias_NTT)
    return found_NTE.view(num_rows, num_heads, length, -1).transpose(1, 2)


def multiplies_in_bf16() -> bool:
    """Whether products on a CPU are in bfloat16 just now."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16


def thinned(x_BTD: Tensor, share: float) -> Tensor:
    """`x` with a `share` of its channels left out, in each row others but along the row the same ones, the rest scaled up.

    Source: Gal & Ghahramani 2016, arXiv 1512.05287, section 4. One draw a channel, not one a number, which on a CPU would
    cost as much as attention.
    """
    kept = torch.empty(x_BTD.size(0), 1, x_BTD.size(-1), device=x_BTD.device).bernoulli_(1 - share)
    return x_BTD * (kept / (1 - share)).to(x_BTD.dtype)


def attended(query_BTHE: Tensor, key_BTKE: Tensor, value_BTKE: Tensor, mask: Mask) -> Tensor:
    """(B, T, H, E): every query's mean of the values it may see, by the softmax of its products with their keys.

    mask: True where it may; blocks go to FlexAttention (Dong et al. 2024, arXiv 2412.05496); None: all up to itself.
    K may divide H.
    """
    if isinstance(mask, BlockMask):
        inputs = [each.transpose(1, 2) for each in (query_BTHE, key_BTKE, value_BTKE.to(query_BTHE.dtype))]
        call: Any = flex_attention
        found_BHTE: Tensor = call(*inputs, block_mask=mask, enable_gqa=key_BTKE.size(2) != query_BTHE.size(2))
        return found_BHTE.transpose(1, 2)
    is_on_cpu = query_BTHE.device.type == "cpu"
    is_short = query_BTHE.size(1) <= SHORT and key_BTKE.size(2) == query_BTHE.size(2)
    if is_on_cpu and is_short and torch.is_grad_enabled() and multiplies_in_bf16():
        return attended_short(query_BTHE.bfloat16(), key_BTKE.bfloat16(), value_BTKE.bfloat16(), mask)
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
