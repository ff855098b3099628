"""The target of a molecule: a class, a number, several yes-or-no labels, or several numbers; any of several may be missing.

Several columns are named with commas between: `--target NR-AR,NR-ER`. All of 0 and 1 make labels, else numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Doubt, Request
from domains.molecules.generated import TARGET as WRITTEN
from domains.molecules.generated import TASK as GENERATION
from domains.molecules.readers import Raw
from domains.shared.cells import as_numbers
from domains.shared.label_sets import read_label_sets, target_columns
from domains.shared.roles import named_or_only_target, task_of_target
from domains.shared.targets import LARGEST, bad_targets, class_names, target_values
from trainers.contract import as_objects
from trainers.errors import DataError

MULTILABEL, MULTIREGRESSION = "multilabel", "multiregression"
SEVERAL = (MULTILABEL, MULTIREGRESSION)


@dataclass(frozen=True)
class Target:
    """name: what the user called it, None where predicting.   columns: the columns of the file it names.
    values: (rows,) as a table keeps it, None where there are none."""

    name: str | None
    task: str
    columns: tuple[str, ...] = ()
    values: Any = None
    bad: tuple[BadRow, ...] = ()
    notices: tuple[str, ...] = ()


def read_target(raw: Raw, request: Request, where: str) -> Target:
    """The target of every row. Raises DataError where it is not clear which it is, or nothing can be learned from it."""
    task = request.facts.task if request.facts else request.task
    if task == GENERATION:
        if request.facts is None and request.target is not None:
            raise DataError(
                f"--target {request.target}: to write molecules is learned from their SMILES alone. Leave it out."
            )
        molecules = np.array([each.canonical for each in raw.molecules], dtype=object)
        return Target(WRITTEN, task, (), molecules)
    if request.facts is not None and request.target is None:
        return Target(None, request.facts.task)
    columns = target_columns(raw.frame, request.target, where) if request.target else []
    if len(columns) > 1 or task in SEVERAL:
        return _several(raw, request, task, where)
    taken = {raw.smiles, raw.id_column, request.group, request.order, "split"}
    left = [str(name) for name in raw.frame.columns if name not in taken]
    name, said = named_or_only_target(raw.frame, request, left, where=where, what="SMILES")
    assert name is not None
    task, notice = task_of_target(raw.frame, name, request, comma=raw.comma)
    return one_target(raw, name, task, request, where=where, said=(*said, *([notice] if notice else [])))


def one_target(raw: Raw, name: str, task: str, request: Request, *, where: str, said: Sequence[str] = ()) -> Target:
    """A column of classes ("classification") or of numbers. Raises DataError where all its values are equal."""
    classes = request.facts.classes if request.facts else ()
    bad = bad_targets(raw.frame[name], task, raw.places, comma=raw.comma, classes=classes)
    values = target_values(raw.frame[name], task, comma=raw.comma)
    if request.facts is None:
        _refuse_constant(values, task, f"{where}: target {name!r}")
    return Target(name, task, (name,), values, tuple(bad), tuple(said))


def _refuse_constant(values: np.ndarray, task: str, subject: str) -> None:
    if task == "classification":
        class_names(values, subject)
    elif len(np.unique(values[np.isfinite(values)])) < 2:
        raise DataError(f"{subject} has fewer than two different numbers, so nothing can be learned.")


def _several(raw: Raw, request: Request, task: str | None, where: str) -> Target:
    if request.target is None:
        raise DataError(f"{where}: which columns are to be predicted? Name them: --target A,B,C.")
    columns = target_columns(raw.frame, request.target, where)
    numbers = {name: as_numbers(raw.frame[name], comma=raw.comma)[0] for name in columns}
    if task is None or task not in SEVERAL:
        if task == "classification" or (task is None and all(_are_flags(values) for values in numbers.values())):
            task = MULTILABEL
        else:
            task = MULTIREGRESSION
    if task == MULTILABEL:
        classes = request.facts.classes if request.facts else ()
        sets = read_label_sets(raw.frame, request.target, classes=classes, where=where)
        bad = [BadRow(i, raw.places[i], reason) for i, reason in sets.reasons.items()]
        notices = [*sets.notices, *_known_notice(numbers)]
        return Target(request.target, task, tuple(columns), sets.values, tuple(bad), tuple(notices))
    found, bad = _numbers(raw, columns, numbers)
    return Target(request.target, task, tuple(columns), found, tuple(bad), tuple(_known_notice(numbers)))


def _are_flags(values: np.ndarray) -> bool:
    return bool(np.isin(values[np.isfinite(values)], (0, 1)).all())


def _known_notice(numbers: dict[str, np.ndarray]) -> list[str]:
    """How many rows of each column have a value: what is missing is neither learned from nor scored."""
    if len(numbers) < 2:
        return []
    counts = ", ".join(f"{name} {int(np.isfinite(values).sum()):,}" for name, values in numbers.items())
    return [f"rows with a value in each target column: {counts}"]


def _numbers(raw: Raw, columns: Sequence[str], numbers: dict[str, np.ndarray]) -> tuple[np.ndarray, list[BadRow]]:
    """(rows,) a tuple of numbers each, NaN where nobody knows; rows without any are bad, and so is text."""
    matrix = np.column_stack([numbers[name] for name in columns])
    bad = []
    for column, name in enumerate(columns):
        strays = as_numbers(raw.frame[name], comma=raw.comma)[1] | (np.abs(np.nan_to_num(matrix[:, column])) > LARGEST)
        for i in np.flatnonzero(strays).tolist():
            bad.append(BadRow(i, raw.places[i], f"target {name!r} is {str(raw.frame[name].iloc[i])!r}, no number"))
    for i in np.flatnonzero(np.isnan(matrix).all(axis=1)).tolist():
        bad.append(BadRow(i, raw.places[i], f"no value in any target column ({', '.join(columns)})"))
    return as_objects([tuple(row) for row in matrix.tolist()]), bad


def stratum_of(task: str, target: np.ndarray) -> np.ndarray | None:
    """What a split keeps even: classes, of several labels the rarest that a row is known to have; None for numbers."""
    if task == "classification":
        return target.astype(str)
    if task != MULTILABEL:
        return None
    from domains.shared.label_sets import rarest_labels

    return rarest_labels(as_objects([tuple(name for name in row if not name.endswith("?")) for row in target]))


def differing_notice(canonical: Sequence[str], target: Target, places: Sequence[str]) -> list[str]:
    """Molecules that occur more than once with other values, and where: told, not changed."""
    if target.values is None:
        return []
    rows = pd.DataFrame(
        {"smiles": canonical, "y": [str(value) for value in target.values], "at": range(len(canonical))}
    )
    rows = rows[rows["smiles"] != ""]
    rows = rows[rows["smiles"].duplicated(keep=False)]
    differing = rows[rows.groupby("smiles")["y"].transform("nunique") > 1]
    if differing.empty:
        return []
    groups = list(differing.groupby("smiles", sort=False))
    shown = [f"{smiles} ({', '.join(places[i] for i in each['at'].head(4))})" for smiles, each in groups[:3]]
    more = f" and {len(groups) - 3} more" if len(groups) > 3 else ""
    return [
        Doubt(f"{len(groups):,} molecules occur with differing values of {target.name!r}: {'; '.join(shown)}{more}")
    ]
