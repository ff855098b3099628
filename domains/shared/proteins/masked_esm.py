"""ESM-2 with its language head: scores of the residues that could stand at a place. The names of the parameters are those of
transformers' `EsmForMaskedLM`, so that a saved one is a checkpoint for it.

Shapes: B sequences, L tokens, M places, D width, V tokens that there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from domains.shared.esm import encoder_roles, without_contact_head
from domains.shared.proteins.esm2 import last_states
from trainers.contract import JSON, Role


class MaskedEsm(nn.Module):
    """(B, L) token numbers, (B, L) whether each is one, (M,) places in the flattened batch -> (M, V) scores."""

    def __init__(self, config: JSON) -> None:
        super().__init__()
        from transformers import EsmConfig, EsmForMaskedLM

        whole: Any = EsmForMaskedLM(EsmConfig(**config))
        whole.tie_weights()
        self.esm, self.lm_head = without_contact_head(whole.esm), whole.lm_head

    def forward(self, numbers_BL: Tensor, is_token_BL: Tensor, places_M: Tensor) -> Tensor:
        scores: Tensor = self.lm_head(last_states(self.esm, numbers_BL).flatten(0, 1)[places_M])
        return scores


def roles(model: nn.Module, num_layers: int) -> Mapping[str, Role]:
    """Of every parameter; the table of tokens, which is also the last layer, is an embedding."""
    names = [name for name, _ in model.named_parameters()]
    inside = [name.removeprefix("esm.") for name in names if name.startswith("esm.")]
    found = encoder_roles(inside, num_layers, prefix="esm.")
    depth = num_layers + 1
    head = {name: Role("scalar", depth) for name in names if name.startswith("lm_head.")}
    return {**found, **head, "lm_head.dense.weight": Role("matrix", depth)}


def write_config(config: JSON, folder: Path) -> None:
    """Write config.json, by which transformers reads the weights beside it."""
    from transformers import EsmConfig

    EsmConfig(**config, architectures=["EsmForMaskedLM"], tie_word_embeddings=True).save_pretrained(folder)
