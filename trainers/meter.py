"""How much arithmetic a step takes, counted once, and what share of the machine's peak training makes of it (MFU).

Counted are the products that torch has formulas for, in the forward and backward passes of one early step: no optimizer,
no activations that are computed twice, and attention in full also where a mask hides half of it.
Source of the measure: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count, flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from trainers.contract import JSON, Batch, Machine, Task, Watch
from trainers.feed import Drawn
from trainers.network import Network
from trainers.peak import Peak, peak_of
from trainers.precision import autocast, autocast_dtype
from trainers.state import State

SECONDS_BEFORE = 1.0
"""Training that is over sooner is not metered: measuring the machine's peak would take a fifth of that."""
FLOPS_PER_WEIGHT_AND_TOKEN = 6
"""Two forward, four backward. Source: Kaplan et al. 2020, arXiv 2001.08361, section 2.1."""
MOST_TRIES = 3
FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"
CONVOLUTION_BACKWARD = "convolution_backward"


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up torch's formulas for the operations that run inside it, and changes nothing about them.

    Unlike torch's own FlopCounterMode it knows the attention of CPUs, leaves out what activation checkpointing computes
    again, and lets an operation pass whose formula fails. LSTM and GRU kernels have no formula and count nothing.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not is_recomputing():
            self.total += flops_of(func, out, args, kwargs)
        return out


def is_recomputing() -> bool:
    """Whether a forward pass is running inside a backward pass, as activation checkpointing does."""
    return torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled()


def flops_of(func: Any, out: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Additions and multiplications of one call of an ATen operation; 0 where there is no formula or it fails."""
    packet = getattr(func, "_overloadpacket", None)
    name = getattr(packet, "__name__", "")
    try:
        if name == FORWARD:
            return int(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))  # type: ignore[no-untyped-call]
        if name == BACKWARD:
            return int(sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))  # type: ignore[no-untyped-call]
        if name == CONVOLUTION_BACKWARD:
            return backward_of_convolution(*args[:3], is_transposed=args[7], wanted=args[10])
        formula = flop_registry.get(packet)
        return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))
    except Exception:  # a figure is not worth a training
        return 0


def backward_of_convolution(
    grad_out: Tensor, x: Tensor, weight: Tensor, *, is_transposed: bool, wanted: Sequence[bool]
) -> int:
    """What the gradients of input and weight that are `wanted` take: as much as the forward pass, each.

    torch's own formula forgets the groups: for a depthwise layer of 256 channels it counts 128 times as much.
    """
    forward = conv_flop_count(list(x.shape), list(weight.shape), list(grad_out.shape), is_transposed)
    return int(forward) * sum(wanted[:2])


def flops_of_shapes(task: Task, network: Network, batches: Sequence[Batch]) -> int | None:
    """The FLOPs of the passes over `batches` from shapes alone; None where a model depends on values.

    Works on a copy without storage: a compiled model cannot be counted while it runs, and a second real pass would cost
    memory and touch running statistics.
    """
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shapes = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    try:
        with FakeCopyMode(shapes):
            model = copy.deepcopy(network.plain)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        with shapes, FlopCounter() as counter:
            for batch in batches:
                with autocast(network.precision, network.machine):
                    totals = task.loss(model, batch.inputs)
                loss = reduce(add, [total.float() for total in totals.values()])
                torch.autograd.grad(loss, weights, allow_unused=True)
        return int(counter.total)
    except Exception:
        return None


@dataclass
class Spent:
    """Units, seconds and FLOPs of some steps; `counted_seconds` are those of which the FLOPs are known."""

    units: float = 0.0
    seconds: float = 0.0
    flops: float = 0.0
    counted_seconds: float = 0.0

    def add(self, units: float, seconds: float, flops_per_unit: float | None) -> None:
        self.units += units
        self.seconds += seconds
        if flops_per_unit is not None:
            self.flops += units * flops_per_unit
            self.counted_seconds += seconds


class Meter:
    """Counts one early step, and makes FLOP/s of the examples and seconds of all others.

    A unit is a token where the task tells sizes, else an example. All figures are of this process since its start (of
    all processes, divided by their number), without the steps that were counted or compiled.
    """

    def __init__(self, task: Task, network: Network, state: State, machine: Machine, watch: Watch) -> None:
        self.task, self.network, self.state, self.machine = task, network, state, machine
        self.world, self.cache = watch.world, watch.cache
        self.unit, self.how = "sample", ""
        self.flops_per_unit: float | None = None
        self.peak: Peak | None = None
        self.counter: FlopCounter | None = None
        self.seconds, self.num_tries = 0.0, 0
        self.cut_before: Any = None
        self.stage: int | None = None
        self.whole, self.recent = Spent(), Spent()
        self.times: deque[tuple[float, float]] = deque(maxlen=1000)

    def counting(self) -> contextlib.AbstractContextManager[Any]:
        """A context for the passes of the coming step. It counts one step of the run, and else does nothing."""
        if not self._is_due() or self.network.is_compiled:
            return contextlib.nullcontext()
        self.counter, self.cut_before = FlopCounter(), self._cut()
        return self.counter

    def add(self, window: Drawn, seconds: float, *, is_compiling: bool = False) -> None:
        """Take in a step that is done, and how long it took."""
        units = window.num_examples if window.num_tokens is None else window.num_tokens
        self.unit = "sample" if window.num_tokens is None else "token"
        is_new = window.stage != self.stage
        if is_new:
            self.stage = window.stage
            self.forget()
        # The first step of a stage ran uncounted; the next one counts as it runs, which is cheaper than from shapes.
        is_counted = self._is_due() and not is_new
        self.seconds += seconds
        if is_counted:
            self._settle(window, units)
        elif not is_compiling:
            self.times.append((seconds, seconds / max(1.0, units)))
            self.whole.add(units, seconds, self.flops_per_unit)
            self.recent.add(units, seconds, self.flops_per_unit)

    def forget(self) -> None:
        """Count anew: layers are frozen or freed from the coming step on, or examples have another size in this one."""
        self.flops_per_unit, self.num_tries = None, 0

    def speed(self) -> JSON:
        """tokens_per_second and mfu since the last call, as far as they are known."""
        recent, self.recent = self.recent, Spent()
        return self._figures(recent)

    def figures(self) -> JSON:
        """The median time of a step, tokens_per_second and mfu of the whole training, and what mfu was worked out from."""
        found: JSON = {"step_seconds": None, **self._figures(self.whole)}
        if self.times:
            # Of each kind the median: the first steps of a run are slow.
            found["step_seconds"], found[f"seconds_per_{self.unit}"] = map(median, zip(*self.times, strict=True))
        if self.flops_per_unit is None or self.peak is None:
            return found
        return {
            **found,
            f"flops_per_{self.unit}": self.flops_per_unit,
            "flops_from": self.how,
            "peak_flops_per_second": self.peak.flops_per_second,
            "peak_from": self.peak.source,
        }

    def _figures(self, spent: Spent) -> JSON:
        found: JSON = {}
        if self.unit == "token" and spent.seconds:
            found["tokens_per_second"] = spent.units / spent.seconds
        if self.peak is not None and spent.counted_seconds:
            found["mfu"] = spent.flops / spent.counted_seconds / (self.world * self.peak.flops_per_second)
        return found

    def _is_due(self) -> bool:
        return self.flops_per_unit is None and self.num_tries < MOST_TRIES and self.seconds >= SECONDS_BEFORE

    def _cut(self) -> Any:
        return self.state.cut, self.state.is_checkpointing

    def _settle(self, window: Drawn, units: float) -> None:
        """Take over what was counted, unless memory ran out meanwhile and passes were made twice; then try again."""
        self.num_tries += 1
        flops, self.how = self._flops(window, units)
        self.counter = None
        if flops and units:
            self.flops_per_unit = flops / units
            dtype = autocast_dtype(self.network.precision, self.machine) or torch.float32
            self.peak = self.peak or peak_of(self.machine, dtype, self.cache)

    def _flops(self, window: Drawn, units: float) -> tuple[float | None, str]:
        if self.counter is not None:
            is_whole = self.cut_before == self._cut()
            return (self.counter.total * self.world if is_whole else None), "counted"
        flops = flops_of_shapes(self.task, self.network, window.batches)
        if not flops and self.unit == "token":
            num_weights = sum(weight.numel() for weight in self.task.model.parameters())
            return FLOPS_PER_WEIGHT_AND_TOKEN * num_weights * units, "6 x weights x tokens"
        return flops and flops * self.world, "counted"
