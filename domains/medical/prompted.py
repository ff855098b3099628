"""Scans in which somebody draws a box around each structure, and its outline is found.

One row is one case, read and checked as `domains.medical.masked` does, with its boxes. They stand in the column `boxes` of a
table (`domains.medical.boxes.FORM`). Where there is none, boxes are drawn around the true masks, a little too large, always
the same for the same case: so training, validation and test need masks alone, and scores are those of somebody who draws so.
New scans have no masks, so theirs must be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Baseline, Facts, Keys, Likeness, Metric, Profile, Reading, Request
from domains.medical import masked
from domains.medical.boxes import FORM, Box, boxes_around, hand, loosely, read_boxes
from domains.shared.frames import FrameTable, is_table, read_frame
from trainers.contract import Predictions
from trainers.errors import DataError

KIND, TASK = "prompted", "prompted-segmentation"
BOXES = "boxes"
"""The column of cells in a file, and of lists of `Box` in the table."""
_THREADS = 4


def read(data: Any, request: Request) -> Reading:
    """Cases with their boxes. Raises DataError where new scans come without boxes, else as `masked.read`."""
    cells = _cells(data, request)
    if cells is None and request.facts is not None and request.target is None:
        raise DataError(
            f"{data if isinstance(data, str | Path) else 'DataFrame'}: no boxes. Somebody must say where to look: give a table "
            f"(CSV) with a column of scans and a column {BOXES!r}, each cell {FORM}."
        )
    reading = masked.read(data, replace(request, task="segmentation"))
    old: Any = reading.table
    assert isinstance(old, FrameTable)
    bad = {row.position: row for row in reading.bad}
    texts = cells or [""] * len(old)
    with ThreadPoolExecutor(_THREADS) as pool:
        rows = range(len(old))
        found = list(pool.map(lambda row: [] if row in bad else _boxes_of(old, row, texts[row]), rows))
    for row, each in enumerate(found):
        if isinstance(each, str):
            bad[row] = BadRow(row, str(old.column(masked.IMAGES).iloc[row][0]), each)
    boxes = pd.Series([each if isinstance(each, list) else [] for each in found], dtype=object)
    frame = old.frame.reset_index(drop=True).assign(**{BOXES: boxes})
    table = FrameTable(frame, old.ids, old.target_name, {**old.context, "kind": KIND})
    drawn = 0 if old.target_name is None else sum(not text for text in texts)
    told = (
        [f"{drawn} cases without boxes: drawn around their true masks, up to 2 % of the scan too large"]
        if drawn
        else []
    )
    return replace(
        reading, table=table, task=TASK, bad=tuple(bad[row] for row in sorted(bad)), notices=(*reading.notices, *told)
    )


def _cells(data: Any, request: Request) -> list[str] | None:
    """What the column of boxes says; None where there is no such column."""
    if not is_table(data):
        return None
    frame = read_frame(data, text_columns=(BOXES,), encoding=request.encoding).frame
    if BOXES not in frame.columns:
        return None
    return ["" if pd.isna(cell) else str(cell).strip() for cell in frame[BOXES]]


def _boxes_of(table: FrameTable, row: int, cell: str) -> list[Box] | str:
    """The boxes of a usable row, or what is wrong with them."""
    name = str(table.ids[row])
    shape = table.context["looks"][name].geometry.shape
    if cell or table.target_name is None:
        return read_boxes(cell, table.context["names"], shape)
    around = boxes_around(table.column(masked.MASK).iloc[row].array())
    return (
        loosely(around, shape, hand(name)) if around else "its mask is empty, so there is nothing to draw a box around"
    )


def keys(table: Any, task: str, request: Request, *, fast: bool) -> Keys:
    """As of masks."""
    return masked.keys(table, task, request, fast=fast)


def profile(table: Any, task: str, request: Request) -> Profile:
    """As of masks."""
    return masked.profile(table, task, request)


def likeness(table: Any, these: np.ndarray, those: np.ndarray, request: Request) -> Likeness:
    """As of masks."""
    return masked.likeness(table, these, those, request)


def describe(train: Any, task: str, request: Request) -> Facts:
    """As of masks."""
    found = masked.describe(train, task, request)
    return replace(found, schema={**found.schema, "kind": KIND})


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """As of masks."""
    return masked.metrics(facts)


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """The box itself, and what a threshold finds in it."""
    from domains.medical.box_baselines import brighter_part, filled

    return filled(), brighter_part()


def plots(test: Any, predictions: Predictions, facts: Facts, folder: Path) -> Mapping[str, str]:
    """As of masks."""
    return masked.plots(test, predictions, facts, folder)
