"""The models that `fingerprint_trees` puts together: a random forest or boosted trees for one target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainers.contract import Plan, Watch
from trainers.forest import Forest, grow
from trainers.settings import Trees
from trainers.tree_engines import XGBoostForest
from trainers.trees import Sides, boost

Scale = tuple[float, float]
"""Mean and deviation of a number that was standardised."""


class Member(Protocol):
    """What answers for one target."""

    @property
    def scale(self) -> Scale | None: ...
    def answers(self, matrix: np.ndarray) -> np.ndarray:
        """(rows, classes) probabilities, or (rows, 1) numbers. matrix: (rows, features) float32."""


@dataclass(frozen=True)
class ForestMember:
    """A forest. scale: None for classes."""

    forest: Forest
    scale: Scale | None

    def answers(self, matrix: np.ndarray) -> np.ndarray:
        found = self.forest.predict(matrix)
        return found if self.scale is None else found * self.scale[1] + self.scale[0]


@dataclass(frozen=True)
class BoostedMember:
    """Boosted trees. scale: None for classes."""

    forest: XGBoostForest
    scale: Scale | None

    def answers(self, matrix: np.ndarray) -> np.ndarray:
        found = np.asarray(self.forest.predict(matrix), np.float64)
        if self.scale is not None:
            return found[:, None] * self.scale[1] + self.scale[0]
        return np.stack([1 - found, found], axis=1) if found.ndim == 1 else found

    def save(self, folder: Path) -> None:
        """XGBoost's own file, into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.forest.save(folder)


@dataclass(frozen=True)
class Column:
    """One target of the rows where it is known. x: (rows, features) float32.   y: (rows,) numbers of classes, or numbers.
    held: the same of the validation rows, None without.   num_classes: 0 for numbers."""

    x: np.ndarray
    y: np.ndarray
    held: tuple[np.ndarray, np.ndarray] | None
    num_classes: int

    @property
    def scale(self) -> Scale | None:
        """None for classes."""
        return None if self.num_classes else (float(self.y.mean()), float(self.y.std()) or 1.0)


def forest_member(column: Column, options: Any, *, extremely: bool, seed: int, cores: int) -> ForestMember:
    """A random forest, or extremely randomised trees; `options` of `fingerprint_trees`.

    Splits try the root of the features for classes and a third for numbers where nothing is said (Breiman 2001; Hastie et
    al., Elements of Statistical Learning, section 15.3)."""
    scale, num_classes = column.scale, column.num_classes
    # One active among thousands of inactives is a lottery ticket: on HIV validation .793 became .831 (20 trees, one seed).
    least = options.min_leaf or (2 if num_classes else 1)
    most: Any = options.max_features or ("sqrt" if num_classes else 1 / 3)
    weights = (
        {"class_weight": "balanced" if extremely else "balanced_subsample"}
        if num_classes and options.class_weights == "balanced"
        else {}
    )
    more = {"max_features": most, "min_samples_leaf": least, "n_jobs": cores, "extremely": extremely, **weights}
    if scale is not None:
        numbers = (column.y - scale[0]) / scale[1]
        forest = grow(column.x, numbers, is_class=False, num_trees=options.num_trees, seed=seed, **more)
        return ForestMember(forest, scale)
    present, codes = np.unique(column.y.astype(np.int64), return_inverse=True)
    forest = grow(column.x, codes, is_class=True, num_trees=options.num_trees, seed=seed, **more)
    return ForestMember(forest.widened(present, num_classes), None)


def boosted_member(column: Column, plan: Plan, *, seed: int, watch: Watch) -> tuple[BoostedMember, int]:
    """Boosted trees, stopped by the loss on the validation rows where there are any; and how many rounds were grown."""
    mean, deviation = column.scale or (0.0, 1.0)

    def side(matrix: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return matrix, ((numbers - mean) / deviation).astype(np.float32)

    settings, held = Trees(**plan.settings), None if column.held is None else side(*column.held)
    engine = Plan(**{**vars(plan), "options": {}, "seed": seed})  # XGBoost takes the recipe's options as its own
    forest = XGBoostForest.start(Sides(*side(column.x, column.y), held, (), column.num_classes), settings, engine)
    growth = boost(forest, settings, watched=held is not None, watch=watch)
    forest.keep(growth.best_round)
    return BoostedMember(forest, column.scale), growth.num_rounds


def loaded_member(name: str, scale: Any, folder: Path, plan: Plan, arrays: Any) -> Member:
    """The member called `name` from a run folder. arrays: those of all forests."""
    scale = None if scale is None else tuple(scale)
    if name.startswith("boosting"):
        return BoostedMember(XGBoostForest.load(folder / name, plan), scale)
    return ForestMember(Forest.of_arrays(arrays, f"{name}."), scale)
