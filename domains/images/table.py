"""A table of pictures: a CSV, Parquet file or DataFrame with a column of paths and, to learn from, a target column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from domains.contract import BadRow, Request
from domains.images.packed import Laid
from domains.shared.frames import FrameReading, choose_column, read_frame
from domains.shared.label_sets import read_label_sets, target_columns
from domains.shared.paths import path_problem
from domains.shared.pictures import SUFFIXES
from domains.shared.roles import found_group, parts_of_files, task_of_target, unnamed_groups
from domains.shared.targets import bad_targets, target_values
from trainers.errors import DataError

_PATH_NAMES = (
    "path",
    "file",
    "filename",
    "file_name",
    "filepath",
    "file_path",
    "image",
    "image_path",
    "img",
    "picture",
)
LABEL_SETS = "multilabel"
_TARGET_NAMES = ("target", "label", "class", "category", "y")


class TableRows(NamedTuple):
    """files: path of each row's picture as the table has it, None where it has none.   root: what they are relative to.
    target, values: name and values of the target; None when predicting.   labels: the columns of several labels.
    bad: by position, with the reason.   group: see `domains.contract.Reading`.
    parts: of each file that a column "split" names one for, to learn from."""

    root: Path
    files: list[str | None]
    ids: list[str]
    places: Sequence[str]
    path_column: str
    target: str | None
    values: np.ndarray | None
    task: str
    columns: dict[str, Any]
    bad: list[BadRow]
    notices: list[str]
    labels: list[str]
    group: str | None = None
    parts: dict[str, str] | None = None


def table_rows(data: Any, request: Request, laid: Laid | None = None) -> TableRows:
    """Read the table and check its paths and targets; no picture is opened.

    laid: where the table was made of packed pictures, what their files call its rows.

    Paths must stay inside the folder of the file, links followed. Those of a DataFrame may lead anywhere: whoever made
    it wrote them, while a data file may come from a stranger.
    """
    named = [name for name in (request.columns.get("path"), request.id_column) if name]
    reading = read_frame(data, text_columns=named, encoding=request.encoding)
    reading = reading._replace(places=laid.places) if laid else reading
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(data)
    if not len(reading.frame):
        raise DataError(f"{where}: no rows.")
    root = Path.cwd() if isinstance(data, pd.DataFrame) else Path(data).parent
    path_column = path_column_of(reading.frame, request, where)
    files = [None if pd.isna(cell) or not str(cell) else str(cell) for cell in reading.frame[path_column]]
    bad = bad_paths(files, reading, root, path_column, anywhere=isinstance(data, pd.DataFrame))
    notices = list(reading.notices)
    target = _target_column(reading.frame, request, path_column, where)
    values, task = None, task_named(request) or "classification"
    if target is not None:
        values, task = _targets(reading, target, request, bad, notices, where)
    notices += unnamed_groups(reading.frame, request, besides=(path_column, target))
    group = found_group(reading.frame, request, besides=(path_column, target))
    extra = [*_extra_columns(reading.frame, request, where), *([group] if group else [])]
    columns = {name: reading.frame[name] for name in extra}
    ids = row_ids(files, reading.frame, request, where, laid)
    labels = target_columns(reading.frame, target, where) if target is not None and task == LABEL_SETS else []
    parts = parts_of_files(reading.frame, files, request, where=where, targets=(target, *labels))
    return TableRows(
        root, files, ids, reading.places, path_column, target, values, task, columns, bad, notices, labels, group, parts
    )


def task_named(request: Request) -> str | None:
    """The task that the user named, or that the run has."""
    return request.facts.task if request.facts else request.task


def path_column_of(frame: pd.DataFrame, request: Request, where: str) -> str:
    named = request.columns.get("path")
    if named is not None:
        return choose_column(frame, named, where)
    known = (request.facts.schema.get("path") if request.facts else None,)
    for name in frame.columns:
        if name in known:
            return str(name)
    likely = [name for name in frame.columns if _share_of_pictures(frame[name]) >= 0.5]
    by_name = sorted(likely, key=lambda name: str(name).lower() not in _PATH_NAMES)
    by_name += [name for name in frame.columns if str(name).lower() in _PATH_NAMES]
    if not by_name:
        raise DataError(
            f"{where}: no column holds paths of pictures ({', '.join(SUFFIXES)}). "
            f"Columns: {', '.join(map(str, frame.columns))}. Call it 'path'."
        )
    return str(by_name[0])


def _extra_columns(frame: pd.DataFrame, request: Request, where: str) -> list[str]:
    """Columns that a split needs. New rows to predict or evaluate may lack them."""
    named = [name for name in (request.group, request.order) if name is not None]
    if request.facts is not None:
        return [name for name in named if name in frame.columns]
    return [choose_column(frame, name, where) for name in named]


def _share_of_pictures(values: pd.Series) -> float:
    cells = [str(cell).lower() for cell in values.head(1000) if not pd.isna(cell)]
    return sum(cell.endswith(SUFFIXES) for cell in cells) / max(1, len(cells))


def _target_column(frame: pd.DataFrame, request: Request, path_column: str, where: str) -> str | None:
    if request.target is not None and task_named(request) == LABEL_SETS:
        return request.target if target_columns(frame, request.target, where) else None
    if request.target is not None:
        several = request.target.split(",")
        if request.target not in frame and len(several) > 1 and all(name in frame for name in several):
            raise DataError(
                f"{where}: --target {request.target} names {len(several)} columns of labels: say --task multilabel."
            )
        return choose_column(frame, request.target, where, "--target")
    if request.facts is not None:
        return None
    taken = (path_column, request.id_column, request.group, request.order)
    others = [str(name) for name in frame.columns if name not in taken]
    likely = [name for name in others if name.lower() in _TARGET_NAMES]
    if len(likely or others) != 1:
        raise DataError(
            f"{where}: which column is the target? Choose one with --target: {', '.join(others) or 'none'}."
        )
    return (likely or others)[0]


def _targets(
    reading: FrameReading, target: str, request: Request, bad: list[BadRow], notices: list[str], where: str
) -> tuple[np.ndarray, str]:
    classes = request.facts.classes if request.facts else ()
    if task_named(request) == LABEL_SETS:
        found = read_label_sets(reading.frame, target, classes=classes, where=where)
        bad += [BadRow(i, reading.places[i], reason) for i, reason in found.reasons.items()]
        notices += found.notices
        return found.values, LABEL_SETS
    values = reading.frame[target]
    if request.facts is None and request.task is None and _share_of_pictures(values) >= 0.5:
        raise DataError(
            f"{where}: column {target!r} holds paths of pictures. Are these masks? Then say --task segmentation."
        )
    task, notice = task_of_target(reading.frame, target, request, comma=reading.comma)
    notices += [notice] if notice else []
    bad += bad_targets(values, task, reading.places, comma=reading.comma, classes=classes)
    return target_values(values, task, comma=reading.comma), task


def bad_paths(
    files: list[str | None], reading: FrameReading, root: Path, column: str, *, anywhere: bool
) -> list[BadRow]:
    reasons = ((i, path_problem(file, root, column, anywhere=anywhere)) for i, file in enumerate(files))
    ragged = [BadRow(i, reading.places[i], reason) for i, reason in reading.ragged]
    return ragged + [BadRow(i, reading.places[i], reason) for i, reason in reasons if reason]


def row_ids(
    files: list[str | None], frame: pd.DataFrame, request: Request, where: str, laid: Laid | None = None
) -> list[str]:
    """The id column, else what packed files call their rows, else the paths, else (a picture used twice) the numbers of the
    rows."""
    if request.id_column is not None and (request.facts is None or request.id_column in frame.columns):
        return [str(cell) for cell in frame[choose_column(frame, request.id_column, where, "--id-column")]]
    if laid is not None and len(set(laid.ids)) == len(laid.ids):
        return laid.ids
    if None not in files and len(set(files)) == len(files):
        return [str(file) for file in files]
    return [str(row) for row in range(len(files))]
