"""Going back to the snapshot before a loss rose and stayed high, and passing over the batches during which it did.

Source: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, section 5.1: restarting 100 steps before a spike and skipping the
batches around it was enough; the same batches from another state did no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from trainers.checkpoint import STEPS_BACK, Snapshots
from trainers.contract import JSON, Watch
from trainers.diagnosis import diverged, findings
from trainers.guard import LARGEST, Guard, Reading, is_for_nothing
from trainers.settings import Gradient
from trainers.state import State

MAX_ROLLBACKS = 3
RAMP_STEPS = 200
"""Steps over which a rate that was lowered after going back rises again."""
STEPS_AHEAD = 30
"""Batches that are passed over after the last one that was seen: what is wrong with the data rarely ends just there."""

Passed = Sequence[Sequence[int]]


def rise_began(step: int) -> int:
    """The step before which weights can be trusted, seen from step `step`, where the loss was found to stay high: that
    takes 20 steps, and ten more for a rise that began slowly."""
    return max(0, step - STEPS_BACK)


def next_position(position: int, passed: Passed) -> int:
    """The first batch from `position` on that lies in none of the stretches [start, stop) of `passed`."""
    for start, stop in sorted(map(list, passed)):
        if start <= position < stop:
            position = stop
    return position


def ramp_factor(step: int, since: int | None, low: float) -> float:
    """What the learning rate is multiplied by: `low` at step `since`, rising to 1 in RAMP_STEPS; 1 without `since`."""
    if since is None:
        return 1.0
    return low + (1 - low) * min(1.0, max(0, step - since) / RAMP_STEPS)


def _goes_on(began: int, *, is_spent: bool) -> str:
    """What to say of a loss that stays high where nothing is done about it."""
    high = f"The loss stays high since about step {began}, "
    if is_spent:
        return f"{high}though below its start, after going back {MAX_ROLLBACKS} times: training goes on. Try a lower train.lr."
    return f"{high}and no snapshot from before is kept: training goes on. To go back in such a case: --set train.save_steps=100"


class WayBack:
    """Takes in what each step showed, and goes back when that is called for.

    restore: sets model, optimizer and state to a snapshot.   save: keeps them as they stand.
    """

    def __init__(
        self,
        state: State,
        settings: Gradient,
        snapshots: Snapshots,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        *,
        watch: Watch,
        restore: Callable[[Path], None],
        save: Callable[[], None],
        is_scaled: bool = False,
    ) -> None:
        self.state, self.settings, self.snapshots, self.watch = state, settings, snapshots, watch
        self.optimizer, self.model, self.restore, self.save, self.is_scaled = optimizer, model, restore, save, is_scaled
        self.lost: Reading | None = None
        self.is_hopeless = False
        self.norm: float | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the loss stays high, or was bad so often in a row that going on makes no sense."""
        return self.lost is not None

    def limits(self, num_examples: int) -> tuple[float, float]:
        """The loss and the norm above which the coming step, of `num_examples`, is skipped."""
        most, share = self.settings.max_loss, min(1.0, num_examples / self.settings.batch_size)
        return self.state.guard.limits(most, share) if self.settings.guard else (most, LARGEST)

    def note(self, reading: Reading | None) -> None:
        """Take in a step. Raises DivergedError for one that is bad where the guard is off."""
        if reading is None:
            return
        self.norm = reading.norm
        verdict = self.state.guard.judge(reading, self.settings.max_loss, is_scaled=self.is_scaled)
        if reading.is_skipped:
            self._tell_of_skipped(reading)
        else:
            self.state.smoothed.add(reading.loss)
        if verdict == "give up" or (verdict == "skipped" and not self.settings.guard and not self.is_scaled):
            self.lost, self.is_hopeless = reading, True
        elif verdict == "go back" and self.settings.guard:
            self.lost, self.is_hopeless = reading, False

    def go_back(self) -> None:
        """Return to the snapshot before the trouble and pass over its batches.

        Raises DivergedError where that was done three times already, or cannot be done, and the run cannot go on: the
        loss is not finite, or as high as where the run began. Else training goes on, which is said: a rate near the
        highest that works makes such waves, and they end as it falls.
        """
        assert self.lost is not None
        reading, self.lost = self.lost, None
        state, began = self.state, rise_began(self.state.step)
        self.snapshots.wait()
        # What was gone back to is to be trusted, even where the next trouble comes soon after it.
        trusted = max(began, state.returned_to or 0)
        folder = self.snapshots.newest_until(trusted) if self.settings.guard else None
        is_spent, guard = state.num_rollbacks >= MAX_ROLLBACKS, state.guard
        if self.is_hopeless and (is_spent or folder is None):
            raise self._diverged(reading)
        if is_spent and is_for_nothing(guard.losses, guard.first_loss):
            raise self._diverged(reading)
        if is_spent or folder is None:
            state.guard = Guard(first_loss=guard.first_loss, first_norm=guard.first_norm)
            self.watch.log(kind="warning", text=_goes_on(began, is_spent=is_spent))
            return
        at = state.position
        self._return_to(folder, [max(0, at - (state.step - began)), at + STEPS_AHEAD])

    def _return_to(self, folder: Path, stretch: list[int]) -> None:
        state, step = self.state, self.state.step
        # What a snapshot must not take back: the time, and what was learned about memory and batches.
        spent: JSON = {"seconds": state.seconds, "seconds_evaluating": state.seconds_evaluating}
        spent |= {"seconds_compiling": state.seconds_compiling, "num_evaluations": state.num_evaluations}
        spent |= {"cut": state.cut, "is_checkpointing": state.is_checkpointing}
        passed, num_skipped = [*state.passed, stretch], state.num_skipped
        num_rollbacks = state.num_rollbacks + 1
        self.restore(folder)
        for name, value in spent.items():
            setattr(state, name, value)
        state.passed, state.num_rollbacks, state.num_skipped = passed, num_rollbacks, num_skipped
        state.returned_to = state.step
        self.watch.log(kind="rollback", step=step, to=state.step, passed_over=stretch, num=num_rollbacks)
        text = f"The loss stayed high at step {step}: back to step {state.step}, passing over batches {stretch[0]} to "
        self.watch.log(kind="warning", text=f"{text}{stretch[1] - 1}.")
        self.save()
        self.snapshots.wait()
        self.snapshots.drop_after(folder)

    def _tell_of_skipped(self, reading: Reading) -> None:
        self.state.num_skipped += 1
        why = f"loss {reading.loss:.4g}, gradient norm {reading.norm:.4g}"
        text = f"Step {reading.step} skipped: {why}; its batch is number {reading.position}."
        self.watch.log(kind="warning", text=text)

    def _diverged(self, reading: Reading) -> Exception:
        weights = [p for group in self.optimizer.param_groups for p in group["params"]]
        embeddings = [w for w in self.model.modules() if isinstance(w, torch.nn.Embedding)]
        known = [each.weight for each in embeddings if any(each.weight is weight for weight in weights)]
        return diverged(
            reading,
            self.state.guard.losses,
            max_loss=self.settings.max_loss,
            peak_lr=self.settings.lr,
            num_rollbacks=self.state.num_rollbacks,
            seen=findings(self.model, known),
            is_scaled=self.is_scaled,
        )
