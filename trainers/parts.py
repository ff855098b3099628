"""The parts of a training, put together once before its first step: what is fed, what learns, what is kept and watched.

What the loop does with them is in `loop`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainers import optim
from trainers.averages import Averages, averages_of
from trainers.checkpoint import Snapshots
from trainers.contract import Machine, Staged, Task, Watch
from trainers.distributed import Ranks, shard
from trainers.errors import DataError, UsageError
from trainers.feed import Drawn, Feed, num_windows
from trainers.guard import LossReader
from trainers.memory import MemoryLadder
from trainers.meter import Meter
from trainers.network import Network
from trainers.precision import layout_of, placed, products_in
from trainers.progress import StepLines
from trainers.rollback import WayBack
from trainers.schedule import Budget
from trainers.settings import Gradient
from trainers.stages import Stages
from trainers.state import State


@dataclass(frozen=True)
class Parts:
    """parameters: all that are trained.   drawn: the micro-batches of a step, by its position, on the device.
    save: keep all as it stands."""

    feed: Feed
    budget: Budget
    state: State
    optimizer: torch.optim.Optimizer
    parameters: list[torch.nn.Parameter]
    averages: Averages | None
    network: Network
    losses: LossReader
    meter: Meter
    ladder: MemoryLadder
    lines: StepLines
    way: WayBack
    drawn: Callable[[int], Drawn]
    save: Callable[[], None]


def make_parts(
    task: Task,
    rows: Any,
    settings: Gradient,
    *,
    machine: Machine,
    seed: int,
    watch: Watch,
    snapshots: Snapshots,
    snapshot: Path | None,
    ranks: Ranks,
) -> Parts:
    """All parts, the model in them split among the processes where that is asked for; as `snapshot` left them, if given.

    Raises UsageError or DataError where settings, data and task do not suit each other.
    """
    model, device = task.model, torch.device(machine.device)
    feed = ranks.first_alone(lambda: make_feed(task, rows, settings, seed=seed, watch=watch))
    if ranks.is_sharded:
        shard(model)
    optimizer = optim.make_optimizer(model, task.roles(), settings, products_in(settings.precision, machine))
    averages = averages_of(optimizer, settings)
    network = Network(model, settings, machine, watch.log, ranks, has_fixed_shapes=feed.sizes is None)
    losses, layout = LossReader(device), layout_of(settings)
    state = State(seed, len(feed.examples), settings.batch_size, is_checkpointing=settings.checkpoint_activations)

    def restore(folder: Path) -> None:
        state.become(snapshots.restore(folder, model, optimizer, averages))
        network.scaler.load_state_dict(state.scaler)

    def save() -> None:
        way.note(losses.rest())
        state.scaler = network.scaler.state_dict()
        snapshots.write(asdict(state), model, optimizer, averages)

    def drawn(position: int) -> Drawn:
        window = feed.drawn(position)
        return replace(window, batches=[replace(b, inputs=placed(b.inputs, device, layout)) for b in window.batches])

    ranks.part_chance(seed)
    if snapshot is not None:
        restore(snapshot)
        if state.is_compiled:
            network.compile()
        watch.log(kind="resume", step=state.step, folder=snapshot.name)
    # What follows begins where `state` now stands.
    meter = Meter(task, network, state, machine, watch)
    ladder, lines = MemoryLadder(feed, task, state, watch.log, ranks), StepLines(watch.log, state, meter)
    is_scaled = network.scaler.is_enabled()
    way = WayBack(
        state, settings, snapshots, optimizer, model, watch=watch, restore=restore, save=save, is_scaled=is_scaled
    )
    budget = Budget.of(settings, feed.steps_per_epoch)
    return Parts(
        feed,
        budget,
        state,
        optimizer,
        optim.all_parameters(optimizer),
        averages,
        network,
        losses,
        meter,
        ladder,
        lines,
        way,
        drawn=drawn,
        save=save,
    )


def make_feed(task: Task, rows: Any, settings: Gradient, *, seed: int, watch: Watch) -> Feed:
    """The feed of `rows` under these settings. Raises UsageError or DataError where they do not suit the task."""
    examples = task.examples(rows, watch.folder)
    if len(examples) < task.min_rows:
        raise DataError(f"{len(examples)} training examples: this model needs at least {task.min_rows}. Add rows.")
    for name in ("batch_size", "micro_batch_size"):
        if (getattr(settings, name) or task.min_rows) < task.min_rows:
            raise UsageError(
                f"train.{name} is {getattr(settings, name)}, but this model needs at least {task.min_rows} rows at "
                f"once: --set train.{name}={task.min_rows}"
            )
    size = settings.micro_batch_size
    if task.couples_rows and watch.world > 1:
        raise UsageError(
            "This recipe's loss compares the rows of a batch with each other, so they cannot be dealt to several "
            "processes. Start one, without torchrun."
        )
    if task.couples_rows and (settings.micro_batch_tokens or (size or settings.batch_size) < settings.batch_size):
        raise UsageError(
            "This recipe's loss compares the rows of a batch with each other, so the batch cannot be cut: "
            "--set train.micro_batch_size=null --set train.micro_batch_tokens=null"
        )
    cut = {"rows": size, "tokens": settings.micro_batch_tokens, "min_rows": task.min_rows}
    sizes = task.sizes(examples)
    return Feed(
        task.draw,
        examples,
        sizes,
        cut=cut,
        batch_size=settings.batch_size,
        seed=seed,
        rank=watch.rank,
        world=watch.world,
        stages=stages_of(task, settings, num_windows(len(examples), settings.batch_size, task.min_rows)),
    )


def stages_of(task: Task, settings: Gradient, steps_per_epoch: int) -> Stages | None:
    """The stages of a task that has any. Raises UsageError where the budget does not say how many steps there are."""
    if not isinstance(task, Staged) or not task.stages:
        return None
    budget = Budget.of(settings, steps_per_epoch)
    if budget.name == "seconds":
        raise UsageError(
            "This recipe's options divide the training into stages of so many steps each, and a budget in seconds leaves "
            "open how many there are. Give --epochs, or --set train.steps=..., in place of --budget."
        )
    return Stages(task.stages, int(budget.amount))
