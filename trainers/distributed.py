"""Training in several processes under torchrun: what they agree on, and the model split or copied among them.

One process (`Ranks()`) needs nothing of this: every question answers itself. Several hold either a copy of the model each
(DDP: gradients are added up while backward runs) or a part of it each (FSDP2, train.shard). The first one reads, splits,
scores and writes; what depends on a clock or a signal is agreed on after every step, so that all do the same next.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from trainers.contract import Watch
from trainers.errors import StoppedError, UsageError

T = TypeVar("T")
WAITING_HOURS = 12
"""How long the others wait while the first one reads, splits and scores."""
REASONS = (None, "file", "signal", "interrupt")
"""Why to stop, the more urgent later."""
CHANCE = 1_000_003
"""Added to the seed for every rank, so that dropout differs among them."""


def world_of_environment() -> int:
    """How many processes torchrun has started, 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextlib.contextmanager
def joined(device: str) -> Iterator[int]:
    """Meet the other processes that torchrun started, yield this one's rank, and part afterwards.

    Numbers on the host are exchanged by gloo, those on GPUs by NCCL.
    """
    kinds = "cpu:gloo,cuda:nccl" if torch.device(device).type == "cuda" else "gloo"
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(torch.device(device))
    dist.init_process_group(kinds, timeout=datetime.timedelta(hours=WAITING_HOURS))
    with losing_none():
        yield dist.get_rank()
    # After an error parting would wait for processes that wait for this one; torchrun ends them when it is gone.
    dist.destroy_process_group()


@contextlib.contextmanager
def losing_none(advice: str = "") -> Iterator[None]:
    """Raise StoppedError with `advice` where an exchange fails because another process has ended.

    gloo has no class for that error, NCCL has.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise StoppedError(
            f"Another of the {dist.get_world_size()} processes has ended, so this one cannot go on. If it gave a reason, "
            f"that stands in its own lines.{advice}"
        ) from error


def own_device(kind: str) -> str:
    """The device of this process: "cuda:1" for the second one on a machine, else `kind` itself."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if kind == "cuda" else kind


def told_by_first(value: T) -> T:
    """What the first process has in `value` (plain values), in every process."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


@dataclass(frozen=True)
class Ranks:
    """This process among all. `is_sharded`: each holds a part of the model, not a copy."""

    rank: int = 0
    world: int = 1
    is_sharded: bool = False

    @classmethod
    def of(cls, watch: Watch, *, shard: bool = False) -> Ranks:
        """The processes that `watch` names. Raises UsageError where `shard` finds nobody to share with."""
        if shard and watch.world == 1:
            raise UsageError(
                "train.shard splits the model among processes, and there is one. Start several: "
                "torchrun --nproc-per-node 2 -m zoo.cli train ... --shard"
            )
        return cls(watch.rank, watch.world, shard)

    @property
    def is_alone(self) -> bool:
        return self.world == 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def wrapped(self, called: nn.Module, *, may_freeze: bool) -> nn.Module:
        """The module to call in training; with copies, gradients are averaged over processes in its backward.

        may_freeze: whether some parameters go without a gradient for a while, which costs a look for them each step.
        """
        if self.is_alone or self.is_sharded:
            return called
        with warnings.catch_warnings():  # of a new name for broadcast_buffers that torch 2.11 does not know
            warnings.simplefilter("ignore", FutureWarning)
            return nn.parallel.DistributedDataParallel(
                called, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=may_freeze
            )

    @contextlib.contextmanager
    def adding_up(self, called: nn.Module, *, is_last: bool) -> Iterator[None]:
        """Exchange gradients in the last micro-batch of a step only."""
        if isinstance(called, nn.parallel.DistributedDataParallel) and not is_last:
            with called.no_sync():
                yield
            return
        if self.is_sharded:
            for part in called.modules():
                if isinstance(part, FSDPModule):
                    part.set_requires_gradient_sync(is_last, recurse=False)
        yield

    def counted(self, counts: Mapping[str, float]) -> dict[str, float]:
        """The sums of these counts over all processes. Every process must name the same terms."""
        if self.is_alone:
            return dict(counts)
        names = sorted(counts)
        sums = torch.tensor([counts[name] for name in names], dtype=torch.float64)
        dist.all_reduce(sums)
        return dict(zip(names, sums.tolist(), strict=True))

    def added(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of `value` over all processes."""
        if not self.is_alone:
            dist.all_reduce(value)
        return value

    def for_mean(self, loss: torch.Tensor) -> torch.Tensor:
        """`loss` such that the mean over processes, which is what their gradients become, is the sum."""
        return loss if self.is_alone else loss * self.world

    def slowest(self, seconds: float, is_compiling: bool) -> tuple[float, bool]:
        """The time of the slowest process, and whether any compiled."""
        if self.is_alone:
            return seconds, is_compiling
        seconds, compiling = _largest(seconds, float(is_compiling))
        return seconds, compiling > 0

    def most_urgent(self, reason: str | None) -> str | None:
        """Why to stop, if any process was told to."""
        return reason if self.is_alone else REASONS[int(_largest(REASONS.index(reason))[0])]

    def told(self, value: T) -> T:
        """What the first process has in `value`."""
        return value if self.is_alone else told_by_first(value)

    def collected(self, value: Any) -> list[Any]:
        """What each process has in `value`, by rank, in every process."""
        if self.is_alone:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        """Return when every process has come here."""
        if not self.is_alone:
            dist.barrier()

    def first_alone(self, make: Callable[[], T]) -> T:
        """What `make` returns, made by the first process before the others: it may download or fill a cache."""
        if not self.is_first:
            self.wait()
            return make()
        found = make()
        self.wait()
        return found

    def part_chance(self, seed: int) -> None:
        """Give every process but the first a stream of torch's chance of its own."""
        if not self.is_first:
            torch.manual_seed(seed + CHANCE * self.rank)

    def average_buffers(self, model: nn.Module) -> None:
        """Set running means (BatchNorm's) to their mean over the processes, each of which saw other rows."""
        if self.is_alone:
            return
        for value in model.buffers():
            if value.is_floating_point():
                dist.all_reduce(value.div_(self.world))


ALONE = Ranks()


def _largest(*values: float) -> list[float]:
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return [float(value) for value in tensor.tolist()]


def shard(model: nn.Module) -> None:
    """Split the parameters of `model` among all processes, in place, block by block.

    Blocks are the members of module lists (the layers of a transformer): one is gathered while the one before computes.
    Source: Zhao et al. 2023, arXiv 2304.11277, section 3.2.
    """
    for block in blocks_of(model):
        fully_shard(block)
    # Also the outermost one lets go of what it gathered, so that between steps all weights are parts.
    fully_shard(model, reshard_after_forward=True)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated layers of a model: members with parameters of its outermost module lists of at least two."""
    found: list[nn.Module] = []
    for part in model.children():
        members = list(part.children())
        is_stack = isinstance(part, nn.ModuleList | nn.Sequential) and len({type(each) for each in members}) == 1
        if is_stack and len(members) > 1 and all(any(True for _ in each.parameters()) for each in members):
            found += members
        else:
            found += blocks_of(part)
    return found


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` with all its parts; every process that holds one must ask at the same time."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_parts(tensors: Iterable[Any]) -> list[torch.Tensor]:
    """What this process holds of each; writing to it writes to the tensor."""
    return [each.to_local() if isinstance(each, DTensor) else each for each in tensors]


@dataclass(frozen=True)
class Splitting:
    """How the processes share the matrices of a stack (N, R, C): as they share `pattern` (R, C)."""

    pattern: DTensor

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Splitting | None:
        """None where this process holds the whole tensor."""
        return cls(tensor) if isinstance(tensor, DTensor) else None

    @property
    def _placements(self) -> list[Placement]:
        return [Shard(each.dim + 1) if isinstance(each, Shard) else each for each in self.pattern.placements]

    def joined(self, parts: torch.Tensor) -> torch.Tensor:
        """The whole stack, from each process's parts; all must come here."""
        num, (rows, columns) = len(parts), self.pattern.shape
        whole_shape: Any = {"shape": torch.Size((num, rows, columns)), "stride": (rows * columns, columns, 1)}
        return DTensor.from_local(parts, self.pattern.device_mesh, self._placements, **whole_shape).full_tensor()

    def own(self, stack: torch.Tensor) -> torch.Tensor:
        """This process's parts of a whole stack that every process has."""
        mesh = self.pattern.device_mesh
        copies = DTensor.from_local(stack, mesh, [Replicate()] * mesh.ndim, run_check=False)
        return copies.redistribute(placements=self._placements).to_local()


def like(tensor: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """`tensor`, whole, as `pattern` is held: this process's part of it where that is split."""
    if not isinstance(pattern, DTensor) or tensor.shape != pattern.shape:
        return tensor
    return distribute_tensor(tensor.to(pattern.device), pattern.device_mesh, pattern.placements)


def shares(parts: Sequence[Any], ranks: Ranks) -> list[tuple[Any, bool]]:
    """(part, whether it counts) for this process: as many for each, since in a split model all must compute together."""
    rounds = -(-len(parts) // ranks.world)
    numbers = [turn * ranks.world + ranks.rank for turn in range(rounds)]
    return [(parts[min(at, len(parts) - 1)], at < len(parts)) for at in numbers]
