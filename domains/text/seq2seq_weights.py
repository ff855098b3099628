"""Encoder-decoder models of transformers (T5, BART, mBART ...) from a hub id, a folder, or random ones.

No code of a hub entry is ever run, and no tensor is unpickled freely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from domains.shared.tokens import TextTokenizer, check_vocabulary, of_bytes, of_folder
from domains.shared.weights import (
    RANDOM_HEAD_SIZE,
    Weights,
    config_json,
    kept_config,
    quiet_transformers,
    random_shape,
    resolve,
    with_config,
)
from domains.text.encoder_weights import encoder_roles
from trainers.contract import JSON, Role
from trainers.errors import DataError, UsageError

_TOKENIZER_FILES = ("*.json", "*.txt", "*.model")
PAD, END = "<pad>", "</s>"
_HEAD = "lm_head.weight"


def find(spec: str) -> Weights:
    """The weights of a spec that is not random: a folder with config and tokenizer. Raises MissingError."""
    return with_config(resolve(spec, also=_TOKENIZER_FILES))


def read_config(spec: str, vocabulary: int) -> JSON:
    """The architecture behind a spec, as the values of a transformers config; reads no tensor.

    vocabulary: tokens of a random model.   Raises DataError for what is no encoder-decoder that transformers knows.
    """
    shape = random_shape(spec)
    if shape is not None:
        return _random_config(*shape, vocabulary)
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES as KNOWN

    folder = find(spec).path
    kind = config_json(folder).get("model_type")
    if kind not in KNOWN:
        raise DataError(
            f"{folder}: a {kind!r} model is no encoder-decoder that transformers knows. Give T5, BART or one like them "
            "with --set options.weights=..."
        )
    return kept_config(AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False))


def load_tokenizer(spec: str, config: JSON) -> JSON:
    """The tokenizer beside the weights, as `TextTokenizer.as_json`. Raises DataError where it is not that of the model."""
    folder = find(spec).path
    tokenizer = of_folder(folder)
    check_vocabulary(folder, tokenizer.size, config["vocab_size"])
    return tokenizer.as_json()


def made_tokenizer(texts: Sequence[str], vocabulary: int) -> JSON:
    """Byte-level BPE of `texts`, of both sides, for random weights; at most `vocabulary` tokens."""
    from tokenizers import processors

    tokenizer = of_bytes(texts, vocabulary, [PAD, END], add_prefix_space=True)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 1)])
    return TextTokenizer(tokenizer, 0).as_json()


def empty_network(config: JSON, dropout: float | None) -> Any:
    """A model of this architecture with random weights from torch's generator. dropout: None leaves the model's own."""
    from transformers import AutoModelForSeq2SeqLM

    make: Any = AutoModelForSeq2SeqLM.from_config
    return make(_as_config(config, dropout))


def load_network(spec: str, config: JSON, dropout: float | None) -> Any:
    """The pretrained model of a spec; a random one draws from torch's generator.

    Raises MissingError for weights that are not to be had, DataError for files that are no whole model.
    """
    if random_shape(spec) is not None:
        return empty_network(config, dropout)
    from safetensors import SafetensorError
    from transformers import AutoModelForSeq2SeqLM

    weights, load = find(spec), AutoModelForSeq2SeqLM.from_pretrained
    options: JSON = {"dtype": torch.float32, "local_files_only": True, "trust_remote_code": False}
    try:
        with quiet_transformers():
            config_object = _as_config(config, dropout)
            network, info = load(weights.path, config=config_object, output_loading_info=True, **options)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise DataError(f"{weights.path}: cannot be loaded ({str(error).strip().splitlines()[0]}).") from None
    if missing := sorted(info["missing_keys"]):
        raise DataError(
            f"{weights.path}: {len(missing)} tensors are missing, the first is {missing[0]!r}. Fetch the weights again."
        )
    return network


def roles(network: Any, prefix: str = "") -> dict[str, Role]:
    """Role of every parameter; a head of its own is deepest, one that is tied is the embedding."""
    found = encoder_roles(network, prefix)
    if prefix + _HEAD in found:
        found[prefix + _HEAD] = Role("head", 1 + max(role.depth for role in found.values()))
    return found


def num_parameters(config: JSON) -> int:
    """Parameters of the model; its shapes are built, not its numbers."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in empty_network(config, None).parameters())


def most_tokens(config: JSON) -> int:
    """The longest text that the model has positions for; a million where positions are relative."""
    return int(config.get("max_position_embeddings") or 1_000_000)


def start_token(config: JSON) -> int:
    """What the decoder reads before the first token that it writes. Raises UsageError where the model does not say."""
    found = config.get("decoder_start_token_id")
    if found is None:
        raise UsageError("these weights do not say which token their decoder starts with (decoder_start_token_id).")
    return int(found)


def _random_config(layers: int, width: int, vocabulary: int) -> JSON:
    """T5 of version 1.1 (gated GELU), its head tied to the embedding, which suits small models."""
    large = 4 * RANDOM_HEAD_SIZE
    head_size = large if width % large == 0 else RANDOM_HEAD_SIZE
    return {
        "model_type": "t5",
        "vocab_size": vocabulary,
        "d_model": width,
        "d_kv": head_size,
        "num_heads": width // head_size,
        "d_ff": 4 * width,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }


def _as_config(values: JSON, dropout: float | None) -> Any:
    from transformers import AutoConfig

    rates = {} if dropout is None else dict.fromkeys(("dropout_rate", "dropout"), dropout)
    own = {name: rates.get(name, value) for name, value in values.items() if name != "model_type"}
    if values["model_type"] == "t5" and dropout is not None:
        own["dropout_rate"] = dropout
    return AutoConfig.for_model(values["model_type"], **own)
