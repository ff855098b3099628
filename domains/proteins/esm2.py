"""The ESM-2 encoder: residues to tokens, mean-pooled states, architecture and roles. `esm2_weights` fills it.

The network is transformers' `EsmModel`; on CPU `esm2_forward` walks through it. Lin et al. 2023, Science 379:1123.
Shapes: B sequences, L tokens (start, residues, end, padding), D width.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from domains.proteins import esm2_forward
from trainers.contract import JSON, Role

# Token numbers are positions in this list; the same in fair-esm ("ESM-1b" alphabet) and in the hub's vocab.txt.
VOCABULARY = (*("<cls>", "<pad>", "<eos>", "<unk>"), *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>")
START, PAD, END, UNKNOWN, MASK = 0, 1, 2, 3, 32
RESIDUE_TOKENS = {letter: number for number, letter in enumerate(VOCABULARY) if letter.isalpha()}
NUM_ADDED_TOKENS = 2
"""Start and end: a sequence of n residues costs n + 2 tokens."""


def tokens(sequences: Sequence[str], *, max_residues: int) -> tuple[Tensor, Tensor]:
    """Token numbers (B, L) and whether each is a residue (B, L). Longer sequences lose their tail.

    The letters are those that `domains.proteins.data` lets through; others are a KeyError.
    """
    cropped = [sequence[:max_residues] for sequence in sequences]
    width = max((len(sequence) for sequence in cropped), default=0) + NUM_ADDED_TOKENS
    numbers = np.full((len(cropped), width), PAD, dtype=np.int64)
    for row, sequence in zip(numbers, cropped, strict=True):
        row[: len(sequence) + 2] = [START, *(RESIDUE_TOKENS[letter] for letter in sequence), END]
    numbers_BL = torch.from_numpy(numbers)
    return numbers_BL, numbers_BL > UNKNOWN


def pool_residues(states_BLD: Tensor, is_residue_BL: Tensor) -> Tensor:
    """Mean state (B, D) over residues in float32: start, end and padding would make it depend on length and batch."""
    mask_BL1 = is_residue_BL.unsqueeze(-1)
    total_BD = states_BLD.float().masked_fill(~mask_BL1, 0.0).sum(dim=1)
    return total_BD / mask_BL1.sum(dim=1).clamp(min=1)


def pooled(encoder: nn.Module, numbers_BL: Tensor, is_residue_BL: Tensor) -> Tensor:
    """Mean residue states (B, D) of the encoder's last layer, float32."""
    is_token_BL = numbers_BL != PAD
    if esm2_forward.can_walk(encoder, numbers_BL):
        states = esm2_forward.last_states(encoder, numbers_BL, is_token_BL)
    else:
        states = encoder(input_ids=numbers_BL, attention_mask=is_token_BL.long()).last_hidden_state
    # Under autocast the mean must not fall back to 8 bits of precision.
    with torch.autocast(states.device.type, enabled=False):
        return pool_residues(states, is_residue_BL)


def empty_encoder(config: Mapping[str, Any]) -> nn.Module:
    """An `EsmModel` of this architecture with random weights from torch's generator."""
    from transformers import EsmConfig, EsmModel

    values: dict[str, Any] = dict(config)
    return without_contact_head(EsmModel(EsmConfig(**values), add_pooling_layer=False))


def without_contact_head(encoder: Any) -> nn.Module:
    """The same encoder less its contact head: that never gets a gradient, and distributed training would wait for it."""
    encoder.contact_head = None
    network: nn.Module = encoder
    return network


def esm2_config(*, layers: int, width: int, heads: int) -> JSON:
    """The values of an ESM-2 `EsmConfig` (Lin et al. 2023, supplement A.1: rotary positions, norm before, 4x inside)."""
    return {
        "vocab_size": len(VOCABULARY),
        "pad_token_id": PAD,
        "mask_token_id": MASK,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 1026,
        "layer_norm_eps": 1e-5,
        "position_embedding_type": "rotary",
        "emb_layer_norm_before": False,
        "token_dropout": True,
    }


def encoder_roles(names: Sequence[str], num_layers: int, prefix: str = "") -> dict[str, Role]:
    """Role of every parameter of the encoder: embeddings at depth 0, then the layers, the last norm with the last."""
    roles = {}
    for name in names:
        layer = re.match(r"encoder\.layer\.(\d+)\.", name)
        depth = int(layer[1]) + 1 if layer else (0 if name.startswith("embeddings") else num_layers)
        kind = "embedding" if name.endswith("embeddings.weight") else "matrix"
        is_scalar = name.endswith("bias") or "LayerNorm" in name or "layer_norm" in name
        roles[prefix + name] = Role("scalar" if is_scalar else kind, depth)  # type: ignore[arg-type]
    return roles


def num_parameters(config: Mapping[str, Any]) -> int:
    """Parameters of the encoder, by formula: no network is built."""
    width, inside, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    per_layer = 4 * width * (width + 1) + 2 * width * inside + inside + width + 4 * width
    return int(config["vocab_size"] * width + layers * per_layer + 2 * width)
