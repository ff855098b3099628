"""Scans with a class or a number each: a table of paths, or class folders. One row is one scan, 2-D or 3-D.

The scans of a patient stay on one side of a split, and so do copies. The patient is the column named with --group, else one
called patient or subject, else what path and name say (`domains.medical.patients`), in class folders the folder that a scan
lies in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from domains.contract import BadRow, Baseline, Doubt, Facts, Keys, Likeness, Metric, Profile, Reading, Request
from domains.medical.layout import IMAGE_FOLDERS, IMAGE_NAMES, MASK_FOLDERS
from domains.medical.patients import BY_NAME, USUAL_COLUMNS, of_column, patient_column, patients_of, with_headers
from domains.medical.scans import KNOWN, ScanLook, look, scans_in
from domains.shared.frames import FrameTable, choose_column, is_table, read_frame, usual_column
from domains.shared.groupings import equal, equal_rows, joined
from domains.shared.paths import existing, is_hidden, path_problem
from domains.shared.roles import (
    id_texts,
    named_or_only_target,
    one_a_row,
    part_of,
    parted_groups,
    parts_of_files,
    split_column,
    task_of_target,
)
from domains.shared.targets import bad_targets, class_names, target_values
from trainers.errors import DataError, UsageError

KIND = "labelled"
SCAN, PATIENT, FOLDER_TARGET = "scan", "patient", "class"
_TARGET_NAMES = ("target", "label", "class", "diagnosis", "y")
_THREADS = 4
MOST_CHANNELS = 3


class Rows(NamedTuple):
    """What a table or a folder names, before any scan is opened. files: absolute paths, None where there is none.
    how: what tells the patients apart.   path: the column of paths.   parts: of a split by id, where a table gives them."""

    ids: list[str]
    files: list[Path | None]
    places: Sequence[str]
    patients: list[str]
    target: str | None
    values: np.ndarray | None
    task: str
    bad: list[BadRow]
    notices: list[str]
    how: str
    path: str = IMAGE_NAMES[0]
    parts: Mapping[str, str] = {}


def read(data: Any, request: Request) -> Reading:
    """Read a table of paths, class folders, or (to predict) a folder or a file of scans.

    Every scan is opened once, so that a broken one is named before training. The table's context holds `looks` (id ->
    ScanLook). Raises DataError for data without scans or classes.
    """
    if is_table(data):
        rows = _of_table(data, request)
    else:
        path = existing(data)
        is_blind = request.facts is not None and request.target is None
        rows = _unlabelled(path, request) if is_blind else _of_folders(path, request)
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(data)
    if not rows.ids:
        raise DataError(f"{where}: no scan here ({', '.join(KNOWN)}, or folders of DICOM).")
    if rows.values is not None and rows.task == "classification" and request.facts is None:
        class_names(rows.values, f"{where}: {rows.target!r}")
    return _looked(rows, request, is_folder=not isinstance(data, pd.DataFrame) and Path(data).is_dir())


def keys(table: Any, task: str, request: Request, *, fast: bool) -> Keys:
    """Given parts are kept; else patients and copies stay together. Class shares are kept even."""
    patients, marks = list(table.column(PATIENT)), _marks(table)
    group = joined([patients, marks])
    stratum = table.target() if table.target_name and task == "classification" else None
    num, how, parts = len(set(patients)), table.context["how"], table.context["parts"]
    if parts:
        given = [parts.get(name, "") for name in table.ids]
        return Keys(
            "given", f"{table.context['parted']} the part of each scan", group=group, given=given, stratum=stratum
        )
    if len(np.unique(group)) == len(table):
        return Keys("stratified", f"every scan is of a patient of its own (by {how})", stratum=stratum)
    copies = len(marks) - len(set(marks))
    because = f"{num} patients with {len(table)} scans (by {how}) stay whole"
    because += f"; {copies} copies stay with their originals" if copies else ""
    return Keys("grouped", because, group=group, stratum=stratum, evidence={"num_patients": num, "num_copies": copies})


def profile(table: Any, task: str, request: Request) -> Profile:
    """Slices, pixels and their size, and scans with the same values."""
    looks, marks = _looks(table), _marks(table)
    lengths = {
        "slices": np.array([each.shape[0] for each in looks]),
        "pixels of the longer side": np.array([max(each.shape[1:3]) for each in looks]),
    }
    return Profile(len(marks) - len(set(marks)), lengths=lengths)


def likeness(table: Any, these: np.ndarray, those: np.ndarray, request: Request) -> Likeness:
    """Whether a scan is of a patient, or a copy, of one of the others."""
    found = [equal_rows(np.asarray(each, object), these, those) for each in (table.column(PATIENT), _marks(table))]
    (of_patient, place), (of_copy, other) = found
    measure = "1: the same patient, or the same values; nothing between is measured"
    return Likeness(measure, 1.0, np.maximum(of_patient, of_copy), np.where(of_patient > 0, place, other))


def describe(train: Any, task: str, request: Request) -> Facts:
    """Classes, and median sizes of the training scans."""
    looks = _looks(train)
    sizes = {
        "median_slices": float(np.median([each.shape[0] for each in looks])),
        "median_long_side": float(np.median([max(each.shape[1:3]) for each in looks])),
        "num_channels": float(looks[0].shape[3]),
    }
    classes = class_names(train.target()) if task == "classification" else ()
    schema = {"kind": KIND, "path": train.context["path"], "channels": looks[0].shape[3]}
    return Facts("medical", task, train.target_name, len(train), classes, sizes, schema)


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Accuracy decides for classes, the root mean squared error for numbers."""
    from domains.metrics import classification_metrics, regression_metrics

    return classification_metrics(facts.classes) if facts.task == "classification" else regression_metrics()


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """The trivial one, and a linear model on very coarse scans."""
    from domains.baselines import trivial
    from domains.medical.coarse import coarse_scans

    return trivial(facts.task), coarse_scans(facts.task)


def _looks(table: Any) -> list[ScanLook]:
    known = table.context["looks"]
    return [known[name] for name in table.ids]


def _marks(table: Any) -> list[str]:
    return [each.mark for each in _looks(table)]


# --- what the data names ---------------------------------------------------------------------------------------------


def _of_table(data: Any, request: Request) -> Rows:
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(data)
    known = request.facts.schema["path"] if request.facts else None
    names = [name for name in (*IMAGE_NAMES, *USUAL_COLUMNS, known) if name]
    reading = read_frame(data, text_columns=sorted(id_texts(request, names)), encoding=request.encoding)
    frame, anywhere = reading.frame, isinstance(data, pd.DataFrame)
    root = Path.cwd() if anywhere else Path(data).parent
    path_column = _path_column(frame, request, where, known)
    group = request.group or patient_column(frame)
    cells = [None if pd.isna(cell) or not str(cell) else str(cell) for cell in frame[path_column]]
    problems = [path_problem(cell, root, path_column, anywhere=anywhere) for cell in cells]
    bad = [BadRow(row, reading.places[row], reason) for row, reason in enumerate(problems) if reason]
    bad += [BadRow(row, reading.places[row], reason) for row, reason in reading.ragged]
    part_by_file = parts_of_files(frame, cells, request, where=where, targets=(request.target,))
    taken = (path_column, group, request.id_column, request.order, split_column(frame) if part_by_file else None)
    target, notices = _target(frame, request, [name for name in map(str, frame.columns) if name not in taken], where)
    task, values = request.facts.task if request.facts else "classification", None
    if target is not None:
        task, notice = task_of_target(frame, target, request, comma=reading.comma)
        notices += [notice] if notice else []
        classes = request.facts.classes if request.facts else ()
        bad += bad_targets(frame[target], task, reading.places, comma=reading.comma, classes=classes)
        values = target_values(frame[target], task, comma=reading.comma)
    named = frame[choose_column(frame, request.id_column, where, "--id-column")] if request.id_column else None
    ids = [str(name) for name in named] if named is not None else _ids(cells)
    has_group = group is not None and (request.facts is None or group in frame.columns)
    if has_group:
        patients, told = of_column(frame[choose_column(frame, str(group), where, "--group")], str(group))
        notices, how = [*notices, *told], f"column {group!r}"
    else:
        patients, how = patients_of([cell or f"row {row}" for row, cell in enumerate(cells)])
    if has_group and request.group is None and request.facts is None:
        notices.append(
            f"column {group!r} has {len(set(patients)):,} values in {len(frame):,} rows: scans of one stay on one side of "
            "the split. Name another column with --group, or undo it with --split random"
        )
    files = [None if problem or cell is None else root / cell for problem, cell in zip(problems, cells, strict=True)]
    parts = {name: part_by_file[cell] for name, cell in zip(ids, cells, strict=True) if cell in part_by_file}
    notices = [*reading.notices, *notices, *parted_groups(patients, [parts.get(name, "") for name in ids], "patients")]
    return Rows(ids, files, reading.places, patients, target, values, task, bad, notices, how, path_column, parts)


def _path_column(frame: pd.DataFrame, request: Request, where: str, known: str | None) -> str:
    named = request.columns.get("path") or (known if known in frame.columns else None)
    return usual_column(frame, named, IMAGE_NAMES, where, "--column path=NAME")


def _target(frame: pd.DataFrame, request: Request, left: list[str], where: str) -> tuple[str | None, list[str]]:
    likely = [name for name in left if name.lower() in _TARGET_NAMES]
    if request.target is None and request.facts is None and len(likely) == 1:
        return likely[0], []
    return named_or_only_target(frame, request, left, where=where, what="scans")


def _ids(cells: Sequence[str | None]) -> list[str]:
    names = [cell or f"row {row}" for row, cell in enumerate(cells)]
    return names if len(set(names)) == len(names) else [f"row {row}" for row in range(len(names))]


def _of_folders(root: Path, request: Request) -> Rows:
    """Class folders, also below folders of the parts: every scan below a folder has its name as its class."""
    for flag, value in (("--target", request.target), ("--group", request.group), ("--order", request.order)):
        if value is not None and not (flag == "--target" and value == FOLDER_TARGET):
            raise UsageError(
                f"{root}: {flag} {value} names a column, and a folder of scans has none: its folders are the classes. "
                f"Leave {flag} out, or give a table of paths."
            )
    if request.task not in (None, "classification"):
        raise UsageError(f"{root}: folders name classes. For --task {request.task} give a table of paths and numbers.")
    folders = _folders(root) if root.is_dir() else []
    named = {folder: part_of(folder.name) for folder in folders}
    is_parted = len(folders) > 1 and all(named.values())
    classes = [(folder, "") for folder in folders]
    if is_parted:
        classes = [(folder, named[part]) for part in folders for folder in _folders(part)]
    if {folder.name for folder, _ in classes} & {*IMAGE_FOLDERS, *MASK_FOLDERS}:
        raise DataError(
            f"{root}: {classes[0][0].name}/ is a folder of scans with masks and no class. Those lie in one images/ and one "
            "masks/, or in a table of paths with a column 'split'."
        )
    found = [(folder, part, scan) for folder, part in classes for scan in (scans_in(folder) or _itself(folder))]
    if len({folder.name for folder, _ in classes}) < 2 or not found:
        raise DataError(
            f"{root}: no class folders with scans. Lay them out as {root.name}/CLASS/scan, or give a table (CSV) with a "
            "column of paths and one of labels."
        )
    ids = [scan.relative_to(root).as_posix() for *_, scan in found]
    inner = [scan.relative_to(folder).parts[:-1] for folder, _, scan in found]
    own, _ = patients_of([scan.name for *_, scan in found])
    patients = [folders[0] if folders else name for folders, name in zip(inner, own, strict=True)]
    values = np.array([folder.name for folder, *_ in found], dtype=object)
    counts = Counter(values)
    notices = [f"{len(found):,} scans: {', '.join(f'{name} {num:,}' for name, num in sorted(counts.items()))}"]
    parts = {name: part for name, (_, part, _) in zip(ids, found, strict=True) if part and request.facts is None}
    notices += parted_groups(patients, [parts.get(name, "") for name in ids], "patients")
    bad = []
    if request.facts is not None:
        unknown = [row for row, label in enumerate(values) if label not in request.facts.classes]
        bad = [BadRow(row, ids[row], f"class {values[row]!r} was not in the training data") for row in unknown]
    files: list[Path | None] = [scan for *_, scan in found]
    how = "the folder in the class folder, or the name of the file"
    task = "classification"
    return Rows(ids, files, ids, patients, FOLDER_TARGET, values, task, bad, notices, how, parts=parts)


def _folders(root: Path) -> list[Path]:
    return [path for path in sorted(root.iterdir()) if path.is_dir() and not is_hidden(Path(path.name))]


def _itself(folder: Path) -> list[Path]:
    """A class folder that is one series: said later, when it is read, if it is several."""
    from domains.medical.dicom import is_series

    return [folder] if is_series(folder) else []


def _unlabelled(path: Path, request: Request) -> Rows:
    scans = [path] if path.is_file() or _itself(path) else scans_in(path)
    root = path.parent if scans == [path] else path
    ids = [scan.relative_to(root).as_posix() for scan in scans]
    task = request.facts.task if request.facts else "classification"
    files: list[Path | None] = list(scans)
    return Rows(ids, files, ids, ids, None, None, task, [], [], BY_NAME)


# --- the scans -------------------------------------------------------------------------------------------------------


def _looked(rows: Rows, request: Request, *, is_folder: bool) -> Reading:
    """Open every scan once, list the faults, and make the table."""
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda file: "" if file is None else _look(file), rows.files))
    looks = {name: each for name, each in zip(rows.ids, found, strict=True) if isinstance(each, ScanLook)}
    channels = [each.shape[3] for each in looks.values()]
    usual = request.facts.schema["channels"] if request.facts else max(set(channels), key=channels.count, default=1)
    bad = list(rows.bad)
    for row, each in enumerate(found):
        problem = each if isinstance(each, str) else _channel_fault(each, usual)
        bad += [BadRow(row, rows.places[row], problem)] if problem else []
    headers = [each.patient if isinstance(each, ScanLook) else "" for each in found]
    uses_headers = request.group is None and rows.values is not None
    patients, told = with_headers(rows.patients, headers) if uses_headers else (rows.patients, [])
    frame = pd.DataFrame({PATIENT: pd.Series(patients, dtype=object)})
    frame[SCAN] = pd.Series([str(file or "") for file in rows.files], dtype=object)
    if rows.target is not None and rows.values is not None:
        frame[rows.target] = pd.Series(rows.values, dtype=rows.values.dtype)
    context = {"kind": KIND, "looks": looks, "how": rows.how, "path": rows.path, "parts": rows.parts}
    context["parted"] = "the folders name" if is_folder else "the column 'split' names"
    table = FrameTable(frame, rows.ids, rows.target, context)
    notes = Counter(note for each in looks.values() for note in each.notes)
    notices = [*rows.notices, *told, *(Doubt(f"{note}: in {num} of the scans") for note, num in notes.items())]
    notices += _contradictions(rows, looks) if request.facts is None else _other_depth(looks, request.facts)
    named = () if is_folder else tuple(file for file in rows.files if file is not None and file.is_file())
    return Reading(table, rows.task, rows.target, tuple(one_a_row(bad)), tuple(notices), named)


def _other_depth(looks: Mapping[str, ScanLook], facts: Facts) -> list[str]:
    """Single slices for a run on volumes, or the reverse: answered all the same, and hardly what was learned."""
    learned_flat = facts.sizes["median_slices"] == 1
    num = sum((each.shape[0] == 1) != learned_flat for each in looks.values())
    what, learned = ("volumes", "single slices") if learned_flat else ("single slices", "volumes")
    return [Doubt(f"{num} of {len(looks)} scans are {what}, and this run learned from {learned}")] if num else []


def _contradictions(rows: Rows, looks: Mapping[str, ScanLook]) -> list[str]:
    """Copies of one scan with other labels."""
    if rows.values is None or rows.task != "classification":
        return []
    pairs = equal([looks[name].mark if name in looks else f"row {row}" for row, name in enumerate(rows.ids)])
    apart = [(a, b) for a, b in pairs if rows.values[a] != rows.values[b]]
    if not apart:
        return []
    a, b = apart[0]
    shown = f"{rows.places[a]} {rows.values[a]!r}, {rows.places[b]} {rows.values[b]!r}"
    return [Doubt(f"{len(apart)} scans are copies of one with another label, such as {shown}")]


def _look(file: Path) -> ScanLook | str:
    return look(file) if file.exists() else f"no such file: {file}"


def _channel_fault(each: ScanLook, usual: int) -> str:
    num = each.shape[3]
    if num > MOST_CHANNELS:
        return f"has {num} channels, and a network for pictures sees {MOST_CHANNELS} at most. Choose some of them"
    # A picture in colour among grey ones is read all the same: each becomes three channels.
    return f"has {num} channels, and {usual} are expected" if {num, usual} == {1, 2} or {num, usual} == {2, 3} else ""
