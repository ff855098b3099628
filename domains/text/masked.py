"""Pretrain an encoder on texts alone: some tokens are masked, and it says what stood there.

Devlin et al. 2019, arXiv 1810.04805, section 3.1, with more masked (Wettig et al. 2023, arXiv 2202.08005), and all of it by
the mask token: nothing is left or replaced by chance.

Shapes: B windows, L tokens, M masked tokens, D width, V tokens that there are.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from domains.shared.tokens import MASK, TextTokenizer
from domains.text import encoder_weights as encoders
from trainers.contract import Batch, Predictions, Role
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


class MaskedTask:
    """Meets `contract.Task`. An example is a window of a text, as token numbers.

    texts: of the training rows, those that belong to them from elsewhere.   share: of the tokens of a window is masked.
    """

    couples_rows = False
    min_rows = 1

    def __init__(
        self,
        model: MaskedEncoder,
        tokenizer: TextTokenizer,
        texts: Callable[[Any], Sequence[str]],
        *,
        max_tokens: int,
        share: float,
    ) -> None:
        self.model: nn.Module = model
        self.tokenizer, self.texts, self.max_tokens, self.share = tokenizer, texts, max_tokens, share
        number = tokenizer.tokenizer.token_to_id(MASK)
        if number is None:
            raise DataError(f"this tokenizer has no {MASK}, so nothing can be masked for pretraining.")
        self.mask = number

    def roles(self) -> Mapping[str, Role]:
        found = encoders.encoder_roles(self.model.get_submodule("encoder"), prefix="encoder.")
        depth = 1 + max(role.depth for role in found.values())
        scalars = dict.fromkeys(("transform.bias", "norm.weight", "norm.bias", "bias"), Role("scalar", depth))
        return {**found, "transform.weight": Role("matrix", depth), **scalars}

    def examples(self, train: Any, folder: Path) -> Sequence[np.ndarray]:
        windows = self.tokenizer.windows(self.texts(train), self.max_tokens)
        # Two tokens are start and end: nothing in between could be masked.
        return [window for found in windows for window in found if len(window) > 2]

    def sizes(self, examples: Sequence[np.ndarray]) -> Sequence[int]:
        return [len(window) for window in examples]

    def draw(self, examples: Sequence[np.ndarray], rngs: Sequence[np.random.Generator]) -> Batch:
        inputs = self._masked(examples, [masked_places(*each, self.share) for each in zip(examples, rngs, strict=True)])
        return Batch(inputs[:4], {"cross_entropy": float(len(inputs[2]))})

    def loss(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> Mapping[str, Tensor]:
        numbers, is_token, places, wanted = inputs
        scores = model(numbers, is_token, places).float()
        return {"cross_entropy": functional.cross_entropy(scores, wanted, reduction="sum")}

    def row_sizes(self, rows: Any) -> Sequence[int]:
        return [len(window) for window in self._first_windows(rows)]

    def collate(self, rows: Any) -> tuple[Tensor, ...]:
        """What `draw` gives, with masks that depend on the text alone, and how many each row has."""
        windows = self._first_windows(rows)
        rngs = [np.random.default_rng(zlib.crc32(window.tobytes())) for window in windows]
        return self._masked(windows, [masked_places(*each, self.share) for each in zip(windows, rngs, strict=True)])

    def predict(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> Predictions:
        """Nats that a masked token of each row costs on average."""
        numbers, is_token, places, wanted, num_masked = inputs
        nats = functional.cross_entropy(model(numbers, is_token, places).float(), wanted, reduction="none")
        rows = torch.repeat_interleave(torch.arange(len(numbers), device=nats.device), num_masked)
        total = torch.zeros(len(numbers), device=nats.device).index_add(0, rows, nats)
        return Predictions.of_numbers((total / num_masked).double().cpu().numpy())

    def _first_windows(self, rows: Any) -> list[np.ndarray]:
        return self.tokenizer.encode(list(rows.column("text")), self.max_tokens).numbers

    def _masked(self, windows: Sequence[np.ndarray], places: Sequence[np.ndarray]) -> tuple[Tensor, ...]:
        """Tokens with masks, which are any, (M,) where masks stand, what stood there, (B,) masks of each window."""
        numbers, is_token = self.tokenizer.padded(windows)
        num_masked = torch.tensor([len(each) for each in places], dtype=torch.long)
        flat = [row * numbers.shape[1] + each for row, each in enumerate(places)]
        places_M = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *flat]))
        wanted_M = numbers.flatten()[places_M]
        numbers.view(-1)[places_M] = self.mask
        return numbers, is_token, places_M, wanted_M, num_masked


def masked_places(window: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Which tokens of a window are masked, sorted: `share` of those between start and end, one at least."""
    inner = len(window) - 2
    if inner < 1:
        return np.empty(0, np.int64)
    return 1 + np.sort(rng.permutation(inner)[: max(1, round(share * inner))])
