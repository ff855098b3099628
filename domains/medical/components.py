"""Stray pieces of a mask: kept, or only the largest piece of a class, as the validation cases decide.

Source: Isensee et al. 2021, online methods, "Postprocessing".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.ndimage import label

from domains.medical.scores import dice
from domains.medical.volumes import Mask
from trainers.contract import Predictions


def largest_only(labels: np.ndarray, classes: Sequence[int]) -> np.ndarray:
    """`labels` with all but the largest connected piece of each of `classes` turned into background."""
    kept = labels.copy()
    for value in classes:
        pieces, num = label(labels == value)
        if num > 1:
            largest = int(np.bincount(pieces.ravel())[1:].argmax()) + 1
            kept[(labels == value) & (pieces != largest)] = 0
    return kept


def filtered(predictions: Predictions, classes: Sequence[int]) -> Predictions:
    """The masks with only the largest piece of each of `classes`."""
    if not classes:
        return predictions
    values = predictions.values.copy()
    for row, mask in enumerate(values):
        if mask is not None:
            values[row] = Mask.of(largest_only(mask.array(), classes), mask.geometry)
    return replace(predictions, values=values)


def classes_that_gain(
    truth: Sequence[Any], predictions: Predictions, num_classes: int
) -> tuple[list[int], list[float]]:
    """The classes whose mean Dice rises when only their largest piece is kept, and by how much each changes.

    num_classes: without the background.
    """
    pairs = [
        (true.array(), mask.array()) for true, mask in zip(truth, predictions.values, strict=True) if mask is not None
    ]
    if not pairs:
        return [], [0.0] * num_classes
    every = range(1, num_classes + 1)
    before = np.array([dice(true, mask, num_classes) for true, mask in pairs])
    after = np.array([dice(true, largest_only(mask, every), num_classes) for true, mask in pairs])
    seen = np.isfinite(before) & np.isfinite(after)
    gains = np.where(seen, after - before, 0.0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
    return [k + 1 for k in range(num_classes) if gains[k] > 0], gains.tolist()
