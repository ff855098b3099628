"""Encode every row once, keep the vectors, fit a small network on them: a head, or one that sees the rows as well.

The encoder is frozen, so that each row has one vector for good: it is kept in an SQLite file that outlives the run, under
a key of its content, the encoder's weights and options. The head is trained by the gradient loop on the vectors.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from trainers.checkpoint import write_json
from trainers.contract import JSON, Batch, Plan, Predictions, Role, Task, Watch
from trainers.feed import cuts_of
from trainers.gradient import GradientLearner
from trainers.outcome import ClassWeights, Outcome, fit_outcome
from trainers.settings import Embed
from trainers.vectors import VectorCache, vectors_of

CACHE_FILE, ENCODER_FILE, HEAD = "embeddings.sqlite", "encoder.json", "head"


class Encoder(Protocol):
    """A frozen network that turns rows into vectors.

    width: of a vector.   identity: what its vectors depend on besides the row (weights, options).
    reference: plain values by which a finished run finds it again.
    """

    width: int

    @property
    def identity(self) -> str: ...
    @property
    def reference(self) -> JSON: ...
    def keys(self, rows: Any) -> list[bytes]:
        """What each row's vector depends on (its content), the same for equal rows."""

    def sizes(self, rows: Any) -> Sequence[int]:
        """Cost of each row (tokens)."""

    def encode(self, rows: Any) -> np.ndarray:
        """(rows, width) float32. The network is loaded at the first call."""


class OnVectors(Protocol):
    """What learns on the vectors, by the gradient loop."""

    def statistics(self, train: VectorRows, facts: JSON) -> JSON:
        """All that is fitted on the training rows, `facts` those of the plan: see `trainers.gradient`."""

    def task(self, statistics: JSON, pretrained: bool) -> Task:
        """A fresh task on `VectorRows`."""


@dataclass(frozen=True)
class Head:
    """Meets `OnVectors`. hidden: width of a hidden layer, 0 for a linear head.   dropout: before each layer."""

    hidden: int = 0
    dropout: float = 0.1
    class_weights: ClassWeights = "none"

    def statistics(self, train: VectorRows, facts: JSON) -> JSON:
        """Mean and spread of each dimension, and the targets', from the training rows."""
        outcome = fit_outcome(train.target(), facts["classes"], self.class_weights)
        shape = {"hidden": self.hidden, "dropout": self.dropout}
        return {**scale_of(train.vectors), "outcome": outcome.as_json(), **shape}

    def task(self, statistics: JSON, pretrained: bool) -> HeadTask:
        """The head; there are no pretrained ones."""
        return HeadTask(statistics)


def scale_of(vectors: np.ndarray) -> JSON:
    """Mean and deviation ("mean", "std") of each dimension of (rows, width)."""
    exact = vectors.astype(np.float64)
    spread = exact.std(axis=0)
    # A dimension that never changes carries nothing; dividing by its rounding noise would make it loud.
    std = np.where(spread > 1e-6 * max(spread.max(initial=0.0), 1e-30), spread, 1.0)
    return {"mean": exact.mean(axis=0).tolist(), "std": std.tolist()}


def embedded(
    rows: Any,
    encoder: Encoder,
    cache: VectorCache,
    *,
    num_tokens: int,
    log: Callable[..., None] | None = None,
) -> np.ndarray:
    """(rows, width) float32 vectors; only content that the cache does not know is encoded, and each but once.

    num_tokens: padded tokens of a batch at most, made of rows of like size.   log: gets the progress.
    """

    def encoded(positions: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        done, started = 0, time.monotonic()
        for part in _batches(rows, positions, encoder, num_tokens):
            yield part, encoder.encode(rows.take(part))
            done += len(part)
            if log is not None:
                log(kind="encoding", done=done, of=len(positions), seconds=time.monotonic() - started)

    return vectors_of(encoder.keys(rows), encoded, cache, identity=encoder.identity, width=encoder.width)


def _batches(rows: Any, positions: np.ndarray, encoder: Encoder, num_tokens: int) -> Iterator[np.ndarray]:
    """Positions in batches of like size, the longest first: what does not fit in memory shows at once."""
    sizes = np.asarray(encoder.sizes(rows), dtype=np.int64)[positions]
    order = np.argsort(sizes, kind="stable")
    cuts = cuts_of(sizes[order].tolist(), len(order), num_tokens)
    yield from (positions[part] for part in reversed(np.split(order, cuts)) if len(part))


class VectorRows:
    """Rows with their vectors: a `Rows` whose column "vector" is the matrix; everything else is the rows' own."""

    def __init__(self, rows: Any, vectors: np.ndarray) -> None:
        assert len(rows) == len(vectors)
        self.rows, self.vectors = rows, vectors

    @property
    def ids(self) -> Any:
        return self.rows.ids

    @property
    def context(self) -> Mapping[str, Any]:
        return dict(self.rows.context)

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, position: int) -> Mapping[str, Any]:
        return {**self.rows[position], "vector": self.vectors[position]}

    def column(self, name: str) -> Any:
        return self.vectors if name == "vector" else self.rows.column(name)

    def take(self, positions: Sequence[int] | np.ndarray) -> VectorRows:
        return VectorRows(self.rows.take(positions), self.vectors[np.asarray(positions, np.int64)])

    def without_target(self) -> VectorRows:
        return VectorRows(self.rows.without_target(), self.vectors)

    def target(self) -> np.ndarray:
        return np.asarray(self.rows.target())


class EmbedLearner:
    """Meets `contract.Learner`: encode once, fit a head (or whatever meets `OnVectors`). Resumes: vectors come from the
    cache, the head from its snapshot.

    cache: where vectors are kept; set by `fit`, may be set before `predict`. None: nothing is kept.
    """

    resumable = True

    def __init__(self, plan: Plan, encoder: Encoder, head: OnVectors) -> None:
        self.plan, self.encoder = plan, encoder
        self.settings = Embed.model_validate(plan.settings)
        self.cache: Path | None = None
        self.head = GradientLearner(head_plan(plan), lambda train: head.statistics(train, plan.facts), head.task)

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Encode what is new, then train the head."""
        self.cache = watch.cache
        started = time.monotonic()
        with closing(self._open()) as cache:
            learned = VectorRows(train, self._vectors(train, cache, watch.log))
            checked = None if valid is None else VectorRows(valid, self._vectors(valid, cache, watch.log))
        seconds = time.monotonic() - started
        facts = self.head.fit(learned, checked, watch)
        return {**facts, "seconds_encoding": seconds}

    def predict(self, rows: Any) -> Predictions:
        """The answer to every row, in order; rows in the cache are not encoded again."""
        with closing(self._open()) as cache:
            return self.head.predict(VectorRows(rows, self._vectors(rows, cache)))

    def save(self, folder: Path) -> None:
        """Write the head, and a reference to the encoder: its weights are not changed, so not copied."""
        self.head.save(folder / HEAD)
        write_json(folder / ENCODER_FILE, self.encoder.reference)

    @classmethod
    def load(cls, plan: Plan, folder: Path, find_encoder: Callable[[JSON], Encoder], head: OnVectors) -> EmbedLearner:
        """The learner that `save` wrote. find_encoder(reference) finds the encoder again, or raises MissingError."""
        learner = cls(plan, find_encoder(json.loads((folder / ENCODER_FILE).read_text())), head)
        learner.head = GradientLearner.load(head_plan(plan), folder / HEAD, head.task)
        return learner

    def _open(self) -> VectorCache:
        return VectorCache(None if self.cache is None else self.cache / CACHE_FILE)

    def _vectors(self, rows: Any, cache: VectorCache, log: Callable[..., None] | None = None) -> np.ndarray:
        return embedded(rows, self.encoder, cache, num_tokens=self.settings.encode_tokens, log=log)


def head_plan(plan: Plan) -> Plan:
    """The plan of the head alone: the same with the head's own settings."""
    return replace(plan, settings=plan.settings["head"])


class HeadNetwork(nn.Module):
    """Standardise, then a linear layer or one hidden layer. x: (rows, width) -> (rows, outputs)."""

    def __init__(self, statistics: JSON, num_outputs: int) -> None:
        super().__init__()
        mean, std = torch.tensor(statistics["mean"]), torch.tensor(statistics["std"])
        self.mean, self.std = nn.Buffer(mean), nn.Buffer(std)
        width, hidden, dropout = len(mean), statistics["hidden"], statistics["dropout"]
        layers: list[nn.Module] = [nn.Dropout(dropout)]
        if hidden:
            layers += [nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden or width, num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers((x - self.mean) / self.std)
        return out


class HeadTask:
    """Meets `contract.Task` on `VectorRows`."""

    couples_rows = False
    min_rows = 1

    def __init__(self, statistics: JSON) -> None:
        self.outcome = Outcome.from_json(statistics["outcome"])
        self.model: nn.Module = HeadNetwork(statistics, self.outcome.width)

    def roles(self) -> Mapping[str, Role]:
        return {name: Role("head") for name, _ in self.model.named_parameters()}

    def examples(self, train: VectorRows, folder: Path) -> Sequence[tuple[np.ndarray, Any]]:
        return list(zip(train.vectors, self.outcome.encoded(train.target()), strict=True))

    def sizes(self, examples: Sequence[Any]) -> None:
        return None

    def draw(self, examples: Sequence[tuple[np.ndarray, Any]], rngs: Sequence[np.random.Generator]) -> Batch:
        vectors = torch.from_numpy(np.stack([vector for vector, _ in examples]))
        encoded = np.array([target for _, target in examples])
        return Batch((vectors, torch.from_numpy(encoded)), self.outcome.counts(encoded))

    def loss(self, model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Mapping[str, Tensor]:
        return self.outcome.totals(model(inputs[0]), inputs[1])

    def row_sizes(self, rows: Any) -> None:
        return None

    def collate(self, rows: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows.column("vector")))

    def predict(self, model: nn.Module, inputs: Tensor) -> Predictions:
        return self.outcome.predictions(model(inputs))
