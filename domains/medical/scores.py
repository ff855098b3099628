"""Scores of masks: Dice and the 95 % Hausdorff distance of every class, a few floats a case.

A class that neither mask holds has no Dice in that case: the case is left out of that class's mean and counted as undefined.
A class that only one of the two holds has Dice 0, and no distance (left out and counted likewise).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from scipy.ndimage import binary_erosion, distance_transform_edt

from domains.contract import Metric
from trainers.contract import Predictions


def segmentation_metrics(names: Sequence[str]) -> tuple[Metric, ...]:
    """Mean over `names` (the foreground classes, in order) of the mean Dice over cases; it decides. Then each class."""
    dice, distance = partial(_dices, len(names)), partial(_distances, len(names))
    each = [_of_class(f"dice_{name}", "", True, dice, k) for k, name in enumerate(names)]
    far = [_of_class(f"hd95_{name}", "mm", False, distance, k) for k, name in enumerate(names)]
    both = {"dice": Metric("dice", "", True, dice, _mean_of_classes, _num_defined)}
    both["hd95"] = Metric("hd95", "mm", False, distance, _mean_of_classes, _num_defined)
    return (both["dice"], *each, both["hd95"], *far) if len(names) > 1 else (both["dice"], both["hd95"])


def _of_class(name: str, unit: str, higher: bool, stats: partial[np.ndarray], k: int) -> Metric:
    return Metric(name, unit, higher, stats, partial(_mean_of_one, k), partial(_num_defined_of_one, k))


def dice(truth: np.ndarray, answer: np.ndarray, num_classes: int) -> np.ndarray:
    """(num_classes,) Dice of classes 1.. of two masks of class numbers; NaN where neither holds the class."""
    size = num_classes + 1
    pairs = np.bincount(truth.ravel().astype(np.int64) * size + answer.ravel(), minlength=size * size).reshape(
        size, size
    )
    both = pairs.sum(axis=0) + pairs.sum(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray((2 * np.diag(pairs) / both)[1:])


def hausdorff95(truth: np.ndarray, answer: np.ndarray, spacing: Sequence[float]) -> float:
    """The 95th percentile, in mm, of the distances from each surface to the other; the larger of the two directions.

    truth, answer: bool of equal shape.   spacing: mm along each axis. NaN where either is empty.
    Source: Huttenlocher et al. 1993; the percentile as MONAI takes it, of each direction by itself.
    """
    if not truth.any() or not answer.any():
        return float("nan")
    box = tuple(slice(max(0, at.min() - 1), at.max() + 2) for at in np.nonzero(truth | answer))
    surfaces = [mask[box] & ~binary_erosion(mask[box]) for mask in (truth, answer)]
    ways = []
    for one, other in (surfaces, surfaces[::-1]):
        away = distance_transform_edt(~other, sampling=spacing)
        ways.append(float(np.percentile(away[one], 95)))
    return max(ways)


def _dices(num_classes: int, truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    """(cases, classes)"""
    pairs = zip(truth, predictions.values, strict=True)
    return np.array([dice(true.array(), answer.array(), num_classes) for true, answer in pairs]).reshape(
        -1, num_classes
    )


def _distances(num_classes: int, truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    """(cases, classes) in mm"""
    found = np.full((len(truth), num_classes), np.nan)
    for row, (true, answer) in enumerate(zip(truth, predictions.values, strict=True)):
        masks, geometry = (true.array(), answer.array()), answer.geometry
        spacing = np.linalg.norm(geometry.matrix[:3, :3], axis=0)
        for k in range(num_classes):
            found[row, k] = hausdorff95(masks[0] == k + 1, masks[1] == k + 1, spacing)
    return found


def _mean_of_classes(stats: np.ndarray) -> float:
    means = [_mean_of_one(k, stats) for k in range(stats.shape[1])]
    found = [mean for mean in means if np.isfinite(mean)]
    return float(np.mean(found)) if found else float("nan")


def _mean_of_one(k: int, stats: np.ndarray) -> float:
    defined = stats[np.isfinite(stats[:, k]), k]
    return float(defined.mean()) if len(defined) else float("nan")


def _num_defined(stats: np.ndarray) -> int:
    return int(np.isfinite(stats).any(axis=1).sum())


def _num_defined_of_one(k: int, stats: np.ndarray) -> int:
    return int(np.isfinite(stats[:, k]).sum())
