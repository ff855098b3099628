"""The cheap rival of a network on labelled scans: a linear model on scans of a few voxels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from domains.contract import Baseline
from domains.medical.labelled import SCAN
from domains.medical.scans import read_scan, slices_of
from domains.shared.pictures import in_threads

_SLICES, _SIDE = 4, 8
C = 0.01
"""Of the logistic regression, on standardised voxels. A first guess: nothing else was tried."""


def coarse_scans(task: str) -> Baseline:
    """Logistic (or ridge) regression on four slices of 8 x 8 pixels, each scan scaled by its own percentiles."""
    from domains.baselines import with_estimator

    about = f"a linear model on scans shrunk to {_SLICES} slices of {_SIDE} x {_SIDE} pixels"
    return with_estimator("coarse scans", about, make=lambda: _estimator(task), features=_features, task=task)


def _features(rows: Any) -> np.ndarray:
    def shrunk(path: str) -> np.ndarray:
        return slices_of(read_scan(Path(path)), num=_SLICES, side=_SIDE, window=None).reshape(-1)

    return np.stack(in_threads(shrunk, list(rows.column(SCAN)))).astype(np.float32)


def _estimator(task: str) -> Any:
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if task == "regression":
        return make_pipeline(StandardScaler(), RidgeCV(alphas=np.logspace(0, 5, 11)))
    return make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=300))
