"""The order in which examples are drawn, and drawing them one step ahead.

Everything about the order is a pure function of (seed, epoch) and everything about chance within an example one of
(seed, step, example), so nothing of it needs saving: a resumed run, another micro-batch size and another number of
processes see the same examples with the same augmentations in the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import numpy as np

from trainers.contract import Batch
from trainers.stages import Stages

ORDER, EXAMPLE = 0, 1
"""First words of the spawn keys: streams of different purpose never meet."""
STRETCH = 50
"""Batches sorted by size together: enough for little padding, few enough to keep chance in the order."""
PAYS_FROM_SECONDS = 0.0005
"""Drawing ahead in a thread costs 0.1 to 0.3 ms a step."""
T = TypeVar("T")


def generator(seed: int, *key: int) -> np.random.Generator:
    """The generator that belongs to `seed` and `key`. Keys of different length are different streams."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


class Generators(Sequence[np.random.Generator]):
    """One generator an example of a step, made when first asked for: making one costs 15 microseconds, and many tasks
    need none."""

    def __init__(self, seed: int, step: int, examples: Sequence[int] | np.ndarray) -> None:
        self.seed, self.step, self.examples = seed, step, examples
        self.made: dict[int, np.random.Generator] = {}

    def __len__(self) -> int:
        return len(self.examples)

    @overload
    def __getitem__(self, position: int) -> np.random.Generator: ...
    @overload
    def __getitem__(self, position: slice) -> list[np.random.Generator]: ...
    def __getitem__(self, position: int | slice) -> Any:
        if isinstance(position, slice):
            return [self[at] for at in range(*position.indices(len(self)))]
        at = range(len(self))[position]
        if at not in self.made:
            self.made[at] = generator(self.seed, EXAMPLE, self.step, int(self.examples[at]))
        return self.made[at]


def num_windows(num_examples: int, batch_size: int, min_rows: int = 1) -> int:
    """How many optimizer steps an epoch has: as many as `epoch_windows` gives."""
    whole, rest = divmod(num_examples, batch_size)
    return whole + 1 if rest >= min_rows or whole == 0 else whole


def epoch_windows(
    num_examples: int,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    sizes: np.ndarray | None = None,
    min_rows: int = 1,
) -> list[np.ndarray]:
    """The examples of each optimizer step of one epoch; every example is in exactly one of them.

    sizes: (num_examples,) cost of each example; then a window holds examples of like size.
    min_rows: a last window smaller than this joins the one before it.
    """
    rng = generator(seed, ORDER, epoch)
    order = rng.permutation(num_examples)
    num_whole = num_examples // batch_size * batch_size
    # The partial batch is set aside before sorting: cut off afterwards, it would always hold the longest examples.
    whole, rest = order[:num_whole], order[num_whole:]
    if sizes is not None:
        whole = sorted_in_stretches(whole, sizes, STRETCH * batch_size)
    windows = [*whole.reshape(-1, batch_size), rest] if len(rest) else list(whole.reshape(-1, batch_size))
    windows = without_small(windows, min_rows)
    return windows if sizes is None else [windows[at] for at in rng.permutation(len(windows))]


def sorted_in_stretches(order: np.ndarray, sizes: np.ndarray, length: int) -> np.ndarray:
    """`order`, with each stretch of `length` sorted by size; equal sizes keep their order."""
    stretches = [order[start : start + length] for start in range(0, len(order), length)]
    return np.concatenate([part[np.argsort(sizes[part], kind="stable")] for part in stretches] or [order])


def micro_batches(
    window: np.ndarray,
    sizes: np.ndarray | None,
    *,
    rows: int | None,
    tokens: int | None,
    min_rows: int = 1,
) -> list[np.ndarray]:
    """Cut the examples of one step into micro-batches of at most `rows` rows and rows * longest <= `tokens`.

    An example longer than `tokens` is alone. Parts under `min_rows` join a neighbour, even past these limits.
    """
    rows = len(window) if rows is None else rows
    if sizes is None or (tokens is None and rows >= len(window)):
        parts = [window[start : start + rows] for start in range(0, len(window), rows)]
    else:
        ordered = window[np.argsort(sizes[window], kind="stable")]
        parts = np.split(ordered, cuts_of(sizes[ordered].tolist(), rows, tokens))
    return without_small(parts, min_rows)


def cuts_of(sizes: Sequence[int], rows: int, tokens: int | None) -> list[int]:
    """Positions at which rising `sizes` are cut so that each part keeps within both limits."""
    cuts, start = [], 0
    for at, size in enumerate(sizes):
        num = at - start + 1
        if at > start and (num > rows or (tokens is not None and num * size > tokens)):
            cuts.append(at)
            start = at
    return cuts


def without_small(parts: Sequence[np.ndarray], min_rows: int) -> list[np.ndarray]:
    """The parts in order, each one under `min_rows` joined to the part before it (the first to the one after)."""
    kept: list[np.ndarray] = []
    for part in parts:
        if kept and (len(part) < min_rows or len(kept[-1]) < min_rows):
            kept[-1] = np.concatenate([kept[-1], part])
        else:
            kept.append(part)
    return kept


def dealt(window: np.ndarray, sizes: np.ndarray | None, rank: int, world: int, min_rows: int = 1) -> np.ndarray:
    """The examples of a step that process `rank` of `world` computes: one of each `world` of neighbouring size.

    Empty where there are not `min_rows` for every process: the last ones then have none.
    """
    world = min(world, max(1, len(window) // min_rows))
    ordered = window if sizes is None or world == 1 else window[np.argsort(sizes[window], kind="stable")]
    return ordered[rank::world] if rank < world else ordered[:0]


def total_counts(batches: Iterable[Batch]) -> dict[str, float]:
    """What each term of the loss counts in all these micro-batches together."""
    totals: dict[str, float] = {}
    for batch in batches:
        for term, count in batch.counts.items():
            totals[term] = totals.get(term, 0.0) + float(count)
    return totals


def size_order(sizes: Sequence[int] | np.ndarray | None, num_rows: int) -> np.ndarray:
    """Positions of rows from the largest to the smallest: what does not fit into memory shows at once."""
    if sizes is None:
        return np.arange(num_rows)
    return np.argsort(-np.asarray(sizes), kind="stable")


@dataclass(frozen=True)
class Drawn:
    """One step's micro-batches of this process, and how many examples the step has in all processes (and tokens, where
    the task tells sizes).

    is_extra: there was none left for this process, so it computes along on examples of another, at weight 0.
    stage: of the training, where the task has several; steps of one are alike.
    """

    batches: list[Batch]
    num_examples: int
    num_tokens: int | None = None
    is_extra: bool = False
    stage: int | None = None


class Feed:
    """The micro-batches of any step of training.

    draw, examples, sizes: as in `contract.Task`, where there are `stages` draw is as in `contract.Staged`.
    cut: the limits of `micro_batches`.
    """

    def __init__(
        self,
        draw: Callable[..., Batch],
        examples: Sequence[Any],
        sizes: Sequence[int] | None,
        *,
        cut: Mapping[str, Any],
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        stages: Stages | None = None,
    ) -> None:
        self.draw, self.examples, self.cut, self.stages = draw, examples, cut, stages
        self.sizes = None if sizes is None else np.asarray(sizes)
        self.order = {"seed": seed, "sizes": self.sizes, "min_rows": cut["min_rows"]}
        self.batch_size, self.seed, self.rank, self.world = batch_size, seed, rank, world
        self.steps_per_epoch = num_windows(len(examples), batch_size, cut["min_rows"])
        self.epoch = -1
        self.windows: list[np.ndarray] = []

    def window(self, step: int) -> np.ndarray:
        """The examples of step number `step` (from 0, counted over all epochs)."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self.epoch:
            self.windows = epoch_windows(len(self.examples), self.batch_size, epoch=epoch, **self.order)
            self.epoch = epoch
        return self.windows[position]

    def drawn(self, step: int) -> Drawn:
        """The micro-batches of step number `step`."""
        window = self.window(step)
        own = dealt(window, self.sizes, self.rank, self.world, self.cut["min_rows"])
        if is_extra := not len(own):
            own = window[: self.cut["min_rows"]]
        stage = None if self.stages is None else self.stages.at(step)
        batches = [self._drawn(step, part, stage) for part in micro_batches(own, self.sizes, **self.cut)]
        if is_extra:
            batches = [Batch(batch.inputs, dict.fromkeys(batch.counts, 0.0)) for batch in batches]
        num_tokens = None if self.sizes is None else int(self.sizes[window].sum())
        return Drawn(batches, len(window), num_tokens, is_extra, stage)

    def largest_step(self, num_steps: int | None = None) -> tuple[int, float]:
        """The step of the first epoch, or of its first `num_steps`, whose micro-batches are padded largest, and the median
        step's cost as a share of its; of several stages a whole step of the costliest; (0, 1.0) where all cost the same."""
        if self.stages is not None:
            return self._costliest_step(self.stages), self.stages.median_cost()
        if self.sizes is None:
            return 0, 1.0
        costs, largest = [], []
        for step in range(min(self.steps_per_epoch, num_steps or self.steps_per_epoch)):
            parts = micro_batches(self.window(step), self.sizes, **self.cut)
            padded = [len(part) * int(self.sizes[part].max()) for part in parts]
            costs.append(sum(padded))
            largest.append(max(padded))
        at = int(np.argmax(largest))
        return at, float(np.median(costs)) / max(1, costs[at])

    def middling_tokens(self) -> float | None:
        """What the examples of the median step of the first epoch come to; None where all cost the same."""
        if self.sizes is None:
            return None
        return float(np.median([self.sizes[self.window(step)].sum() for step in range(self.steps_per_epoch)]))

    def halve(self) -> bool:
        """Cut micro-batches into halves from now on; False where they are as small as the model allows."""
        rows, tokens, least = self.cut["rows"], self.cut["tokens"], self.cut["min_rows"]
        rows = self.batch_size if rows is None else min(rows, self.batch_size)
        if rows <= least:
            return False
        self.cut = {**self.cut, "rows": max(least, rows // 2), "tokens": tokens and max(1, tokens // 2)}
        return True

    def _costliest_step(self, stages: Stages) -> int:
        """The last step of an epoch may be short; the one after it is whole."""
        step = stages.start(stages.costliest())
        return min((step, step + 1), key=lambda at: (stages.at(at) != stages.at(step), -len(self.window(at))))

    def _drawn(self, step: int, part: np.ndarray, stage: int | None) -> Batch:
        given = [self.examples[at] for at in part.tolist()], Generators(self.seed, step, part)
        return self.draw(*given) if stage is None else self.draw(*given, stage)


class Ahead(Generic[T]):
    """Calls `make(step)` for the coming step in a thread while the current one computes; steps are taken in order.

    What is made within PAYS_FROM_SECONDS is made when it is asked for: handing it between threads would cost more.
    """

    def __init__(self, make: Callable[[int], T]) -> None:
        self.make = make
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="feed")
        self.coming: tuple[int, Future[T]] | None = None
        self.seconds = 0.0

    def __enter__(self) -> Ahead[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)

    def take(self, step: int) -> T:
        """What `make(step)` returned or raised; starts on step + 1."""
        is_coming = self.coming is not None and self.coming[0] == step
        result = self.coming[1].result() if self.coming and is_coming else self._timed(step)
        self.coming = (step + 1, self.pool.submit(self._timed, step + 1)) if self.seconds > PAYS_FROM_SECONDS else None
        return result

    def forget(self) -> None:
        """Throw away what was made ahead: it would be made differently now."""
        if self.coming is not None and not self.coming[1].cancel():
            wait([self.coming[1]])
        self.coming = None

    def _timed(self, step: int) -> T:
        began = time.perf_counter()
        result = self.make(step)
        self.seconds = time.perf_counter() - began
        return result
