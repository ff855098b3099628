"""Watching over the loss: reading it without stalling the device, smoothing it, and ending a run that has diverged."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from trainers.errors import DivergedError

SMOOTHING = 0.95
"""Share of the past in the printed loss: about the last 20 steps."""


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
    """The mean loss of step number `step` (from 1), the learning rate applied in it, and the norm of its gradient
    before clipping (None where nothing clips)."""

    step: int
    loss: float
    lr: float
    norm: float | None = None


class LossReader:
    """Hands out each step's loss: at once on CPU; on CUDA a step later, so that the host never waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.is_late = device.type == "cuda"
        self.pending: tuple[int, torch.Tensor, float, torch.cuda.Event] | None = None

    def read(self, step: int, loss: torch.Tensor, lr: float, norm: torch.Tensor | None = None) -> Reading | None:
        """The newest loss and norm that are at hand."""
        if not self.is_late:
            return Reading(step, float(loss), lr, None if norm is None else float(norm))
        before = self.rest()
        pair = torch.stack([loss] if norm is None else [loss, norm])
        copy = torch.empty(pair.shape, dtype=pair.dtype, pin_memory=True).copy_(pair, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self.pending = (step, copy, lr, event)
        return before

    def rest(self) -> Reading | None:
        """The loss that is still on its way, waited for; None if there is none. Call it before weights are kept."""
        if self.pending is None:
            return None
        step, copy, lr, event = self.pending
        event.synchronize()
        self.pending = None
        return Reading(step, float(copy[0]), lr, float(copy[1]) if len(copy) > 1 else None)


def check_loss(reading: Reading, *, max_loss: float, usual: float | None, peak_lr: float) -> None:
    """Raise DivergedError where loss or gradient is not finite, or the loss above `max_loss`; name what to try.

    usual: smoothed loss before this step, None in the first.   peak_lr: what `train.lr` says now.
    """
    is_norm_fine = reading.norm is None or math.isfinite(reading.norm)
    if math.isfinite(reading.loss) and reading.loss <= max_loss and is_norm_fine:
        return
    what = f"the mean loss is {reading.loss:.4g}"
    if not is_norm_fine:
        what += f", the norm of its gradient {reading.norm}"
    elif math.isfinite(reading.loss):
        what += f", above train.max_loss={max_loss:g}"
    raise DivergedError(
        f"Training diverged at step {reading.step}: {what} (lr {reading.lr:.3g}). {advice(reading, usual, peak_lr)}"
    )


def advice(reading: Reading, usual: float | None, peak_lr: float) -> str:
    """What to try, from when it happened."""
    if usual is None and math.isfinite(reading.loss) and math.isfinite(reading.norm or 0.0):
        return (
            "This is the first step, before any update: look at the scale of the target and of the inputs. "
            f"If so large a loss is right for this data: --set train.max_loss={2 * reading.loss:.3g}"
        )
    if usual is None:
        return (
            "This is the first step, before any update: look for values that are not finite in inputs and weights, "
            "or try --set train.precision=fp32"
        )
    return f"It was {usual:.4g} before. Lower the learning rate: --set train.lr={peak_lr / 5:.2g}"
