"""Labelled texts: a row is a text with a class, any of several labels, or a number. See `domains.contract.Domain`.

The column of texts is always called "text" in the table, whatever the file calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.baselines import label_shares, trivial
from domains.contract import BadRow, Baseline, Doubt, Facts, Keys, Metric, Reading, Request
from domains.metrics import classification_metrics, label_set_metrics, regression_metrics
from domains.shared.frames import FrameTable
from domains.shared.label_sets import label_names, rarest_labels, read_label_sets, target_columns
from domains.shared.roles import (
    IMBALANCED_SHARE,
    found_group,
    keep_split_columns,
    largest_share,
    named_or_only_target,
    one_a_row,
    refuse_target_called,
    task_of_target,
)
from domains.shared.targets import bad_targets, class_names, target_values
from domains.text.baselines import words, words_by_label
from domains.text.copies import copy_keys, folded
from domains.text.readers import Raw, other_columns, read_raw
from trainers.errors import DataError

MULTILABEL = "multilabel"


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
    refuse_target_called("text", target, where)
    columns: dict[str, Any] = {"text": np.array(texts, dtype=object)}
    if target is not None:
        classes = request.facts.classes if request.facts else ()
        if task == MULTILABEL:
            sets = read_label_sets(raw.frame, target, classes=classes, where=where)
            columns[target], said = sets.values, [*said, *sets.notices]
            bad += [BadRow(i, places[i], reason) for i, reason in sets.reasons.items()]
        else:
            bad += bad_targets(raw.frame[target], task, places, comma=raw.reading.comma, classes=classes)
            columns[target] = target_values(raw.frame[target], task, comma=raw.reading.comma)
        if task == "classification" and request.facts is None and not bad:  # bad rows are told first
            class_names(columns[target], f"{where}: target {target!r}")
    groups = keep_split_columns(columns, raw.frame, request, where=where, target=target)
    ids = [str(i) for i in range(len(texts))] if raw.id_column is None else raw.frame[raw.id_column].astype(str)
    names = target_columns(raw.frame, target) if task == MULTILABEL and target else []
    context = {"shape": "labelled", "text": raw.text, "id_column": raw.id_column, "labels": names}
    context["every_text"] = columns["text"]  # of whatever part: more texts for training must not repeat them
    table = FrameTable(pd.DataFrame(columns), np.array(ids, dtype=object), target, context)
    notices = (
        *raw.reading.notices,
        *raw.notices,
        *said,
        *([notice] if notice else []),
        *_repeats(columns, target),
        *groups,
    )
    group = found_group(raw.frame, request, besides=(target,))
    return Reading(table, task, target, tuple(one_a_row(bad)), notices, group=group)


def keys(table: FrameTable, task: str, request: Request, *, fast: bool) -> Keys:
    """Copies and near copies stay together; class shares are even.

    A column named with --group, one with --order, or one called "split", is used instead.
    """
    stratum = None
    if table.target_name is not None and task != "regression":
        stratum = rarest_labels(table.target()) if task == MULTILABEL else table.target().astype(str)
    return copy_keys(table, request, "text", fast=fast, stratum=stratum)


def describe(train: FrameTable, task: str, request: Request) -> Facts:
    """Lengths and classes of the training rows. sizes: characters."""
    lengths = train.column("text").str.len().to_numpy()
    target = train.target()
    classes: tuple[str, ...] = ()
    if task == MULTILABEL:
        classes = label_names(target, str(train.target_name), train.context["labels"])
    elif task == "classification":
        classes = class_names(target, f"target {train.target_name!r}")
    sizes: dict[str, float] = {
        "longest_characters": int(lengths.max()),
        "median_characters": float(np.median(lengths)),
        "total_characters": int(lengths.sum()),
    }
    if task == "classification":
        sizes["largest_share"] = largest_share(target)
    schema = {name: train.context[name] for name in ("shape", "text", "id_column")}
    return Facts("text", task, train.target_name, len(train), classes, sizes, schema)


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Classes: accuracy decides (macro-F1 where one class has over 80 % of the rows). Several labels a row: F1 over all of
    them. Numbers: root mean squared error."""
    if facts.task == "classification":
        return classification_metrics(facts.classes, imbalanced=facts.sizes["largest_share"] > IMBALANCED_SHARE)
    if facts.task == MULTILABEL:
        return label_set_metrics(facts.classes)
    return regression_metrics()


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """Majority, shares of the labels or mean; then words and pairs of words with a linear model."""
    if facts.task == MULTILABEL:
        return label_shares(facts.classes), words_by_label(facts.classes)
    return trivial(facts.task), words(facts.task)


def _repeats(columns: dict[str, Any], target: str | None) -> Sequence[str]:
    """Copies whose labels differ: told, not changed."""
    if target is None:
        return []
    frame = pd.DataFrame({"text": [folded(text) for text in columns["text"]], "target": columns[target]})
    differing = int((frame[frame["text"] != ""].groupby("text")["target"].nunique() > 1).sum())
    return [Doubt(f"{differing:,} texts occur more than once with another {target!r}")] if differing else []


def _target(raw: Raw, request: Request, where: str) -> tuple[str | None, list[str]]:
    """The target column (several with commas between for sets of labels), None where predicting; and what to say."""
    task = request.facts.task if request.facts else request.task
    if request.target is not None and task == MULTILABEL:
        target_columns(raw.frame, request.target, where)
        return request.target, []
    left = other_columns(raw.frame, raw, request)
    return named_or_only_target(raw.frame, request, left, where=where, what="texts")


def _task(raw: Raw, target: str | None, request: Request) -> tuple[str, str]:
    if request.facts is None and request.task == MULTILABEL:  # never guessed: a class may be called "a;b"
        return MULTILABEL, ""
    return task_of_target(raw.frame, target, request, comma=raw.reading.comma)
