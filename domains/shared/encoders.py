"""BERT-like encoders of transformers in a folder: architecture, tokenizer and weights, whatever type of data they read.

No code of a hub entry is ever run, and no tensor is unpickled freely.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from domains.shared.attention import attention
from domains.shared.tokens import TextTokenizer, check_vocabulary, of_folder
from domains.shared.weights import Weights, config_json, kept_config, quiet_transformers
from trainers.contract import JSON, Role, RoleKind
from trainers.errors import DataError

TOKENIZER_FILES = ("*.json", "*.txt", "*.model")
"""What lies beside weights and is fetched with them."""
LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?|albert_layer_groups)\.(\d+)\.")
"""Finds the number of the layer in the name of a tensor."""
_ALIASES = {"hidden_size": "dim", "num_hidden_layers": "n_layers"}
_DROPOUTS = ("hidden_dropout_prob", "embedding_dropout", "mlp_dropout", "dropout")
_ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")
# The families of RoBERTa, whose positions start behind the number of the padding token.
_COUNTS_FROM_PAD = (
    *("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm"),
    *("mpnet", "longformer"),
)


def config_of(folder: Path) -> JSON:
    """The architecture in a folder, as the values of a transformers config with its `model_type`; reads no tensor.

    Raises DataError for what is no encoder of transformers.
    """
    found = config_json(folder)
    if found.get("auto_map") and not _is_encoder(found.get("model_type")):
        raise DataError(f"{folder}: this model needs code from the hub, and none is run. Choose another one.")
    if not _is_encoder(found.get("model_type")) or found.get("is_encoder_decoder"):
        raise DataError(
            f"{folder}: a {found.get('model_type')!r} model is no BERT-like encoder that transformers knows. "
            "Give one with --set options.weights=..."
        )
    from transformers import AutoConfig

    return completed(kept_config(AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)))


def completed(config: JSON) -> JSON:
    """A config with its sizes under BERT's names too, which some families name otherwise."""
    found = {name: config[alias] for name, alias in _ALIASES.items() if alias in config}
    return {**found, **config}


def tokenizer_of(folder: Path, config: JSON) -> TextTokenizer:
    """The tokenizer beside the weights. Raises DataError where it is not that of the model."""
    tokenizer = of_folder(folder)
    check_vocabulary(folder, tokenizer.size, config["vocab_size"])
    return tokenizer


def empty_encoder(config: JSON, dropout: float) -> nn.Module:
    """An encoder of this architecture with random weights from torch's generator."""
    from transformers import AutoModel

    make: Any = AutoModel.from_config
    return without_pooler(make(_as_config(config, dropout), attn_implementation=_attention(config)))


def encoder_of(weights: Weights, config: JSON, dropout: float) -> nn.Module:
    """The pretrained encoder in a folder. Raises DataError for files that are no whole encoder."""
    from safetensors import SafetensorError
    from transformers import AutoModel

    load = AutoModel.from_pretrained
    options: JSON = {"attn_implementation": _attention(config), "dtype": torch.float32, "local_files_only": True}
    try:
        with quiet_transformers():
            encoder, info = load(
                weights.path,
                config=_as_config(config, dropout),
                trust_remote_code=False,
                output_loading_info=True,
                **options,
            )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise DataError(f"{weights.path}: cannot be loaded ({str(error).strip().splitlines()[0]}).") from None
    missing = sorted(name for name in info["missing_keys"] if not name.startswith("pooler"))
    if missing:
        raise DataError(
            f"{weights.path}: {len(missing)} tensors of the encoder are missing, the first is {missing[0]!r}. "
            "Fetch the weights again."
        )
    return without_pooler(encoder)


def without_pooler(encoder: Any) -> nn.Module:
    """The same encoder less the layer on top of its first token: it would never get a gradient, and distributed training
    would wait for it."""
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    network: nn.Module = encoder
    return network


def encoder_roles(encoder: nn.Module, prefix: str = "") -> dict[str, Role]:
    """Role of every parameter: what comes before the layers at depth 0, then the layers, what follows with the last."""
    tables = {f"{name}.weight" for name, part in encoder.named_modules() if isinstance(part, nn.Embedding)}
    roles, deepest = {}, 0
    for name, parameter in encoder.named_parameters():
        layer = LAYER.search(name)
        depth = int(layer[1]) + 1 if layer else deepest
        deepest = max(deepest, depth)
        # Decay rates of a recurrence are a table, but no matrix: the authors of Mamba decay them as little as a bias.
        is_matrix = parameter.ndim == 2 and not name.endswith("A_log")
        kind: RoleKind = "embedding" if name in tables else "matrix" if is_matrix else "scalar"
        roles[prefix + name] = Role(kind, depth)
    return roles


def num_parameters(config: JSON) -> int:
    """Parameters of the encoder; its shapes are built, not its numbers."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in empty_encoder(config, 0.0).parameters())


def most_tokens(config: JSON) -> int:
    """The longest row that the encoder has positions for; a million where it has no table of them."""
    found = config.get("max_position_embeddings") or 1_000_000
    taken = (config.get("pad_token_id") or 0) + 1 if config.get("model_type") in _COUNTS_FROM_PAD else 0
    return int(found) - taken


def _is_encoder(model_type: str | None) -> bool:
    """Whether transformers has a masked language model of this type, which is what BERT-like encoders are."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def _as_config(values: JSON, dropout: float) -> Any:
    """A transformers config with one dropout everywhere, none on attention: kernels for CPU have none."""
    from transformers import AutoConfig

    rates = {**dict.fromkeys(_DROPOUTS, dropout), **dict.fromkeys(_ATTENTION_DROPOUTS, 0.0)}
    own = {name: rates.get(name, value) for name, value in values.items() if name != "model_type"}
    return AutoConfig.for_model(values["model_type"], **own)


def _attention(config: JSON) -> str | None:
    """Our attention where transformers' model can take another one than its own."""
    from transformers import AutoConfig, AutoModel

    kind = type(AutoConfig.for_model(config["model_type"]))
    models: Any = AutoModel
    network = models._model_mapping[kind]
    network = network[0] if isinstance(network, tuple | list) else network
    return attention() if getattr(network, "_supports_sdpa", False) else None
