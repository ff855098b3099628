"""Where training stands: plain values, all of which go into a snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from trainers.contract import JSON
from trainers.errors import UsageError
from trainers.guard import Guard, Smoothed


@dataclass
class State:
    """Where training stands; all of it goes into a snapshot. `step` counts the steps that are done."""

    seed: int
    num_examples: int
    batch_size: int
    step: int = 0
    num_samples: int = 0
    num_skipped: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0
    seconds_evaluating: float = 0.0
    seconds_compiling: float = 0.0
    num_evaluations: int = 0
    num_without_gain: int = 0
    best_step: int | None = None
    best_score: float | None = None
    best_is_average: bool = False
    position: int = 0
    """The number of the next batch; step, but for batches that are passed over."""
    passed: list[list[int]] = field(default_factory=list)
    num_rollbacks: int = 0
    returned_to: int | None = None
    """The step of the snapshot that was last gone back to."""
    cut: JSON | None = None
    is_checkpointing: bool = False
    is_compiled: bool = False
    """Compiled since it turned out to pay; not where the settings asked for it."""
    scaler: JSON = field(default_factory=dict)
    smoothed: Smoothed = field(default_factory=Smoothed)
    guard: Guard = field(default_factory=Guard)

    def add_time(self, seconds: float, *, is_compiling: bool) -> None:
        """Count the time of a step, that of one that compiled apart from training; `step_seconds` follows slowly."""
        if is_compiling:
            self.seconds_compiling += seconds
            return
        self.seconds += seconds
        self.step_seconds = 0.8 * self.step_seconds + 0.2 * seconds if self.step_seconds else seconds

    def become(self, saved: JSON) -> None:
        """Take the saved values. Raises UsageError where the same steps would now mean other examples."""
        for name in ("seed", "num_examples", "batch_size"):
            if saved[name] != getattr(self, name):
                raise UsageError(
                    f"The snapshot was made with {name}={saved[name]}, now it is {getattr(self, name)}: it cannot be "
                    "continued exactly. Use the old value, or start a new run."
                )
        for each in fields(self):
            setattr(self, each.name, saved[each.name])
        self.smoothed, self.guard = Smoothed(**saved["smoothed"]), Guard(**saved["guard"])
