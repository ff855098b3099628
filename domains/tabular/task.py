"""The inner contract for tables: rows kept as tensors, losses and predictions of any network over their cells.

A network takes numbers (B, N), missing (B, N) and codes (B, C), and answers (B, K, O) for K members of an ensemble (one,
where there is none) and O classes or one number. Every member learns for itself; their mean is the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from domains.contract import Facts
from domains.tabular.families import column_notes
from domains.tabular.networks import roles_of
from domains.tabular.numeric import cells, fit_scales
from trainers.contract import JSON, Batch, Plan, Predictions, Role
from trainers.gradient import GradientLearner
from trainers.outcome import Outcome, fit_outcome
from trainers.settings import Gradient

MakeNetwork = Callable[[Facts, Any], torch.nn.Module]
BASE_BYTES = 400 << 20
BYTES_A_PARAMETER = 16
"""Weights, gradients and two moments, in float32."""


class TableTask:
    """Meets `trainers.contract.Task`. Examples are positions in tensors that `examples` made once."""

    couples_rows = False
    min_rows = 1

    def __init__(self, model: torch.nn.Module, facts: Facts, fitted: JSON) -> None:
        self.model, self.facts, self.fitted = model, facts, fitted
        self.outcome = Outcome.from_json(fitted["outcome"])
        self.inputs: tuple[torch.Tensor, ...] = ()
        self.targets = torch.empty(0)

    def roles(self) -> Mapping[str, Role]:
        """By the names of the network's parts."""
        return roles_of(self.model)

    def examples(self, train: Any, folder: Path) -> Sequence[int]:
        """Positions of rows; their tensors stay in memory, 8 bytes a number and a category."""
        self.inputs, self.targets = self.collate(train), torch.from_numpy(self.outcome.encoded(train.target()))
        return range(len(train))

    def sizes(self, examples: Sequence[int]) -> None:
        """All rows cost the same."""

    def draw(self, examples: Sequence[int], rngs: Sequence[np.random.Generator]) -> Batch:
        """The tensors of these rows and their targets."""
        positions = torch.tensor(examples)
        inputs = tuple(tensor[positions] for tensor in self.inputs)
        targets = self.targets[positions]
        return Batch((inputs, targets), self.outcome.counts(targets.numpy()))

    def loss(self, model: torch.nn.Module, inputs: Any) -> Mapping[str, torch.Tensor]:
        """Cross entropy or squared error (of standardised numbers), summed over rows, the mean over members."""
        features, targets = inputs
        return self.outcome.totals(model(*features), targets)

    def row_sizes(self, rows: Any) -> None:
        """All rows cost the same."""

    def collate(self, rows: Any) -> tuple[torch.Tensor, ...]:
        """numbers (rows, N), missing (rows, N), codes (rows, C)."""
        found = cells(rows, self.facts.schema["columns"], self.fitted["scales"])
        return torch.from_numpy(found.numbers), torch.from_numpy(found.missing), torch.from_numpy(found.codes)

    def predict(self, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Predictions:
        """The mean over members of the class probabilities, or of the numbers in the unit of the target."""
        return self.outcome.predictions(model(*inputs))


def learner_of(plan: Plan, options: Any, make_network: MakeNetwork) -> GradientLearner:
    """A fresh learner. options: the family's, with a `scaling`."""
    return GradientLearner(
        plan, lambda train: statistics(plan, train, options), task_maker(plan, options, make_network)
    )


def task_maker(plan: Plan, options: Any, make_network: MakeNetwork) -> Callable[[JSON, bool], TableTask]:
    """What `GradientLearner` makes a task with."""
    facts = Facts.from_json(plan.facts)
    return lambda fitted, pretrained: TableTask(make_network(facts, options), facts, fitted)


def statistics(plan: Plan, train: Any, options: Any) -> JSON:
    """Scales of the number columns and of a numeric target, from the training rows."""
    scales = fit_scales(train, plan.facts["schema"]["columns"], options.scaling)
    return {"scales": scales, "outcome": fit_outcome(train.target(), plan.facts["classes"]).as_json()}


def estimates(facts: Facts, settings: Gradient, network: Callable[[], torch.nn.Module], *, row_floats: int) -> JSON:
    """Steps, parameters, memory and notes on columns.

    network: makes one; it is made without memory.   row_floats: numbers that backward keeps of one row.
    """
    with torch.device("meta"):
        num_parameters = sum(parameter.numel() for parameter in network().parameters())
    steps_per_epoch = max(1, math.ceil(facts.num_rows / settings.batch_size))
    steps = settings.steps or math.ceil((settings.epochs or 10) * steps_per_epoch)
    rows_at_once = settings.micro_batch_size or settings.batch_size
    num_cells = facts.num_rows * len(facts.schema["columns"])
    return {
        "num_parameters": num_parameters,
        "memory_bytes": BASE_BYTES
        + BYTES_A_PARAMETER * num_parameters
        + 4 * row_floats * rows_at_once
        + 16 * num_cells,
        **({} if settings.seconds else {"num_steps": steps}),
        "notes": column_notes(facts),
    }
