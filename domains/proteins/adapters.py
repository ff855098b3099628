"""Low-rank adapters beside the weights of ESM-2, by peft. Hu et al. 2021, arXiv 2106.09685: W x + alpha / rank * B A x, where B
begins at zero; every linear layer of the encoder has one, as Schmirler et al. 2024 did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from trainers.errors import MissingError

ADAPTED = ("query", "key", "value", "dense")


def with_adapters(encoder: nn.Module, rank: int, alpha: float) -> nn.Module:
    """The same encoder with adapters in its layers. Raises MissingError without peft."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError:
        raise MissingError("options.method=lora needs peft: pip install 'domain-model-zoo[proteins]'") from None
    make: Any = LoraConfig
    config = make(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=list(ADAPTED), bias="none")
    network: nn.Module = inject_adapter_in_model(config, encoder)
    return network


def is_adapter(name: str) -> bool:
    """Whether a parameter belongs to an adapter."""
    return ".lora_" in name


def num_adapted(config: Mapping[str, Any], rank: int) -> int:
    """Parameters of all adapters: of each layer four square ones and two between width and inside."""
    width, inside = config["hidden_size"], config["intermediate_size"]
    return int(config["num_hidden_layers"] * rank * (4 * 2 * width + 2 * (width + inside)))
