"""The cheap rival: a linear model on the frozen network's features, which fine-tuning must beat to be worth its price."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from domains.contract import Baseline, Facts
from domains.images.labelled import FILE
from domains.images.table import LABEL_SETS
from domains.images.views import PlainViews
from domains.shared import timm_backbone as nets
from trainers.contract import Plan

_AT_ONCE = 64
C = 1e-3
"""Of the logistic regression, on standardised features. The best of 1e-4 to 1e-1 on CIFAR-10: .687 .733 .729 .722."""


def linear_probe(plan: Plan, options: Any) -> Baseline:
    """Logistic (or ridge) regression on pooled features of the pretrained network, at the size that training uses."""
    from domains.baselines import by_label, with_estimator

    about = "a linear model on the features of the same pretrained network, frozen"
    features = _Features(plan, options)
    if plan.task == LABEL_SETS:
        return by_label("linear probe", about, plan.facts["classes"], partial(_scaled, features), C=C)
    return with_estimator("linear probe", about, make=lambda: _estimator(plan.task), features=features, task=plan.task)


def _estimator(task: str) -> Any:
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if task == "regression":
        return make_pipeline(StandardScaler(), RidgeCV(alphas=np.logspace(0, 5, 11)))
    return make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=300))


def _scaled(features: _Features, train: Any) -> tuple[np.ndarray, Callable[[Any], np.ndarray]]:
    """Standardised features of the training rows, and what makes those of others."""
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    matrix: np.ndarray = scaler.fit_transform(features(train))
    return matrix, lambda rows: np.asarray(scaler.transform(features(rows)))


class _Features:
    """features(rows) -> (rows, channels) float32; the network is loaded at the first call."""

    def __init__(self, plan: Plan, options: Any) -> None:
        self.plan, self.options = plan, options
        self.model: torch.nn.Module | None = None

    def __call__(self, rows: Any) -> np.ndarray:
        from domains.images.cnn import backbone_of, picture_config
        from trainers.precision import autocast

        facts, device = Facts.from_json(self.plan.facts), torch.device(self.plan.machine.device)
        found = backbone_of(self.options, facts)
        config = picture_config(facts, found, self.options)
        if self.model is None:
            self.model = nets.build_network(found.as_json(), 0, weights=found.weights)
            self.model = self.model.to(device).to(memory_format=torch.channels_last).eval()
        views, parts = PlainViews(config), []
        paths = [Path(rows.context["root"]) / file for file in rows.column(FILE)]
        with torch.no_grad(), autocast(self.plan.settings["precision"], self.plan.machine):
            for start in range(0, len(paths), _AT_ONCE):
                pictures = views.batch(paths[start : start + _AT_ONCE]).to(device)
                parts.append(self.model(nets.normalised(pictures, config)).float().cpu().numpy())
        return np.concatenate(parts)
