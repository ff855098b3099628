"""XGBoost and LightGBM as a `trainers.trees.Forest` each: how the common settings are spelled, and where models lie.

Both get category numbers in a float32 matrix, so that what a number means is our own JSON and not the engine's memory.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from trainers.contract import JSON, Plan
from trainers.settings import Trees
from trainers.trees import Sides

XGBOOST_FILE = "model.ubj"
LIGHTGBM_FILE = "model.txt"
# Below this many cells a thread waits longer for the others than it works (22,800 x 14 cells of adult gain .3 of the
# time from a second thread; 1,100 x 11 lose).
CELLS_A_THREAD = 200_000


def with_sleeping_threads(name: str) -> Any:
    """Import the library `name` so that its OpenMP threads sleep while they wait, unless the user says otherwise.

    Spinning threads are a little faster alone on a machine, and ruinous beside other work or under a container's quota:
    on two busy cores 60 rounds of adult took 6.4 CPU-seconds spinning and 0.8 asleep. OpenMP reads the variable
    once, when it loads, so it is put back at once and no other library sees it. Where torch was imported before, its
    OpenMP serves everybody, and nothing can be changed any more.
    """
    before = os.environ.get("OMP_WAIT_POLICY")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return importlib.import_module(name)
    finally:
        if before is None:
            del os.environ["OMP_WAIT_POLICY"]


def num_threads(cores: int, num_cells: int) -> int:
    """Threads worth starting for a matrix of so many cells."""
    return min(cores, 1 + num_cells // CELLS_A_THREAD)


class XGBoostForest:
    """XGBoost with histograms (Chen and Guestrin 2016, arXiv 1603.02754)."""

    def __init__(self, booster: Any, train: Any = None, valid: Any = None) -> None:
        self._booster, self._train, self._valid = booster, train, valid
        self._round = 0

    @classmethod
    def start(cls, sides: Sides, settings: Trees, plan: Plan) -> XGBoostForest:
        """An empty model over `sides`."""
        xgboost = with_sleeping_threads("xgboost")
        kinds = ["c" if j in sides.categorical else "q" for j in range(sides.x.shape[1])]
        common = {
            "feature_types": kinds,
            "enable_categorical": True,
            "nthread": num_threads(plan.machine.cores, sides.x.size),
            "max_bin": settings.max_bin,
        }
        train = xgboost.QuantileDMatrix(sides.x, sides.y, **common)
        valid = xgboost.QuantileDMatrix(*sides.valid, ref=train, **common) if sides.valid else None
        booster = xgboost.Booster(
            xgboost_params(settings, plan, sides.num_classes), [train, *([valid] if valid else [])]
        )
        return cls(booster, train, valid)

    def grow(self) -> None:
        self._booster.update(self._train, self._round)
        self._round += 1

    def valid_loss(self) -> float:
        # The library's own early stopping reads the same text; it carries every digit of the float32 loss.
        return float(self._booster.eval(self._valid, "valid", self._round - 1).rpartition(":")[2])

    def keep(self, rounds: int) -> None:
        if rounds < self._round:
            self._booster = self._booster[:rounds]
        self._train = self._valid = None

    def predict(self, matrix: np.ndarray) -> np.ndarray:
        return np.asarray(self._booster.inplace_predict(matrix, validate_features=False))

    def save(self, folder: Path) -> None:
        self._booster.save_model(folder / XGBOOST_FILE)

    @classmethod
    def load(cls, folder: Path, plan: Plan) -> XGBoostForest:
        """The model in `folder`, predicting with the plan's number of threads."""
        xgboost = with_sleeping_threads("xgboost")
        return cls(xgboost.Booster({"nthread": plan.machine.cores}, model_file=folder / XGBOOST_FILE))


def xgboost_params(settings: Trees, plan: Plan, num_classes: int) -> JSON:
    """XGBoost's parameters. num_classes: 0 for regression. The recipe's options are passed on by name."""
    objective = {0: ("reg:squarederror", "rmse"), 2: ("binary:logistic", "logloss")}
    name, loss = objective.get(num_classes, ("multi:softprob", "mlogloss"))
    return {
        "objective": name,
        "eval_metric": loss,
        **({"num_class": num_classes} if num_classes > 2 else {}),
        "tree_method": "hist",
        "learning_rate": settings.lr,
        "max_depth": settings.max_depth,
        "min_child_weight": settings.min_child_weight,
        "subsample": settings.subsample,
        "colsample_bytree": settings.colsample,
        "reg_lambda": settings.reg_lambda,
        "reg_alpha": settings.reg_alpha,
        "max_bin": settings.max_bin,
        "seed": plan.seed,
        "nthread": plan.machine.cores,
        "verbosity": 0,
        **plan.options,
    }


class LightGBMForest:
    """LightGBM, which grows the leaf of highest gain first (Ke et al. 2017, NeurIPS)."""

    def __init__(self, booster: Any, cores: int) -> None:
        self._booster, self._cores = booster, cores

    @classmethod
    def start(cls, sides: Sides, settings: Trees, plan: Plan) -> LightGBMForest:
        """An empty model over `sides`."""
        lightgbm = with_sleeping_threads("lightgbm")
        threads = num_threads(plan.machine.cores, sides.x.size)
        params = {**lightgbm_params(settings, plan, sides.num_classes), "num_threads": threads}
        categorical = list(sides.categorical)
        train = lightgbm.Dataset(sides.x, sides.y, categorical_feature=categorical, params=params)
        booster = lightgbm.Booster(params, train)
        if sides.valid:
            booster.add_valid(train.create_valid(*sides.valid, params=train.get_params()), "valid")
        return cls(booster, plan.machine.cores)

    def grow(self) -> None:
        self._booster.update()

    def valid_loss(self) -> float:
        return float(self._booster.eval_valid()[0][2])

    def keep(self, rounds: int) -> None:
        lightgbm = with_sleeping_threads("lightgbm")
        # A model read back from its text holds no data, and predicts with just these trees.
        self._booster = lightgbm.Booster(model_str=self._booster.model_to_string(num_iteration=rounds))

    def predict(self, matrix: np.ndarray) -> np.ndarray:
        if not len(matrix):
            num_columns = self._booster.num_model_per_iteration()
            return np.empty(0 if num_columns == 1 else (0, num_columns))
        return np.asarray(self._booster.predict(matrix, num_threads=num_threads(self._cores, matrix.size)))

    def save(self, folder: Path) -> None:
        self._booster.save_model(folder / LIGHTGBM_FILE)

    @classmethod
    def load(cls, folder: Path, plan: Plan) -> LightGBMForest:
        """The model in `folder`, predicting with the plan's number of threads."""
        lightgbm = with_sleeping_threads("lightgbm")
        return cls(lightgbm.Booster(model_file=folder / LIGHTGBM_FILE), plan.machine.cores)


def lightgbm_params(settings: Trees, plan: Plan, num_classes: int) -> JSON:
    """LightGBM's parameters. num_classes: 0 for regression. The recipe's options are passed on by name."""
    objective = {0: ("regression", "rmse"), 2: ("binary", "binary_logloss")}
    name, loss = objective.get(num_classes, ("multiclass", "multi_logloss"))
    return {
        "objective": name,
        "metric": loss,
        **({"num_class": num_classes} if num_classes > 2 else {}),
        "learning_rate": settings.lr,
        "max_depth": settings.max_depth or -1,
        "min_sum_hessian_in_leaf": settings.min_child_weight,
        "bagging_fraction": settings.subsample,
        "bagging_freq": 1 if settings.subsample < 1 else 0,
        "feature_fraction": settings.colsample,
        "lambda_l2": settings.reg_lambda,
        "lambda_l1": settings.reg_alpha,
        "max_bin": settings.max_bin,
        "seed": plan.seed,
        "num_threads": plan.machine.cores,
        # Same bits on every run, at a few per cent of the speed; row-wise also saves the timing trial at the start.
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
        **plan.options,
    }
