"""An encoder with one answer a row: pooled last states, dropout, one linear layer.

Devlin et al. 2019, arXiv 1810.04805, section 4.1; the mean over tokens is what sentence encoders were trained with
(Reimers & Gurevych 2019, arXiv 1908.10084, section 3).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from domains.shared.encoders import encoder_roles
from trainers.contract import Role


class PooledEncoder(nn.Module):
    """Encoder, one state a row, dropout, linear head: (B, L) token numbers -> (B, outputs).

    options: with `dropout` of that state and `pooling`, "mean" of all tokens or "first".
    """

    def __init__(self, encoder: nn.Module, width: int, num_outputs: int, options: Any) -> None:
        super().__init__()
        self.encoder, self.dropout, self.head = encoder, nn.Dropout(options.dropout), nn.Linear(width, num_outputs)
        self.is_mean = options.pooling == "mean"

    def forward(self, numbers_BL: Tensor, is_token_BL: Tensor) -> Tensor:
        """See the class. is_token_BL: False at padding."""
        states_BLD = self.encoder(input_ids=numbers_BL, attention_mask=is_token_BL.long()).last_hidden_state
        # Under autocast the mean must not fall back to 8 bits of precision.
        with torch.autocast(states_BLD.device.type, enabled=False):
            pooled_BD = mean_state(states_BLD, is_token_BL) if self.is_mean else states_BLD[:, 0].float()
        out: Tensor = self.head(self.dropout(pooled_BD))
        return out


def mean_state(states_BLD: Tensor, is_token_BL: Tensor) -> Tensor:
    """Mean state (B, D) over tokens in float32; padding would make it depend on the batch."""
    weights_BL = is_token_BL.float() / is_token_BL.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.einsum("bld,bl->bd", states_BLD.float(), weights_BL)


def pooled_roles(model: nn.Module) -> dict[str, Role]:
    """Those of the encoder of a `PooledEncoder`; its head is deepest."""
    found = encoder_roles(model.get_submodule("encoder"), prefix="encoder.")
    depth = 1 + max(role.depth for role in found.values())
    return {**found, "head.weight": Role("head", depth), "head.bias": Role("head", depth)}
