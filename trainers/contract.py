"""What a trainer promises and what it asks for: plain records and protocols, no torch at import.

Two contracts. The outer one, `Learner`, is met by everything that learns: trees, an encoder with a head, a network. The
inner one, `Task`, is what a recipe trained by gradients gives to the one loop (`trainers.loop`). Data reaches both as a
`Rows` object (see `domains.contract.Table` for the full protocol); neither knows where it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import torch

JSON = dict[str, Any]
Kind = Literal["label", "labels", "number", "numbers", "tags", "text", "file"]
RoleKind = Literal["matrix", "embedding", "head", "scalar"]


@dataclass(frozen=True)
class Machine:
    """The hardware a plan is made for. Memory in bytes; `bf16` says whether the device multiplies in bfloat16.

    peak_flops: FLOP/s of dense bf16 (or fp16) products by the data sheet; 0 where there is none, as for CPUs.
    """

    device: str = "cpu"
    name: str = ""
    cores: int = 1
    memory_bytes: int = 0
    bf16: bool = False
    peak_flops: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Everything fixed before training starts; frozen, written to plan.json, enough to build the learner again."""

    recipe: str
    type: str
    task: str
    module: str
    options: JSON
    settings: JSON
    facts: JSON
    machine: Machine = field(default_factory=Machine)
    seed: int = 0
    estimates: JSON = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> JSON:
        """The plan as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Plan:
        """The plan that `as_json` wrote."""
        return cls(**{**values, "machine": Machine(**values["machine"])})


@dataclass(frozen=True)
class Prediction:
    """One row's answer, the scores behind it, and why there is none (`problem`). See `Predictions` for the kinds."""

    value: str | float | tuple[str, ...] | tuple[float, ...] | FileValue | None
    scores: Mapping[str, float] | None = None
    problem: str = ""


class FileValue(Protocol):
    """An answer too large for a cell: it is kept small in memory and writes itself, as a file that ends in `suffix`."""

    suffix: str

    def write(self, path: Path) -> None: ...


@dataclass(frozen=True)
class Predictions:
    """Answers for many rows, in the order of the rows, kept as columns.

    kind: what a value is. "label": the name of a class; "labels": a tuple of names, of any number of classes; "number":
        a float; "numbers": a tuple of floats, one for each of several targets, whose names are `classes`; "tags": a tuple
        with a tag for each word of the row; "text": what was written; "file": a `FileValue`, such as a mask.
    values: (rows,) float64 for numbers, else objects; NaN or None where `problems` says why.
    scores: (rows, classes) probabilities, which sum to 1 in a row for "label" and are independent for "labels"; for
        "numbers" the numbers; for "text" numbers about each, if any, named by `classes`; None for the other kinds.
    problems: one text per row, empty when the row was fine.
    """

    kind: Kind
    values: np.ndarray
    scores: np.ndarray | None
    classes: tuple[str, ...]
    problems: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, position: int) -> Prediction:
        scores = None
        if self.scores is not None:
            scores = dict(zip(self.classes, self.scores[position].tolist(), strict=True))
        return Prediction(self.values[position], scores, self.problems[position])

    def __iter__(self) -> Iterator[Prediction]:
        return (self[position] for position in range(len(self)))

    def take(self, positions: Sequence[int] | np.ndarray) -> Predictions:
        """The predictions at `positions`, in that order."""
        scores = None if self.scores is None else self.scores[positions]
        problems = tuple(self.problems[int(i)] for i in positions)
        return Predictions(self.kind, self.values[positions], scores, self.classes, problems)

    @classmethod
    def of_labels(cls, probabilities: np.ndarray, classes: Sequence[str]) -> Predictions:
        """The most probable class of each row. probabilities: (rows, classes), summing to 1 in each row; a row that is not
        finite has no answer, and its problem says so."""
        import numpy as np

        scores, names = np.asarray(probabilities, np.float64), np.asarray(classes, dtype=object)
        values = names[scores.argmax(axis=1)] if len(scores) else np.empty(0, object)
        is_fine = np.isfinite(scores).all(axis=1)
        values[~is_fine] = None
        return cls("label", values, scores, tuple(classes), not_finite(is_fine))

    @classmethod
    def of_label_sets(cls, probabilities: np.ndarray, classes: Sequence[str], threshold: float = 0.5) -> Predictions:
        """The classes of each row that are more probable than `threshold`. probabilities: (rows, classes), each alone."""
        import numpy as np

        is_fine = np.isfinite(probabilities).all(axis=1)
        chosen = [
            tuple(name for name, is_in in zip(classes, row, strict=True) if is_in) for row in probabilities > threshold
        ]
        values = as_objects(chosen)
        values[~is_fine] = None
        return cls("labels", values, np.asarray(probabilities, np.float64), tuple(classes), not_finite(is_fine))

    @classmethod
    def of_tags(cls, tags: Sequence[Sequence[str]], classes: Sequence[str]) -> Predictions:
        """A tag for each word of each row; `classes`: all the tags there are."""
        return cls("tags", as_objects([tuple(row) for row in tags]), None, tuple(classes), ("",) * len(tags))

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> Predictions:
        """One text a row."""
        return cls("text", as_objects(texts), None, (), ("",) * len(texts))

    @classmethod
    def of_files(cls, files: Sequence[FileValue | None]) -> Predictions:
        """One answer a row that becomes a file; None where the model's answer is not finite."""
        return cls("file", as_objects(files), None, (), not_finite([each is not None for each in files]))

    @classmethod
    def of_numbers(cls, numbers: np.ndarray) -> Predictions:
        """One number a row, in the unit of the target; one that is not finite is no answer, and its problem says so."""
        import numpy as np

        values = np.asarray(numbers, np.float64).reshape(-1)
        is_fine = np.isfinite(values)
        return cls("number", np.where(is_fine, values, np.nan), None, (), not_finite(is_fine))

    @classmethod
    def of_number_rows(cls, numbers: np.ndarray, names: Sequence[str]) -> Predictions:
        """Several numbers a row, each in the unit of its target. numbers: (rows, targets); a row with one that is not
        finite has no answer."""
        import numpy as np

        scores = np.asarray(numbers, np.float64)
        is_fine = np.isfinite(scores).all(axis=1)
        values = as_objects([tuple(row) for row in scores.tolist()])
        values[~is_fine] = None
        return cls("numbers", values, scores, tuple(names), not_finite(is_fine))

    @classmethod
    def joined(cls, parts: Sequence[Predictions]) -> Predictions:
        """Several batches of predictions one after another; at least one part."""
        import numpy as np

        scores = None if parts[0].scores is None else np.concatenate([part.scores for part in parts])
        problems = tuple(problem for part in parts for problem in part.problems)
        return cls(parts[0].kind, np.concatenate([part.values for part in parts]), scores, parts[0].classes, problems)


UNKNOWN = "?"
"""Behind the name of a label in a row's tuple: nobody knows whether the row has it."""


def known_labels(sets: Sequence[tuple[str, ...]] | np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """(rows, classes) float64: 1 where a row has the label, 0 where not, NaN where its tuple holds "LABEL?"."""
    import numpy as np

    place = {name: at for at, name in enumerate(classes)}
    unknown = {name + UNKNOWN: at for at, name in enumerate(classes)}
    found = np.zeros((len(sets), len(classes)))
    for row, names in enumerate(sets):
        for name in names:
            if name in place:
                found[row, place[name]] = 1.0
            elif name in unknown:
                found[row, unknown[name]] = np.nan
    return found


def not_finite(is_fine: Any) -> tuple[str, ...]:
    """The problems of answers: a text where `is_fine`, (rows,) bool, is False."""
    return tuple("" if fine else "the model's answer is not finite" for fine in is_fine)


def as_objects(values: Sequence[Any]) -> np.ndarray:
    """(rows,) each value as one object; numpy alone would make a matrix of tuples of equal length."""
    import numpy as np

    found = np.empty(len(values), dtype=object)
    found[:] = list(values)
    return found


class Rows(Protocol):
    """What a trainer may ask of data: its length, one row, some rows, a column, and the names of the rows."""

    ids: Sequence[str]

    def __len__(self) -> int: ...
    def __getitem__(self, position: int) -> Mapping[str, Any]: ...
    def take(self, positions: Sequence[int]) -> Rows: ...
    def column(self, name: str) -> Any: ...


class Watch(Protocol):
    """All that a learner sees of its run."""

    folder: Path
    """Where the learner keeps its snapshots; survives a kill, gone when the run is complete."""
    cache: Path
    """A folder that outlives the run, shared by runs: embeddings, decoded pictures."""
    metric: str
    higher_is_better: bool
    rank: int
    world: int

    def score(self, rows: Any, predictions: Predictions) -> float | None:
        """The deciding metric on `rows`; None where it is undefined (one class only)."""

    def log(self, **event: Any) -> None:
        """Append one line to events.jsonl and show it."""

    def should_stop(self) -> str | None:
        """Why to stop now ("signal", "file"), or None."""


class Learner(Protocol):
    """The outer contract: everything that learns.

    `predict` gets rows without the target and answers every one of them, in order. `resumable` says whether `fit`
    continues from what it left in `watch.folder`. A learner whose answers are files may have `predict_soft`, as `predict`, with
    values of a class whose `mean(values)` is one answer of several learners; without it folds and seeds answer one by one.
    """

    resumable: bool

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Learn; returns facts for actual.json: num_steps, num_parameters, seconds_train, ..."""

    def predict(self, rows: Any) -> Predictions: ...

    def save(self, folder: Path) -> None:
        """Write everything `load` needs: safetensors, JSON and the libraries' own safe formats only."""


@dataclass(frozen=True)
class Batch:
    """What one micro-batch feeds to `Task.loss`, and how many things each term of the loss counts in it."""

    inputs: Any
    counts: Mapping[str, float]


@dataclass(frozen=True)
class Role:
    """What a parameter is for. `depth` counts from the input (0); the head is deepest. Used by optimizers that treat
    roles differently, and for layer-wise learning rates."""

    kind: RoleKind
    depth: int = 0


@dataclass(frozen=True)
class Stage:
    """A stretch of training. until: the share of all steps at which it ends.   cost: of a step in it, in any one unit."""

    until: float
    cost: float = 1.0


class Task(Protocol):
    """The inner contract: what a gradient recipe gives to the loop. See `trainers.loop` for the order of calls.

    loss and predict get the model as an argument (it may be wrapped or compiled); a task that used `self.model` there
    would walk past that in silence.
    """

    model: torch.nn.Module
    couples_rows: bool
    """True where the loss is no sum over rows (contrastive, Cox, batch Dice)."""
    min_rows: int
    """The smallest micro-batch the model can train on: 2 with BatchNorm, else 1."""

    def roles(self) -> Mapping[str, Role]:
        """Role of every trainable parameter by name; what is missing is not trained."""

    def examples(self, train: Any, folder: Path) -> Sequence[Any]:
        """What is drawn in training: rows, windows, cases. `folder` may hold what is made once."""

    def sizes(self, examples: Sequence[Any]) -> Sequence[int] | None:
        """Cost of each example (tokens), for buckets of like length; None when all are equal."""

    def draw(self, examples: Sequence[Any], rngs: Sequence[np.random.Generator]) -> Batch:
        """A micro-batch of CPU tensors. One generator an example, from (seed, step, example): all chance comes from it."""

    def loss(self, model: torch.nn.Module, inputs: Any) -> Mapping[str, torch.Tensor]:
        """TOTAL (not mean) of each term over the micro-batch; the loop divides by the counts of the whole step."""

    def row_sizes(self, rows: Any) -> Sequence[int] | None:
        """Cost of each row in `predict`, for batches of like length."""

    def collate(self, rows: Any) -> Any:
        """Inputs of `predict` for these rows, as CPU tensors. The rows carry no target."""

    def predict(self, model: torch.nn.Module, inputs: Any) -> Predictions: ...


@runtime_checkable
class Staged(Protocol):
    """What a task also meets whose examples are drawn otherwise as training goes on: small pictures before large ones.

    Stages are shares of the planned steps, so the number of a step tells its stage, before and after a resume. A budget in
    seconds leaves the steps open, and is refused.
    """

    stages: Sequence[Stage]
    """In order; empty where all steps draw alike."""

    def draw(self, examples: Sequence[Any], rngs: Sequence[np.random.Generator], stage: int = -1) -> Batch:
        """`Task.draw` in a stage by its place in `stages`; by default as in the last one."""
