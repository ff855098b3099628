"""What `domains.shared.masked` needs to pretrain an encoder on texts: the network, the windows, the roles.

More is masked than in BERT (Wettig et al. 2023, arXiv 2202.08005), and all of it by the mask token: nothing is left or
replaced by chance.

Shapes: B windows, L tokens, M masked tokens, D width, V tokens that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from domains.shared.masked import MaskedTask, Noise
from domains.shared.tokens import MASK, TextTokenizer
from domains.text import encoder_weights as encoders
from trainers.contract import Role
from trainers.errors import DataError


class MaskedEncoder(nn.Module):
    """(B, L) token numbers, (M,) places in the flattened batch -> (M, V) scores of what stood there.

    The table of tokens serves both ways, as in BERT. Only masked places are scored: V is far larger than D.
    """

    def __init__(self, encoder: Any, width: int) -> None:
        super().__init__()
        self.encoder, self.transform, self.norm = encoder, nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(encoder.get_input_embeddings().weight.shape[0]))

    def forward(self, numbers_BL: Tensor, is_token_BL: Tensor, places_M: Tensor) -> Tensor:
        states_BLD = self.encoder(input_ids=numbers_BL, attention_mask=is_token_BL.long()).last_hidden_state
        states_MD = self.norm(functional.gelu(self.transform(states_BLD.flatten(0, 1)[places_M])))
        return functional.linear(states_MD, self.encoder.get_input_embeddings().weight, self.bias)


@dataclass(frozen=True)
class TextWindows:
    """Meets `shared.masked.Windows`. texts: of the training rows, those that belong to them from elsewhere."""

    tokenizer: TextTokenizer
    texts: Callable[[Any], Sequence[str]]
    max_tokens: int

    def of_training(self, train: Any) -> list[np.ndarray]:
        return [window for found in self.tokenizer.windows(self.texts(train), self.max_tokens) for window in found]

    def of_rows(self, rows: Any) -> list[np.ndarray]:
        return self.tokenizer.encode(list(rows.column("text")), self.max_tokens).numbers

    def padded(self, windows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        return self.tokenizer.padded(windows)


def masked_task(
    model: MaskedEncoder,
    tokenizer: TextTokenizer,
    texts: Callable[[Any], Sequence[str]],
    *,
    max_tokens: int,
    share: float,
) -> MaskedTask:
    """Masked tokens of texts. share: of the tokens of a window is masked."""
    number = tokenizer.tokenizer.token_to_id(MASK)
    if number is None:
        raise DataError(f"this tokenizer has no {MASK}, so nothing can be masked for pretraining.")
    return MaskedTask(model, TextWindows(tokenizer, texts, max_tokens), Noise(number, share), roles)


def roles(model: nn.Module) -> Mapping[str, Role]:
    """Of every parameter of a `MaskedEncoder`."""
    found = encoders.encoder_roles(model.get_submodule("encoder"), prefix="encoder.")
    depth = 1 + max(role.depth for role in found.values())
    scalars = dict.fromkeys(("transform.bias", "norm.weight", "norm.bias", "bias"), Role("scalar", depth))
    return {**found, "transform.weight": Role("matrix", depth), **scalars}
