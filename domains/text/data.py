"""Texts as a data type. What a row is depends on the shape of the data, and each shape has a module of its own:

labelled  a text with a class, several classes or a number
tagged    a sentence with a tag a word
pairs     a prompt with its completion, or a chat
parallel  a source text with the target text it is to become: a translation, a summary
corpus    running text without labels, cut into shards

See `domains.contract.Domain` for what the functions do.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from domains.contract import Baseline, Facts, Keys, Likeness, Metric, Profile, Reading, Request
from domains.shared.frames import JSON_SUFFIXES, PARQUET_SUFFIXES, read_frame
from domains.text.copies import NEAR, RUN, folded, nearest
from trainers.errors import UsageError

COLUMNS = ("text", "words", "prompt", "answer", "messages", "source")
SHAPE_OF_TASK = {"ner": "tagged", "seq2seq": "parallel"}
COLUMN_OF_SHAPE = {"labelled": "text", "tagged": "text", "pairs": "prompt", "parallel": "source"}
"""The texts that a split keeps apart; running text has none."""
PAIR_COLUMNS = (
    *("prompt", "completion", "response", "answer", "instruction", "output", "source", "target"),
    *("messages", "conversations"),
)
TABLES = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".parquet", ".pq")


def read(data: Any, request: Request) -> Reading:
    """Read what the shape of the data is (`shape_of`), every row in order."""
    reading: Reading = _module(shape_of(data, request)).read(data, request)
    return reading


def keys(table: Any, task: str, request: Request, *, fast: bool) -> Keys:
    """What the split needs."""
    found: Keys = _module(table.context["shape"]).keys(table, task, request, fast=fast)
    return found


def profile(table: Any, task: str, request: Request) -> Profile:
    """Lengths, and exact copies (case and white space aside)."""
    column = COLUMN_OF_SHAPE.get(table.context["shape"])
    if column is None:
        return Profile(0, lengths={"bytes of a shard": table.num_bytes()})
    texts = table.column(column)
    lengths = {"words": texts.str.split().str.len().to_numpy(), "characters": texts.str.len().to_numpy()}
    return Profile(int(texts.map(folded).duplicated().sum()), lengths=lengths)


def likeness(table: Any, these: np.ndarray, those: np.ndarray, request: Request) -> Likeness:
    """How many runs of words are shared. Raises UsageError for running text."""
    column = COLUMN_OF_SHAPE.get(table.context["shape"])
    if column is None:
        raise UsageError("A corpus is split by place, and shards of running text are not compared with one another.")
    highest, position = nearest(table.column(column).to_numpy(object), these, those)
    return Likeness(f"Jaccard index of runs of {RUN} words", NEAR, highest, position)


def describe(train: Any, task: str, request: Request) -> Facts:
    """Lengths and classes of the training rows; `schema["shape"]` remembers the shape."""
    found: Facts = _module(train.context["shape"]).describe(train, task, request)
    assert found.schema["shape"] == train.context["shape"]
    return found


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """The first decides."""
    found: tuple[Metric, ...] = _module(facts.schema["shape"]).metrics(facts)
    return found


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """A trivial rival first, then a strong cheap one."""
    found: tuple[Baseline, ...] = _module(facts.schema["shape"]).baselines(facts)
    return found


def shape_of(data: Any, request: Request) -> str:
    """The shape: as in training where that is known, else by the task; to generate, a table of pairs or plain text."""
    if request.facts is not None:
        return str(request.facts.schema["shape"])
    if request.task == "generation":
        return "pairs" if _holds_pairs(data, request) else "corpus"
    return SHAPE_OF_TASK.get(request.task or "", "labelled")


def _holds_pairs(data: Any, request: Request) -> bool:
    if isinstance(data, str | Path):
        path = Path(data)
        if path.is_dir() or not set(TABLES) & {suffix.lower() for suffix in path.suffixes}:
            return False
    return request.target is not None or _has_pair_columns(data, request.encoding)


def _has_pair_columns(data: Any, encoding: str | None) -> bool:
    # A corpus may be larger than memory, so that of one no more is held than a line; read_frame takes the rest.
    suffix = Path(data).suffix if isinstance(data, str | Path) else ""
    if suffix in JSON_SUFFIXES and Path(data).is_file() and (found := _pairs_in_lines(Path(data))) is not None:
        return found
    if suffix in PARQUET_SUFFIXES and (names := _parquet_names(Path(data))) is not None:
        return _are_pairs(names)
    return _are_pairs(data.columns if hasattr(data, "columns") else read_frame(data, encoding=encoding).frame.columns)


def _are_pairs(names: Iterable[Any]) -> bool:
    return not {str(name).strip().lower() for name in names}.isdisjoint(PAIR_COLUMNS)


def _pairs_in_lines(path: Path) -> bool | None:
    """Whether an object in a file of JSON lines has a key of pairs; None where no line is an object."""
    is_known = None
    with path.open("rb") as lines:
        for line in lines:
            with suppress(ValueError, RecursionError):
                found = json.loads(line.decode("utf-8", "replace"))
                is_known = False if isinstance(found, dict) else is_known
                if isinstance(found, dict) and _are_pairs(found):
                    return True
    return is_known


def _parquet_names(path: Path) -> list[str] | None:
    """The columns of a Parquet file; None where it cannot be read, which `read_frame` words."""
    from pyarrow import parquet

    try:
        return list(parquet.read_schema(path).names)
    except (OSError, ValueError):
        return None


def _module(shape: str) -> Any:
    return importlib.import_module(f"domains.text.{shape}")
