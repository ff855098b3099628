"""Pictures to learn to draw new ones from, by the class of each where folders or a column tell it.

A row with a picture is answered by how badly the model explains it (the error of the flow, see `domains.images.flow`); a row
without one, of a table that names no pictures, by a new picture of the class in its column `class`, or of any class.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Baseline, Facts, Keys, Metric, Reading, Request
from domains.images import labelled, layout, unlabelled
from domains.images.packed import laid_out
from domains.shared.frames import FrameTable, is_table, read_frame
from domains.shared.paths import existing
from domains.shared.roles import part_of
from domains.shared.targets import class_names, label_texts
from trainers.contract import Predictions
from trainers.errors import DataError, did_you_mean

KIND, TASK, CONDITION = "generated", "generation", "class"
_CLASS_NAMES = ("class", "label", "category")


def read(data: Any, request: Request) -> Reading:
    """Read pictures as `domains.images.unlabelled` does, with the class of each; to draw, a table without pictures too."""
    packed = None if isinstance(data, pd.DataFrame) else laid_out(existing(data))
    data = packed.table if packed else data
    if request.facts is not None and is_table(data) and not _names_pictures(data, request):
        return _orders(data, request)
    found = unlabelled.read(data, request)
    table: Any = found.table
    files = list(table.column(labelled.FILE))
    labels = _of_table(data, request) if is_table(data) else _of_folders(table.context["root"], files, request)
    frame = table.frame.assign(**{CONDITION: pd.Series(labels, dtype=object)})
    context = {**table.context, "kind": KIND, "has_pictures": True}
    bad = [*found.bad, *_unknown(labels, table.ids, request)]
    notices = [*found.notices]
    if request.facts is None:
        known = sorted({label for label in labels if label})
        notices.append(
            f"{len(known)} classes to draw by: {', '.join(known[:20])}" if known else "no classes to draw by"
        )
    return replace(
        found,
        table=replace(table, frame=frame, context=context),
        task=TASK,
        bad=tuple(bad),
        notices=tuple(notices),
    )


def keys(table: Any, task: str, request: Request, *, fast: bool) -> Keys:
    """Copies stay together."""
    return labelled.keys(table, "representation", request, fast=fast)


def describe(train: Any, task: str, request: Request) -> Facts:
    """Sizes and classes of the training pictures."""
    found = labelled.describe(train, "representation", request)
    labels = [label for label in train.column(CONDITION) if label]
    classes = class_names(np.array(labels, object)) if len(set(labels)) > 1 else ()
    return replace(found, task=TASK, classes=classes, schema={**found.schema, "kind": KIND})


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """The mean squared error of the flow on held-out pictures."""
    return (Metric("flow_error", "", False, _errors, lambda stats: float(stats[:, 0].mean())),)


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """None here: rivals must be asked about the same noise at the same size, which the recipe knows."""
    return ()


def _errors(truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    return np.asarray(predictions.values, np.float64)[:, None]


def _names_pictures(data: Any, request: Request) -> bool:
    from domains.images.table import path_column_of

    try:
        path_column_of(read_frame(data, encoding=request.encoding).frame, request, "")
    except DataError:
        return False
    return True


def _orders(data: Any, request: Request) -> Reading:
    """A table whose rows each ask for a picture."""
    assert request.facts is not None
    reading = read_frame(data, encoding=request.encoding)
    labels = _conditions(reading.frame)
    ids = [str(row) for row in range(len(labels))]
    frame = pd.DataFrame({CONDITION: pd.Series(labels, dtype=object)})
    table = FrameTable(frame, ids, None, {"kind": KIND, "has_pictures": False})
    return Reading(table, TASK, None, tuple(_unknown(labels, reading.places, request)), reading.notices)


def _of_table(data: Any, request: Request) -> list[str]:
    return _conditions(read_frame(data, encoding=request.encoding).frame)


def _conditions(frame: pd.DataFrame) -> list[str]:
    column = next((name for name in frame.columns if str(name).lower() in _CLASS_NAMES), None)
    if column is None:
        return [""] * len(frame)
    return [label or "" for label in label_texts(frame[column])]


def _of_folders(root: str, files: list[str], request: Request) -> list[str]:
    """The names of class folders; none where some picture lies outside of them, or all are parts of a split."""
    if not Path(root).is_dir():
        return [""] * len(files)
    labels = {found.file: found.label for found in layout.labelled(Path(root)).pictures}
    found = [labels.get(file) or "" for file in files]
    if request.facts is not None:
        return [label if label in request.facts.classes else "" for label in found]
    return found if all(found) and not all(map(part_of, found)) else [""] * len(files)


def _unknown(labels: list[str], places: Any, request: Request) -> list[BadRow]:
    if request.facts is None:
        return []
    known = request.facts.classes
    return [
        BadRow(row, str(places[row]), f"class {label!r} was not learned.{did_you_mean(label, known)}")
        for row, label in enumerate(labels)
        if label and label not in known
    ]
