"""Pictures alone, to pretrain a network on: every picture below a folder, or a table's column of paths.

What is predicted of a row is where two views of it lie in the space that was learned; the score asks whether they find each
other among all that are scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import Baseline, Facts, Keys, Metric, Reading, Request
from domains.images import labelled, layout
from domains.images.packed import Laid, laid_out
from domains.images.table import bad_paths, path_column_of, row_ids
from domains.shared.archives import is_archive, unpacked
from domains.shared.frames import is_table, read_frame
from domains.shared.paths import existing
from domains.shared.pictures import SUFFIXES
from domains.shared.roles import part_of
from trainers.contract import Predictions
from trainers.errors import DataError, UsageError

KIND, TASK, TARGET = "unlabelled", "representation", "pictures"
"""The target of a row is the number of its pictures, 1: nothing is known of them."""


def read(data: Any, request: Request) -> Reading:
    """Read a folder at any depth (also packed), one picture, or a table with a column of paths; labels are not looked at.

    Raises UsageError for a target: there is none to name.
    """
    for flag, value in (("--target", request.target), ("--group", request.group), ("--order", request.order)):
        if value is not None and value != TARGET:
            raise UsageError(f"{flag} {value}: representations are learned from pictures alone. Leave it out.")
    if not isinstance(data, pd.DataFrame) and (found := laid_out(existing(data))):
        return _of_table(found.table, request, found)
    if is_table(data):
        return _of_table(data, request)
    path = existing(data)
    root = unpacked(path) if is_archive(path) else path if path.is_dir() else path.parent
    listing = layout.any_depth(root) if root != path.parent else layout.Listing([layout.Found(path.name)])
    if not listing.pictures:
        raise DataError(f"{path}: no picture in this folder ({', '.join(SUFFIXES)}).")
    files = [found.file for found in listing.pictures]
    return _reading(root, files, request, notices=listing.notices, parts=_parts(files))


def _parts(files: Sequence[str]) -> dict[str, str]:
    """The part of each picture where the outermost folders are parts and nothing else, one to learn from among them."""
    found = {file: part_of(file.split("/")[0]) if "/" in file else "" for file in files}
    return found if "" not in found.values() and {"train"} < set(found.values()) else {}


def _of_table(data: Any, request: Request, laid: Laid | None = None) -> Reading:
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(data)
    reading = read_frame(data, encoding=request.encoding)
    reading = reading._replace(places=laid.places) if laid else reading
    anywhere = isinstance(data, pd.DataFrame)
    root = Path.cwd() if anywhere else Path(data).parent
    column = path_column_of(reading.frame, request, where)
    files = [None if pd.isna(cell) or not str(cell) else str(cell) for cell in reading.frame[column]]
    bad = bad_paths(files, reading, root, column, anywhere=anywhere)
    parts = laid.parts if laid else None
    found = _reading(root, files, request, bad=bad, notices=reading.notices, parts=parts)
    found.table.context["path_column"] = column  # type: ignore[index]
    ids = row_ids(files, reading.frame, request, where, laid)
    named = tuple(root / file for file in found.table.context["prints"])
    return replace(found, table=replace(found.table, ids=ids), files=named)  # type: ignore[type-var]


def _reading(root: Path, files: Any, request: Request, **more: Any) -> Reading:
    is_blind = request.facts is not None and request.target is None
    values = None if is_blind else np.ones(len(files))
    target = None if is_blind else TARGET
    return labelled.reading_of(root, files, kind=KIND, values=values, target=target, task=TASK, **more)


def keys(table: Any, task: str, request: Request, *, fast: bool) -> Keys:
    """Copies stay together."""
    return labelled.keys(table, task, request, fast=fast)


def describe(train: Any, task: str, request: Request) -> Facts:
    """Sizes of the training pictures."""
    found = labelled.describe(train, task, request)
    return replace(found, schema={**found.schema, "kind": KIND})


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """The share of pictures whose two views find each other (it decides), and the mean place of the right one."""
    return (
        Metric("matched", "", True, match_stats, lambda stats: float(stats[:, 0].mean())),
        Metric("mean_place", "", False, match_stats, lambda stats: float(stats[:, 1].mean())),
    )


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """Chance. Rivals must be asked for the same views, which the recipe knows."""
    return (Baseline("chance", "all pictures look alike", lambda train: _alike),)


def _alike(rows: Any) -> Predictions:
    return Predictions.of_number_rows(np.ones((len(rows), 2)), ("view_0", "other_0"))


def match_stats(truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    """(rows, 2): whether the other view of a picture is the nearest to it of all other views, and at which place it comes,
    from 1. Those as near share the place. The first half of a row's numbers is one view, the second half the other."""
    scores = predictions.scores
    assert scores is not None
    one, other = np.split(np.nan_to_num(np.asarray(scores, np.float64)), 2, axis=1)
    likeness = _directions(one) @ _directions(other).T
    own = np.diag(likeness)[:, None]
    nearer, as_near = (likeness > own + 1e-9).sum(axis=1), (np.abs(likeness - own) <= 1e-9).sum(axis=1)
    return np.column_stack([np.where(nearer == 0, 1 / as_near, 0.0), 1 + nearer + (as_near - 1) / 2])


def _directions(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))
