"""The language models of proteins whose frozen states recipes build on, and which of them `options.weights` names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from domains.shared import esm
from domains.shared.proteins import esm2, esm2_weights, prott5
from domains.shared.weights import Weights, config_json, random_kind
from trainers.contract import JSON


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """How one family of encoders is found, loaded and asked; the functions are described where they stand.

    name: begins the key of its vectors in the cache.   width: what its config calls the width of a state.
    read_as: a sequence as the encoder sees it; equal ones have equal vectors.
    """

    name: str
    width: str
    num_added_tokens: int
    find: Callable[[str], Weights]
    read_config: Callable[[str], JSON]
    num_parameters: Callable[[JSON], int]
    numbers_per_token: Callable[[JSON, int], int]
    load_encoder: Callable[[str], nn.Module]
    read_as: Callable[[str], str]
    tokens: Callable[..., tuple[Tensor, Tensor]]
    pooled: Callable[[nn.Module, Tensor, Tensor], Tensor]


ESM2 = LanguageModel(
    name="esm2",
    width="hidden_size",
    num_added_tokens=esm2.NUM_ADDED_TOKENS,
    find=esm2_weights.find,
    read_config=esm2_weights.read_config,
    num_parameters=esm.num_parameters,
    numbers_per_token=esm.numbers_per_token,
    load_encoder=esm2_weights.load_encoder,
    read_as=str,
    tokens=esm2.tokens,
    pooled=esm2.pooled,
)
PROTT5 = LanguageModel(
    name="prott5",
    width="d_model",
    num_added_tokens=prott5.NUM_ADDED_TOKENS,
    find=prott5.find,
    read_config=prott5.read_config,
    num_parameters=prott5.num_parameters,
    numbers_per_token=prott5.numbers_per_token,
    load_encoder=prott5.load_encoder,
    read_as=prott5.read_as,
    tokens=prott5.tokens,
    pooled=prott5.pooled,
)
RANDOM_KINDS = ("", prott5.RANDOM_KIND)


def language_model(spec: str) -> LanguageModel:
    """The family of a spec: by the config.json beside the weights, or by the name of random ones.

    Raises MissingError for weights that are not to be had.
    """
    if spec.startswith("random"):
        return PROTT5 if random_kind(spec) == prott5.RANDOM_KIND else ESM2
    path = esm2_weights.find(spec).path
    folder = path if path.is_dir() else path.parent
    is_t5 = (folder / "config.json").is_file() and config_json(folder).get("model_type") == "t5"
    return PROTT5 if is_t5 else ESM2
