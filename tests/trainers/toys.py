"""Small tasks, rows and a watch for the tests of the gradient core."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trainers import checkpoint, distributed
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role


class ToyRows:
    """Columns of equal length as a `contract.Rows`; the column "target" is what predicting must not see."""

    def __init__(self, **columns: Sequence[Any]) -> None:
        self.columns = columns
        self.ids = [str(at) for at in range(len(self))]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, position: int) -> Mapping[str, Any]:
        return {name: column[position] for name, column in self.columns.items()}

    def take(self, positions: Sequence[int]) -> ToyRows:
        return ToyRows(**{name: [column[at] for at in positions] for name, column in self.columns.items()})

    def column(self, name: str) -> Sequence[Any]:
        return self.columns[name]

    def without_target(self) -> ToyRows:
        return ToyRows(**{name: column for name, column in self.columns.items() if name != "target"})


@dataclass
class ToyWatch:
    """Collects events. stop_at: (steps, reason), counted over calls of should_stop; the reason "kill" ends the process
    with SIGKILL, and "crash" raises."""

    folder: Path
    metric: str = "mae"
    higher_is_better: bool = False
    stop_at: tuple[int, str] | None = None
    scores: Sequence[float | None] | None = None
    """Given scores in place of measured ones."""
    rank: int = 0
    world: int = 1
    events: list[JSON] = field(default_factory=list)
    calls: int = 0

    @property
    def cache(self) -> Path:
        return self.folder

    def score(self, rows: Any, predictions: Predictions) -> float | None:
        if self.scores is not None:
            return self.scores[min(len(self.of_kind("eval") + self.of_kind("warning")), len(self.scores) - 1)]
        truth = np.asarray(rows.column("target"))
        if predictions.kind == "label":
            return float(np.mean(truth != predictions.values))
        return float(np.abs(truth - predictions.values).mean())

    def log(self, **event: Any) -> None:
        self.events.append(event)

    def should_stop(self) -> str | None:
        self.calls += 1
        if self.stop_at is None or self.calls <= self.stop_at[0]:
            return None
        if self.stop_at[1] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.stop_at[1] == "crash":
            raise RuntimeError("crash")
        return self.stop_at[1]

    def of_kind(self, kind: str) -> list[JSON]:
        return [event for event in self.events if event["kind"] == kind]


class VectorTask:
    """A perceptron on vectors of four numbers; regression of a standardised number."""

    couples_rows = False
    min_rows = 1

    def __init__(self, statistics: JSON, *, dropout: float = 0.0, norm: bool = False, noise: float = 0.0) -> None:
        hidden = nn.BatchNorm1d(16) if norm else nn.Identity()
        body = nn.Sequential(nn.Linear(4, 16), hidden, nn.GELU(), nn.Dropout(dropout))
        self.model = nn.Sequential(body, nn.Linear(16, 1))
        self.mean, self.scale, self.noise = statistics["mean"], statistics["scale"], noise
        self.min_rows = 2 if norm else 1
        self.drawn: list[int] = []

    def roles(self) -> dict[str, Role]:
        return {
            name: Role("head", 1) if name.startswith("1.") else Role("matrix" if p.ndim > 1 else "scalar", 0)
            for name, p in self.model.named_parameters()
        }

    def examples(self, train: Any, folder: Path) -> Sequence[int]:
        self.train = train
        return range(len(train))

    def sizes(self, examples: Sequence[Any]) -> Sequence[int] | None:
        return None

    def draw(self, examples: Sequence[int], rngs: Sequence[np.random.Generator]) -> Batch:
        self.drawn.extend(examples)
        x = np.array([self.train.column("x")[at] for at in examples], np.float32)
        if self.noise:
            x = x + self.noise * np.stack([rng.standard_normal(4) for rng in rngs]).astype(np.float32)
        y = (np.array([self.train.column("target")[at] for at in examples], np.float32) - self.mean) / self.scale
        is_known = ~np.isnan(y)
        y = np.nan_to_num(y).astype(np.float32)
        inputs = {"x": torch.from_numpy(x), "y": torch.from_numpy(y), "is_known": torch.from_numpy(is_known)}
        return Batch(inputs, {"mse": float(is_known.sum())})

    def loss(self, model: nn.Module, inputs: Any) -> Mapping[str, torch.Tensor]:
        error = model(inputs["x"]).squeeze(1) - inputs["y"]
        return {"mse": (error.square() * inputs["is_known"]).sum()}

    def row_sizes(self, rows: Any) -> Sequence[int] | None:
        return None

    def collate(self, rows: Any) -> torch.Tensor:
        assert "target" not in rows.columns
        return torch.tensor(np.array(rows.column("x"), np.float32))

    def predict(self, model: nn.Module, inputs: torch.Tensor) -> Predictions:
        return Predictions.of_numbers(model(inputs).squeeze(1).float().numpy() * self.scale + self.mean)


class TokenTask:
    """Two losses on ragged sequences: the class of each labelled token, and a number of each sequence that has one."""

    couples_rows = False
    min_rows = 1

    def __init__(self, statistics: JSON) -> None:
        self.model = TokenNet()

    def roles(self) -> dict[str, Role]:
        kinds = {"embed.weight": Role("embedding", 0), "mix.weight": Role("matrix", 1), "mix.bias": Role("scalar", 1)}
        return {name: kinds.get(name, Role("head", 2)) for name, _ in self.model.named_parameters()}

    def examples(self, train: Any, folder: Path) -> Sequence[Any]:
        return [train[at] for at in range(len(train))]

    def sizes(self, examples: Sequence[Any]) -> Sequence[int]:
        return [len(example["tokens"]) for example in examples]

    def draw(self, examples: Sequence[Any], rngs: Sequence[np.random.Generator]) -> Batch:
        tokens = padded([e["tokens"] for e in examples])
        # One token in five is not asked for, by chance that belongs to the example.
        asked = [
            np.where(rng.random(len(e["tags"])) < 0.2, -1, e["tags"]) for e, rng in zip(examples, rngs, strict=True)
        ]
        tags = padded(asked, empty=-1)
        number = torch.tensor([e["number"] for e in examples], dtype=torch.float32)
        counts = {"tags": float((tags >= 0).sum()), "number": float((~number.isnan()).sum())}
        return Batch({"tokens": tokens, "tags": tags, "number": number}, counts)

    def loss(self, model: nn.Module, inputs: Any) -> Mapping[str, torch.Tensor]:
        logits, number = model(inputs["tokens"])
        tags = nn.functional.cross_entropy(
            logits.flatten(0, 1), inputs["tags"].flatten(), ignore_index=-1, reduction="sum"
        )
        is_known = ~inputs["number"].isnan()
        return {"tags": tags, "number": (number - inputs["number"])[is_known].square().sum()}

    def row_sizes(self, rows: Any) -> Sequence[int]:
        return [len(tokens) for tokens in rows.column("tokens")]

    def collate(self, rows: Any) -> torch.Tensor:
        return padded(rows.column("tokens"))

    def predict(self, model: nn.Module, inputs: torch.Tensor) -> Predictions:
        return Predictions.of_numbers(model(inputs)[1].numpy())


class TokenNet(nn.Module):
    """Embeds tokens (0 is padding), mixes each with the mean of its sequence, answers per token and per sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8, padding_idx=0)
        self.mix = nn.Linear(16, 8)
        self.tag = nn.Linear(8, 3)
        self.number = nn.Linear(8, 1)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(tokens)
        is_token = (tokens > 0).unsqueeze(-1).float()
        mean = (x * is_token).sum(1, keepdim=True) / is_token.sum(1, keepdim=True)
        x = torch.tanh(self.mix(torch.cat([x, mean.expand_as(x)], -1)))
        pooled = (x * is_token).sum(1) / is_token.sum(1)
        return self.tag(x), self.number(pooled).squeeze(-1)


def padded(rows: Sequence[Any], empty: int = 0) -> torch.Tensor:
    """Ragged integers as one tensor, (rows, longest)."""
    tensors = [torch.as_tensor(np.asarray(row), dtype=torch.long) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=empty)


def vector_rows(num_rows: int, seed: int = 0, unit: float = 10.0) -> ToyRows:
    """A number that depends on four, with a little noise."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_rows, 4))
    y = unit * (x[:, 0] - 2 * x[:, 1] * x[:, 2] + 0.1 * rng.standard_normal(num_rows)) + 5
    return ToyRows(x=list(x), target=list(y))


def token_rows(num_rows: int, seed: int = 0) -> ToyRows:
    """Sequences of 1 to 30 tokens with a tag each; every third has no number."""
    rng = np.random.default_rng(seed)
    tokens = [rng.integers(1, 12, rng.integers(1, 31)) for _ in range(num_rows)]
    numbers = [float("nan") if at % 3 == 0 else float(row.mean() / 6 - 1) for at, row in enumerate(tokens)]
    return ToyRows(tokens=tokens, tags=[row % 3 for row in tokens], number=numbers)


def vector_statistics(train: ToyRows) -> JSON:
    """Mean and scale of the target."""
    target = np.asarray(train.column("target"))
    return {"mean": float(np.nanmean(target)), "scale": float(np.nanstd(target))}


def plan_of(settings: JSON, *, seed: int = 0, **machine: Any) -> Plan:
    """A plan that holds only what the gradient core reads."""
    return Plan("toy/toy", "toy", "regression", "toys", {}, settings, {}, Machine(**machine), seed)


def in_two_processes(function: Any, folder: Path) -> None:
    """Call `function(rank, folder)` in two processes that have met over gloo. It must stand at the top of a module."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_joined, (function, folder, port), nprocs=2)


def _joined(rank: int, function: Any, folder: Path, port: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    checkpoint.sync = lambda path: None  # only a power cut needs it
    with distributed.joined("cpu"):
        function(rank, folder)
    # Not through the interpreter's end: threads of PyTorch that ask for its lock there abort the process now and then
    # (once in many runs of this file: "terminate called without an active exception").
    os._exit(0)
