"""Continue a prompt token by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn


@torch.no_grad()
def continued(
    model: nn.Module,
    tokens: Sequence[int],
    *,
    num_new: int,
    length: int,
    stop: int,
    temperature: float,
    top_k: int | None,
    seed: Sequence[int],
    device: torch.device,
) -> list[int]:
    """At most `num_new` tokens after `tokens`, of which the model reads the last `length`; `stop` ends it and is left out.

    temperature: 0 takes the likeliest token.   top_k: draws among so many likeliest.   seed: with the same one and the
    same tokens the answer is the same, whatever else is asked.
    """
    every = list(tokens)
    rng = np.random.default_rng(list(seed))
    for _ in range(num_new):
        read = torch.tensor([every[-length:]], device=device)
        number = drawn(model(read)[0, -1].double(), temperature, top_k, float(rng.random()))
        if number == stop:
            break
        every.append(number)
    return every[len(tokens) :]


def drawn(logits_V: Tensor, temperature: float, top_k: int | None, chance: float) -> int:
    """The token at which the cumulated probability, likeliest first, passes `chance` in [0, 1)."""
    if temperature == 0:
        return int(logits_V.argmax())
    values, numbers = logits_V.topk(min(top_k or len(logits_V), len(logits_V)))
    cumulated = torch.softmax(values / temperature, dim=0).cumsum(dim=0)
    place = int(torch.searchsorted(cumulated, torch.tensor(chance, dtype=cumulated.dtype, device=cumulated.device)))
    return int(numbers[min(place, len(numbers) - 1)])
