"""The model as the loop calls it: in the planned number format, compiled where that pays, copied or split among processes.

The network is compiled, the loss stays outside, because losses break graphs. Evaluation uses the plain model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from trainers.contract import JSON, Machine, Task
from trainers.distributed import ALONE, Ranks, blocks_of
from trainers.errors import UsageError
from trainers.precision import autocast, loss_scaler, with_fp8_products
from trainers.settings import Gradient

CPU_GAIN, CPU_COST_SECONDS = 0.08, 80.0
"""What compiling saves of a step on CPU, and what it costs: measured on transformers and convolutional networks, where it
saved nothing to 16 % after 30 to 80 seconds."""
REPAYS_TIMES = 2
"""The saving must be this many times the cost, because both are guesses."""
STEPS_BEFORE_DECIDING = 20


def should_compile(setting: str, machine: Machine) -> bool:
    """Whether to compile before the first step: where it was asked for, and with `auto` on CUDA."""
    return setting == "on" or (setting == "auto" and torch.device(machine.device).type == "cuda")


def repays_on_cpu(seconds_left: float) -> bool:
    """Whether compiling saves clearly more of the coming `seconds_left` of training than it costs."""
    return seconds_left * CPU_GAIN >= REPAYS_TIMES * CPU_COST_SECONDS


class Network:
    """`task.model` under autocast.

    has_fixed_shapes: whether all inputs are of one shape; then graphs are compiled for just that one.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        settings: Gradient,
        machine: Machine,
        say: Callable[..., None],
        ranks: Ranks = ALONE,
        *,
        has_fixed_shapes: bool = False,
        backend: str | Callable[..., Any] = "inductor",
    ) -> None:
        self.setting, self.precision, self.machine, self.say = settings.compile, settings.precision, machine, say
        self.scaler = loss_scaler(settings.precision, machine)
        if ranks.is_sharded and self.scaler.is_enabled():
            raise UsageError("train.shard computes in bf16 or fp32, and this GPU has no bf16: --precision fp32")
        if self.precision == "fp8":
            with_fp8_products(model, machine)
        self.is_sharded = ranks.is_sharded
        self.options: dict[str, Any] = {"backend": backend, "dynamic": None if has_fixed_shapes else True}
        self.plain = model
        # Copies are joined around the compiled model: compiling around them gives no graphs at all.
        self.called = ranks.wrapped(model, may_freeze=settings.freeze_epochs > 0)
        self.is_compiled = self.has_failed = False
        self.before: JSON = {}
        if should_compile(settings.compile, machine):
            self.compile()

    def losses(self, task: Task, inputs: Any) -> Mapping[str, torch.Tensor]:
        """Total of each term of the loss over a micro-batch."""
        with autocast(self.precision, self.machine):
            return task.loss(self.called, inputs)

    def compile(self) -> None:
        """Compile from the next call on."""
        self.is_compiled, self.before = True, compilations()
        if self.is_sharded:
            for block in blocks_of(self.plain):
                # The forward alone: compiled with the hooks that gather its weights, a block gave no graph at all.
                block.forward = torch.compile(block.forward, **self.options)
        else:
            self._call(torch.compile(self.plain, **self.options))  # type: ignore[arg-type]

    def decide(self, step: int, seconds_left: float) -> bool:
        """Begin to compile on CPU, after a few steps have shown how long the rest will take, if that pays.

        Returns whether it begins now.
        """
        if self.setting != "auto" or self.is_compiled or self.has_failed or step != STEPS_BEFORE_DECIDING:
            return False
        if torch.device(self.machine.device).type != "cpu" or not repays_on_cpu(seconds_left):
            return False
        self.say(kind="compile", text=f"About {seconds_left / 60:.0f} minutes of training are left: compiling pays.")
        self.compile()
        return True

    def falls_back(self, error: Exception) -> bool:
        """Give up compiling after `error`, saying so; False where nothing was compiled and the error is a real one."""
        if not self.is_compiled:
            return False
        self.is_compiled, self.has_failed = False, True
        for block in blocks_of(self.plain) if self.is_sharded else ():
            block.__dict__.pop("forward", None)
        self._call(self.plain)
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        self.say(kind="warning", text=f"The model could not be compiled, training goes on without: {reason}")
        return True

    def _call(self, model: torch.nn.Module) -> None:
        if isinstance(self.called, torch.nn.parallel.DistributedDataParallel):
            self.called.module = model
        else:
            self.called = model

    @property
    def num_graphs(self) -> int:
        """Graphs compiled since this network was made; 0 without compiling. Asked every step, so it looks at one number."""
        return num_graphs() - self.before["compiled_graphs"] if self.is_compiled else 0

    def facts(self) -> JSON:
        """For actual.json: graphs, breaks between them, and recompilations for other shapes."""
        if not self.is_compiled:
            return {"compiled_graphs": 0, "graph_breaks": 0, "recompiles": 0}
        return {name: value - self.before[name] for name, value in compilations().items()}


def compilations() -> JSON:
    """What dynamo has compiled in this process so far."""
    # Here and not above: the import costs a second, and only compiling needs it.
    from torch._dynamo.utils import counters, get_compilation_metrics

    return {
        "compiled_graphs": num_graphs(),
        "graph_breaks": sum(counters["graph_break"].values()),
        "recompiles": sum(bool(each.recompile_reason) for each in get_compilation_metrics()),
    }


def num_graphs() -> int:
    """How many graphs dynamo has made in this process so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
