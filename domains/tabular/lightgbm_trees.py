"""The family `tabular/lightgbm`: trees grown leaf by leaf by LightGBM (Ke et al. 2017, NeurIPS)."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from domains.contract import Facts
from domains.tabular.encode import Encoder
from domains.tabular.families import estimates
from trainers.contract import JSON, Learner, Machine, Plan
from trainers.settings import Trees
from trainers.tree_engines import LightGBMForest
from trainers.trees import TreesLearner, load_learner


class Options(BaseModel):
    """What only LightGBM has, by its own names."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    num_leaves: int = Field(31, gt=1, description="leaves of a tree: what bounds it, rather than its depth")
    min_data_in_leaf: int = Field(20, ge=0)
    cat_smooth: float = Field(10.0, ge=0, description="pulls rare categories to the mean")
    cat_l2: float = Field(10.0, ge=0, description="shrinks splits on categories")


TINY: JSON = {
    "options": {"num_leaves": 7, "min_data_in_leaf": 3},
    "train": {"rounds": 30, "early_stopping": 10, "lr": 0.3},
}


def plan(facts: Facts, options: Options, settings: Trees, machine: Machine) -> JSON:
    """Rounds, memory and notes; MissingError without the package."""
    return estimates("lightgbm", facts, settings, machine)


def build(plan: Plan) -> Learner:
    """A fresh learner."""
    return TreesLearner(plan, LightGBMForest.start, Encoder(plan.facts["schema"]["columns"]))


def load(plan: Plan, folder: Path) -> Learner:
    """The learner saved in `folder`."""
    return load_learner(plan, folder, LightGBMForest.load, Encoder)
