"""Self-attention with rotary positions for training on CPU: bfloat16 forward, float32 backward.

torch's flash kernels for CPU at heads of 16, one thread of a Xeon with AMX, in nanoseconds a score: forward 1.2 in
bfloat16 and 1.8 in float32, backward 6 to 50 in bfloat16 (the shorter the sequences the worse) and 3.5 in float32.
`scaled_dot_product_attention` cannot mix the two, so its kernels are called here by name.

Shapes: B sequences, L tokens, D width, H heads of E = D / H numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

VALUE = 2
"""Position of values among queries, keys and values."""
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class RotaryAttention(torch.autograd.Function):
    """`apply(mixed_BL3D, turns, bias, num_heads)` -> (B, L, D) in the format of `mixed`; softmax is in float32.

    mixed: queries, keys and values side by side; numbers 2 i and 2 i + 1 of a head's query and key are turned together.
    turns: complex (L, 1, E / 2).   bias: (B, 1, 1, L) float32, added to scores, or None.
    """

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, turns: Tensor, bias: Tensor | None, num_heads: int) -> Tensor:
        query, key, value = mixed.unflatten(-1, (3, num_heads, -1)).unbind(2)  # type: ignore[no-untyped-call]
        query, key = (rotated(each, turns).to(mixed.dtype) for each in (query, key))
        inputs = [each.transpose(1, 2) for each in (query, key, value)]
        out, log_sum = _forward(*inputs, attn_mask=None if bias is None else bias.to(mixed.dtype))
        ctx.save_for_backward(*inputs, out, log_sum, turns, bias)
        return out.transpose(1, 2).flatten(-2)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None, None, None]:
        *saved, log_sum, turns, bias = ctx.saved_tensors
        grad_out = grad_out.unflatten(-1, (saved[0].shape[1], -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
        exact = [each.float() for each in (grad_out, *saved)]
        grads = [each.transpose(1, 2) for each in _backward(*exact, log_sum, 0.0, False, attn_mask=bias)]
        grad = torch.empty(*grad_out.shape[::2], 3, *grad_out.shape[1::2], dtype=saved[0].dtype)
        for part, each in enumerate(grads):
            grad[:, :, part] = each if part == VALUE else rotated(each, turns.conj())
        return grad.flatten(2), None, None, None


def rotated(pairs: Tensor, turns: Tensor) -> Tensor:
    """Numbers (B, L, H, E) with each neighbouring two turned by `turns` (L, 1, E / 2), in float32."""
    complex_pairs = torch.view_as_complex(pairs.float().unflatten(-1, (-1, 2)))  # type: ignore[no-untyped-call]
    return torch.view_as_real(complex_pairs * turns).flatten(-2)
