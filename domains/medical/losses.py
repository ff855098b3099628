"""The losses of masks as totals over cases, so that the loop can add micro-batches up: Dice (or Tversky) and cross entropy
(or focal).

Every case gives one number to each term, and each term counts cases: the Dice of a batch is the mean of the Dice of its cases
(nnU-Net's batch_dice=False), whichever way the batch is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

_SMOOTH = 1e-5


def deep_losses(
    outputs: Sequence[torch.Tensor], masks_BDHW: torch.Tensor, *, tversky_beta: float, focal_gamma: float
) -> dict[str, torch.Tensor]:
    """Totals of "dice" and "cross_entropy" over the cases, summed over resolutions with halving weights that add up to 1.

    outputs: logits (B, K, d, h, w) from full resolution down.   masks: (B, D, H, W) class numbers.
    Source of the weights: Isensee et al. 2021, online methods, "Training".
    """
    shares = [0.5**level for level in range(len(outputs))]
    dice = entropy = outputs[0].new_zeros((), dtype=torch.float32)
    for share, logits in zip(shares, outputs, strict=True):
        weight, targets = share / sum(shares), _shrunk(masks_BDHW, logits.shape[2:])
        logits = logits.float()
        dice = dice + weight * overlap_losses(logits, targets, beta=tversky_beta).sum()
        entropy = entropy + weight * voxel_losses(logits, targets, gamma=focal_gamma).sum()
    return {"dice": dice, "cross_entropy": entropy}


def overlap_losses(logits_BKDHW: torch.Tensor, masks_BDHW: torch.Tensor, *, beta: float = 0.5) -> torch.Tensor:
    """(B,) one minus the mean Tversky index of the foreground classes; beta .5 is Dice, more punishes what is missed.

    Source: Salehi et al. 2017, arXiv 1706.05721, equation 2; the smoothing is nnU-Net's.
    """
    probabilities = logits_BKDHW.softmax(dim=1)[:, 1:].flatten(2)
    wanted = F.one_hot(masks_BDHW.flatten(1), logits_BKDHW.shape[1])[..., 1:].movedim(-1, 1).to(probabilities.dtype)
    both = (probabilities * wanted).sum(dim=2)
    extra, missed = probabilities.sum(dim=2) - both, wanted.sum(dim=2) - both
    index = (2 * both + _SMOOTH) / (2 * both + 2 * (1 - beta) * extra + 2 * beta * missed + _SMOOTH)
    return 1 - index.mean(dim=1)


def voxel_losses(logits_BKDHW: torch.Tensor, masks_BDHW: torch.Tensor, *, gamma: float = 0.0) -> torch.Tensor:
    """(B,) mean cross entropy of the voxels of a case; gamma above 0 makes it focal (Lin et al. 2017, arXiv 1708.02002)."""
    losses = F.cross_entropy(logits_BKDHW, masks_BDHW, reduction="none")
    if gamma > 0:
        losses = (1 - torch.exp(-losses)) ** gamma * losses
    return losses.flatten(1).mean(dim=1)


def _shrunk(masks_BDHW: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Masks at a lower resolution: the nearest voxel."""
    if masks_BDHW.shape[1:] == shape:
        return masks_BDHW.long()
    return F.interpolate(masks_BDHW[:, None].float(), size=shape, mode="nearest-exact")[:, 0].long()
