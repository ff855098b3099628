"""Scores of masks of pictures: IoU and Dice of every class over all pixels of all pictures, as PASCAL VOC and others count
them. A class that no true mask holds has none, and is left out of the mean: what is wrongly taken for it is missing elsewhere,
or shows in the share of right pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from domains.contract import Metric
from domains.images.mask_files import IGNORED
from trainers.contract import Predictions


def mask_metrics(names: Sequence[str]) -> tuple[Metric, ...]:
    """Mean IoU of the foreground decides; then mean Dice, both of every class, and the share of right pixels.

    names: with the background.
    """
    stats = partial(overlap_stats, len(names))
    foreground = range(1, len(names))
    means = [
        Metric("iou", "", True, stats, partial(_mean, _iou, foreground), None, partial(_why, names, foreground)),
        Metric("dice", "", True, stats, partial(_mean, _dice, foreground), None, partial(_why, names, foreground)),
    ]
    each = [
        Metric(f"{kind}_{names[k]}", "", True, stats, partial(_mean, value, [k]), None, partial(_why, names, [k]))
        for kind, value in (("iou", _iou), ("dice", _dice))
        for k in foreground
    ]
    right = Metric("pixel_accuracy", "", True, stats, _pixel_accuracy)
    return (*means, *(each if len(names) > 2 else []), right)


def overlap_stats(num_classes: int, truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    """(rows, 3 K) for each class the pixels that truth and answer share, then those of the truth, then those of the answer;
    unlabelled pixels are left out. An answer that failed shares nothing."""
    rows = []
    for true, answer in zip(truth, predictions.values, strict=True):
        wanted = true.array()
        known = wanted != IGNORED
        found = np.zeros_like(wanted) if answer is None else answer.array()
        codes = wanted[known].astype(np.int64) * num_classes + found[known]
        pairs = np.bincount(codes, minlength=num_classes**2).reshape(num_classes, num_classes)
        rows.append(np.concatenate([np.diag(pairs), pairs.sum(axis=1), pairs.sum(axis=0)]))
    return np.array(rows, float).reshape(-1, 3 * num_classes)


def dice_of(true: np.ndarray, answer: np.ndarray, num_classes: int) -> float:
    """Mean Dice of the foreground classes of one picture that either holds; NaN where there is none."""
    known = true != IGNORED
    both = [np.count_nonzero((true == k) & (answer == k) & known) for k in range(1, num_classes)]
    size = [
        np.count_nonzero((true == k) & known) + np.count_nonzero((answer == k) & known) for k in range(1, num_classes)
    ]
    shares = [2 * b / s for b, s in zip(both, size, strict=True) if s]
    return float(np.mean(shares)) if shares else float("nan")


def _iou(both: np.ndarray, either: np.ndarray) -> np.ndarray:
    return np.asarray(both / (either - both))


def _dice(both: np.ndarray, either: np.ndarray) -> np.ndarray:
    return np.asarray(2 * both / either)


def _mean(value: Callable[[np.ndarray, np.ndarray], np.ndarray], classes: Sequence[int], stats: np.ndarray) -> float:
    both, true, answered = stats.sum(axis=0).reshape(3, -1)[:, list(classes)]
    is_true = true > 0
    return float(value(both[is_true], (true + answered)[is_true]).mean()) if is_true.any() else float("nan")


def _why(names: Sequence[str], classes: Sequence[int], stats: np.ndarray) -> str:
    absent = [names[k] for k in classes if not stats.sum(axis=0).reshape(3, -1)[1, k]]
    return f"no true mask holds {' or '.join(absent)}"


def _pixel_accuracy(stats: np.ndarray) -> float:
    both, true, _ = stats.sum(axis=0).reshape(3, -1).sum(axis=1)
    return float(both / true) if true else float("nan")
