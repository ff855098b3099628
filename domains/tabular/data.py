"""Tables as a data type: reading, keys for splits, facts, metrics and rivals. See `domains.contract.Domain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains import baselines as rivals
from domains.contract import BadRow, Baseline, Doubt, Facts, Keys, Likeness, Metric, Profile, Reading, Request
from domains.metrics import classification_metrics, regression_metrics
from domains.shared.cells import clean_texts
from domains.shared.frames import FrameReading, FrameTable, choose_column, read_frame
from domains.shared.groupings import equal_rows
from domains.shared.roles import found_group, named_parts, one_a_row, unnamed_groups
from domains.shared.targets import bad_targets, class_names, infer_task, target_values
from domains.tabular.baselines import linear
from domains.tabular.columns import converted, described, gives_away, is_row_number, names_like, recognised
from domains.tabular.suspects import looked_through
from trainers.errors import DataError, did_you_mean

COLUMNS: tuple[str, ...] = ()
ID_NAMES = ("id",)
SPLIT_NAMES = ("split",)
# Below this share of repeated rows a score can hardly move; above the other, repeats are the nature of coarse columns
# (survey answers), and keeping them together would leave the test without the commonest rows.
FEW_REPEATS = 0.005
MANY_REPEATS = 0.20
# Guessing the most frequent class is right this often: then accuracy says little.
IMBALANCED_SHARE = 0.8


def read(data: Any, request: Request) -> Reading:
    """Read a CSV, TSV, gzip or Parquet file or a DataFrame; see `domains.shared.frames.read_frame`.

    With `request.facts` columns are matched by name and made the kinds of the training file. The target may then be
    absent; it is checked only if `request.target` is named (evaluating).
    Raises DataError for what cannot be a table with this target or, later, these columns.
    """
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(Path(data))
    return _read_first(data, request, where) if request.facts is None else _read_again(data, request, where)


def _read_first(data: Any, request: Request, where: str) -> Reading:
    ids = [request.id_column] if request.id_column else ["id", "Id", "ID"]
    reading = read_frame(data, text_columns=ids, encoding=request.encoding)
    frame = reading.frame
    if not len(frame):
        raise DataError(f"{where}: there is a header but no row. Add at least one row for each part of the split.")
    target = _chosen_target(frame, request, where)
    task, notice = infer_task(frame[target], request.task, comma=reading.comma)
    bad = _bad_rows(reading, target, task)
    id_column = _chosen_ids(frame, request, target, where)
    named = [choose_column(frame, name, where, "--group or --order") for name in (request.group, request.order) if name]
    bad += [
        BadRow(int(i), reading.places[int(i)], f"no value in column {name!r}")
        for name in named
        for i in np.flatnonzero(clean_texts(frame[name]).isna())
    ]
    values = target_values(frame[target], task, comma=reading.comma)
    _refuse_constant(values, task, target, where)
    columns, notices = _recognised_columns(reading, skip=(target, id_column))
    columns[target] = values
    names = [str(name) for name in frame.columns]
    context = {
        "id_column": id_column,
        "comma": reading.comma,
        "row_numbers": [name for name in names if name not in (target, id_column) and is_row_number(frame[name])],
    }
    table = FrameTable(pd.DataFrame({name: columns[name] for name in names}), _ids(frame, id_column), target, context)
    besides = (target, id_column)
    notices += unnamed_groups(frame, request, besides=besides)
    said = (*reading.notices, *([notice] if notice else []), *notices, *_said_ids(request, id_column))
    group = found_group(frame, request, besides=besides)
    return Reading(table, task, target, tuple(one_a_row(bad)), said, group=group)


def _read_again(data: Any, request: Request, where: str) -> Reading:
    assert request.facts is not None
    facts, schema = request.facts, request.facts.schema
    categories = [name for name, entry in schema["columns"].items() if entry["kind"] == "category"]
    id_column = request.id_column or schema["id_column"]
    reading = read_frame(data, text_columns=[*categories, id_column or "id"], encoding=request.encoding)
    frame = reading.frame
    _refuse_missing(frame, schema["columns"], where)
    comma = reading.comma or schema["comma"]
    columns: dict[str, Any] = {}
    notices = [notice for notice in reading.notices if "was kept as text" not in notice]
    for name, entry in schema["columns"].items():
        columns[name], notice = converted(frame[name], entry, comma=comma)
        notices += [f"column {name!r}: {notice}"] if notice else []
    bad = [BadRow(i, reading.places[i], reason) for i, reason in reading.ragged]
    if target := request.target:
        answers = frame[choose_column(frame, target, where, "--target")]
        bad += bad_targets(answers, facts.task, reading.places, comma=comma, classes=facts.classes)
        columns[target] = target_values(answers, facts.task, comma=comma)
    for name in (schema["group"], schema["order"]):
        if name and name in frame.columns and name not in columns:
            columns[name] = frame[name]
    notices += _said_extra(frame, schema, facts.target, id_column)
    if id_column is None or id_column not in frame.columns:
        id_column = names_like(frame, ID_NAMES) if id_column is None else None
    table = FrameTable(pd.DataFrame(columns), _ids(frame, id_column), target, {"comma": comma, "id_column": id_column})
    return Reading(table, facts.task, target, tuple(one_a_row(bad)), tuple(notices))


def _chosen_target(frame: pd.DataFrame, request: Request, where: str) -> str:
    if request.target is None:
        known = ", ".join(str(name) for name in frame.columns)
        raise DataError(f"{where}: which column is to be predicted? Name it with --target. Columns: {known}.")
    return choose_column(frame, request.target, where, "--target")


def _bad_rows(reading: FrameReading, target: str, task: str) -> list[BadRow]:
    ragged = [BadRow(i, reading.places[i], reason) for i, reason in reading.ragged]
    return [*ragged, *bad_targets(reading.frame[target], task, reading.places, comma=reading.comma)]


def _refuse_constant(values: np.ndarray, task: str, target: str, where: str) -> None:
    if task == "classification":
        class_names(values, f"{where}: target {target!r}")
    elif len(np.unique(values[np.isfinite(values)])) < 2:
        raise DataError(f"{where}: target {target!r} has fewer than two different numbers, so nothing can be learned.")


def _chosen_ids(frame: pd.DataFrame, request: Request, target: str, where: str) -> str | None:
    """The id column: the named one, or a column called id whose values are all there and distinct."""
    if request.id_column:
        return choose_column(frame, request.id_column, where, "--id-column")
    found = names_like(frame, ID_NAMES)
    if found is None or found in (target, request.group, request.order):
        return None
    return found if frame[found].nunique() == len(frame) else None


def _said_ids(request: Request, id_column: str | None) -> list[str]:
    if id_column is None or request.id_column:
        return []
    return [f"column {id_column!r} names the rows; it is kept as their id and is no feature"]


def _ids(frame: pd.DataFrame, id_column: str | None) -> np.ndarray:
    """(rows,) the id of each row byte for byte, or its position."""
    if id_column is None:
        return np.array([str(position) for position in range(len(frame))], dtype=object)
    return np.array(["" if pd.isna(value) else str(value) for value in frame[id_column]], dtype=object)


def _recognised_columns(reading: FrameReading, skip: Sequence[str | None]) -> tuple[dict[str, Any], list[str]]:
    columns: dict[str, Any] = {}
    notices: list[str] = []
    for name in map(str, reading.frame.columns):
        if name in skip:
            columns[name] = reading.frame[name]
            continue
        columns[name], notice = recognised(reading.frame[name], comma=reading.comma)
        notices += [Doubt(f"column {name!r}: {notice}")] if notice else []
    return columns, notices


def _refuse_missing(frame: pd.DataFrame, needed: Sequence[str], where: str) -> None:
    names = [str(name) for name in frame.columns]
    missing = [name for name in needed if name not in names]
    if not missing:
        return
    hints = "".join(did_you_mean(name, [other for other in names if other not in needed]) for name in missing[:3])
    shown = ", ".join(repr(name) for name in missing)
    needs = f"column {shown}, which is missing" if len(missing) == 1 else f"columns {shown}, which are missing"
    raise DataError(f"{where}: the model needs {needs}.{hints} Columns: {', '.join(names)}.")


def _said_extra(frame: pd.DataFrame, schema: Any, target: str | None, id_column: str | None) -> list[str]:
    known = {*schema["columns"], *schema["dropped"], target, id_column, "id", schema["group"], schema["order"]}
    extra = [str(name) for name in frame.columns if name not in known]
    return [f"columns that the model does not use are ignored: {', '.join(extra)}"] if extra else []


def keys(table: FrameTable, task: str, request: Request, *, fast: bool) -> Keys:
    """What a split must respect: the named group, the named order, a column `split` with the parts, or repeated rows."""
    stratum = table.target() if task == "classification" and table.target_name in table.frame.columns else None
    given = _given_parts(table)
    if request.group and request.group in table.frame.columns:
        group = table.frame[request.group].astype(str).to_numpy(object)
        chosen = Keys("grouped", f"rows with the same {request.group!r} stay together", group=group, stratum=stratum)
    else:
        chosen = _repeated_rows(table, task, stratum)
    if request.order and request.order in table.frame.columns:
        because = f"the last rows by {request.order!r} are the test, as in use"
        chosen = replace(chosen, rule="time", because=because, order=table.frame[request.order].to_numpy())
    if given is not None:
        chosen = replace(chosen, rule="given", because="the column 'split' names the part of each row", given=given)
    return chosen


def _given_parts(table: FrameTable) -> list[str] | None:
    name = names_like(table.frame, SPLIT_NAMES)
    if name is None or name == table.target_name:
        return None
    return named_parts(table.frame[name], "the data")


def _repeated_rows(table: FrameTable, task: str, stratum: Any) -> Keys:
    """Rows that repeat exactly, target included, would answer themselves from the training part: keep them together."""
    rule = "stratified" if task == "classification" else "random"
    even = "class shares are kept even" if task == "classification" else "rows are independent as far as one can see"
    frame = _without_names(table)
    repeated = frame.duplicated(keep=False).to_numpy()
    num_extra = int(frame[repeated].duplicated().sum())
    evidence = {"repeated_rows": num_extra}
    if num_extra > MANY_REPEATS * len(table):
        even += f"; {num_extra:,} rows repeat others exactly, which is the nature of columns as coarse as these"
    elif num_extra > FEW_REPEATS * len(table):
        group = np.arange(len(table))
        firsts = frame[repeated].groupby(list(frame.columns), dropna=False, observed=True, sort=False).ngroup()
        group[repeated] = len(table) + firsts.to_numpy()
        because = f"{num_extra:,} rows repeat others exactly and stay together with them"
        return Keys("grouped", because, group=group, stratum=stratum, evidence=evidence)
    elif num_extra:
        even += f"; {num_extra:,} rows repeat others exactly, too few to matter"
    return Keys(rule, even, stratum=stratum, evidence=evidence)  # type: ignore[arg-type]


def profile(table: FrameTable, task: str, request: Request) -> Profile:
    """Repeated rows, empty cells, and columns that are ids, constants, copies of the target or hidden groups."""
    target = str(table.target_name)
    features = _without_names(table).drop(columns=target, errors="ignore")
    missing = {str(name): int(num) for name, num in features.isna().sum().items() if num}
    suspicious = looked_through(features, table.target(), known=(request.group, request.order, *SPLIT_NAMES))
    return Profile(int(features.duplicated().sum()), missing=missing, suspicious=suspicious)


def likeness(table: FrameTable, these: np.ndarray, those: np.ndarray, request: Request) -> Likeness:
    """Whether a row is equal to one of the others in every column that is a feature."""
    named = [name for name in (table.target_name, request.group, request.order) if name in table.frame]
    features = _without_names(table).drop(columns=named)
    highest, position = equal_rows(pd.util.hash_pandas_object(features, index=False).to_numpy(), these, those)
    return Likeness("1: a row with the same value in every column; nothing between is measured", 1.0, highest, position)


def _without_names(table: FrameTable) -> pd.DataFrame:
    frame = table.frame.drop(columns=[name for name in (table.context.get("id_column"),) if name in table.frame])
    counting: list[str] = table.context.get("row_numbers", [])
    kept: pd.DataFrame = frame.drop(columns=counting)
    return kept


def describe(train: FrameTable, task: str, request: Request) -> Facts:
    """Kinds and categories of the feature columns, from the training rows. Raises DataError if no feature is left."""
    target, id_column = str(train.target_name), train.context.get("id_column")
    answers = train.target()
    columns: dict[str, Any] = {}
    dropped: dict[str, str] = {}
    suspects: dict[str, str] = {}
    split = names_like(train.frame, SPLIT_NAMES) if _given_parts(train) else None
    reasons: dict[Any, str] = {
        id_column: "it names the rows",
        request.group: "it names the groups",
        split: "it names the parts",
    }
    for name in (str(column) for column in train.frame.columns if column != target):
        if name in reasons or name in train.context.get("row_numbers", []):
            dropped[name] = reasons.get(name, "it counts the rows")
            continue
        entry, reason = described(train.frame[name])
        if entry is None:
            dropped[name] = reason
            continue
        columns[name] = entry
        if why := gives_away(train.frame[name], answers):
            suspects[name] = why
    if not columns:
        why_none = "; ".join(f"{name!r}: {reason}" for name, reason in dropped.items()) or "only the target is there"
        raise DataError(f"no column is left to learn from ({why_none}). Give a table with features.")
    schema = {
        "columns": columns,
        "dropped": dropped,
        "suspects": suspects,
        "id_column": id_column,
        "group": request.group,
        "order": request.order,
        "comma": bool(train.context.get("comma", False)),
    }
    classes = class_names(answers) if task == "classification" else ()
    return Facts("tabular", task, target, len(train), classes, _sizes(columns, answers, classes), schema)


def _sizes(columns: dict[str, Any], answers: np.ndarray, classes: Sequence[str]) -> dict[str, float]:
    kinds = [entry["kind"] for entry in columns.values()]
    sizes = {f"num_{plural}": float(kinds.count(kind)) for kind, plural in _KINDS.items()}
    if classes:
        sizes["largest_class_share"] = float(max(np.mean(answers == name) for name in classes))
    return sizes


_KINDS = {"number": "numbers", "category": "categories", "date": "dates"}


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Accuracy decides, macro-F1 where one class holds 80 % of the rows or more; for numbers the RMSE."""
    if facts.task == "regression":
        return regression_metrics("rmse")
    imbalanced = facts.sizes.get("largest_class_share", 0.0) >= IMBALANCED_SHARE
    return classification_metrics(facts.classes, imbalanced=imbalanced)


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """The answer that ignores the features, then logistic or ridge regression."""
    return (rivals.trivial(facts.task), linear(facts))
