"""Reading pictures: class folders, given train/test folders, tables of paths; and what a split must know of them.

Every picture is decoded once before training, so that a damaged file is named at the start and not met at step 10,000.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Baseline, Doubt, Facts, Keys, Metric, Reading, Request
from domains.images import layout
from domains.images.copies import copy_groups
from domains.images.packed import Laid, laid_out
from domains.images.table import LABEL_SETS, TableRows, table_rows
from domains.shared.archives import is_archive, unpacked
from domains.shared.frames import FrameTable
from domains.shared.groupings import joined
from domains.shared.label_sets import label_names, rarest_labels
from domains.shared.paths import existing
from domains.shared.pictures import NO_FILE, SUFFIXES, PictureError, Print, dim_pictures, in_threads, try_print
from domains.shared.targets import class_names
from trainers.errors import DataError, UsageError, did_you_mean

KIND = "labelled"
FILE = "picture_file"
"""The column of a picture table that holds paths; relative ones belong to `context["root"]`."""
FOLDER_TARGET = "class"
_FEW = 5


def read(data: Any, request: Request) -> Reading:
    """Read a folder of pictures (also packed as tar or zip), one picture, a table with a column of paths, or pictures packed
    with their labels (`packed`).

    A table is CSV, TSV, Parquet or a DataFrame. The table's context holds `root`, `prints` (path -> Print of every readable
    picture) and `parts` (path -> given part). Raises DataError for a folder without pictures or classes, or a table without
    paths or target.
    """
    if isinstance(data, pd.DataFrame):
        return _from_table(data, request)
    path = existing(data)
    if found := laid_out(path):
        return _from_table(found.table, request, found)
    if path.is_dir():
        return _from_folder(path, request)
    if layout.is_picture(path.name):
        return _one_picture(path, request)
    if is_archive(path):
        return _from_folder(unpacked(path), request)
    return _from_table(data, request)


def keys(table: Any, task: str, request: Request, *, fast: bool) -> Keys:
    """Copies of a picture stay together, given parts are kept, class shares are even."""
    given = [table.context["parts"].get(file, "") for file in table.column(FILE)]
    copies = copy_groups(_prints(table), near=False) if fast else _copies(table)
    num_copies = len(copies) - len(np.unique(copies))
    has_group = request.group is not None and request.group in table.frame.columns
    group = joined([copies, table.column(request.group)]) if has_group else copies
    stratum = _stratum(table, task)
    has_order = request.order is not None and request.order in table.frame.columns
    order = table.column(request.order).to_numpy() if has_order else None
    has_groups = len(np.unique(group)) < len(group)
    rule, because = _rule(any(given), order is not None, has_groups, stratum is not None)
    if rule == "given" and table.context["layout"] == "table":
        because = "a column 'split', or the names of packed files, say the part of each row"
    because += f"; {num_copies} copies or near copies stay with their originals" if num_copies else ""
    because += f"; groups follow {request.group!r}" if has_group else ""
    because += "; only exact copies were looked for (--fast)" if fast else ""
    return Keys(
        rule=rule,  # type: ignore[arg-type]
        because=because,
        group=group if has_groups else None,
        order=order,
        given=given if any(given) else None,
        stratum=stratum,
        evidence={"num_copies": num_copies},
    )


def _stratum(table: Any, task: str) -> Any:
    """What a split keeps even: classes, or of several labels a row's rarest one."""
    if table.target_name is None or task in ("regression", "representation"):
        return None
    return rarest_labels(table.target()) if task == LABEL_SETS else table.target()


def describe(train: Any, task: str, request: Request) -> Facts:
    """Classes and sizes of the training pictures. sizes: pixels, except `megapixels` (the sum over all of them)."""
    prints = _prints(train)
    short = np.array([min(p.width, p.height) for p in prints])
    sizes = {
        "median_short_side": float(np.median(short)),
        "longest_side": float(max(max(p.width, p.height) for p in prints)),
        "megapixels": sum(p.width * p.height for p in prints) / 1e6,
    }
    classes = class_names(train.target()) if task == "classification" else ()
    if task == LABEL_SETS:
        classes = label_names(train.target(), str(train.target_name), train.context["labels"])
    schema = {"kind": KIND, "layout": train.context["layout"], "path": train.context["path_column"]}
    return Facts("images", task, train.target_name, len(train), classes, sizes, schema)


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Accuracy decides for classes, F1 over all labels for several, the root mean squared error for numbers."""
    from domains.metrics import classification_metrics, label_set_metrics, regression_metrics

    if facts.task == LABEL_SETS:
        return label_set_metrics(facts.classes)
    return classification_metrics(facts.classes) if facts.task == "classification" else regression_metrics()


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """The trivial one; the linear probe needs weights and comes from the family."""
    from domains.baselines import label_shares, trivial

    return (label_shares(facts.classes) if facts.task == LABEL_SETS else trivial(facts.task),)


def _rule(given: bool, by_time: bool, groups: bool, stratified: bool) -> tuple[str, str]:
    if given:
        return "given", "the folders name the parts"
    if by_time:
        return "time", "an order column was named"
    if groups:
        return "grouped", "some pictures belong together"
    if stratified:
        return "stratified", "no two pictures are copies; class shares are kept even"
    return "random", "no two pictures are copies"


def _prints(table: Any) -> list[Print]:
    known = table.context["prints"]
    return [known[file] for file in table.column(FILE)]


def _copies(table: Any) -> np.ndarray:
    """(rows,) group of copies; found once, when the pictures were read."""
    known = table.context["copies"]
    return np.array([known[file] for file in table.column(FILE)])


def _from_folder(root: Path, request: Request) -> Reading:
    if request.facts is not None and request.target is None:
        listing = layout.any_depth(root)
    else:
        _check_folder_request(root, request)
        listing = layout.labelled(root)
        if not any(found.part for found in listing.pictures):
            layout.refuse_parts_as_classes(root, listing.pictures)
    if not listing.pictures:
        raise DataError(f"{root}: no picture in this folder ({', '.join(SUFFIXES)}).")
    files = [found.file for found in listing.pictures]
    if request.facts is not None and request.target is None:
        return reading_of(root, files, notices=listing.notices, task=request.facts.task)
    labels = np.array([found.label for found in listing.pictures], dtype=object)
    parts = {found.file: found.part for found in listing.pictures if found.part}
    bad = _bad_labels(root, files, labels, request.facts)
    if request.facts is None and all(label is None for label in labels):
        raise DataError(
            f"{root}: {len(files)} pictures, but no folders that name their classes. Lay them out as {root.name}/CLASS/x.png, "
            "or give a table (CSV) with a column of paths and one of labels."
        )
    if request.facts is None:
        class_names(labels, f"{root}: the folder")
    notices = [*listing.notices, *_class_notices(listing.pictures, request.facts)]
    return reading_of(root, files, values=labels, target=FOLDER_TARGET, bad=bad, parts=parts, notices=notices)


def _check_folder_request(root: Path, request: Request) -> None:
    if request.task not in (None, "classification"):
        raise UsageError(f"{root}: folders name classes. For --task {request.task} give a table of paths and numbers.")
    for flag, value in (("--target", request.target), ("--group", request.group), ("--order", request.order)):
        if value is not None and not (flag == "--target" and value == FOLDER_TARGET):
            raise UsageError(
                f"{root}: {flag} {value} names a column, and a folder of pictures has none: its folders are the classes. "
                f"Leave {flag} out, or give a table of paths."
            )


def _bad_labels(root: Path, files: list[str], labels: np.ndarray, facts: Facts | None) -> list[BadRow]:
    bad = []
    for i, label in enumerate(labels):
        if label is None:
            bad.append(BadRow(i, str(root / files[i]), "lies outside every class folder, so it has no class"))
        elif facts is not None and label not in facts.classes:
            hint = did_you_mean(str(label), facts.classes)
            bad.append(BadRow(i, str(root / files[i]), f"class {label!r} was not in the training data.{hint}"))
    return bad


def _class_notices(found: Sequence[layout.Found], facts: Facts | None) -> list[str]:
    counts = Counter(picture.label for picture in found if picture.label is not None)
    if facts is not None:
        absent = [name for name in facts.classes if name not in counts]
        return [f"no picture of class {name!r} here (support 0)" for name in absent]
    by_part = {part: {p.label for p in found if p.part == part} - {None} for part in ("train", "valid", "test")}
    notices = [f"{sum(counts.values()):,} pictures of {len(counts)} classes: {_counted(counts)}"]
    if by_part["train"]:
        for part in ("valid", "test"):
            strange = sorted(str(name) for name in by_part[part] - by_part["train"])
            absent = sorted(str(name) for name in by_part["train"] - by_part[part]) if by_part[part] else []
            unlearned = f"classes in {part} that train lacks count as wrong: {', '.join(strange)}"
            notices += [Doubt(unlearned)] if strange else []
            notices += [f"classes of train without a picture in {part}: {', '.join(absent)}"] if absent else []
    return notices


def _counted(counts: Counter[str]) -> str:
    shown = [f"{name} {count:,}" for name, count in sorted(counts.items())[:20]]
    return ", ".join(shown) + (f" and {len(counts) - 20} more" if len(counts) > 20 else "")


def _one_picture(path: Path, request: Request) -> Reading:
    if request.facts is None or request.target is not None:
        raise DataError(f"{path}: one picture is enough to predict, not to learn. Give a folder or a table of paths.")
    return reading_of(path.parent, [path.name], task=request.facts.task)


def _from_table(data: Any, request: Request, laid: Laid | None = None) -> Reading:
    rows = table_rows(data, request, laid)
    if rows.values is not None and rows.task == "classification" and request.facts is None:
        class_names(rows.values, f"{data if isinstance(data, str | Path) else 'DataFrame'}: target {rows.target!r}")
    return reading_of(
        rows.root,
        rows.files,
        values=rows.values,
        target=rows.target,
        task=rows.task,
        bad=rows.bad,
        parts=(laid.parts if laid else None) or rows.parts,
        notices=rows.notices,
        rows=rows,
    )


def reading_of(
    root: Path,
    files: Sequence[str | None],
    *,
    kind: str = KIND,
    values: np.ndarray | None = None,
    target: str | None = None,
    task: str = "classification",
    bad: Sequence[BadRow] = (),
    parts: dict[str, str] | None = None,
    notices: Sequence[str] = (),
    rows: TableRows | None = None,
) -> Reading:
    """Decode every picture once, add the unreadable ones to `bad`, and make the table."""
    reasons = {row.position: row for row in bad}
    wanted = list(dict.fromkeys(f for i, f in enumerate(files) if f is not None and i not in reasons))
    looks = dict(zip(wanted, in_threads(try_print, [root / file for file in wanted]), strict=True))
    for i, file in enumerate(files):
        found = looks.get(file or "")
        if isinstance(found, PictureError) and i not in reasons:
            place = str(root / str(file)) if rows is None else f"{rows.places[i]} ({file})"
            reasons[i] = BadRow(i, place, f"{found} below {root}" if rows and f"{found}" == NO_FILE else str(found))
    prints = {file: found for file, found in looks.items() if isinstance(found, Print)}
    context: dict[str, Any] = {"kind": kind, "root": str(root), "prints": prints, "parts": parts or {}}
    context |= {"copies": dict(zip(prints, copy_groups(list(prints.values())).tolist(), strict=True)) if target else {}}
    context |= {"layout": "folder" if rows is None else "table", "path_column": rows.path_column if rows else None}
    context["labels"] = rows.labels if rows else []
    columns: dict[str, Any] = {FILE: np.array(files, dtype=object)}
    columns |= {name: column.to_numpy() for name, column in (rows.columns if rows else {}).items()}
    if target is not None:
        columns[target] = values
    ids = rows.ids if rows else [os.fsencode(str(f)).decode("utf-8", "backslashreplace") for f in files]
    frame = pd.DataFrame({name: pd.Series(column, dtype=_dtype(column)) for name, column in columns.items()})
    table = FrameTable(frame, ids, target, context)
    told = [*notices, *dim_pictures(prints), *_copy_notices(table, [i for i in range(len(table)) if i not in reasons])]
    named = () if rows is None else tuple(root / file for file in prints)
    faults = tuple(reasons[i] for i in sorted(reasons))
    return Reading(table, task, target, faults, tuple(told), named, group=rows.group if rows else None)


def _dtype(column: Any) -> Any:
    # Text stays object: names of files may hold bytes that are no text, which Arrow's strings refuse.
    return object if column is None or column.dtype == object else column.dtype


def _copy_notices(table: FrameTable, good: list[int]) -> list[str]:
    """Copies whose labels differ, and copies in different given parts: both are told, neither is changed."""
    if table.target_name is None or len(good) < 2:
        return []
    rows = table.take(good)
    group, labels, files = _copies(rows), rows.target(), list(rows.column(FILE))
    members: dict[int, list[int]] = {}
    for i, code in enumerate(group.tolist()):
        members.setdefault(code, []).append(i)
    sets = [m for m in members.values() if len(m) > 1]
    parts = table.context["parts"]
    across = _different(sets, [parts.get(file, "") for file in files], files)
    differing = _different(sets, labels, files)
    notices: list[str] = []
    if across:
        said = f"{len(across)} pictures are in more than one given part, so scores flatter: {_some(across)}"
        notices.append(Doubt(said))
    if differing:
        notices.append(Doubt(f"{len(differing)} pictures have copies with another target: {_some(differing)}"))
    return notices


def _different(sets: list[list[int]], kinds: Sequence[Any] | np.ndarray, files: list[str]) -> list[str]:
    """Of each set whose rows are of several kinds one row of each, in words."""
    firsts = [{kinds[i]: i for i in reversed(members)} for members in sets]
    return [
        " = ".join(
            f"{files[i]} ({', '.join(kind) if isinstance(kind, tuple) else kind})"
            for kind, i in sorted(first.items(), key=lambda found: found[1])
        )
        for first in firsts
        if len(first) > 1
    ]


def _some(sets: list[str]) -> str:
    return "; ".join(sets[:_FEW]) + ("; ..." if len(sets) > _FEW else "")
