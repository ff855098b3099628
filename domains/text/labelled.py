"""Labelled texts: a row is a text with a class or a number. See `domains.contract.Domain`.

The column of texts is always called "text" in the table, whatever the file calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.baselines import trivial
from domains.contract import BadRow, Baseline, Facts, Keys, Metric, Reading, Request
from domains.metrics import classification_metrics, regression_metrics
from domains.shared.frames import FrameTable, choose_column
from domains.shared.targets import bad_targets, class_names, infer_task, target_values
from domains.text.baselines import words
from domains.text.copies import NEAR, RUN, copy_groups, folded
from domains.text.readers import Raw, other_columns, read_raw
from trainers.errors import DataError

PARTS = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "dev": "valid", "test": "test"}
IMBALANCED_SHARE = 0.8


def read(data: Any, request: Request) -> Reading:
    """Read CSV, TSV, JSON lines, Parquet or a DataFrame, every row in order.

    With `request.facts` the target may be absent; it is checked only if `request.target` is named (evaluating).
    Raises DataError for what holds no texts, or no such target.
    """
    raw = read_raw(data, request)
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(Path(data))
    if not len(raw.frame):
        raise DataError(f"{where}: there is a header but no row.")
    target, said = _target(raw, request, where)
    task, notice = _task(raw, target, request)
    places, texts = raw.reading.places, raw.frame[raw.text].tolist()
    bad = [BadRow(i, places[i], reason) for i, reason in raw.reading.ragged]
    bad += [BadRow(i, places[i], f"no text in column {raw.text!r}") for i, text in enumerate(texts) if not text.strip()]
    columns: dict[str, Any] = {"text": np.array(texts, dtype=object)}
    if target is not None:
        classes = request.facts.classes if request.facts else ()
        bad += bad_targets(raw.frame[target], task, places, comma=raw.reading.comma, classes=classes)
        columns[target] = target_values(raw.frame[target], task, comma=raw.reading.comma)
        if task == "classification" and request.facts is None:
            class_names(columns[target], f"{where}: target {target!r}")
    _keep_other(columns, raw, request, where, target)
    ids = [str(i) for i in range(len(texts))] if raw.id_column is None else raw.frame[raw.id_column].astype(str)
    context = {"shape": "labelled", "text": raw.text, "id_column": raw.id_column}
    table = FrameTable(pd.DataFrame(columns), np.array(ids, dtype=object), target, context)
    notices = (*raw.reading.notices, *raw.notices, *said, *([notice] if notice else []), *_repeats(columns, target))
    return Reading(table, task, target, tuple(_one_a_row(bad)), notices)


def keys(table: FrameTable, task: str, request: Request, *, fast: bool) -> Keys:
    """Copies and near copies stay together; class shares are even.

    A column named with --group, one with --order, or one called "split", is used instead.
    """
    stratum = table.target().astype(str) if task == "classification" and table.target_name is not None else None
    if request.group and request.group in table.frame.columns:
        group = table.column(request.group).astype(str).to_numpy()
        return Keys("grouped", f"column {request.group!r} was named with --group", group=group, stratum=stratum)
    if request.order and request.order in table.frame.columns:
        order = table.column(request.order).to_numpy()
        return Keys("time", f"column {request.order!r} was named with --order", order=order, stratum=stratum)
    code = copy_groups(table.column("text").tolist(), near=not fast)
    if "split" in table.frame.columns and table.target_name != "split":
        given = [PARTS[str(name).strip().lower()] for name in table.column("split")]
        return Keys("given", "the column 'split' says which row goes where", given=given, group=code, stratum=stratum)
    num_copies = len(code) - len(np.unique(code))
    how = "only exact copies were looked for (--fast)" if fast else f"near: {NEAR:.0%} of runs of {RUN} words shared"
    evidence = {"num_copies": num_copies, "near_copies": "not looked for" if fast else f"Jaccard index >= {NEAR}"}
    if num_copies:
        because = f"{num_copies:,} copies or near copies stay with their originals ({how})"
        return Keys("grouped", because, group=code, stratum=stratum, evidence=evidence)
    because = f"no two texts are copies or near copies ({how})"
    return Keys("random" if stratum is None else "stratified", because, stratum=stratum, evidence=evidence)


def describe(train: FrameTable, task: str, request: Request) -> Facts:
    """Lengths and classes of the training rows. sizes: characters."""
    lengths = train.column("text").str.len().to_numpy()
    target = train.target()
    classes = class_names(target, f"target {train.target_name!r}") if task == "classification" else ()
    sizes: dict[str, float] = {
        "longest_characters": int(lengths.max()),
        "median_characters": float(np.median(lengths)),
        "total_characters": int(lengths.sum()),
    }
    if classes:
        sizes["largest_share"] = float(np.unique(target.astype(str), return_counts=True)[1].max() / len(target))
    schema = {name: train.context[name] for name in ("shape", "text", "id_column")}
    return Facts("text", task, train.target_name, len(train), classes, sizes, schema)


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Classes: accuracy decides (macro-F1 where one class has over 80 % of the rows). Numbers: root mean squared error."""
    if facts.task == "classification":
        return classification_metrics(facts.classes, imbalanced=facts.sizes["largest_share"] > IMBALANCED_SHARE)
    return regression_metrics()


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """Majority or mean; then words and pairs of words with a linear model."""
    return trivial(facts.task), words(facts.task)


def _target(raw: Raw, request: Request, where: str) -> tuple[str | None, list[str]]:
    """The target column, None where predicting; and what to say about it."""
    if request.facts is not None and request.target is None:
        return None, []
    if request.target is not None:
        return choose_column(raw.frame, request.target, where, "--target"), []
    left = other_columns(raw.frame, raw, request)
    if len(left) == 1:
        return left[0], [f"column {left[0]!r} is predicted: it is the only one besides ids and texts"]
    if not left:
        raise DataError(f"{where}: no column of labels beside the texts.")
    raise DataError(f"{where}: which column is to be predicted? Name it with --target. Columns: {', '.join(left)}.")


def _task(raw: Raw, target: str | None, request: Request) -> tuple[str, str]:
    if request.facts is not None:
        return request.facts.task, ""
    assert target is not None
    return infer_task(raw.frame[target], request.task, comma=raw.reading.comma)


def _keep_other(columns: dict[str, Any], raw: Raw, request: Request, where: str, target: str | None) -> None:
    """Columns that a split may ask for."""
    for name in (request.group, request.order):
        if name is not None and (request.facts is None or name in raw.frame.columns):
            columns.setdefault(name, raw.frame[choose_column(raw.frame, name, where, "--group or --order")])
    if "split" in raw.frame.columns and target != "split":
        parts = raw.frame["split"].astype(str).str.strip().str.lower()
        if parts.isin(list(PARTS)).all() and parts.nunique() > 1:
            columns["split"] = parts


def _repeats(columns: dict[str, Any], target: str | None) -> Sequence[str]:
    """Copies whose labels differ: told, not changed."""
    if target is None:
        return []
    frame = pd.DataFrame({"text": [folded(text) for text in columns["text"]], "target": columns[target]})
    differing = int((frame[frame["text"] != ""].groupby("text")["target"].nunique() > 1).sum())
    return [f"{differing:,} texts occur more than once with another {target!r}"] if differing else []


def _one_a_row(bad: Sequence[BadRow]) -> list[BadRow]:
    """The reasons of each row as one, in the order of the file."""
    found: dict[int, BadRow] = {}
    for row in bad:
        before = found.get(row.position)
        reason = f"{before.reason}; {row.reason}" if before else row.reason
        found[row.position] = BadRow(row.position, row.place, reason)
    return [found[position] for position in sorted(found)]
