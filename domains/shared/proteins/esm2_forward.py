"""The forward pass of ESM-2 on CPU, through the modules and weights of transformers' `EsmModel`.

The states are the same to float32 rounding; what differs is how often memory is walked over. Against `EsmModel.forward`:
one product for query, key and value; one complex product for the rotation, where transformers takes about ten passes;
GELU in one kernel instead of five; an attention whose backward pass is in float32 (`rotary_attention`); and no mask where
nothing is padded.

Shapes: B sequences, L tokens, D width, H heads of E = D / H numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional

from domains.shared.proteins.rotary_attention import RotaryAttention


def can_walk(encoder: Any, numbers_BL: Tensor) -> bool:
    """Whether `last_states` may be used: on CPU, uncompiled, for rotary positions without dropout of attention.

    Compiled, transformers' own code becomes one graph and its passes are fused; kernels called by name would break it.
    Layers that are split among processes, or computed twice to save memory, must be called as a whole; and those that
    somebody watches (train.watch_activations) one by one, where the walk takes query, key and value together.
    """
    is_eager_cpu = numbers_BL.device.type == "cpu" and not torch.compiler.is_compiling()
    has_kernel = encoder.rotary_embeddings is not None and not encoder.config.attention_probs_dropout_prob
    layer = encoder.encoder.layer[0]
    is_plain = not (isinstance(layer, FSDPModule) or getattr(layer, "gradient_checkpointing", False))
    query = layer.attention.self.query
    # Adapters (peft) stand around these layers and would be walked past.
    return is_eager_cpu and has_kernel and is_plain and type(query) is nn.Linear and not query._forward_hooks


def last_states(encoder: Any, numbers_BL: Tensor, is_token_BL: Tensor) -> Tensor:
    """States (B, L, D) of the last layer, float32. `is_token_BL` is False at padding, whose states mean nothing."""
    states_BLD = encoder.embeddings(input_ids=numbers_BL, attention_mask=is_token_BL.long())
    turns, bias = rotations(encoder.rotary_embeddings.inv_freq, numbers_BL.shape[1]), padding_bias(is_token_BL)
    for layer in encoder.encoder.layer:
        states_BLD = layer_states(layer, states_BLD, turns, bias)
    out: Tensor = encoder.encoder.emb_layer_norm_after(states_BLD)
    return out


def layer_states(layer: Any, states_BLD: Tensor, turns: Tensor, bias: Tensor | None) -> Tensor:
    """One transformer layer, norms before its two parts."""
    attention = layer.attention
    found = attended(attention.self, attention.LayerNorm(states_BLD), turns, bias)
    states_BLD = states_BLD + attention.output.dropout(attention.output.dense(found))
    inside = functional.gelu(layer.intermediate.dense(layer.LayerNorm(states_BLD)))
    return states_BLD + layer.output.dropout(layer.output.dense(inside))  # type: ignore[no-any-return]


def attended(attention: Any, states_BLD: Tensor, turns: Tensor, bias: Tensor | None) -> Tensor:
    """Rotary self-attention (B, L, D) before its output layer, in float32."""
    mixed = functional.linear(states_BLD, *joint_weights(attention))
    out: Tensor = RotaryAttention.apply(mixed, turns, bias, attention.num_attention_heads)
    return out


def joint_weights(attention: Any) -> tuple[Tensor, Tensor]:
    """Weight (3D, D) and bias (3D,) of query, key and value together, the first two with their halves interleaved."""
    parts, num_heads = (attention.query, attention.key, attention.value), attention.num_attention_heads
    turned = [interleaved(each, num_heads) for part in parts[:2] for each in (part.weight, part.bias)]
    weight = torch.cat([turned[0], turned[2], parts[2].weight])
    return weight, torch.cat([turned[1], turned[3], parts[2].bias])


def interleaved(rows: Tensor, num_heads: int) -> Tensor:
    """`rows` (D, ...) with number i of a head's first half followed by number i of its second half.

    Rotation turns exactly these two, and scores do not depend on the order of the numbers in a head.
    """
    return rows.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).flatten(0, 2)  # type: ignore[no-any-return,no-untyped-call]


def rotations(inverse_frequencies: Tensor, num_tokens: int) -> Tensor:
    """Complex numbers (L, E / 2) of length 1 that turn position by position. Su et al. 2021, arXiv 2104.09864."""
    positions = torch.arange(num_tokens, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies.float())
    return torch.polar(torch.ones_like(angles), angles)


def padding_bias(is_token_BL: Tensor) -> Tensor | None:
    """What is added to scores (B, 1, 1, L): minus infinity at padding; None where there is none."""
    if bool(is_token_BL.all()):
        return None
    return torch.zeros(is_token_BL.shape).masked_fill_(~is_token_BL, -torch.inf)[:, None, None]
