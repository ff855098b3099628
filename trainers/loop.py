"""THE loop: every recipe that learns by gradients is trained here.

What happens in a step, in order; to know more, open `feed` (which examples), `optim` (who learns how fast), `guard` (when
a step is left out) and `checkpoint` (what a snapshot holds). What is made before the first step is in `parts`.

1. its examples are drawn from (seed, epoch), cut into micro-batches and made into tensors with one generator an example
   from (seed, step, example), in a thread, while the step before computes;
2. what each term of the loss counts is summed over all micro-batches;
3. each micro-batch goes forward under autocast to a total per term, and the sum of total / count goes backward; when
   memory runs out, all of it again in smaller micro-batches (`memory`);
4. gradients are clipped, rates follow progress, and the optimizer steps, unless loss or norm is an outlier; averaged
   weights follow (`averages`);
5. when the loss stays high: back to a snapshot, and past those batches (`rollback`);
6. when due: evaluate and choose weights (`choice`), snapshot, stop early.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import torch

from trainers import optim
from trainers.checkpoint import Snapshots
from trainers.choice import Evaluate, judge, keep_best
from trainers.contract import JSON, Machine, Task, Watch
from trainers.diagnosis import plateau_advice
from trainers.distributed import Ranks
from trainers.errors import InterruptedByUser, StoppedError, ZooError
from trainers.feed import Ahead, Drawn, total_counts
from trainers.guard import Reading, should_skip
from trainers.heap import kept_heap
from trainers.looking import profiled, watched_activations
from trainers.memory import MemoryLadder, is_out_of_memory
from trainers.network import Network
from trainers.parts import Parts, make_parts
from trainers.precision import matmul_precision
from trainers.progress import rare_collections, summary
from trainers.rollback import next_position, ramp_factor
from trainers.schedule import (
    Budget,
    crosses_mark,
    decay_factor,
    is_affordable,
    lr_factor,
    momentum_at,
    short_budget_advice,
)
from trainers.settings import Gradient
from trainers.state import State


def train(
    task: Task,
    rows: Any,
    settings: Gradient,
    *,
    machine: Machine,
    seed: int,
    watch: Watch,
    evaluate: Evaluate | None,
    snapshots: Snapshots,
    snapshot: Path | None,
    ranks: Ranks,
    foretell: Callable[[Parts], None] = lambda parts: None,
) -> JSON:
    """Train `task.model` in place and return what happened, for actual.json.

    evaluate: the deciding metric of the model as it stands; None where there are no rows for it.
    snapshot: the folder to continue from; None starts anew.   ranks: this process among those that train together.
    foretell: is shown all parts when they are made, before the first step.
    Raises DivergedError on a loss that is not finite or too large, and StoppedError or InterruptedByUser, with
    everything saved, when `watch` says to stop.
    """
    given: Any = {"machine": machine, "seed": seed, "watch": watch, "snapshots": snapshots, "snapshot": snapshot}
    parts = make_parts(task, rows, settings, ranks=ranks, **given)
    foretell(parts)
    device = torch.device(machine.device)
    model, state, network, way, meter = task.model, parts.state, parts.network, parts.way, parts.meter
    steps_per_epoch = parts.feed.steps_per_epoch
    num_frozen_steps, is_frozen = round(settings.freeze_epochs * steps_per_epoch), False

    model.train()
    with (
        snapshots,
        kept_heap(device) as tidy,
        Ahead(parts.drawn) as ahead,
        matmul_precision(settings.precision, machine),
        rare_collections() as collect,
        profiled(settings, watch, device) as profile,
        watched_activations(model, settings, watch) as look,
    ):
        while (ended := why_ended(state, parts.budget, settings)) is None:
            if reason := ranks.most_urgent(watch.should_stop()):
                parts.save()
                snapshots.wait()
                raise stopped(reason, state.step)

            began, num_graphs = time.perf_counter(), network.num_graphs
            before = parts.budget.progress(state.step, state.seconds, state.step_seconds)
            if is_frozen != (state.step < num_frozen_steps):
                is_frozen = not is_frozen
                optim.set_head_only(parts.optimizer, is_frozen)
                meter.forget()

            state.position = next_position(state.position, state.passed)
            with meter.counting():
                window, loss = accumulated(task, network, ahead, parts.ladder, state.position, ranks)
            lr = set_rates(parts, settings)
            if loss is None:
                state.num_skipped += 1
                watch.log(kind="warning", text=f"Step {state.step + 1} skipped: none of its examples has a label.")
            else:
                way.note(stepped(parts, settings, loss, lr, window.num_examples))
            state.step += 1
            state.position += 1
            state.num_samples += window.num_examples

            took, is_compiling = ranks.slowest(time.perf_counter() - began, network.num_graphs > num_graphs)
            state.add_time(took, is_compiling=is_compiling)
            state.is_compiled |= network.decide(state.step, parts.budget.seconds_left(state.step, state.seconds))
            meter.add(window, took, is_compiling=is_compiling)
            progress = parts.budget.progress(state.step, state.seconds, state.step_seconds)
            parts.lines.write(progress, lr, way.norm, is_last=progress >= 1)
            collect(state.step)
            tidy()
            profile()
            look(state.step)

            if way.is_lost:
                way.go_back()
                continue
            is_due = evaluation_is_due(state, before, progress, settings, parts.budget, steps_per_epoch)
            if is_due:
                way.note(parts.losses.rest())
                ranks.average_buffers(model)
                judge(state, evaluate, watch, model, parts.averages)
                state.seconds_evaluating = ranks.told(state.seconds_evaluating)
                model.train()
            if is_due or (settings.save_steps and state.step % settings.save_steps == 0):
                parts.save()

    for advice in (
        plateau_advice(state.guard.first_loss, state.guard.losses, settings.lr),
        short_budget_advice(parts.budget, state.step, state.seconds),
    ):
        if advice:
            watch.log(kind="warning", text=advice)
    ranks.wait()  # for what the first one writes
    kept = keep_best(state, settings, model, snapshots, parts.averages)
    facts = {**summary(state, model, steps_per_epoch), **meter.figures(), **network.facts()}
    return {**facts, "kept": kept, "stopped_because": ended}


def accumulated(
    task: Task, network: Network, ahead: Ahead[Drawn], ladder: MemoryLadder, position: int, ranks: Ranks
) -> tuple[Drawn, torch.Tensor | None]:
    """Draw the step's micro-batches and add up their gradients; again, in smaller ones, when memory runs out.

    The loss is None, and nothing is added, where none of the examples counts.
    """
    while True:
        try:
            window = ahead.take(position)
            # Counts first, of all processes: micro-batches hold different numbers of labels, and a mean of their
            # means would weigh those in small ones too much.
            counts = ranks.counted(total_counts(window.batches))
            return window, backward(task, network, window, counts, ranks) if any(counts.values()) else None
        except Exception as error:
            if not ladder.steps_down(error):
                raise
        # Only here, where the error and all that its traceback holds are gone, is there memory again.
        task.model.zero_grad(set_to_none=True)
        ahead.forget()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()


def backward(task: Task, network: Network, window: Drawn, counts: Mapping[str, float], ranks: Ranks) -> torch.Tensor:
    """Add up the gradients of sum over terms of total / count, and return that sum, still on the device.

    A term that counts nothing in the whole step is left out.
    """
    try:
        return sum_backward(task, network, window, counts, ranks)
    except Exception as error:
        if is_out_of_memory(error) or not network.falls_back(error):
            raise
        # Compiling may fail half-way through a step: what it added to the gradients goes.
        task.model.zero_grad(set_to_none=True)
        return sum_backward(task, network, window, counts, ranks)


def sum_backward(
    task: Task, network: Network, window: Drawn, counts: Mapping[str, float], ranks: Ranks
) -> torch.Tensor:
    """`backward` without the net below it."""
    parts = []
    for number, batch in enumerate(window.batches, start=1):
        with ranks.adding_up(network.called, is_last=number == len(window.batches)):
            totals = network.losses(task, batch.inputs)
            if uncounted := totals.keys() - counts.keys():
                raise ValueError(f"loss() returns {sorted(uncounted)}, which draw() never counted (0 is a count).")
            loss = reduce(add, [totals[term].float() / count for term, count in counts.items() if count])
            loss = loss * 0 if window.is_extra else loss
            torch.autograd.backward(network.scaler.scale(ranks.for_mean(loss)))
        parts.append(loss.detach())
    return ranks.added(reduce(add, parts))


def set_rates(parts: Parts, settings: Gradient) -> float:
    """Give the optimizer the rates, decay and momentum of the coming step; returns the learning rate."""
    state = parts.state
    within = parts.budget.progress_within(state.step, state.seconds, state.step_seconds)
    factor = lr_factor(within, settings) * ramp_factor(state.step, state.returned_to, settings.rollback_lr)
    optim.set_rates(parts.optimizer, factor, decay_factor(within, settings), momentum_at(within, settings))
    return settings.lr * factor


def stepped(parts: Parts, settings: Gradient, loss: torch.Tensor, lr: float, num_examples: int) -> Reading | None:
    """Let the optimizer step on the gradients of `loss`, unless it or their norm is an outlier.

    Returns what is known of a step by now, on a GPU an earlier one.
    """
    state, optimizer, scaler = parts.state, parts.optimizer, parts.network.scaler
    scaler.unscale_(optimizer)
    norm = optim.gradient_norm(parts.parameters, settings.clip)
    skip = should_skip(loss, norm, parts.way.limits(num_examples))
    optim.step(optimizer, skip)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if parts.averages is not None:
        parts.averages.update(state.step)
    return parts.losses.read(state.step + 1, loss, lr, norm, skip, state.position)


def why_ended(state: State, budget: Budget, settings: Gradient) -> str | None:
    """The budget that is used up, or "patience", or None while training goes on."""
    if settings.patience is not None and state.num_without_gain >= settings.patience:
        return "patience"
    return budget.name if budget.progress(state.step, state.seconds, state.step_seconds) >= 1 else None


def evaluation_is_due(
    state: State, before: float, after: float, settings: Gradient, budget: Budget, steps_per_epoch: int
) -> bool:
    """Whether to evaluate after this step, which took progress from `before` to `after`."""
    if after >= 1:
        return True
    if settings.evaluations is not None:
        return crosses_mark(before, after, settings.evaluations)
    if state.step % steps_per_epoch:
        return False
    return budget.name != "seconds" or is_affordable(state.seconds_evaluating, state.num_evaluations, state.seconds)


def stopped(reason: str, step: int) -> ZooError:
    """The error that ends a run which was asked to stop."""
    text = f"Training was stopped ({reason}) after step {step}; everything is saved. Go on with: zoo resume RUN"
    return InterruptedByUser(text) if reason == "interrupt" else StoppedError(text)
