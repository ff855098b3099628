"""What a row's target means to a network: one class of several with cross entropy, any of several labels with a binary one
each, or a standardised number with squares, or several of those, each with a term of its own.

Totals and counts, never means: see `contract.Task.loss`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from trainers.contract import JSON, Predictions, known_labels

ClassWeights = Literal["none", "balanced"]
MOST_WEIGHT = 100.0
"""What a rare label's rows weigh at most beside the rows without it: one row in ten thousand would rule every step."""


@dataclass(frozen=True)
class Outcome:
    """classes: names, () for numbers.   mean, std: of the training targets.
    weights: one a class, () for equal ones; of several labels what a row with the label weighs beside one without.
    is_set: a row may have any number of the classes.   has_unknown: of some rows not every label is known.
    names, means, stds: of several numbers a row; () for one.
    """

    classes: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    weights: tuple[float, ...] = ()
    is_set: bool = False
    has_unknown: bool = False
    names: tuple[str, ...] = ()
    means: tuple[float, ...] = ()
    stds: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """Outputs of the network for one row."""
        return len(self.classes) or len(self.names) or 1

    def as_json(self) -> JSON:
        """Plain values for the statistics of a learner."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Outcome:
        """What `as_json` wrote."""
        plain: JSON = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**plain)

    def encoded(self, target: np.ndarray) -> np.ndarray:
        """(rows,) class positions int64 or standardised float32; of several labels (rows, classes) float32, 1 where the row
        has it, 0 where not, NaN where nobody knows; of several numbers (rows, names) float32, NaN where nobody knows."""
        if self.is_set:
            return known_labels(target, self.classes).astype(np.float32)
        if self.names:
            numbers = np.array([tuple(row) for row in target], np.float64).reshape(-1, self.width)
            return np.asarray((numbers - np.array(self.means)) / np.array(self.stds), np.float32)
        if self.classes:
            position = {name: i for i, name in enumerate(self.classes)}
            return np.array([position[str(name)] for name in target], dtype=np.int64)
        return ((np.asarray(target, np.float64) - self.mean) / self.std).astype(np.float32)

    def counts(self, encoded: np.ndarray) -> dict[str, float]:
        """What the totals of the loss are divided by: rows, the weights of their classes, or known labels.

        Several labels: each has a term of its own where some are unknown, so that all weigh alike; else one holds all.
        """
        if self.is_set:
            known = np.isfinite(encoded).sum(axis=0)
            by_label = (known * float(self.width)).tolist()  # the sum of the terms is then the mean over the labels
            return dict(zip(self._terms(), by_label if self.has_unknown else [float(known.sum())], strict=True))
        if self.names:
            known = np.isfinite(encoded).sum(axis=0) * float(self.width)  # the sum of the terms is their mean
            return dict(zip(self._terms(), known.tolist(), strict=True))
        if not self.classes:
            return {"squared_error": float(len(encoded))}
        weighed = np.asarray(self.weights)[encoded].sum() if self.weights else len(encoded)
        return {"cross_entropy": float(weighed)}

    def totals(self, outputs: Tensor, encoded: Tensor, *, label_smoothing: float = 0.0) -> dict[str, Tensor]:
        """Total loss. outputs: (rows, width), or (rows, members, width) of an ensemble, whose mean loss it is.

        label_smoothing: share of every label that all classes get alike. Computed in float32.
        """
        num_members = outputs.shape[1] if outputs.ndim == 3 else 1
        answers = outputs.float().reshape(-1, self.width)
        targets = encoded.repeat_interleave(num_members, dim=0)
        if self.is_set:
            return self._label_totals(answers, targets, num_members)
        if self.names:
            squares = (answers - targets.nan_to_num(0.0)).square().masked_fill(~targets.isfinite(), 0.0)
            return dict(zip(self._terms(), squares.sum(dim=0) / num_members, strict=True))
        if not self.classes:
            return {"squared_error": (answers.squeeze(1) - targets).square().sum() / num_members}
        weight = torch.tensor(self.weights, device=outputs.device) if self.weights else None
        total = functional.cross_entropy(answers, targets, weight, reduction="sum", label_smoothing=label_smoothing)
        return {"cross_entropy": total / num_members}

    def _terms(self) -> list[str]:
        if self.names:
            return [f"squared_error_{name}" for name in self.names]
        name = "binary_cross_entropy"
        return [f"{name}_{label}" for label in self.classes] if self.has_unknown else [name]

    def _label_totals(self, answers: Tensor, targets: Tensor, num_members: int) -> dict[str, Tensor]:
        is_known = targets.isfinite()
        weight = torch.tensor(self.weights, device=answers.device) if self.weights else None
        losses = functional.binary_cross_entropy_with_logits(
            answers, targets.nan_to_num(0.0), pos_weight=weight, reduction="none"
        )
        # Not multiplied by the mask: where the network overflows on an unknown label, 0 x inf would be NaN.
        by_label = losses.masked_fill(~is_known, 0.0).sum(dim=0) / num_members
        return dict(zip(self._terms(), by_label if self.has_unknown else [by_label.sum()], strict=True))

    def predictions(self, outputs: Tensor) -> Predictions:
        """Answers from outputs (rows, width), in the unit of the target; those of an ensemble (rows, members, width) are
        the mean over its members."""
        values = outputs.detach().double().cpu()
        values = values if values.ndim == 3 else values.unsqueeze(1)
        if self.is_set:
            return Predictions.of_label_sets(values.sigmoid().mean(dim=1).numpy(), self.classes)
        if self.classes:
            return Predictions.of_labels(values.softmax(dim=2).mean(dim=1).numpy(), self.classes)
        if self.names:
            numbers = values.mean(dim=1).numpy() * np.array(self.stds) + np.array(self.means)
            return Predictions.of_number_rows(numbers, self.names)
        return Predictions.of_numbers(values.squeeze(2).mean(dim=1).numpy() * self.std + self.mean)


def fit_outcome(
    target: np.ndarray, classes: Sequence[str], class_weights: ClassWeights = "none", *, names: Sequence[str] = ()
) -> Outcome:
    """The outcome of these training targets; tuples are sets of labels, or with `names` several numbers.

    `balanced`: a class weighs rows / (classes x its rows), as in scikit-learn; of several labels, rows with one weigh as
    much as rows without, at most MOST_WEIGHT.
    """
    if names and not classes:
        return _of_number_rows(np.array([tuple(row) for row in target], np.float64), tuple(names))
    if not classes:
        numbers = np.asarray(target, np.float64)
        return Outcome(mean=float(numbers.mean()), std=float(numbers.std()) or 1.0)
    if len(target) and isinstance(target[0], tuple):
        return _of_sets(known_labels(target, classes), tuple(classes), class_weights)
    if class_weights == "none":
        return Outcome(tuple(classes))
    counts = np.array([max(1, np.count_nonzero(target.astype(str) == name)) for name in classes])
    return Outcome(tuple(classes), weights=tuple((len(target) / (len(classes) * counts)).tolist()))


def _of_number_rows(numbers: np.ndarray, names: tuple[str, ...]) -> Outcome:
    """numbers: (rows, names), NaN where nobody knows. A target without any number here is neither shifted nor scaled."""
    known = np.isfinite(numbers)
    num = np.maximum(known.sum(axis=0), 1)
    means = np.where(known, numbers, 0.0).sum(axis=0) / num
    spread = np.sqrt(np.where(known, (numbers - means) ** 2, 0.0).sum(axis=0) / num)
    stds = np.where(spread > 0, spread, 1.0)
    return Outcome(names=names, means=tuple(means.tolist()), stds=tuple(stds.tolist()))


def _of_sets(has_label: np.ndarray, classes: tuple[str, ...], class_weights: ClassWeights) -> Outcome:
    with_label, without = np.nansum(has_label, axis=0), np.nansum(1 - has_label, axis=0)
    weights = np.clip(without / np.maximum(with_label, 1), 1 / MOST_WEIGHT, MOST_WEIGHT)
    return Outcome(
        classes,
        weights=tuple(weights.tolist()) if class_weights == "balanced" else (),
        is_set=True,
        has_unknown=bool(np.isnan(has_label).any()),
    )
