"""What a training will take, said before its first step: memory by term, and the time of a step.

One step and one prediction of the run's own model and largest batch are traced on tensors without numbers (`trace`). On
CPU the memory is that of the process: what it holds before the first step is read, what comes on top is the traced
sequence as the allocator answers it (`replay`), and a share of what the heap may keep free (`heap`). On an accelerator it is
what tensors take there.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from trainers import optim
from trainers.contract import JSON, Batch, Machine, Task
from trainers.feed import size_order
from trainers.heap import GROWTH
from trainers.parts import Parts
from trainers.precision import autocast, layout_of, placed, products_in
from trainers.replay import grown_by
from trainers.settings import Gradient
from trainers.speed import Rates, rates_of, seconds_of
from trainers.trace import Operation, Trace, num_bytes, stop_at

MOST_SECONDS = 6.0
"""Of work (others may hold the cores), after which a training goes on without a forecast."""
SHARE_KEPT = 1 / 3
"""Of the growth that `heap` allows. Measured: the nearest of 0, 1/6, 1/3 and 1/2 on five recipes of benchmarks/plan_verify.py
in four runs each, whose peaks differed by up to 11 % from run to run."""
Events = list[tuple[int, int]]


@dataclass(frozen=True)
class Traced:
    """Bytes of one step's parts, what there is to do in it, and all that was made and dropped, in order.

    passes: live at most in forward and backward, gradients included.   states: what the optimizer keeps from now on.
    """

    gradients: int
    states: int
    passes: int
    events: Events
    operations: list[Operation]


def forecast(task: Task, parts: Parts, settings: Gradient, *, machine: Machine, rows: Any, cache: Path) -> JSON:
    """Memory in bytes by term and their peak, and what a middling step has to do.

    rows: those that are predicted while training, None without.
    """
    deadline = time.thread_time() + MOST_SECONDS
    position, share = parts.feed.largest_step(settings.steps)
    batches = sorted(parts.drawn(position).batches, key=input_bytes, reverse=True)
    step = traced_step(task, parts, settings, batches[:2], machine, deadline)
    answers = traced_predict(task, parts, settings, rows, machine, deadline)
    is_uneven = parts.feed.sizes is not None or parts.feed.stages is not None
    other = share if is_uneven else _rest(parts)
    batch_bytes = 2 * sum(input_bytes(each) for each in batches)
    memory = memory_terms(task, parts, step, answers, batch_bytes, settings, machine, other)
    rates = rates_of(machine, cache)
    return {"memory": memory, "step": time_terms(step, len(batches), share, rates)}


def memory_terms(
    task: Task,
    parts: Parts,
    step: Traced,
    answers: Events,
    batch_bytes: int,
    settings: Gradient,
    machine: Machine,
    other: float,
) -> JSON:
    """Bytes by term, and `peak_bytes`: of the whole process on CPU, else of tensors on the device."""
    weights = sum(num_bytes(each) for each in (*task.model.parameters(), *task.model.buffers()))
    trained = sum(num_bytes(each) for each in parts.parameters)
    averages = trained if settings.ema is not None else 0
    on_cpu = torch.device(machine.device).type == "cpu"
    snapshot = weights + step.states + averages if on_cpu else 0
    live = _live_peak(answers)
    terms = {
        "weights_bytes": weights,
        "gradients_bytes": step.gradients,
        "optimizer_bytes": step.states,
        "averages_bytes": averages,
        "activations_bytes": max(0, step.passes - step.gradients),
        "predicting_bytes": live,
        "snapshot_bytes": snapshot,
        "batch_bytes": batch_bytes,
    }
    story = whole_story(step.events, answers, averages, snapshot if _saves_meanwhile(settings) else 0, other)
    grown = _live_peak(story)
    if not on_cpu:
        return {**terms, "peak_bytes": weights + grown + batch_bytes // 2}
    held, before = resident_bytes(), peak_bytes()
    on_heap = grown_by(story) or grown
    # Longer training leaves more holes, until the process has grown by GROWTH and all that is free goes back.
    kept = round(SHARE_KEPT * (GROWTH - 1) * (held + on_heap + batch_bytes))
    terms |= {"held_bytes": held, "allocator_bytes": max(0, on_heap - grown), "kept_bytes": kept}
    return {**terms, "peak_bytes": max(before, held + on_heap + batch_bytes + kept)}


def whole_story(step: Events, answers: Events, averages: int, snapshot: int, other: float = 1.0) -> Events:
    """Steps by turns large and smaller, a prediction, and a step while a snapshot is written.

    What the first step leaves is made only once.   other: the size of a smaller step as a share of the largest; pieces of
    two sizes leave holes that neither fills.
    """
    freed = {number for number, size in step if not size}
    again = [(number, size) for number, size in step if number in freed]
    smaller = [(number, size and max(1, int(size * other))) for number, size in again]
    start = 1 + max((number for number, _ in (*step, *answers)), default=0)
    passing = [(number + start, size) for number, size in answers]
    copied = [(2 * start + 1, snapshot), *again] if snapshot else []
    kept = [(2 * start, averages)] if averages else []
    return [*kept, *step, *smaller, *again, *passing, *smaller, *again, *copied]


def _rest(parts: Parts) -> float:
    """The last step of an epoch as a share of the others, where all examples are of one size."""
    rest = len(parts.feed.examples) % parts.feed.batch_size
    return rest / parts.feed.batch_size if rest and len(parts.feed.examples) > parts.feed.batch_size else 1.0


def _saves_meanwhile(settings: Gradient) -> bool:
    """Whether a snapshot may be written while steps go on, and not only after the last one."""
    return settings.save_steps is not None or settings.evaluations not in (None, 1) or (settings.epochs or 2) > 1


def time_terms(step: Traced, num_batches: int, share: float, rates: Rates) -> JSON:
    """What a middling step has to do, and the seconds that follow from the machine's rates alone."""
    # Two of the micro-batches were traced at most; all others cost as much.
    scale = share * max(1.0, num_batches / 2)
    bound = scale * seconds_of(step.operations, rates)
    return {
        "flops": scale * sum(each.flops for each in step.operations),
        "bytes_moved": scale * sum(each.bytes_moved for each in step.operations),
        "num_operations": len(step.operations),
        "bound_seconds": bound,
    }


def traced_step(
    task: Task, parts: Parts, settings: Gradient, batches: Sequence[Batch], machine: Machine, deadline: float
) -> Traced:
    """One optimizer step over `batches` by the core's own functions, on a copy of the model without storage."""
    shapes, model = hollow(parts.network.plain)
    optimizer = optim.make_optimizer(model, task.roles(), settings, products_in(settings.precision, machine))
    trace = Trace(shapes)
    stop_at(deadline, model)
    trace.know([list(model.parameters()), list(model.buffers())])
    model.train()
    inputs = [trace.faked(batch.inputs) for batch in batches]
    with shapes, trace:
        for each in inputs:
            with autocast(settings.precision, machine):
                totals = task.loss(model, each)
            loss = reduce(add, [total.float() for total in totals.values()])
            torch.autograd.backward(loss)
            del totals, loss
        passes, gradients = trace.peak, trace.live
        optim.gradient_norm(optim.all_parameters(optimizer), settings.clip)
        optim.step(optimizer, False)
        optimizer.zero_grad(set_to_none=True)
    return Traced(gradients, trace.live, passes, list(trace.events), trace.operations)


def traced_predict(
    task: Task, parts: Parts, settings: Gradient, rows: Any, machine: Machine, deadline: float
) -> Events:
    """What predicting the largest rows makes and drops.

    An answer is put together from numbers, which a trace does not have: it ends where they are asked for.
    """
    if rows is None or len(rows) == 0:
        return []
    largest = size_order(task.row_sizes(rows), len(rows))[: settings.eval_batch_size]
    shapes, model = hollow(parts.network.plain)
    trace = Trace(shapes)
    stop_at(deadline, model)
    trace.know([list(model.parameters()), list(model.buffers())])
    model.eval()
    device = torch.device(machine.device)
    inputs = trace.faked(placed(task.collate(rows.take(largest.tolist())), device, layout_of(settings)))
    try:
        with shapes, trace, torch.no_grad(), autocast(settings.precision, machine):
            task.predict(model, inputs)
    except Exception:
        pass
    return closed(trace.events)


def hollow(model: torch.nn.Module) -> tuple[FakeTensorMode, torch.nn.Module]:
    """A copy of the model whose tensors have shape, format and device, but no numbers."""
    shapes = FakeTensorMode(allow_non_fake_inputs=True)
    with FakeCopyMode(shapes):
        return shapes, copy.deepcopy(model)


def closed(events: Events) -> Events:
    """`events`, and all that they leave given back."""
    freed = {number for number, size in events if not size}
    return [*events, *((number, 0) for number, size in events if size and number not in freed)]


def _live_peak(events: Events) -> int:
    sizes, live, peak = dict[int, int](), 0, 0
    for number, size in events:
        live += size or -sizes.pop(number, 0)
        if size:
            sizes[number] = size
        peak = max(peak, live)
    return peak


def input_bytes(batch: Batch) -> int:
    """What its inputs take."""
    leaves = torch.utils._pytree.tree_leaves(batch.inputs)
    return sum(num_bytes(each) for each in leaves if isinstance(each, torch.Tensor))


def resident_bytes() -> int:
    """What this process holds, after it gave back what is free."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    return _status("VmRSS")


def peak_bytes(device: str = "cpu") -> int:
    """The most this process held so far: of a CUDA device what tensors took there, else main memory (0: unknown)."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return _status("VmHWM")


def _status(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)
