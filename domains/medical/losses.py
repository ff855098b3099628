"""The losses of masks as totals over cases, so that the loop can add micro-batches up: Dice (or Tversky) and cross entropy
(or focal).

Every case gives one number to each term, and each term counts cases: the Dice of a batch is the mean of the Dice of its cases
(nnU-Net's batch_dice=False), whichever way the batch is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from domains.shared.mask_losses import class_overlaps, pixel_losses


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
        dice = dice + weight * (1 - class_overlaps(logits, targets, beta=tversky_beta).mean(dim=1)).sum()
        entropy = entropy + weight * pixel_losses(logits, targets, gamma=focal_gamma).sum()
    return {"dice": dice, "cross_entropy": entropy}


def _shrunk(masks_BDHW: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Masks at a lower resolution: the nearest voxel."""
    if masks_BDHW.shape[1:] == shape:
        return masks_BDHW.long()
    return F.interpolate(masks_BDHW[:, None].float(), size=shape, mode="nearest-exact")[:, 0].long()
