"""Weights and vocabulary of the Nucleotide Transformer in transformers' ESM class: hub id, folder, or random.

The first models (500m-human-ref, 500m-1000g, 2.5b-...) load with the stock class. The second generation (v2) gates its
layers in code of its own on the hub, which stays off, so it is refused by name.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from domains.genomics.kmer_tokens import PAD, places, read_vocabulary, usual_vocabulary
from domains.shared.esm import NO_ATTENTION_DROPOUT, empty_encoder, from_folder
from domains.shared.weights import CONFIG, Weights, config_json, random_shape, resolve, with_config
from trainers.contract import JSON
from trainers.errors import DataError

MOST_POSITIONS = 1002
_KEEP = (
    *("vocab_size", "pad_token_id", "mask_token_id", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "hidden_dropout_prob", "max_position_embeddings", "layer_norm_eps"),
    *("position_embedding_type", "emb_layer_norm_before", "token_dropout"),
)


def find(spec: str) -> Weights:
    """The folder of a spec that is not random, with its vocabulary. Raises MissingError."""
    return with_config(resolve(spec, also=(*CONFIG, "vocab.txt")))


def read_model(spec: str) -> JSON:
    """{"config": values of an `EsmConfig`, "vocabulary": tokens}; reads no tensor. Raises DataError, MissingError."""
    shape = random_shape(spec)
    if shape is not None:
        return {"config": _config(layers=shape[0], width=shape[1]), "vocabulary": usual_vocabulary()}
    folder = find(spec).path
    vocabulary, found = read_vocabulary(folder / "vocab.txt"), config_json(folder)
    _check(found, vocabulary, str(folder))
    config = {name: found[name] for name in _KEEP if name in found}
    return {"config": {**config, **NO_ATTENTION_DROPOUT}, "vocabulary": vocabulary}


def load_encoder(spec: str) -> nn.Module:
    """The pretrained encoder of a spec; random specs draw from torch's generator. Raises as `read_model`."""
    model = read_model(spec)
    return (empty_encoder(model["config"]) if random_shape(spec) else from_folder(find(spec))).eval()


def _check(config: Any, vocabulary: list[str], where: str) -> None:
    if config.get("model_type") != "esm" or config.get("vocab_size") != len(vocabulary):
        raise DataError(
            f"{where}: a {config.get('model_type')!r} model with {config.get('vocab_size')} tokens, not a Nucleotide "
            f"Transformer (esm, {len(vocabulary)} tokens in vocab.txt). Give one with --set options.weights=..."
        )
    if config.get("add_bias_fnn") is False:
        raise DataError(
            f"{where}: a Nucleotide Transformer v2, whose gated layers are code on the hub that is not run here. Take one "
            "of the first generation: --set options.weights=InstaDeepAI/nucleotide-transformer-500m-human-ref"
        )


def _config(*, layers: int, width: int) -> JSON:
    vocabulary = usual_vocabulary()
    place = places(vocabulary)
    return {
        "vocab_size": len(vocabulary),
        "pad_token_id": place[PAD],
        "mask_token_id": place["<mask>"],
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 16,
        "intermediate_size": 4 * width,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": MOST_POSITIONS,
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
        "emb_layer_norm_before": False,
        "token_dropout": False,
    }
