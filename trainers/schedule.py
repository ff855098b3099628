"""How far training has come, and what learning rate belongs there: pure functions, nothing of torch.

Progress runs from 0 to 1 under any budget (steps, epochs, seconds), so a schedule need not know which one ends it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trainers.settings import DEFAULT_EPOCHS, Gradient

MOMENTUM_START = 0.85
"""Where a momentum that is warmed up begins: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon."""
STEPS_GUESSED = 100
"""In a budget of seconds, before the first step has shown how long one takes."""
FEWEST_STEPS = 20
"""Fewer than these in a budget of seconds are told: they teach a model little."""
EVALUATION_SHARE = 0.1
"""Evaluating may take this share of the training time where a budget in seconds leaves the number of epochs open."""


def lr_factor(progress: float, settings: Gradient) -> float:
    """The learning rate at `progress` as a share of its peak: a linear rise times the fall of the named shape."""
    rise = min(1.0, progress / settings.warmup) if settings.warmup > 0 else 1.0
    floor = settings.final_lr
    if settings.schedule == "cosine":
        return rise * (floor + (1 - floor) * cosine_fall(share_after(progress, settings.warmup)))
    if settings.schedule == "trapezoid":
        return rise * (floor + (1 - floor) * (1 - share_after(progress, 1 - settings.warmdown)))
    if settings.schedule == "wsd":
        return rise * (floor + (1 - floor) * root_fall(share_after(progress, 1 - settings.warmdown)))
    return rise


def decay_factor(progress: float, settings: Gradient) -> float:
    """The weight decay at `progress` as a share of its peak."""
    return 1 - progress if settings.decay_schedule == "linear" else 1.0


def momentum_at(progress: float, settings: Gradient) -> float | None:
    """The momentum at `progress`; None where the settings leave it to the optimizer."""
    if settings.momentum_warmup == 0:
        return None
    start, peak = min(MOMENTUM_START, settings.momentum), settings.momentum
    return start + (peak - start) * min(1.0, progress / settings.momentum_warmup)


def share_after(progress: float, start: float) -> float:
    """How much of the stretch from `start` to 1 is done, in [0, 1]; 0 where that stretch is empty."""
    return min(1.0, max(0.0, (progress - start) / (1 - start))) if start < 1 else 0.0


def cosine_fall(share: float) -> float:
    """Half a cosine from 1 to 0. Source: Loshchilov & Hutter 2017, arXiv 1608.03983, equation 5 without restarts."""
    return 0.5 * (1 + math.cos(math.pi * share))


def root_fall(share: float) -> float:
    """1 - sqrt, the cooldown found better than a line. Source: Hägele et al. 2024, arXiv 2405.18392, section 3."""
    return 1 - math.sqrt(share)


@dataclass(frozen=True)
class Budget:
    """What ends training: `amount` steps, or `amount` seconds of training time."""

    name: Literal["epochs", "steps", "seconds"]
    amount: float

    @classmethod
    def of(cls, settings: Gradient, steps_per_epoch: int) -> Budget:
        """The budget that the settings name; epochs become steps, at least one."""
        if settings.seconds is not None:
            return cls("seconds", settings.seconds)
        if settings.steps is not None:
            return cls("steps", settings.steps)
        epochs = DEFAULT_EPOCHS if settings.epochs is None else settings.epochs
        return cls("epochs", max(1, round(epochs * steps_per_epoch)))

    def progress(self, steps: float, seconds: float, step_seconds: float = 0.0) -> float:
        """Progress in [0, 1] after `steps` steps and `seconds` of training time, of which a step takes `step_seconds`.

        A budget in seconds is used up when another step would end farther beyond it than this one ends before it.
        """
        if self.name != "seconds":
            return min(1.0, steps / self.amount)
        return 1.0 if seconds + step_seconds / 2 >= self.amount else seconds / self.amount

    def seconds_left(self, steps: int, seconds: float) -> float:
        """Training time that is left after `steps` steps in `seconds`, if steps go on taking as long."""
        return self.amount - seconds if self.name == "seconds" else (self.amount - steps) * seconds / max(1, steps)

    def progress_within(self, step: int, seconds: float, step_seconds: float = 0.0) -> float:
        """Progress in the middle of step number `step` (from 0).

        The middle, because at the start of the first step a warm-up, and at the end of the last one a fall to zero,
        would waste that step on a learning rate of 0.
        """
        if self.name != "seconds":
            return self.progress(step + 0.5, seconds)
        return min(1.0, (seconds + (step_seconds or self.amount / STEPS_GUESSED) / 2) / self.amount)


def short_budget_advice(budget: Budget, num_steps: int, seconds: float) -> str:
    """What to say where the seconds were used up by very few steps; an empty text elsewhere."""
    if budget.name != "seconds" or num_steps >= FEWEST_STEPS:
        return ""
    each = seconds / max(1, num_steps)
    return (
        f"The budget of {budget.amount:g} s was used up after {num_steps} step{'s' if num_steps != 1 else ''} of "
        f"{each:.3g} s: little can have been learned. Give more time (--budget {math.ceil(10 * FEWEST_STEPS * each)}), or "
        "take smaller steps (--set train.batch_size=...)."
    )


def crosses_mark(before: float, after: float, num_marks: int) -> bool:
    """Whether progress passed one of `num_marks` evenly spread marks (the last lies at 1) between two steps."""
    # Marks are met exactly by counts of steps, but 0.29 * 100 is 28.999999999999996.
    nudge = 1e-9
    return math.floor(after * num_marks + nudge) > math.floor(before * num_marks + nudge)


def is_affordable(seconds_evaluating: float, num_evaluations: int, seconds_training: float) -> bool:
    """Whether one more evaluation, as long as the mean so far, keeps within EVALUATION_SHARE of the training time."""
    if num_evaluations == 0:
        return True
    expected = seconds_evaluating * (num_evaluations + 1) / num_evaluations
    return expected <= EVALUATION_SHARE * seconds_training
