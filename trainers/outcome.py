"""What a row's target means to a network: class positions with cross entropy, or a standardised number with squares.

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

from trainers.contract import JSON, Predictions

ClassWeights = Literal["none", "balanced"]


@dataclass(frozen=True)
class Outcome:
    """classes: names, () for numbers.   mean, std: of the training targets.   weights: one a class, () for equal ones."""

    classes: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    weights: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """Outputs of the network for one row."""
        return len(self.classes) or 1

    def as_json(self) -> JSON:
        """Plain values for the statistics of a learner."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Outcome:
        """What `as_json` wrote."""
        return cls(tuple(values["classes"]), values["mean"], values["std"], tuple(values["weights"]))

    def encoded(self, target: np.ndarray) -> np.ndarray:
        """(rows,) class positions int64, or standardised float32."""
        if self.classes:
            position = {name: i for i, name in enumerate(self.classes)}
            return np.array([position[str(name)] for name in target], dtype=np.int64)
        return ((np.asarray(target, np.float64) - self.mean) / self.std).astype(np.float32)

    def counts(self, encoded: np.ndarray) -> dict[str, float]:
        """What the total of the loss is divided by: rows, or the weights of their classes."""
        if not self.classes:
            return {"squared_error": float(len(encoded))}
        weighed = np.asarray(self.weights)[encoded].sum() if self.weights else len(encoded)
        return {"cross_entropy": float(weighed)}

    def totals(self, outputs: Tensor, encoded: Tensor, *, label_smoothing: float = 0.0) -> dict[str, Tensor]:
        """Total loss. outputs: (rows, width), or (rows, members, width) of an ensemble, whose mean loss it is.

        label_smoothing: share of every label that all classes get alike. Computed in float32.
        """
        num_members = outputs.shape[1] if outputs.ndim == 3 else 1
        answers, targets = outputs.float().reshape(-1, self.width), encoded.repeat_interleave(num_members)
        if not self.classes:
            return {"squared_error": (answers.squeeze(1) - targets).square().sum() / num_members}
        weight = torch.tensor(self.weights, device=outputs.device) if self.weights else None
        total = functional.cross_entropy(answers, targets, weight, reduction="sum", label_smoothing=label_smoothing)
        return {"cross_entropy": total / num_members}

    def predictions(self, outputs: Tensor) -> Predictions:
        """Answers from outputs (rows, width), in the unit of the target; those of an ensemble (rows, members, width) are
        the mean over its members."""
        values = outputs.detach().double().cpu()
        values = values if values.ndim == 3 else values.unsqueeze(1)
        if self.classes:
            return Predictions.of_labels(values.softmax(dim=2).mean(dim=1).numpy(), self.classes)
        return Predictions.of_numbers(values.squeeze(2).mean(dim=1).numpy() * self.std + self.mean)


def fit_outcome(target: np.ndarray, classes: Sequence[str], class_weights: ClassWeights = "none") -> Outcome:
    """The outcome of these training targets. `balanced`: a class weighs rows / (classes x its rows), as in scikit-learn."""
    if not classes:
        numbers = np.asarray(target, np.float64)
        return Outcome(mean=float(numbers.mean()), std=float(numbers.std()) or 1.0)
    if class_weights == "none":
        return Outcome(tuple(classes))
    counts = np.array([max(1, np.count_nonzero(target.astype(str) == name)) for name in classes])
    return Outcome(tuple(classes), weights=tuple((len(target) / (len(classes) * counts)).tolist()))
