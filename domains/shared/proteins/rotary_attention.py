"""Self-attention with rotary positions for training on CPU: a turn of queries and keys around `domains.shared.attention`.

Shapes: B sequences, L tokens, D width, H heads of E = D / H numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from domains.shared.attention import attention_backward, attention_forward


class RotaryAttention(torch.autograd.Function):
    """`apply(mixed_BL3D, turns, bias, num_heads)` -> (B, L, D) in the format of `mixed`; softmax is in float32.

    mixed: queries, keys and values side by side; numbers 2 i and 2 i + 1 of a head's query and key are turned together.
    turns: complex (L, E / 2).   bias: (B, 1, 1, L) float32, added to scores, or None.
    """

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, turns: Tensor, bias: Tensor | None, num_heads: int) -> Tensor:
        by_head = mixed.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)  # type: ignore[no-untyped-call]
        exact = torch.empty(by_head.shape).copy_(by_head)
        turn(exact[:2], turns)
        heads_3BHLE = exact.to(mixed.dtype)
        query, key, value = heads_3BHLE
        out, log_sum = attention_forward((query, key, value), bias)
        ctx.save_for_backward(heads_3BHLE, out, log_sum, turns, bias)
        return out.transpose(1, 2).flatten(-2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BLD: Tensor) -> tuple[Tensor, None, None, None]:
        heads_3BHLE, out, log_sum, turns, bias = ctx.saved_tensors
        query, key, value = heads_3BHLE
        grad = grad_BLD.unflatten(-1, (query.shape[1], -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
        grads = attention_backward(grad, (query, key, value), out, log_sum, bias)
        for each in grads[:2]:
            turn(each, turns.conj())
        mixed = torch.empty(*grad_BLD.shape[:2], 3, *query.shape[1::2], dtype=query.dtype)
        for part, each in enumerate(grads):
            mixed[:, :, part] = each.transpose(1, 2)
        return mixed.flatten(2), None, None, None


def turn(heads: Tensor, turns: Tensor) -> None:
    """Turn each neighbouring two of numbers (..., L, E), float32, by `turns` (L, E / 2), in place."""
    pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)))  # type: ignore[no-untyped-call]
    pairs.mul_(turns)
