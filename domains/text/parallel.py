"""Parallel texts: a row is a source text with the target text it is to become: a translation, a summary, a rewriting.
See `domains.contract.Domain`.

In the table they are the columns "source" and "target", whatever the file calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Baseline, Facts, Keys, Metric, Reading, Request
from domains.shared.frames import FrameReading, FrameTable, choose_column, read_frame
from domains.shared.roles import found_group, id_texts, keep_split_columns, one_a_row
from domains.text.copies import copy_keys
from domains.text.overlap import overlap_metrics
from domains.text.parallel_files import read_folder
from domains.text.recall import copied, remembered
from trainers.errors import DataError

SOURCE_NAMES = ("source", "src", "input", "document", "article", "text", "question", "prompt")
TARGET_NAMES = ("target", "tgt", "output", "summary", "translation", "highlights", "answer", "completion")
ID_NAMES = ("id", "uid", "uuid")


def read(data: Any, request: Request) -> Reading:
    """Read CSV, TSV, JSON lines, Parquet, a DataFrame, or a folder of line-by-line files (train.de beside train.en).

    Columns, or the endings of the files, are found by name (SOURCE_NAMES, TARGET_NAMES), or named: --column source=de
    --target en. With `request.facts` targets are read only if `request.target` is named (evaluating).
    Raises DataError where there are no such columns.
    """
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(Path(data))
    reading, source, target = _read(data, request, where)
    frame = reading.frame
    if not len(frame):
        raise DataError(f"{where}: there is no row.")
    columns: dict[str, Any] = {"source": _texts(frame[source])}
    if target is not None:
        columns["target"] = _texts(frame[target])
    groups = keep_split_columns(columns, frame, request, where=where, target=target)
    ids, name = _ids(frame, request, (source, target), where)
    context = {"shape": "parallel", "source": source, "target": target, "id_column": name}
    table = FrameTable(pd.DataFrame(columns), ids, None if target is None else "target", context)
    notices = (*reading.notices, *groups)
    if request.facts is None:
        notices = (*notices, f"source texts are read from {source!r}, target texts from {target!r}")
    group = found_group(frame, request, besides=(target,))
    return Reading(table, "seq2seq", target, _bad(reading, columns, source, target), notices, group=group)


def keys(table: FrameTable, task: str, request: Request, *, fast: bool) -> Keys:
    """Copies and near copies of source texts stay together.

    A column named with --group, one with --order, or one called "split", is used instead.
    """
    given = "the files, or a column 'split', say which row goes where"
    what = "source texts"
    return copy_keys(table, request, "source", fast=fast, what=what, of=f" of {what}", given=given)


def describe(train: FrameTable, task: str, request: Request) -> Facts:
    """Lengths of the training rows, in characters."""
    sizes: dict[str, float] = {}
    for name in ("source", "target"):
        lengths = train.column(name).str.len()
        sizes |= {f"longest_{name}": int(lengths.max()), f"total_{name}": int(lengths.sum())}
    return Facts("text", task, train.context["target"], len(train), (), sizes, dict(train.context))


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """BLEU decides; then chrF."""
    return overlap_metrics()


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """The source text as it is; then the target of the most similar training source."""
    return copied(), remembered()


def _read(data: Any, request: Request, where: str) -> tuple[FrameReading, str, str | None]:
    """What is in the data, its texts kept letter for letter, and which columns those are."""
    guesses = sorted({*SOURCE_NAMES, *TARGET_NAMES, *request.columns.values()} | {request.target or ""})
    ids = sorted(id_texts(request, ID_NAMES))
    is_folder = not isinstance(data, pd.DataFrame) and Path(data).is_dir()
    reading = (
        read_folder(Path(data))
        if is_folder
        else read_frame(data, text_columns=[*guesses, *ids], encoding=request.encoding)
    )
    source, target = _columns(reading.frame, request, where)
    wanted = [name for name in (source, target) if name is not None]
    if not is_folder and set(wanted) - set(guesses):
        reading = read_frame(data, text_columns=[*wanted, *ids], encoding=request.encoding)
    return reading, source, target


def _columns(frame: pd.DataFrame, request: Request, where: str) -> tuple[str, str | None]:
    """The columns of source and target: as named, as in training, or by their usual names."""
    names = {str(name).strip().lower(): str(name) for name in reversed(list(frame.columns))}
    known = request.facts.schema if request.facts else {}

    def found(purpose: str, usual: Sequence[str]) -> str | None:
        if purpose in request.columns:
            return choose_column(frame, request.columns[purpose], where, f"--column {purpose}=NAME")
        if known.get(purpose) in frame.columns:
            return str(known[purpose])
        return next((names[name] for name in usual if name in names and names[name] != request.target), None)

    is_predicting = request.facts is not None and request.target is None
    target = None if is_predicting else _named_target(frame, request, where) or found("target", TARGET_NAMES)
    source = found("source", SOURCE_NAMES)
    if source is None or source == target or (target is None and not is_predicting):
        raise DataError(
            f"{where}: which text becomes which? Name both: --column source=NAME --target NAME. "
            f"Columns: {', '.join(map(str, frame.columns))}."
        )
    return source, target


def _named_target(frame: pd.DataFrame, request: Request, where: str) -> str | None:
    return None if request.target is None else choose_column(frame, request.target, where, "--target")


def _texts(values: pd.Series) -> np.ndarray:
    return np.array(["" if text is None else str(text) for text in values], dtype=object)


def _ids(
    frame: pd.DataFrame, request: Request, taken: Sequence[str | None], where: str
) -> tuple[np.ndarray, str | None]:
    name = request.id_column if request.id_column in frame.columns or request.facts is None else None
    if name is not None:
        name = choose_column(frame, name, where, "--id-column")
    else:
        usual = {str(each).lower(): str(each) for each in frame.columns if str(each) not in taken}
        found = next((usual[each] for each in ID_NAMES if each in usual), None)
        name = found if found is not None and frame[found].is_unique and frame[found].notna().all() else None
    values = [str(i) for i in range(len(frame))] if name is None else frame[name].astype(str)
    return np.array(values, dtype=object), name


def _bad(reading: FrameReading, columns: dict[str, Any], source: str, target: str | None) -> tuple[BadRow, ...]:
    """Rows of the wrong shape and rows without a text."""
    bad = [BadRow(i, reading.places[i], reason) for i, reason in reading.ragged]
    for name, shown in (("source", source), ("target", target)):
        texts = enumerate(columns.get(name, ()))
        bad += [BadRow(i, reading.places[i], f"no text in {shown!r}") for i, text in texts if not text.strip()]
    return tuple(one_a_row(bad))
