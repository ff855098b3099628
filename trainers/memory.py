"""What to do when memory runs out: smaller micro-batches for the same batch, then computing activations twice.

Sums stay what they were (the loop divides by the counts of the whole step), except for BatchNorm, whose statistics are
those of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainers.contract import Task
from trainers.distributed import Ranks
from trainers.errors import DoesNotFitError
from trainers.feed import Feed
from trainers.state import State

PHRASES = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc", "could not create a memory")
"""What torch's CPU allocator, CUDA, C++ and oneDNN say."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on the host or on the device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in PHRASES)


class MemoryLadder:
    """The rungs that a training has gone down, kept in its state, so that a resumed run begins where it had come to.

    One process goes down by itself. Several end with advice: memory runs out in the middle of a backward pass, when the
    others have begun to exchange gradients and wait for this one there, so they cannot be asked whether to halve.
    """

    def __init__(self, feed: Feed, task: Task, state: State, say: Callable[..., None], ranks: Ranks) -> None:
        self.feed, self.task, self.state, self.say, self.ranks = feed, task, state, say, ranks
        if state.cut is not None:
            feed.cut = {**feed.cut, **state.cut}
        if state.is_checkpointing:
            checkpoint_activations(task.model)

    def steps_down(self, error: Exception) -> bool:
        """Whether the step may be tried again: True after going one rung down, False for errors of other kinds.

        Raises DoesNotFitError at the foot of the ladder.
        """
        if not is_out_of_memory(error):
            return False
        text = " ".join(str(error).split())[:120]
        if not self.ranks.is_alone:
            raise DoesNotFitError(
                f"Out of memory at step {self.state.step + 1} in process {self.ranks.rank} of {self.ranks.world} "
                f"({text}). Several processes cannot try again by themselves. Use smaller micro-batches, the batch "
                f"stays the same: --set train.micro_batch_size={max(1, self.state.batch_size // self.ranks.world // 2)}"
            ) from error
        if not self.task.couples_rows and self.feed.halve():
            self.state.cut = {name: self.feed.cut[name] for name in ("rows", "tokens")}
            self._tell(f"micro-batches now hold at most {self.feed.cut['rows']} examples, for the same batch", text)
            return True
        if not self.state.is_checkpointing and checkpoint_activations(self.task.model):
            self.state.is_checkpointing = True
            self._tell("activations are now computed twice instead of kept", text)
            return True
        raise DoesNotFitError(
            f"Out of memory at step {self.state.step + 1} even with the smallest micro-batches ({text}). Use a smaller "
            "model or shorter inputs, close other programs, or save memory: --set train.optimizer=adafactor"
        ) from error

    def _tell(self, what: str, error: str) -> None:
        warning = ""
        if any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in self.task.model.modules()):
            warning = " This model has BatchNorm, which now sees smaller groups: results may differ."
        at = self.state.step + 1
        self.say(kind="warning", text=f"Out of memory at step {at} ({error}): {what}.{warning}")


def checkpoint_activations(model: torch.nn.Module) -> bool:
    """Have the model keep no activations between forward and backward, if it offers that (as transformers and timm do)."""
    for part in model.modules():
        if getattr(part, "supports_gradient_checkpointing", False):
            part.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]
            return True
        if hasattr(part, "set_grad_checkpointing"):
            part.set_grad_checkpointing(True)  # type: ignore[operator]
            return True
    return False


def no_more_memory(error: Exception, what: str) -> DoesNotFitError:
    """The error for memory that ran out where there is no ladder, or at its foot."""
    return DoesNotFitError(f"Out of memory while {what}: {' '.join(str(error).split())[:120]}")
