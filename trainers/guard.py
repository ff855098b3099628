"""Watching over loss and gradient: reading them without stalling the device, skipping steps that would do harm, and
saying when to go back to a snapshot or to give up.

Everything that decides is a pure function of numbers; `Guard` holds the numbers. What to say about a run that is lost
is in `diagnosis`, going back in `rollback`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Literal

import torch

from trainers.contract import JSON

SMOOTHING = 0.95
"""Share of the past in the printed loss: about the last 20 steps."""
NUM_KEPT, NUM_NEEDED, NUM_RECENT = 120, 20, 20
"""Values that are remembered; how many there must be before one can be an outlier; how many are "now"."""
SIGMAS = 8.0
SMALLEST_SPREAD = {"loss": 0.1, "norm": 0.2}
"""Of the logarithm. So a loss is an outlier from 2.2 times the median on, a norm from 5 times, however quiet they were."""
NEGLIGIBLE = 0.1
"""A value below this share of the run's first ones is no outlier: losses near zero jump by factors and do no harm."""
MAX_OUTLIERS_IN_A_ROW = 3
"""More than these are a new level, not outliers; the steps are taken."""
MAX_BAD_IN_A_ROW, MAX_OVERFLOWS_IN_A_ROW = 5, 20
"""Losses or gradients that are not finite; of those, what a loss scale that is still too high explains."""
STEPS_BETWEEN_LIMITS = 10
"""Medians cost 0.1 ms, and change little from step to step."""
LARGEST = torch.finfo(torch.float32).max
Verdict = Literal["fine", "skipped", "go back", "give up"]


@dataclass
class Smoothed:
    """A mean that forgets, without the pull to zero of its start.

    Source: Kingma & Ba 2015, arXiv 1412.6980, section 3 (bias correction).
    """

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float) -> None:
        self.total = SMOOTHING * self.total + (1 - SMOOTHING) * value
        self.weight = SMOOTHING * self.weight + (1 - SMOOTHING)

    @property
    def value(self) -> float | None:
        return self.total / self.weight if self.weight else None


@dataclass(frozen=True)
class Reading:
    """The mean loss of step number `step` (from 1), the learning rate applied in it, the norm of its gradient before
    clipping, whether the optimizer left the step out, and the number of its batch (from 0)."""

    step: int
    loss: float
    lr: float
    norm: float | None = None
    is_skipped: bool = False
    position: int = 0


class LossReader:
    """Hands out each step's figures: at once on CPU; on CUDA a step later, so that the host never waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.is_late = device.type == "cuda"
        self.pending: tuple[torch.Tensor, torch.cuda.Event, int, float, int] | None = None

    def read(
        self, step: int, loss: torch.Tensor, lr: float, norm: torch.Tensor, skip: bool | torch.Tensor, position: int = 0
    ) -> Reading | None:
        """The newest figures that are at hand."""
        if not self.is_late:
            return Reading(step, float(loss), lr, float(norm), bool(skip), position)
        before = self.rest()
        figures = torch.stack([loss.float(), norm.float(), torch.as_tensor(skip, device=loss.device).float()])
        copy = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True).copy_(figures, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self.pending = (copy, event, step, lr, position)
        return before

    def rest(self) -> Reading | None:
        """The figures that are still on their way, waited for; None if there are none. Call it before weights are kept."""
        if self.pending is None:
            return None
        copy, event, step, lr, position = self.pending
        event.synchronize()
        self.pending = None
        loss, norm, skip = copy.tolist()
        return Reading(step, loss, lr, norm, bool(skip), position)


@dataclass
class Guard:
    """What was seen of the run, as plain values that go into a snapshot.

    losses, norms: the last finite ones, oldest first, skipped ones too: a new level must become usual in time.
    first_loss, first_norm: the medians of the first ones.   loss_limit, norm_limit: as of the last tenth step.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    first_loss: float | None = None
    first_norm: float | None = None
    loss_limit: float = LARGEST
    norm_limit: float = LARGEST
    num_seen: int = 0
    num_outliers_in_a_row: int = 0
    num_bad_in_a_row: int = 0

    def as_json(self) -> JSON:
        return asdict(self)

    def limits(self, max_loss: float, share: float = 1.0) -> tuple[float, float]:
        """The loss and the norm above which the coming step is skipped.

        share: of a full batch that the step's is. The last one of an epoch may hold a few examples, whose mean spreads
        by one over the root of their number.
        """
        if self.num_outliers_in_a_row >= MAX_OUTLIERS_IN_A_ROW:
            return max_loss, LARGEST
        room = max(share, 1e-9) ** -0.5
        return min(max_loss, self.loss_limit * room), min(LARGEST, self.norm_limit * room)

    def judge(self, reading: Reading, max_loss: float, *, is_scaled: bool = False) -> Verdict:
        """Take in what a step showed, and say what follows from it. is_scaled: fp16, where overflows are usual."""
        norm = 0.0 if reading.norm is None else reading.norm
        is_overflow = is_scaled and math.isfinite(reading.loss) and not math.isfinite(norm)
        if is_overflow or not (math.isfinite(norm) and reading.loss <= max_loss):
            self.num_bad_in_a_row += 1
            most = MAX_OVERFLOWS_IN_A_ROW if is_overflow else MAX_BAD_IN_A_ROW
            # Before any update a bad loss is the data's or the model's fault, and the same would come again.
            is_hopeless = not self.losses and not is_overflow
            return "give up" if is_hopeless or self.num_bad_in_a_row >= most else "skipped"
        self.num_bad_in_a_row = 0
        self.num_outliers_in_a_row = self.num_outliers_in_a_row + 1 if reading.is_skipped else 0
        self._remember(reading.loss, norm)
        if self.num_seen % STEPS_BETWEEN_LIMITS == 0 and stays_high(self.losses, self.first_loss):
            return "go back"
        return "skipped" if reading.is_skipped else "fine"

    def _remember(self, loss: float, norm: float) -> None:
        self.losses = [*self.losses[1 - NUM_KEPT :], loss]
        self.norms = [*self.norms[1 - NUM_KEPT :], norm]
        self.num_seen += 1
        if self.first_loss is None and len(self.losses) == NUM_NEEDED:
            self.first_loss, self.first_norm = median(self.losses), median(self.norms)
        if self.num_seen % STEPS_BETWEEN_LIMITS == 0:
            self.loss_limit = outlier_limit(self.losses, SMALLEST_SPREAD["loss"], self.first_loss)
            self.norm_limit = outlier_limit(self.norms, SMALLEST_SPREAD["norm"], self.first_norm)


def should_skip(loss: torch.Tensor, norm: torch.Tensor, limits: tuple[float, float]) -> bool | torch.Tensor:
    """Whether the optimizer leaves this step out: loss or norm not finite or above its limit.

    On CUDA the answer stays on the device, for `optim.step`; the host never waits.
    """
    is_fine = (loss <= limits[0]) & (norm <= limits[1])  # False for NaN
    return ~is_fine if is_fine.is_cuda else not bool(is_fine)


def outlier_limit(recent: Sequence[float], smallest_spread: float, first: float | None) -> float:
    """The value above which one is an outlier among `recent`; LARGEST under NUM_NEEDED of them.

    Median and median deviation, which outliers among `recent` do not move, of logarithms, because losses of small
    batches and gradient norms are skewed; of the values themselves where some are not positive.
    Source of the rule: Iglewicz & Hoaglin 1993, How to Detect and Handle Outliers, section 3.
    """
    if len(recent) < NUM_NEEDED or first is None:
        return LARGEST
    if min(recent) <= 0:
        middle = median(recent)
        return middle + SIGMAS * max(spread(recent), smallest_spread * abs(middle), smallest_spread * abs(first))
    logs = [math.log(value) for value in recent]
    exponent = median(logs) + SIGMAS * max(spread(logs), smallest_spread)
    return max(math.exp(min(exponent, 80.0)), NEGLIGIBLE * first)


def spread(values: Sequence[float]) -> float:
    """The standard deviation, estimated from the median deviation as for normal values."""
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values)


def is_for_nothing(losses: Sequence[float], first: float | None) -> bool:
    """Whether the last NUM_RECENT losses are no lower than the run's first ones (median `first`): nothing learned is left."""
    return first is None or median(losses[-NUM_RECENT:]) >= first


def stays_high(losses: Sequence[float], first: float | None) -> bool:
    """Whether the last NUM_RECENT losses lie well above those before: by half, or more where losses are noisy.

    The median of 20 values varies by 0.28 of their spread; four times that is asked for.
    """
    before, recent = losses[:-NUM_RECENT], losses[-NUM_RECENT:]
    if len(before) < 2 * NUM_NEEDED or first is None:
        return False
    if min(losses) <= 0:
        rise = max(4 * 0.28 * spread(before), 0.5 * abs(median(before)), 0.5 * abs(first))
        return median(recent) > median(before) + rise
    logs = [math.log(value) for value in before]
    rise = max(4 * 0.28 * spread(logs), math.log(1.5))
    return math.log(median(recent)) > median(logs) + rise and median(recent) > NEGLIGIBLE * first
