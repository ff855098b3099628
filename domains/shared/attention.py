"""Attention for transformers' models, as they find it by name: `sdpa`, on CPU with a forward in bfloat16 and a backward in
float32.

torch's flash kernel for CPU is several times slower backwards in bfloat16 than in float32, the more so the shorter the
sequences; forwards bfloat16 is the faster one. `scaled_dot_product_attention` cannot mix the two.
Shapes: B rows, H heads, L tokens, E numbers a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

NAME = "sdpa_fast_on_cpu"
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


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
    out: Tensor = _MixedAttention.apply(
        *(each.bfloat16() for each in (query, key, value)), bias, options.get("scaling")
    )
    return out.transpose(1, 2).contiguous(), None


def _as_bias(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to scores: 0 where to look, the lowest number elsewhere (minus infinity makes NaN of empty rows)."""
    if mask is None or mask.dtype != torch.bool:
        return None if mask is None else mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(torch.bfloat16).min)


class _MixedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float | None
    ) -> Tensor:
        out, log_sum = _forward(
            query, key, value, attn_mask=None if bias is None else bias.to(query.dtype), scale=scale
        )
        ctx.scale = scale
        ctx.save_for_backward(query, key, value, out, log_sum, bias)
        found: Tensor = out
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, out, log_sum, bias = ctx.saved_tensors
        exact = [each.float() for each in (grad, query, key, value, out)]
        grads = _backward(*exact, log_sum, 0.0, False, attn_mask=bias, scale=ctx.scale)
        d_query, d_key, d_value = (each.to(query.dtype) for each in grads)
        return d_query, d_key, d_value, None, None
