"""The family `tabular/mlp`: a multilayer perceptron on embedded cells, alone or as an ensemble that shares weights.

Sources: Gorishniy et al. 2022, arXiv 2203.05556 (periodic embeddings of numbers); Gorishniy et al. 2025,
arXiv 2410.24210 (TabM: the ensemble).
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from domains.contract import Facts
from domains.tabular import task
from domains.tabular.networks import Categories, Heads, SharedLinear, numbers_of
from domains.tabular.numeric import Scaling, num_categories, num_numbers
from trainers.contract import JSON, Machine, Plan
from trainers.gradient import GradientLearner
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"width": 32, "depth": 1, "ensemble": 2, "num_frequencies": 8, "number_width": 8, "dropout": 0.0},
    "train": {"epochs": 30, "batch_size": 16, "lr": 5e-3, "precision": "fp32", "compile": "off"},
}


class Options(BaseModel):
    """The `options:` block of tabular/mlp."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    depth: int = Field(2, ge=1, description="hidden layers")
    width: int = Field(256, ge=1, description="of a hidden layer")
    dropout: float = Field(0.3, ge=0, lt=1)
    ensemble: int = Field(1, ge=1, description="members that share their matrices (TabM), 8 to 32; 1: a plain network")
    scaling: Scaling = Field("quantile", description="quantile: by rank among the distinct values; or standard")
    numbers: Literal["periodic", "linear"] = Field("periodic", description="how a number becomes a vector")
    number_width: int = Field(24, ge=1, description="of the vector of a number")
    num_frequencies: int = Field(48, ge=1, description="of each number; periodic only")
    frequency_scale: float = Field(1.0, gt=0, description="spread of the first frequencies; periodic only")
    category_width: int = Field(16, ge=1, description="of the vector of a category")


class Mlp(nn.Module):
    """Embedded cells side by side, hidden layers with ReLU and dropout, one head a member.

    sizes: categories of each category column.   num_outputs: O.
    """

    def __init__(self, num_numbers: int, sizes: list[int], num_outputs: int, options: Options) -> None:
        super().__init__()
        self.numbers = numbers_of(options, num_numbers, options.number_width) if num_numbers else None
        self.categories = Categories(sizes, options.category_width) if sizes else None
        widths = [num_numbers * options.number_width + len(sizes) * options.category_width]
        widths += [options.width] * options.depth
        pairs = pairwise(widths)
        self.blocks = nn.ModuleList(_layer(i, o, options, first=at == 0) for at, (i, o) in enumerate(pairs))
        self.dropout = nn.Dropout1d(options.dropout)
        self.head = Heads(options.width, num_outputs, options.ensemble)

    def forward(self, numbers_BN: Tensor, missing_BN: Tensor, codes_BC: Tensor) -> Tensor:
        """(B, K, O)."""
        parts = [] if self.numbers is None else [self.numbers(numbers_BN, missing_BN).flatten(1)]
        parts += [] if self.categories is None else [self.categories(codes_BC).flatten(1)]
        x_BKI = torch.cat(parts, dim=1)[:, None]
        for layer in self.blocks:
            # The members of a row drop the same units: own chance for each cost a third of a step.
            x_BKI = self.dropout(layer(x_BKI).relu().transpose(1, 2)).transpose(1, 2)
        answers_BKO: Tensor = self.head(x_BKI)
        return answers_BKO


def _layer(num_inputs: int, num_outputs: int, options: Options, *, first: bool) -> nn.Module:
    if options.ensemble == 1:
        return nn.Linear(num_inputs, num_outputs)
    return SharedLinear(num_inputs, num_outputs, options.ensemble, first=first)


def network(facts: Facts, options: Options) -> Mlp:
    """A fresh network for these columns, from torch's generator."""
    columns = facts.schema["columns"]
    return Mlp(num_numbers(columns), num_categories(columns), facts.num_outputs, options)


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Steps, parameters, memory and notes on columns."""
    floats = options.ensemble * options.width * options.depth * 3
    floats += num_numbers(facts.schema["columns"]) * (4 * options.num_frequencies + 2 * options.number_width)
    return task.estimates(facts, settings, lambda: network(facts, options), row_floats=floats)


def build(plan: Plan) -> GradientLearner:
    """A fresh learner."""
    return task.learner_of(plan, Options.model_validate(plan.options), network)


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner saved in `folder`."""
    maker = task.task_maker(plan, Options.model_validate(plan.options), network)
    return GradientLearner.load(plan, folder, maker)
