"""Attention over short sequences against torch's own in float32."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from domains.shared.attention import attended
from domains.shared.short_attention import MOST_TOKENS, ShortAttention


def heads(rows=3, num_heads=2, tokens=17, size=8, dtype=torch.float32):
    rng = torch.Generator().manual_seed(0)
    found = [torch.randn(rows, tokens, num_heads, size, generator=rng).to(dtype) for _ in range(4)]
    return [each.transpose(1, 2).requires_grad_() for each in found[:3]], found[3]


def padding(rows=3, tokens=17):
    is_token = torch.arange(tokens) < torch.tensor([tokens, 5, 1])[:rows, None]
    return torch.zeros(rows, tokens).masked_fill_(~is_token, torch.finfo(torch.bfloat16).min)[:, None, None]


def gradients(out, inputs, grad):
    return torch.autograd.grad(out, inputs, grad)


@pytest.mark.parametrize("bias", [None, padding(), padding().expand(3, 1, 17, 17)])
def test_in_float32_it_equals_torch_s_own_forwards_and_backwards(bias):
    inputs, grad = heads()
    expected = functional.scaled_dot_product_attention(*inputs, attn_mask=bias, scale=0.3).transpose(1, 2)
    found = ShortAttention.apply(*inputs, bias, 0.3)
    assert torch.allclose(found, expected, atol=1e-5)
    for ours, theirs in zip(gradients(found, inputs, grad), gradients(expected, inputs, grad), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_in_bfloat16_it_is_within_its_rounding():
    inputs, grad = heads(dtype=torch.bfloat16)
    exact, _ = heads()
    expected = functional.scaled_dot_product_attention(*exact, attn_mask=padding()).transpose(1, 2)
    found = ShortAttention.apply(*inputs, padding(), 8**-0.5)
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).norm() < 0.01 * expected.norm()
    ours, theirs = gradients(found, inputs, grad), gradients(expected, exact, grad.float())
    for mine, yours in zip(ours, theirs, strict=True):
        assert (mine.float() - yours).norm() < 0.015 * yours.norm()


@pytest.mark.parametrize("tokens", [MOST_TOKENS, MOST_TOKENS + 1])
def test_transformers_gets_the_same_on_both_sides_of_the_line(tokens):
    inputs, grad = heads(tokens=tokens, dtype=torch.bfloat16)
    exact, _ = heads(tokens=tokens)
    mask = (torch.arange(tokens) < torch.tensor([tokens, 9, 2])[:, None])[:, None, None].expand(-1, 1, tokens, -1)
    found, _ = attended(None, *inputs, mask, scaling=8**-0.5)
    expected = functional.scaled_dot_product_attention(*exact, attn_mask=mask).transpose(1, 2)
    assert (found.float() - expected).norm() < 0.01 * expected.norm()
    for mine, yours in zip(gradients(found, inputs, grad), gradients(expected, exact, grad.float()), strict=True):
        assert (mine.float() - yours).norm() < 0.02 * yours.norm()
