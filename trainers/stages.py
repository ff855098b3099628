"""Stretches of training in which a `contract.Staged` task draws in different ways: which one a step lies in, and their price.

Like the order of examples it follows from the number of a step alone, so a resumed run draws what the first one would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from trainers.contract import Stage


class Stages:
    """stages: in order, the last `until` 1.   num_steps: of the whole training."""

    def __init__(self, stages: Sequence[Stage], num_steps: int) -> None:
        self.stages, self.num_steps = stages, num_steps
        self.ends = np.array([stage.until for stage in stages])

    def at(self, step: int) -> int:
        """The stage of step number `step` (from 0); batches beyond the planned ones, after going back, are of the last."""
        return min(int(np.searchsorted(self.ends, step / self.num_steps, side="right")), len(self.stages) - 1)

    def start(self, stage: int) -> int:
        """Its first step."""
        return ceil(self.ends[stage - 1] * self.num_steps) if stage else 0

    def costliest(self) -> int:
        """The stage whose steps cost most, the last of such."""
        return max(range(len(self.stages)), key=lambda at: (self.stages[at].cost, at))

    def median_cost(self) -> float:
        """Of a step, as a share of the costliest."""
        costs = np.array([stage.cost for stage in self.stages])
        of_steps = np.searchsorted(self.ends, np.arange(self.num_steps) / self.num_steps, side="right")
        return float(np.median(costs[of_steps]) / costs.max())
