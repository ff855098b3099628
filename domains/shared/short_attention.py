"""Attention over short sequences on CPU, as a few products of small matrices.

torch's flash kernel for CPU works through blocks of keys and repeats each for the backward pass: made for long sequences. At
56 tokens and heads of 32 it takes 28 ms forwards and backwards where these products take 20, at 96 both are level (32 rows
of 12 heads, one thread of a busy Xeon with AMX). Probabilities are kept for the backward pass, in bfloat16.

Scores and softmax are in float32, products with probabilities in bfloat16.
Shapes: B rows, H heads, L tokens, E numbers a head; N = B H.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

MOST_TOKENS = 80
"""Longer sequences go to the flash kernel."""


class ShortAttention(torch.autograd.Function):
    """`apply(query, key, value, bias, scale)` -> (B, L, H, E) of (B, H, L, E) each, in bfloat16.

    bias: (B, 1, 1 or L, L) float32, added to scores, or None.   scale: of scores.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        query_NLE, key_NLE, value_NLE = (each.reshape(-1, *each.shape[2:]) for each in (query, key, value))
        scores_NLL = torch.bmm(query_NLE.float() * scale, key_NLE.float().transpose(1, 2))
        if bias is not None:
            scores_NLL.view(*query.shape[:2], *scores_NLL.shape[1:]).add_(bias)
        shares_NLL = scores_NLL.softmax(dim=-1).to(value.dtype)
        out_NLE = torch.bmm(shares_NLL, value_NLE)
        ctx.scale, ctx.num_rows = scale, len(query)
        ctx.save_for_backward(query_NLE, key_NLE, value_NLE, shares_NLL)
        return out_NLE.view(query.shape).transpose(1, 2).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BLHE: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query_NLE, key_NLE, value_NLE, shares_NLL = ctx.saved_tensors
        grad_NLE = grad_BLHE.transpose(1, 2).reshape(query_NLE.shape)
        d_value = torch.bmm(shares_NLL.transpose(1, 2), grad_NLE)
        d_shares = torch.bmm(grad_NLE, value_NLE.transpose(1, 2)).float()
        d_scores = torch._softmax_backward_data(d_shares, shares_NLL.float(), -1, torch.float32)
        d_scores_NLL = d_scores.mul_(ctx.scale).to(shares_NLL.dtype)
        d_query, d_key = torch.bmm(d_scores_NLL, key_NLE), torch.bmm(d_scores_NLL.transpose(1, 2), query_NLE)
        rows = (ctx.num_rows, -1, *query_NLE.shape[1:])
        return d_query.view(rows), d_key.view(rows), d_value.view(rows), None, None
