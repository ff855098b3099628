"""Random forests as plain arrays: grown by scikit-learn, kept as safetensors, and answered from without scikit-learn's own
format (a pickle). Extremely randomised trees are forests, too.

Source: Breiman 2001, Machine Learning 45:5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

ROWS_AT_ONCE = 4096
_NAMES = ("feature", "threshold", "left", "right", "value", "roots")


@dataclass(frozen=True)
class Forest:
    """All nodes of all trees in a row. Inner nodes: `feature`, `threshold` (<= goes left), `left` and `right` as positions
    of nodes; leaves have feature -1. value: (nodes, outputs), class shares or a number. roots: (trees,) first nodes."""

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray
    roots: np.ndarray

    def predict(self, matrix: np.ndarray) -> np.ndarray:
        """(rows, outputs) the mean of the leaves that each row of `matrix` (rows, features) float32 falls into."""
        parts = [self._answers(matrix[at : at + ROWS_AT_ONCE]) for at in range(0, len(matrix), ROWS_AT_ONCE)]
        return np.concatenate(parts) if parts else np.zeros((0, self.value.shape[1]))

    def _answers(self, matrix: np.ndarray) -> np.ndarray:
        total = np.zeros((len(matrix), self.value.shape[1]))
        for root in self.roots:
            node, moving = np.full(len(matrix), root), np.arange(len(matrix))
            while len(moving):
                feature = self.feature[node[moving]]
                moving, feature = moving[feature >= 0], feature[feature >= 0]
                here = node[moving]
                goes_left = matrix[moving, feature] <= self.threshold[here]
                node[moving] = np.where(goes_left, self.left[here], self.right[here])
            total += self.value[node]
        return total / len(self.roots)

    def widened(self, present: np.ndarray, num_classes: int) -> Forest:
        """The same with `num_classes` outputs, of which these are the ones at `present`; the others are 0."""
        value = np.zeros((len(self.value), num_classes), np.float32)
        value[:, present] = self.value
        return replace(self, value=value)

    def arrays(self, prefix: str = "") -> dict[str, np.ndarray]:
        """What `safetensors` writes."""
        return {prefix + name: np.ascontiguousarray(getattr(self, name)) for name in _NAMES}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray], prefix: str = "") -> Forest:
        """The forest of `arrays`."""
        return cls(*(arrays[prefix + name] for name in _NAMES))


def grow(
    matrix: np.ndarray,
    target: np.ndarray,
    *,
    is_class: bool,
    num_trees: int,
    seed: int,
    extremely: bool = False,
    **options: Any,
) -> Forest:
    """A random forest for these rows, or extremely randomised trees: grown on all rows, with one threshold drawn at random
    for each tried feature (Geurts et al. 2006, Machine Learning 63:3).

    matrix: (rows, features) float32, finite.   target: whole numbers 0.. of classes (is_class: all of 0..max occur), or
    numbers.   options: scikit-learn's (max_features, min_samples_leaf, n_jobs ...)."""
    from sklearn import ensemble

    kind = ("ExtraTrees" if extremely else "RandomForest") + ("Classifier" if is_class else "Regressor")
    grown = getattr(ensemble, kind)(num_trees, random_state=seed, **options).fit(matrix, target)
    return _joined([tree.tree_ for tree in grown.estimators_], is_class)


def _joined(trees: list[Any], is_class: bool) -> Forest:
    roots = np.cumsum([0, *(tree.node_count for tree in trees)])[:-1]

    def together(name: str, kind: Any) -> np.ndarray:
        return np.concatenate([getattr(tree, name) for tree in trees]).astype(kind)

    offset = np.repeat(roots, [tree.node_count for tree in trees])
    value = np.concatenate([tree.value[:, 0, :] for tree in trees])
    if is_class:  # shares, whether this version of scikit-learn keeps counts or shares
        value = value / value.sum(axis=1, keepdims=True)
    left, right = together("children_left", np.int64), together("children_right", np.int64)
    # float64 thresholds: scikit-learn compares float32 features with them, and a rounded one sends rows the other way.
    return Forest(
        np.where(left < 0, -1, together("feature", np.int64)).astype(np.int32),
        together("threshold", np.float64),
        (left + offset).astype(np.int32),
        (right + offset).astype(np.int32),
        value.astype(np.float32),
        roots.astype(np.int64),
    )
