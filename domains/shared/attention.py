"""Attention for training on CPU: a forward in bfloat16 and a backward in float32, by torch's flash kernels, and the same for
transformers' models, which find it by name.

In nanoseconds a score, at heads of 16, one thread of a Xeon with AMX: forward 1.3 in bfloat16 and 2 in float32; backward 6
to 50 in bfloat16 (the shorter the sequences the worse) and 3 to 4 in float32, a tenth to a third less where each head lies
in memory by itself. `scaled_dot_product_attention` cannot mix formats, so its kernels are called here by name.
Shapes: B rows, H heads, L tokens, E numbers a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from domains.shared.short_attention import MOST_TOKENS, ShortAttention

NAME = "sdpa_fast_on_cpu"
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, (B, H, L, E) each."""


def attention() -> str:
    """The name to give as `attn_implementation`; registers what it names."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attended)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME


def attended(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
    """(B, L, H, E) of (B, H, L, E) each, and None, as transformers wants it; mask: True (or 0.0) where to look."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    is_plain = query.device.type != "cpu" or query.dtype == key.dtype == value.dtype == torch.float32
    if is_plain:
        return sdpa_attention_forward(module, query, key, value, mask, **options)
    # Without a mask a causal module means "up to itself", which only torch's own function reads from it.
    is_causal = options.get("is_causal") or (mask is None and getattr(module, "is_causal", False))
    if options.get("dropout") or is_causal or query.shape != key.shape or torch.compiler.is_compiling():
        with torch.autocast("cpu", enabled=False):
            bias = _as_bias(mask, torch.float32)
            states, _ = sdpa_attention_forward(module, query.float(), key.float(), value.float(), bias, **options)
        return states.to(value.dtype), None
    bias = _as_bias(mask, torch.float32)
    if key.shape[2] <= MOST_TOKENS:
        scale = options.get("scaling") or key.shape[3] ** -0.5
        return ShortAttention.apply(*(each.bfloat16() for each in (query, key, value)), bias, scale), None
    out: Tensor = MixedAttention.apply(*(each.bfloat16() for each in (query, key, value)), bias, options.get("scaling"))
    return out.transpose(1, 2).contiguous(), None


def _as_bias(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to scores: 0 where to look, the lowest number elsewhere (minus infinity makes NaN of empty rows)."""
    if mask is None or mask.dtype != torch.bool:
        return None if mask is None else mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(torch.bfloat16).min)


class MixedAttention(torch.autograd.Function):
    """`apply(query, key, value, bias, scale)` -> (B, H, L, E); see `attention_forward`."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float | None
    ) -> Tensor:
        out, log_sum = attention_forward((query, key, value), bias, scale)
        ctx.scale = scale
        ctx.save_for_backward(query, key, value, out, log_sum, bias)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, out, log_sum, bias = ctx.saved_tensors
        grads = attention_backward(grad, (query, key, value), out, log_sum, bias, ctx.scale)
        d_query, d_key, d_value = (each.to(query.dtype) for each in grads)
        return d_query, d_key, d_value, None, None


def attention_forward(heads: Heads, bias: Tensor | None, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """What each token attends to (B, H, L, E), and the logarithm of the softmax's sums, which the backward pass needs.

    bias: (B, 1, 1 or L, L) float32, added to scores, or None.   scale: of scores; None: E ** -0.5.
    """
    out, log_sum = _forward(
        *(apart(each, bias) for each in heads), attn_mask=bias_of_heads(bias, heads[0]), scale=scale
    )
    return out.view(heads[0].shape), log_sum


def attention_backward(
    grad: Tensor, heads: Heads, out: Tensor, log_sum: Tensor, bias: Tensor | None, scale: float | None = None
) -> Heads:
    """Gradients of queries, keys and values in float32, from that of `out`; the rest as in `attention_forward`."""
    contiguous = torch.contiguous_format  # in one pass, whatever the order was
    exact = [apart(each.to(torch.float32, memory_format=contiguous), bias) for each in (grad, *heads, out)]
    mask = bias_of_heads(bias, heads[0], torch.float32)
    found = _backward(*exact, log_sum, 0.0, False, attn_mask=mask, scale=scale)
    d_query, d_key, d_value = (each.view(grad.shape) for each in found)
    return d_query, d_key, d_value


def is_apart(bias: Tensor | None) -> bool:
    """Whether heads may be taken for rows: a bias for every pair of tokens would have to be copied for each."""
    return bias is None or bias.shape[2] == 1


def apart(heads: Tensor, bias: Tensor | None) -> Tensor:
    """(B H, 1, L, E) with every head in memory by itself, where that may be; else `heads`."""
    return heads.flatten(0, 1).unsqueeze(1).contiguous() if is_apart(bias) else heads


def bias_of_heads(bias: Tensor | None, heads: Tensor, dtype: torch.dtype | None = None) -> Tensor | None:
    """`bias` for what `apart` gives, in the format of the heads or in `dtype`."""
    if bias is None:
        return None
    bias = bias.to(dtype or heads.dtype)
    return bias.expand(len(heads), -1, -1, -1).repeat_interleave(heads.shape[1], 0) if is_apart(bias) else bias
