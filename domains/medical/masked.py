"""Reading scans with masks, checking every case before anything else, and what a split and a plan must know of them.

One row is one case: an image of one or more channels, and its mask. Affine, shape and spacing of both agree, labels are the
declared whole numbers, nothing is NaN and all cases have the same channels, or the case is listed with its fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Baseline, Doubt, Facts, Keys, Likeness, Metric, Profile, Reading, Request
from domains.medical import layout
from domains.medical.layout import IMAGE_NAMES, Case, Description
from domains.medical.looks import LARGEST_LABEL, Fault, Look, expected_values, looked, unexpected
from domains.medical.patients import (
    USUAL_COLUMNS,
    Owners,
    of_column,
    of_folder,
    patient_column,
    patients_of,
    with_headers,
)
from domains.medical.volumes import SUFFIXES, MaskFile, is_volume, stem
from domains.shared.frames import FrameTable, choose_column, is_table, read_frame, usual_column
from domains.shared.groupings import equal, equal_rows, joined
from domains.shared.paths import existing, path_problem
from domains.shared.roles import id_texts, parted_groups, parts_of_files
from trainers.contract import Predictions
from trainers.errors import DataError, UsageError

KIND = "masked"
IMAGES, MASK, PATIENT = "images", "mask", "patient"
"""Columns of the table: tuples of paths, `MaskFile`s, names."""
_RARE = 3
_MASK_NAMES = ("mask", "label", "segmentation", "seg")
_TEXT_NAMES = ("id", *IMAGE_NAMES, *_MASK_NAMES, *USUAL_COLUMNS)


def read(data: Any, request: Request) -> Reading:
    """Read a folder of cases, one volume, or a table with a column of images and one of masks.

    The table's context holds `looks` (case -> Look), `names` and `values` of the classes. Raises DataError for a folder
    without cases, masks without any foreground, or a table without images or masks.
    """
    is_blind = request.facts is not None and request.target is None
    if request.task not in (None, "segmentation"):
        raise UsageError(f"--task {request.task}: scans with masks are segmented so far.")
    if is_table(data):
        cases, owners = _cases_of_table(data, request, is_blind)
        where = "DataFrame" if isinstance(data, pd.DataFrame) else str(data)
        return _reading(cases, Description(), owners, request, is_blind, where)
    path = existing(data)
    if request.target not in (None, MASK):
        raise UsageError(
            f"{path}: --target {request.target} names a column, and a folder has none: its masks are the target."
        )
    if path.is_file() and not is_volume(path.name):
        raise DataError(f"{path}: no volume. Known: NIfTI ({', '.join(SUFFIXES)}), or a table (CSV) of paths.")
    if path.is_file() and not is_blind:
        raise DataError(f"{path}: one volume is enough to predict, not to learn. Give a folder with images and masks.")
    cases, described = (layout.unlabelled_cases(path), Description()) if is_blind else layout.labelled_cases(path)
    owners = of_folder([case.name for case in cases], [case.path or case.name for case in cases], request.group, path)
    if not is_blind and (path / "imagesTs").is_dir() and (path / "labelsTs").is_dir():
        told = "imagesTs/ and labelsTs/ are left out: a table of paths with a column 'split' makes them the test"
        owners = owners._replace(notices=[*owners.notices, told])
    return _reading(cases, described, owners, request, is_blind, str(path))


def keys(table: Any, task: str, request: Request, *, fast: bool) -> Keys:
    """Given parts are kept; else patients and copies stay together. Cases with the same classes are spread evenly."""
    patients, marks = list(table.column(PATIENT)), list(_marks(table))
    group = joined([patients, marks])
    stratum = [",".join(map(str, sorted(look.counts))) for look in _looks(table)] if table.target_name else None
    num, how, parts = len(set(patients)), table.context["how"], table.context["parts"]
    whole = len(np.unique(group)) == len(table)
    if parts:
        given = [parts.get(name, "") for name in table.ids]
        because = "the column 'split' names the part of each case"
        return Keys("given", because, group=None if whole else group, given=given, stratum=stratum)
    if whole:
        return Keys("stratified", f"every case is a patient of its own (by {how})", stratum=stratum)
    copies = len(marks) - len(set(marks))
    because = f"{num} patients with {len(table)} cases (by {how}) stay whole"
    because += f"; {copies} copies stay with their originals" if copies else ""
    return Keys("grouped", because, group=group, stratum=stratum, evidence={"num_patients": num, "num_copies": copies})


def profile(table: Any, task: str, request: Request) -> Profile:
    """Voxels and their size, and scans with the same bytes."""
    looks, marks = _looks(table), _marks(table)
    lengths = {
        "voxels": np.array([int(np.prod(look.geometry.shape)) for look in looks]),
        "mm between voxels, at most": np.array([float(max(look.geometry.spacing)) for look in looks]),
    }
    return Profile(len(marks) - len(set(marks.tolist())), lengths=lengths)


def likeness(table: Any, these: np.ndarray, those: np.ndarray, request: Request) -> Likeness:
    """Whether a scan is of a patient, or a copy, of one of the others."""
    found = [equal_rows(marks, these, those) for marks in (np.asarray(table.column(PATIENT), object), _marks(table))]
    (of_patient, place), (of_copy, other) = found
    measure = "1: the same patient, or the same values; nothing between is measured"
    return Likeness(measure, 1.0, np.maximum(of_patient, of_copy), np.where(of_patient > 0, place, other))


def _marks(table: Any) -> np.ndarray:
    return np.array([look.mark for look in _looks(table)], dtype=object)


def describe(train: Any, task: str, request: Request) -> Facts:
    """The fingerprint of the training cases: median, least and largest voxels along x, y, z, median spacing in mm.

    Intensities are fitted by the family, from the same rows.
    """
    looks = _looks(train)
    shapes = np.array([_ras_shape(look) for look in looks], np.float64)
    spacings = np.array([look.geometry.spacing for look in looks])
    sizes: dict[str, float] = {"num_channels": float(looks[0].num_channels)}
    for axis, name in enumerate("xyz"):
        sizes |= {f"median_{name}_voxels": float(np.median(shapes[:, axis]))}
        sizes |= {
            f"least_{name}_voxels": float(shapes[:, axis].min()),
            f"most_{name}_voxels": float(shapes[:, axis].max()),
        }
        # A tenth of the way from the finest: where slices are far apart, nnU-Net resamples to that and not the median.
        sizes |= {f"median_{name}_mm": float(np.median(spacings[:, axis]))}
        sizes |= {f"fine_{name}_mm": float(np.quantile(spacings[:, axis], 0.1))}
        extents = shapes[:, axis] * spacings[:, axis]
        sizes |= {f"median_{name}_extent_mm": float(np.median(extents))}
    names, values = train.context["names"], train.context["values"]
    schema = {"kind": KIND, "names": list(names), "values": list(values), "channels": list(train.context["channels"])}
    return Facts("medical", task, train.target_name, len(train), (), sizes, schema)


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Mean foreground Dice decides; then Dice and the 95 % Hausdorff distance of every class."""
    from domains.medical.scores import segmentation_metrics

    return segmentation_metrics(facts.schema["names"][1:])


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """Background everywhere, and the average mask of the training cases laid over each new one."""
    from domains.medical.atlas import atlas, background

    num_classes = len(facts.schema["names"])
    return background(), atlas(num_classes)


def plots(test: Any, predictions: Predictions, facts: Facts, folder: Path) -> Mapping[str, str]:
    """The worst, the median and the best test case with outlines of truth and prediction, and a table of all."""
    from domains.medical.overlays import case_table, overlays

    names = facts.schema["names"][1:]
    shown = overlays(test, predictions, len(names), folder)
    return {**shown, **case_table(test, predictions, names, folder)} if shown else {}


def _looks(table: Any) -> list[Look]:
    known = table.context["looks"]
    return [known[name] for name in table.ids]


def _ras_shape(look: Look) -> tuple[int, ...]:
    axes = look.geometry.orientation[:, 0].astype(int)
    return tuple(look.geometry.shape[int(np.flatnonzero(axes == axis)[0])] for axis in range(3))


def _cases_of_table(data: Any, request: Request, is_blind: bool) -> tuple[list[Case], Owners]:
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(data)
    reading = read_frame(data, text_columns=sorted(id_texts(request, _TEXT_NAMES)), encoding=request.encoding)
    frame, ragged = reading.frame, dict(reading.ragged)
    root = Path.cwd() if isinstance(data, pd.DataFrame) else Path(data).parent
    image = usual_column(frame, request.columns.get("path"), IMAGE_NAMES, where, "--column path=NAME")
    mask = None if is_blind else usual_column(frame, request.target, _MASK_NAMES, where, "--target")
    group = request.group or patient_column(frame)
    named = frame[choose_column(frame, request.id_column, where, "--id-column")] if request.id_column else None
    columns = [name for name in (image, mask) if name is not None]
    rows = [
        [None if pd.isna(cell) else str(cell) or None for cell in cells] for cells in frame[columns].to_numpy(object)
    ]
    names = _case_names([files[0] or f"row {row}" for row, files in enumerate(rows)], named)
    part_of = parts_of_files(frame, [files[0] for files in rows], request, where=where, targets=(mask,))
    cases: list[Case] = []
    first = {} if is_blind else {again: row for row, again in equal([files[0] for files in rows])}
    for row, files in enumerate(rows):
        problem = ragged.get(row) or _file_problem(files, columns, root, anywhere=isinstance(data, pd.DataFrame))
        if row in first:
            other = rows[first[row]]
            with_mask = "the same mask" if other == files else f"another mask, {other[-1]}"
            problem = problem or f"{files[0]} stands in {reading.places[first[row]]} too, with {with_mask}"
        paths = [str(root / (file or "")) for file in files]
        problem = f"{reading.places[row]}: {problem}" if problem else ""
        part = part_of.get(files[0] or "", "")
        cases.append(Case(names[row], (paths[0],), None if mask is None else paths[1], problem, part, files[0] or ""))
    if group is None or (is_blind and group not in frame.columns):
        return cases, Owners(*patients_of([case.path or case.name for case in cases]))
    patients, told = of_column(frame[choose_column(frame, group, where, "--group")], group)
    return cases, Owners(patients, f"column {group!r}", told)


def _case_names(files: Sequence[str], named: Any) -> list[str]:
    """The ids that the user named, else the names of the files, else (where two are alike) their paths."""
    if named is not None:
        return [str(name) for name in named]
    names = [stem(Path(file).name) for file in files]
    return names if len(set(names)) == len(names) else list(files)


def _file_problem(files: Sequence[str | None], columns: Sequence[str], root: Path, *, anywhere: bool) -> str:
    for file, column in zip(files, columns, strict=True):
        if problem := path_problem(file, root, column, anywhere=anywhere):
            return problem
        if not (root / str(file)).exists():
            return f"no such file: {file}"
    return ""


def _reading(
    cases: Sequence[Case],
    described: Description,
    owners: Owners,
    request: Request,
    is_blind: bool,
    where: str,
) -> Reading:
    """Look at every case, list the faults, and make the table."""
    if not cases:
        raise DataError(f"{where}: no volume here ({', '.join(SUFFIXES)}).")
    found = looked(cases)
    looks = {case.name: look for case, look in zip(cases, found, strict=True) if isinstance(look, Look)}
    schema = request.facts.schema if request.facts is not None else None
    values = tuple(schema["values"]) if schema else expected_values(list(looks.values()), described.values)
    names = tuple(schema["names"]) if schema else described.names or ("background", *(f"class {v}" for v in values[1:]))
    channels = tuple(schema["channels"]) if schema else described.channels or _undeclared_channels(list(looks.values()))
    bad = []
    for position, (case, look) in enumerate(zip(cases, found, strict=True)):
        fault = look if isinstance(look, Fault) else _fault(look, case, values, len(channels))
        bad += [BadRow(position, fault.path, fault.reason)] if fault else []
    faulty = {cases[row.position].name for row in bad}
    sound = [look for name, look in looks.items() if name not in faulty]
    if sound and not is_blind:  # where no case can be used, the list of faults says why
        _check_classes(sound, values, where)
    headers = [look.patient if isinstance(look, Look) else "" for look in found]
    uses_headers = request.group is None and not is_blind
    patients, told = with_headers(owners.patients, headers) if uses_headers else (owners.patients, [])
    frame = pd.DataFrame({"case": [case.name for case in cases], PATIENT: pd.Series(patients, dtype=object)})
    frame[IMAGES] = pd.Series([case.images for case in cases], dtype=object)
    if not is_blind:
        frame[MASK] = pd.Series([MaskFile(case.mask or "", values) for case in cases], dtype=object)
    context = {"kind": KIND, "looks": looks, "names": names, "values": values, "channels": channels}
    context |= {"how": owners.how, "parts": {case.name: case.part for case in cases if case.part}}
    table = FrameTable(frame, [case.name for case in cases], None if is_blind else MASK, context)
    notices = [
        *([] if is_blind else _notices(sound, names, values)),
        *_assumed(sound),
        *_layout_doubts(described, cases),
    ]
    notices += [*owners.notices, *told]
    notices += parted_groups(patients, [case.part for case in cases], "patients")
    # A folder's own files are found again below it; those that a table names are not.
    named = () if Path(where).is_dir() else _files_of(case for case in cases if case.name in looks)
    return Reading(table, "segmentation", table.target_name, tuple(bad), tuple(notices), named)


def _files_of(cases: Iterable[Case]) -> tuple[Path, ...]:
    """Images and masks; of a DICOM series its slices."""
    paths = [Path(file) for case in cases for file in (*case.images, case.mask) if file]
    inside = [sorted(path.iterdir()) if path.is_dir() else [path] for path in paths]
    return tuple(path for files in inside for path in files if path.is_file())


def _fault(look: Look, case: Case, values: Sequence[int], num_channels: int) -> Fault | None:
    if look.num_channels != num_channels:
        return Fault(f"has {look.num_channels} channels, and {num_channels} are expected", case.images[0])
    reason = unexpected(look, values)
    return Fault(reason, case.mask or case.images[0]) if reason else None


def _undeclared_channels(looks: Sequence[Look]) -> tuple[str, ...]:
    """Unnamed channels, as many as most cases have."""
    numbers = [look.num_channels for look in looks]
    return ("unknown",) * max(set(numbers), key=numbers.count, default=1)


def _check_classes(looks: Sequence[Look], values: Sequence[int], where: str) -> None:
    if not any(value for look in looks for value in look.counts):
        raise DataError(
            f"{where}: every mask is background, so there is nothing to learn. Check that these are the masks."
        )
    if len(values) < 2 or max(values) > LARGEST_LABEL:
        raise DataError(
            f"{where}: labels {list(values)}: give the background as 0 and classes from 1 to {LARGEST_LABEL}."
        )


def _notices(looks: Sequence[Look], names: Sequence[str], values: Sequence[int]) -> list[str]:
    classes = list(zip(names[1:], values[1:], strict=True))
    shown = [f"{name} in {sum(value in look.counts for look in looks)}" for name, value in classes]
    empty = sum(not any(look.counts.get(value) for value in values[1:]) for look in looks)
    notices = [f"{len(looks)} cases; {', '.join(shown)}"]
    rare = [name for name, value in classes if sum(value in look.counts for look in looks) < _RARE]
    if rare:
        notices.append(Doubt(f"classes in fewer than {_RARE} cases, which cannot be in every part: {', '.join(rare)}"))
    return [*notices, Doubt(f"cases without any foreground: {empty}")] if empty else notices


def _layout_doubts(described: Description, cases: Sequence[Case]) -> list[str]:
    """Where dataset.json says other things of the cases than the folders do, or masks have several owners."""
    said: list[str] = []
    if described.num_training not in (None, len(cases)):
        said.append(Doubt(f"dataset.json speaks of {described.num_training} training cases, and {len(cases)} are here"))
    names = {case.name for case in cases}
    owned = [stem(Path(case.mask).name) if case.mask and described.training else case.name for case in cases]
    if crossed := sum(mask != case.name and mask in names for mask, case in zip(owned, cases, strict=True)):
        said.append(Doubt(f"dataset.json gives {crossed} cases the mask that is called like another case"))
    masks = Counter(case.mask for case in cases if case.mask)
    if shared := sum(num for num in masks.values() if num > 1):
        said.append(Doubt(f"{shared} cases share a mask file with another"))
    if described.num_unlisted:
        said.append(Doubt(f"{described.num_unlisted} images are not in the list of dataset.json, and left out"))
    return said


def _assumed(looks: Iterable[Look]) -> list[str]:
    """What was assumed of files, with the number of cases."""
    counts = Counter(note for look in looks for note in look.notes)
    return [Doubt(f"{note}: in {num} of the cases") for note, num in counts.items()]
