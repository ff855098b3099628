"""What a run tells while it trains and when it is done, and the housekeeping between its steps."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator

import torch

from trainers.contract import JSON
from trainers.meter import Meter
from trainers.state import State

SECONDS_BETWEEN_LINES = 1.0
STEPS_BETWEEN_COLLECTIONS = 5000


def summary(state: State, model: torch.nn.Module, steps_per_epoch: int) -> JSON:
    """The figures of a finished training."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return {
        "num_steps": state.step,
        "num_epochs": state.step / steps_per_epoch,
        "num_samples": state.num_samples,
        "num_skipped_steps": state.num_skipped,
        "num_rollbacks": state.num_rollbacks,
        "num_evaluations": state.num_evaluations,
        "num_parameters": sum(size for size, _ in sizes),
        "num_trained_parameters": sum(size for size, is_trained in sizes if is_trained),
        "seconds_train": state.seconds,
        "seconds_evaluate": state.seconds_evaluating,
        "seconds_compile": state.seconds_compiling,
        "samples_per_second": state.num_samples / max(state.seconds + state.seconds_compiling, 1e-9),
        "train_loss": state.smoothed.value,
        "best_step": state.best_step,
        "best_score": state.best_score,
    }


class StepLines:
    """One "step" event a second at most, and one for the last step."""

    def __init__(self, log: Callable[..., None], state: State, meter: Meter) -> None:
        self.log, self.state, self.meter = log, state, meter
        self.said_at, self.samples, self.seconds = float("-inf"), state.num_samples, self._seconds()

    def write(self, progress: float, lr: float, norm: float | None, *, is_last: bool) -> None:
        """Tell of the step that is done, if it is time to."""
        now = time.perf_counter()
        if now - self.said_at < SECONDS_BETWEEN_LINES and not is_last:
            return
        state, seconds = self.state, self._seconds() - self.seconds
        facts = {
            "loss": state.smoothed.value,
            "lr": lr,
            "grad_norm": norm,
            "samples_per_second": (state.num_samples - self.samples) / max(seconds, 1e-9),
            **self.meter.speed(),
            "last": is_last or None,
        }
        known = {name: value for name, value in facts.items() if value is not None}
        self.log(kind="step", step=state.step, progress=progress, **known)
        self.said_at, self.samples, self.seconds = now, state.num_samples, self._seconds()

    def _seconds(self) -> float:
        return self.state.seconds + self.state.seconds_compiling


@contextlib.contextmanager
def rare_collections() -> Iterator[Callable[[int], None]]:
    """Yield a function to call after each step: garbage is collected after the first and every few thousand steps.

    Collecting at its own times costs several milliseconds among a model's many objects. Afterwards all is as before.
    """
    was_enabled, num_calls = gc.isenabled(), 0

    def collect(step: int) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            gc.collect()
            gc.freeze()
            gc.disable()
        elif step % STEPS_BETWEEN_COLLECTIONS == 0:
            gc.collect()

    try:
        yield collect
    finally:
        if num_calls:
            gc.unfreeze()
        if was_enabled:
            gc.enable()
