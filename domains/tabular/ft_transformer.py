"""The family `tabular/ft-transformer`: a transformer whose tokens are the cells of a row.

Source: Gorishniy et al. 2021, arXiv 2106.11959, sections 3.3 and appendix E (FT-Transformer).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from domains.contract import Facts
from domains.tabular import task
from domains.tabular.networks import Categories, numbers_of
from domains.tabular.numeric import Scaling, num_categories, num_numbers
from trainers.contract import JSON, Machine, Plan
from trainers.gradient import GradientLearner
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"width": 16, "depth": 1, "heads": 2, "attention_dropout": 0.0, "dropout": 0.0},
    "train": {"epochs": 30, "batch_size": 16, "lr": 5e-3, "precision": "fp32", "compile": "off"},
}


class Options(BaseModel):
    """The `options:` block of tabular/ft-transformer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    depth: int = Field(3, ge=1, description="blocks")
    width: int = Field(64, ge=1, description="of a token, a multiple of heads; 192 in the paper, for a GPU")
    heads: int = Field(4, ge=1)
    inner: float = Field(4 / 3, gt=0, description="width inside a block as a multiple of width")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="doubles the cost of attention on a CPU")
    dropout: float = Field(0.1, ge=0, lt=1, description="inside the feed-forward part of a block")
    scaling: Scaling = Field("quantile", description="quantile: by rank among the distinct values; or standard")
    numbers: Literal["periodic", "linear"] = Field("periodic", description="how a number becomes a token")
    num_frequencies: int = Field(48, ge=1, description="of each number; periodic only")
    frequency_scale: float = Field(1.0, gt=0, description="spread of the first frequencies; periodic only")

    @model_validator(mode="after")
    def _whole_heads(self) -> Options:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of heads {self.heads}")
        return self


class Block(nn.Module):
    """Attention between the cells of a row, then a gated feed-forward part, each normalised before and added after.

    first: without the first norm, which hurts there.   last: only the answering token comes out, so only it is asked.
    """

    def __init__(self, options: Options, *, first: bool, last: bool) -> None:
        super().__init__()
        width, inner = options.width, round(options.width * options.inner)
        self.num_heads, self.attention_dropout, self.last = options.heads, options.attention_dropout, last
        self.norm = nn.Identity() if first else nn.LayerNorm(width)
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.mixed = nn.Linear(width, width)
        self.inner_norm, self.inner = nn.LayerNorm(width), nn.Linear(width, 2 * inner)
        self.dropout, self.outer = nn.Dropout(options.dropout), nn.Linear(inner, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D), or (B, 1, D) from the last block."""
        normed_BTD = self.norm(x_BTD)
        asking = slice(0, 1) if self.last else slice(None)
        x_BTD = x_BTD[:, asking] + self._attention(normed_BTD[:, asking], normed_BTD)
        value, gate = self.inner(self.inner_norm(x_BTD)).chunk(2, dim=-1)
        added_BTD: Tensor = self.outer(self.dropout(value * gate.relu()))
        return x_BTD + added_BTD

    def _attention(self, asking_BSD: Tensor, all_BTD: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in (self.query(asking_BSD), *self.key_value(all_BTD).chunk(2, dim=-1))
        )
        dropout = self.attention_dropout if self.training else 0.0
        found = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        mixed_BSD: Tensor = self.mixed(found.transpose(1, 2).flatten(2))
        return mixed_BSD


class FTTransformer(nn.Module):
    """A token that will hold the answer and one for each cell, blocks, and a head on the answer."""

    def __init__(self, num_numbers: int, sizes: list[int], num_outputs: int, options: Options) -> None:
        super().__init__()
        width, last = options.width, options.depth - 1
        self.numbers = numbers_of(options, num_numbers, width) if num_numbers else None
        self.categories = Categories(sizes, width) if sizes else None
        # Unknown categories all start at zero: the bias says which column they are of.
        self.category_bias_CD = nn.Parameter(_small(len(sizes), width)) if sizes else None
        self.answer_D = nn.Parameter(_small(width))
        self.blocks = nn.ModuleList(Block(options, first=at == 0, last=at == last) for at in range(options.depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, num_outputs))

    def forward(self, numbers_BN: Tensor, missing_BN: Tensor, codes_BC: Tensor) -> Tensor:
        """(B, 1, O)."""
        tokens = [self.answer_D.expand(len(numbers_BN), 1, -1)]
        tokens += [] if self.numbers is None else [self.numbers(numbers_BN, missing_BN)]
        tokens += [] if self.categories is None else [self.categories(codes_BC) + self.category_bias_CD]
        x_BTD = torch.cat(tokens, dim=1)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        answers_BKO: Tensor = self.head(x_BTD)
        return answers_BKO


def _small(*shape: int) -> Tensor:
    bound = shape[-1] ** -0.5
    return torch.empty(shape).uniform_(-bound, bound)


def network(facts: Facts, options: Options) -> FTTransformer:
    """A fresh network for these columns, from torch's generator."""
    columns = facts.schema["columns"]
    return FTTransformer(num_numbers(columns), num_categories(columns), facts.num_outputs, options)


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Steps, parameters, memory and notes on columns."""
    columns = facts.schema["columns"]
    num_tokens = 1 + num_numbers(columns) + len(num_categories(columns))
    floats = (
        options.depth * num_tokens * (round(8 + 4 * options.inner) * options.width + 2 * options.heads * num_tokens)
    )
    return task.estimates(facts, settings, lambda: network(facts, options), row_floats=floats)


def build(plan: Plan) -> GradientLearner:
    """A fresh learner."""
    return task.learner_of(plan, Options.model_validate(plan.options), network)


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner saved in `folder`."""
    maker = task.task_maker(plan, Options.model_validate(plan.options), network)
    return GradientLearner.load(plan, folder, maker)
