"""Pretraining on sequences of tokens alone: some are masked, and the model says what stood there. For texts and proteins.

Devlin et al. 2019, arXiv 1810.04805, section 3.1. What differs between data types (tokens, networks) comes as an argument.

Shapes: B windows, L tokens, M masked tokens, V tokens that there are.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from trainers.contract import Batch, Predictions, Role


@dataclass(frozen=True)
class Noise:
    """mask: number of the mask token.   share: of a window's tokens that are to be told.   replaced, kept: of these, the
    shares in whose place a random one of `letters` stands, or what stood there; in training only."""

    mask: int
    share: float
    replaced: float = 0.0
    kept: float = 0.0
    letters: tuple[int, ...] = ()

    def standing(self, wanted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """What stands in the places of the `wanted` tokens (M,) in training."""
        if not self.replaced and not self.kept:
            return np.full(len(wanted), self.mask)
        chance = rng.random(len(wanted))
        other = rng.choice(self.letters, len(wanted))
        found = np.where(chance < self.replaced + self.kept, wanted, self.mask)
        return np.asarray(np.where(chance < self.replaced, other, found))


class Windows(Protocol):
    """Rows as windows of token numbers. The first and the last token of a window are never masked."""

    def of_training(self, train: Any) -> Sequence[np.ndarray]:
        """All that is learned from."""

    def of_rows(self, rows: Any) -> Sequence[np.ndarray]:
        """One window a row."""

    def padded(self, windows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """(B, L) token numbers and whether each is one."""


class MaskedTask:
    """Meets `contract.Task`. An example is a window; the model takes (B, L) numbers, (B, L) is a token, (M,) places in the
    flattened batch, and gives (M, V) scores of what stood there."""

    couples_rows = False
    min_rows = 1

    def __init__(
        self,
        model: nn.Module,
        windows: Windows,
        noise: Noise,
        roles: Callable[[nn.Module], Mapping[str, Role]],
    ) -> None:
        self.model, self.windows, self.noise, self.roles_of = model, windows, noise, roles

    def roles(self) -> Mapping[str, Role]:
        return self.roles_of(self.model)

    def examples(self, train: Any, folder: Path) -> Sequence[np.ndarray]:
        # Two tokens are start and end: nothing in between could be masked.
        return [window for window in self.windows.of_training(train) if len(window) > 2]

    def sizes(self, examples: Sequence[np.ndarray]) -> Sequence[int]:
        return [len(window) for window in examples]

    def draw(self, examples: Sequence[np.ndarray], rngs: Sequence[np.random.Generator]) -> Batch:
        places = [masked_places(window, rng, self.noise.share) for window, rng in zip(examples, rngs, strict=True)]
        standing = [
            self.noise.standing(window[where], rng) for window, where, rng in zip(examples, places, rngs, strict=True)
        ]
        inputs = self._masked(examples, places, standing)
        return Batch(inputs[:4], {"cross_entropy": float(len(inputs[2]))})

    def loss(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> Mapping[str, Tensor]:
        numbers, is_token, places, wanted = inputs
        scores = model(numbers, is_token, places).float()
        return {"cross_entropy": functional.cross_entropy(scores, wanted, reduction="sum")}

    def row_sizes(self, rows: Any) -> Sequence[int]:
        return [len(window) for window in self.windows.of_rows(rows)]

    def collate(self, rows: Any) -> tuple[Tensor, ...]:
        """What `draw` gives, with masks that depend on the tokens alone, and how many each row has."""
        windows = self.windows.of_rows(rows)
        places = [fixed_places(window, self.noise.share) for window in windows]
        return self._masked(windows, places, [np.full(len(where), self.noise.mask) for where in places])

    def predict(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> Predictions:
        """Nats that a masked token of each row costs on average."""
        numbers, is_token, places, wanted, num_masked = inputs
        nats = functional.cross_entropy(model(numbers, is_token, places).float(), wanted, reduction="none")
        rows = torch.repeat_interleave(torch.arange(len(numbers), device=nats.device), num_masked)
        total = torch.zeros(len(numbers), device=nats.device).index_add(0, rows, nats)
        return Predictions.of_numbers((total / num_masked).double().cpu().numpy())

    def _masked(
        self, windows: Sequence[np.ndarray], places: Sequence[np.ndarray], standing: Sequence[np.ndarray]
    ) -> tuple[Tensor, ...]:
        """Tokens with masks, which are any, (M,) where masks stand, what stood there, (B,) masks of each window."""
        numbers, is_token = self.windows.padded(windows)
        num_masked = torch.tensor([len(each) for each in places], dtype=torch.long)
        flat = [row * numbers.shape[1] + each for row, each in enumerate(places)]
        places_M = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *flat]))
        wanted_M = numbers.flatten()[places_M]
        now = np.concatenate([np.empty(0, np.int64), *standing]).astype(np.int64)
        numbers.view(-1)[places_M] = torch.from_numpy(now)
        return numbers, is_token, places_M, wanted_M, num_masked


def masked_places(window: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Which tokens of a window are masked, sorted: `share` of those between start and end, one at least."""
    inner = len(window) - 2
    if inner < 1:
        return np.empty(0, np.int64)
    return 1 + np.sort(rng.permutation(inner)[: max(1, round(share * inner))])


def fixed_places(window: np.ndarray, share: float) -> np.ndarray:
    """The same for the same tokens always: what evaluations mask."""
    rng = np.random.default_rng(zlib.crc32(np.ascontiguousarray(window, np.int32).tobytes()))
    return masked_places(window, rng, share)
