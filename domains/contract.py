"""What a data type promises: plain records and protocols. Nothing heavy at import.

A data type is a folder `domains/<type>/` with `data.py` fulfilling `Domain`, one file per model family fulfilling
`Family`, and `demo.py` with the data behind `zoo train RECIPE` without --data. All are plain modules: functions with
these names, no base classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from trainers.contract import JSON, Learner, Machine, Plan, Predictions

if TYPE_CHECKING:
    import numpy as np

Rule = Literal["random", "stratified", "grouped", "time", "given"]


class Table(Protocol):
    """Rows of one data type: a protocol, never "a DataFrame". `domains.shared.frames.FrameTable` serves most types.

    ids: one text per row, unique, as in the file or made from the position.
    context: what all rows share (the data folder, a graph).
    """

    @property
    def ids(self) -> Sequence[str] | np.ndarray: ...
    @property
    def context(self) -> Mapping[str, Any]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, position: int) -> Mapping[str, Any]: ...
    def column(self, name: str) -> Any: ...
    def take(self, positions: Sequence[int] | np.ndarray) -> Table: ...
    def without_target(self) -> Table: ...
    def target(self) -> np.ndarray:
        """(rows,) class names as text (object) or float64 numbers. Raises DataError where the table has none."""


@dataclass(frozen=True)
class Request:
    """What the user said about the data. With `facts` (predicting, evaluating) the file is read the way the training
    file was: same columns, same classes, and the target may be absent."""

    target: str | None = None
    task: str | None = None
    group: str | None = None
    order: str | None = None
    id_column: str | None = None
    labels: str | None = None
    """A second file with the labels, for formats that carry none (FASTA)."""
    reference: str | None = None
    """The genome that places (BED) are cut out of."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column by purpose where the reader cannot guess it: {"sequence": "aa"}, {"path": "file"}."""
    facts: Facts | None = None
    encoding: str | None = None
    """Of text files that are no UTF-8; without it they are refused."""


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used. place: file and line, or the file of a picture, as a person would look for it."""

    position: int
    place: str
    reason: str


class Doubt(str):
    """A notice of something that may be wrong with the data, not only of how it was read: `--strict` lets none pass."""


@dataclass(frozen=True)
class Reading:
    """What was read: every row of the file in order, also the bad ones (`bad` names them), and what to tell the user.

    files: what was read beside the data itself because rows name it (the pictures of a table); a run that continues needs
    them unchanged.
    group: a column that looks as if it named groups (patients, speakers); nobody named one, so it is used as one.
    few: what to bring where the rows are too few to be split.
    """

    table: Table
    task: str
    target: str | None
    bad: tuple[BadRow, ...] = ()
    notices: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    group: str | None = None
    few: str = ""


@dataclass(frozen=True)
class Keys:
    """What a split may need to know of the rows; all optional, each as long as the table.

    group: rows with the same value stay together.   order: sortable, for splits by time.
    given: "train", "valid", "test" or "" (unused) as the user laid the files out.
    stratum: class shares are kept even across parts.
    rule: what the data type chose for this data, and `because` in words.
    named: splits by a name of their own, for comparison with papers or for another question: a function of the seed that
        gives the keys of that split, its own groups and reason among them. Called only when asked for.
    links: for groups made by similarity: links(these, those) gives, for each position of `these`, the highest
        similarity in [0, 1] to any row of `those` that a search finds, else 0. Splits move what reaches `near`.
    """

    rule: Rule = "random"
    because: str = ""
    group: Sequence[Any] | np.ndarray | None = None
    order: Sequence[Any] | np.ndarray | None = None
    given: Sequence[str] | None = None
    stratum: Sequence[Any] | np.ndarray | None = None
    links: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    near: float = 0.3
    evidence: JSON = field(default_factory=dict)
    named: Mapping[str, Callable[[int], Keys]] = field(default_factory=dict)


@dataclass(frozen=True)
class Split:
    """Positions of the three parts (sorted, disjoint; rows may stay unused), the groups, and the proof."""

    rule: str
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    group: np.ndarray
    evidence: JSON


@dataclass(frozen=True)
class Profile:
    """What a data report says of usable rows that only the data type knows.

    num_copies: rows that repeat an earlier one in everything that a model sees.   lengths: (rows,) by what is counted.
    marks: {(what is counted): lengths that usual models stop at}; the report says which share is longer.
    missing: rows without a value, by column.   suspicious: why somebody should look at a column, by column.
    """

    num_copies: int
    lengths: Mapping[str, np.ndarray] = field(default_factory=dict)
    marks: Mapping[str, Sequence[float]] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    suspicious: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Likeness:
    """How like some rows are to others: for each of them the highest similarity in [0, 1] to any of the others, and where
    that one stands among the others (-1: nowhere).

    measure: what 1 means and how it is found, in words.   near: from here on rows are taken for relatives.
    """

    measure: str
    near: float
    highest: np.ndarray
    position: np.ndarray


@dataclass(frozen=True)
class Facts:
    """Schema and sizes of the training rows; nothing fitted. Enough to read a new file for prediction.

    classes: class names in sorted order, () for regression.   sizes: numbers that a plan needs (longest sequence).
    schema: what a new file must have, in the terms of the data type (columns and their kinds).
    """

    type: str
    task: str
    target: str | None
    num_rows: int
    classes: tuple[str, ...] = ()
    sizes: Mapping[str, float] = field(default_factory=dict)
    schema: JSON = field(default_factory=dict)

    @property
    def num_outputs(self) -> int:
        """Outputs of a network for one row: a class each, or one number."""
        return len(self.classes) or 1

    def as_json(self) -> JSON:
        """The facts as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Facts:
        """The facts that `as_json` wrote."""
        return cls(**{**values, "classes": tuple(values["classes"])})


@dataclass(frozen=True)
class Metric:
    """A score with its direction. `stats` keeps a few floats a row, so parts concatenate and groups can be resampled.

    stats(truth, predictions) -> (rows, k) floats; metrics that share the function share its work.
    value(stats) -> the score, NaN where it is undefined.
    num_scored(stats) -> of how many rows the value is made, where some may be undefined; None: of all.
    why_undefined(stats) -> what is missing where the value is NaN, in words; "" where nothing in particular.
    """

    name: str
    unit: str
    higher_is_better: bool
    stats: Callable[[np.ndarray, Predictions], np.ndarray]
    value: Callable[[np.ndarray], float]
    num_scored: Callable[[np.ndarray], int] | None = None
    why_undefined: Callable[[np.ndarray], str] | None = None


@dataclass(frozen=True)
class Baseline:
    """A cheap rival. fit(train) -> predict(rows) -> Predictions. `about` says what it is in a line."""

    name: str
    about: str
    fit: Callable[[Any], Callable[[Any], Predictions]]


@dataclass(frozen=True)
class Demo:
    """Data that a package ships, for `zoo train RECIPE` without --data. `about` says what, from where, which licence."""

    data: Any
    request: Request
    about: str
    options: JSON = field(default_factory=dict)


class Domain(Protocol):
    """The functions of `domains/<type>/data.py`.

    COLUMNS: what its readers may need a column for, as `Request.columns` names them (--column PURPOSE=NAME).
    READS_REFERENCE: there and true where a genome can be named that the data's places are in (--reference).
    A data type may also have `plots(test, predictions, facts, folder) -> {file: caption}`: pictures of the answers on the
    test rows, written into `folder` and shown on the card of the run.
    """

    COLUMNS: tuple[str, ...]

    def read(self, data: Any, request: Request) -> Reading: ...

    def keys(self, table: Any, task: str, request: Request, *, fast: bool) -> Keys:
        """What the split needs. `fast` skips expensive similarity searches, and then `because` says so."""

    def profile(self, table: Any, task: str, request: Request) -> Profile:
        """What the data report says of these rows."""

    def likeness(self, table: Any, these: np.ndarray, those: np.ndarray, request: Request) -> Likeness:
        """How like the rows at positions `these` are to those at `those`. The measure is the type's own."""

    def describe(self, train: Any, task: str, request: Request) -> Facts:
        """Facts of the training rows alone."""

    def metrics(self, facts: Facts) -> tuple[Metric, ...]:
        """The first decides."""

    def baselines(self, facts: Facts) -> tuple[Baseline, ...]:
        """A trivial one first, then a strong cheap one."""


class Family(Protocol):
    """The functions of one model family, `domains/<type>/<family>.py`.

    Options: a pydantic class (extra="forbid", frozen) for the `options:` block of a recipe.
    TINY: {"options": {...}, "train": {...}}: overrides that fit within seconds on a CPU; the batteries run them.
    A family may also have `baselines(plan) -> tuple[Baseline, ...]` for rivals that need its weights;
    `references(plan) -> tuple[Baseline, ...]` for what it is measured against without being meant to win (its teacher);
    and `follows(options) -> str`, a finished run on the same data whose split is taken: what that run was judged on must
    not be trained on by one that learns from it.
    """

    Options: Any
    TINY: JSON

    def plan(self, facts: Facts, options: Any, settings: Any, machine: Machine) -> JSON:
        """Estimates before training: num_steps, memory_bytes, num_parameters (whatever is known), `notes` [text].
        Raises MissingError where weights or a package are not to be had."""

    def build(self, plan: Plan) -> Learner: ...

    def load(self, plan: Plan, folder: Path) -> Learner:
        """The learner that `save` wrote into `folder`. Needs no hub: pretrained weights that training changed are in
        the folder; those it did not change are found by the reference kept there."""
