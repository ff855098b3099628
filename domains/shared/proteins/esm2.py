"""The ESM-2 encoder: residues to tokens, mean-pooled states and architecture. `esm2_weights` fills it; what it shares with
other ESM models is in `domains.shared.esm`.

The network is transformers' `EsmModel`; on CPU `esm2_forward` walks through it. Lin et al. 2023, Science 379:1123.
Shapes: B sequences, L tokens (start, residues, end, padding), D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from domains.shared.esm import pool_tokens
from domains.shared.proteins import esm2_forward
from trainers.contract import JSON

# Token numbers are positions in this list; the same in fair-esm ("ESM-1b" alphabet) and in the hub's vocab.txt.
VOCABULARY = (*("<cls>", "<pad>", "<eos>", "<unk>"), *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>")
START, PAD, END, UNKNOWN, MASK = 0, 1, 2, 3, 32
RESIDUE_TOKENS = {letter: number for number, letter in enumerate(VOCABULARY) if letter.isalpha()}
NUM_ADDED_TOKENS = 2
"""Start and end: a sequence of n residues costs n + 2 tokens."""


def tokens(sequences: Sequence[str], *, max_residues: int) -> tuple[Tensor, Tensor]:
    """Token numbers (B, L) and whether each is a residue (B, L). Longer sequences lose their tail.

    The letters are those that `residues.cleaned` lets through; others are a KeyError.
    """
    cropped = [sequence[:max_residues] for sequence in sequences]
    width = max((len(sequence) for sequence in cropped), default=0) + NUM_ADDED_TOKENS
    numbers = np.full((len(cropped), width), PAD, dtype=np.int64)
    for row, sequence in zip(numbers, cropped, strict=True):
        row[: len(sequence) + 2] = [START, *(RESIDUE_TOKENS[letter] for letter in sequence), END]
    numbers_BL = torch.from_numpy(numbers)
    return numbers_BL, numbers_BL > UNKNOWN


def last_states(encoder: nn.Module, numbers_BL: Tensor) -> Tensor:
    """States (B, L, D) of the encoder's last layer; at padding they mean nothing."""
    is_token_BL = numbers_BL != PAD
    if esm2_forward.can_walk(encoder, numbers_BL):
        return esm2_forward.last_states(encoder, numbers_BL, is_token_BL)
    states_BLD: Tensor = encoder(input_ids=numbers_BL, attention_mask=is_token_BL.long()).last_hidden_state
    return states_BLD


def pooled(encoder: nn.Module, numbers_BL: Tensor, is_residue_BL: Tensor) -> Tensor:
    """Mean residue states (B, D) of the encoder's last layer, float32."""
    states_BLD = last_states(encoder, numbers_BL)
    # Under autocast the mean must not fall back to 8 bits of precision.
    with torch.autocast(states_BLD.device.type, enabled=False):
        return pool_tokens(states_BLD, is_residue_BL)


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
