"""The family `tabular/xgboost`: boosted trees by XGBoost (Chen and Guestrin 2016, arXiv 1603.02754)."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from domains.contract import Facts
from domains.tabular.encode import Encoder
from domains.tabular.families import estimates
from trainers.contract import JSON, Learner, Machine, Plan
from trainers.settings import Trees
from trainers.tree_engines import XGBoostForest
from trainers.trees import TreesLearner, load_learner


class Options(BaseModel):
    """What only XGBoost has, by its own names."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    gamma: float = Field(0.0, ge=0, description="loss that a split must save")
    max_cat_to_onehot: int = Field(4, ge=1, description="with fewer categories each is split off alone")
    max_cat_threshold: int = Field(64, ge=1, description="categories on one side of a split at most")


TINY: JSON = {"options": {}, "train": {"rounds": 30, "early_stopping": 10, "lr": 0.3, "max_depth": 3}}


def plan(facts: Facts, options: Options, settings: Trees, machine: Machine) -> JSON:
    """Rounds, memory and notes; MissingError without the package."""
    return estimates("xgboost", facts, settings, machine)


def build(plan: Plan) -> Learner:
    """A fresh learner."""
    return TreesLearner(plan, XGBoostForest.start, Encoder(plan.facts["schema"]["columns"]))


def load(plan: Plan, folder: Path) -> Learner:
    """The learner saved in `folder`."""
    return load_learner(plan, folder, XGBoostForest.load, Encoder)
