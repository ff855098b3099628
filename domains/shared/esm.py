"""What all models of transformers' ESM class share: proteins' ESM-2 and genomes' Nucleotide Transformer.

Shapes: B sequences, L tokens, D width.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from domains.shared.weights import Weights, quiet_transformers
from trainers.contract import Role
from trainers.errors import DataError

# As in ESM-2 itself. transformers' default of 0.1, which checkpoints of one's own have, would keep the probabilities of
# every pair of tokens for the backward pass: 12 GiB for eight proteins of 1,024 residues in 6 layers.
NO_ATTENTION_DROPOUT = {"attention_probs_dropout_prob": 0.0}


def pool_tokens(states_BLD: Tensor, is_counted_BL: Tensor) -> Tensor:
    """Mean state (B, D) over the counted tokens in float32: start, end and padding would make it depend on length and batch."""
    mask_BL1 = is_counted_BL.unsqueeze(-1)
    total_BD = states_BLD.float().masked_fill(~mask_BL1, 0.0).sum(dim=1)
    return total_BD / mask_BL1.sum(dim=1).clamp(min=1)


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


def from_folder(weights: Weights) -> nn.Module:
    """The encoder in a folder in transformers' format, by its own loader: it knows the names of every version that wrote one.

    Raises DataError for files that are no whole ESM encoder.
    """
    from safetensors import SafetensorError
    from transformers import EsmModel

    load: Any = EsmModel.from_pretrained
    folder = weights.path if weights.path.is_dir() else weights.path.parent
    options = {"attn_implementation": "sdpa", "dtype": torch.float32, "local_files_only": True}
    try:
        with quiet_transformers():
            encoder, info = load(
                folder, add_pooling_layer=False, output_loading_info=True, **NO_ATTENTION_DROPOUT, **options
            )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise DataError(f"{weights.path}: cannot be loaded ({str(error).strip().splitlines()[0]}).") from None
    demand_all([name for name in info["missing_keys"] if not name.startswith("contact_head")], weights)
    return without_contact_head(encoder)


def demand_all(missing: Sequence[str], weights: Weights, what: str = "an ESM encoder") -> None:
    """Raises DataError if tensors are `missing`."""
    if missing:
        raise DataError(
            f"{weights.path}: {len(missing)} tensors of {what} are missing or of another shape, the first is "
            f"{sorted(missing)[0]!r}. Fetch the weights again."
        )


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


def numbers_per_token(config: Mapping[str, Any], num_tokens: int) -> int:
    """Numbers that one layer keeps of each token of a sequence of `num_tokens` without a backward pass, about."""
    return 12 * int(config["hidden_size"]) + 2 * int(config["intermediate_size"])


def num_parameters(config: Mapping[str, Any]) -> int:
    """Parameters of the encoder, by formula: no network is built."""
    if config.get("position_embedding_type") == "absolute":
        num_rows = config["vocab_size"] + config["max_position_embeddings"]
        return num_parameters({**config, "position_embedding_type": "", "vocab_size": num_rows})
    width, inside, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    per_layer = 4 * width * (width + 1) + 2 * width * inside + inside + width + 4 * width
    return int(
        config["vocab_size"] * width
        + layers * per_layer
        + 2 * width * (2 if config.get("emb_layer_norm_before") else 1)
    )
