"""How far masks are from the truth, for pictures and scans alike. Letters: B rows, K classes with the background; the other
axes are those of space, as many as there are."""

from __future__ import annotations

import torch
from torch.nn import functional as F

_SMOOTH = 1e-5
_NONE = -100
"""No class has this number."""


def class_overlaps(
    logits_BK: torch.Tensor, masks_B: torch.Tensor, *, beta: float = 0.5, ignored: int | None = None
) -> torch.Tensor:
    """(B, K - 1) soft Tversky index of each foreground class; beta .5 is Dice, more punishes what is missed.

    logits: (B, K, ...).   masks: (B, ...) class numbers, int64; pixels that are `ignored` are left out.
    Source: Salehi et al. 2017, arXiv 1706.05721, equation 2; the smoothing is nnU-Net's.
    """
    probabilities, labels = logits_BK.softmax(dim=1)[:, 1:].flatten(2), masks_B.flatten(1)
    if ignored is not None:
        known = labels != ignored
        labels = labels.masked_fill(~known, 0)
        probabilities = probabilities * known.unsqueeze(1)
    wanted = F.one_hot(labels, logits_BK.shape[1])[..., 1:].movedim(-1, 1).to(probabilities.dtype)
    both = (probabilities * wanted).sum(dim=2)
    extra, missed = probabilities.sum(dim=2) - both, wanted.sum(dim=2) - both
    return (2 * both + _SMOOTH) / (2 * both + 2 * (1 - beta) * extra + 2 * beta * missed + _SMOOTH)


def pixel_losses(
    logits_BK: torch.Tensor, masks_B: torch.Tensor, *, gamma: float = 0.0, ignored: int | None = None
) -> torch.Tensor:
    """(B,) mean cross entropy of the pixels of a row that are not `ignored`; gamma above 0 makes it focal (Lin et al. 2017,
    arXiv 1708.02002)."""
    losses = F.cross_entropy(logits_BK, masks_B, reduction="none", ignore_index=_NONE if ignored is None else ignored)
    if gamma > 0:
        losses = (1 - torch.exp(-losses)) ** gamma * losses
    if ignored is None:
        return losses.flatten(1).mean(dim=1)
    return losses.flatten(1).sum(dim=1) / (masks_B != ignored).flatten(1).sum(dim=1).clamp(min=1)
