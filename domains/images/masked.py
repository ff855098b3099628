"""Pictures with a mask of class numbers each: folders of pictures and masks with the same names, or a table of paths.

Folders: images/ and masks/, also below train/, valid/ and test/, or these below images/ and masks/. Table: a column of paths
and one of masks. Masks are read as `domains.images.mask_files` says; every picture and mask is opened once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from domains.contract import BadRow, Baseline, Facts, Keys, Metric, Reading, Request
from domains.images import layout
from domains.images.copies import copy_groups
from domains.images.labelled import FILE
from domains.images.mask_doubts import class_doubts, copy_doubts, unlearned
from domains.images.mask_files import MaskPng, class_values, read_mask
from domains.images.mask_folders import MASK_COLUMNS, MASK_FOLDERS, Pair, num_with_masks, paired
from domains.shared.archives import is_archive, unpacked
from domains.shared.frames import FrameTable, choose_column, is_table, read_frame, usual_column
from domains.shared.groupings import joined
from domains.shared.paths import existing, path_problem
from domains.shared.pictures import SUFFIXES, PictureError, Print, dim_pictures, in_threads, try_print
from domains.shared.roles import found_group, part_of, parts_of_files, unnamed_groups
from trainers.contract import Predictions
from trainers.errors import DataError, UsageError

KIND, MASK = "masked", "mask"
_IMAGE_NAMES = ("path", "image", "file", "picture", "filename")


class Rows(NamedTuple):
    """What a table or a folder names. files, masks: paths below `root`; None where there is none.   parts: given, or ""."""

    root: Path
    ids: list[str]
    files: list[str | None]
    masks: list[str | None] | None
    places: Sequence[str]
    parts: list[str]
    bad: list[BadRow]
    notices: list[str]
    columns: dict[str, Any]
    path: str | None = None
    group: str | None = None


def read(data: Any, request: Request) -> Reading:
    """Read a folder of pictures and masks, a table of their paths, or (to predict) pictures.

    The table's context holds `root`, `prints`, `copies`, `parts`, `values` and `names` of the classes. Raises DataError for
    data without pictures, masks or classes.
    """
    is_blind = request.facts is not None and request.target is None
    if is_table(data):
        rows = _of_table(data, request, is_blind)
    else:
        path = existing(data)
        if request.target not in (None, MASK) or request.group is not None or request.order is not None:
            named = request.target if request.target not in (None, MASK) else request.group or request.order
            raise UsageError(f"{path}: {named} names a column, and a folder has none: its masks are the target.")
        path = unpacked(path) if is_archive(path) else path
        rows = _pictures(path) if is_blind else _of_folders(path)
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(data)
    if not rows.ids:
        raise DataError(f"{where}: no picture here ({', '.join(SUFFIXES)}).")
    return _reading(rows, request, where, is_folder=not isinstance(data, pd.DataFrame) and Path(data).is_dir())


def keys(table: Any, task: str, request: Request, *, fast: bool) -> Keys:
    """Copies of a picture stay together, given parts are kept, pictures with the same classes are spread evenly."""
    known, parts = table.context["copies"], table.context["parts"]
    copies = np.array([known[file] for file in table.column(FILE)])
    has_group = request.group is not None and request.group in table.frame.columns
    group = joined([copies, table.column(request.group)]) if has_group else copies
    given = [parts.get(name, "") for name in table.ids]
    stratum = [table.context["held"][name] for name in table.ids] if table.target_name else None
    has_groups = len(np.unique(group)) < len(group)
    evidence = {"num_copies": len(copies) - len(np.unique(copies))}
    who = (
        "folders name the parts"
        if table.context["path_column"] is None
        else "column 'split' names the part of each row"
    )
    because = f"the {who}" if any(given) else "copies of a picture stay together"
    rule: Any = "given" if any(given) else "grouped" if has_groups else "stratified"
    if rule == "stratified":
        because = "no two pictures are copies; classes are spread evenly"
    because += f"; groups follow {request.group!r}" if has_group else ""
    named = {"given": given} if any(given) else {}
    return Keys(rule, because, group=group if has_groups else None, stratum=stratum, evidence=evidence, **named)  # type: ignore[arg-type]


def describe(train: Any, task: str, request: Request) -> Facts:
    """Sizes of the training pictures, in pixels."""
    prints = [train.context["prints"][file] for file in train.column(FILE)]
    long = np.array([max(p.width, p.height) for p in prints])
    sizes = {"median_long_side": float(np.median(long)), "longest_side": float(long.max())}
    sizes["megapixels"] = sum(p.width * p.height for p in prints) / 1e6
    names, values = train.context["names"], train.context["values"]
    schema = {"kind": KIND, "names": list(names), "values": list(values), "path": train.context["path_column"]}
    if absent := unlearned([train.context["held"][name] for name in train.ids], values):
        schema["unlearned"] = [f"class {value}" for value in absent]
    return Facts("images", task, train.target_name, len(train), (), sizes, schema)


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Mean IoU of the foreground decides."""
    from domains.images.mask_scores import mask_metrics

    return mask_metrics(facts.schema["names"])


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """The most frequent class everywhere, and what the colour of a pixel tells."""
    from domains.images.colours import majority_pixels, pixel_colours

    return majority_pixels(facts.schema["values"]), pixel_colours(facts.schema["values"])


def plots(test: Any, predictions: Predictions, facts: Facts, folder: Path) -> Mapping[str, str]:
    """The worst, the median and the best test picture beside truth and answer."""
    from domains.images.mask_plots import overlays

    return overlays(test, predictions, len(facts.schema["names"]), folder)


def has_masks(root: Path) -> bool:
    """Whether a folder is laid out as pictures with masks."""
    return num_with_masks((found.file for found in layout.any_depth(root).pictures), str(root)) > 0


# --- what the data names ---------------------------------------------------------------------------------------------


def _of_folders(root: Path) -> Rows:
    pairs = _paired(root) if root.is_dir() else []
    if not pairs:
        there = ", ".join(sorted(path.name for path in root.iterdir())[:10]) if root.is_dir() else "a file"
        raise DataError(
            f"{root}: no folders of pictures and masks here ({there}). Lay them out as images/ and masks/ with files of equal "
            "names, or give a table (CSV) with a column of pictures and one of masks."
        )
    ids, files, masks, parts, bad = [], [], [], [], []
    for row, (name, file, mask) in enumerate(pairs):
        ids.append(name)
        files.append(file)
        masks.append(mask)
        folders = [part.lower() for part in Path(file or mask or "").parts[:-1]]
        parts.append(next(filter(None, map(part_of, folders)), ""))
        if file is None or mask is None:
            what = "mask" if mask is None else "picture"
            bad.append(
                BadRow(row, str(root / (file or mask or "")), f"has no {what} of the same name in the other folder")
            )
    notices = [] if not any(parts) or all(parts) else ["some pictures are in no folder called train, valid or test"]
    return Rows(root, ids, list(files), list(masks), ids, parts, bad, notices, {})


def _paired(root: Path) -> list[Pair]:
    return paired((found.file for found in layout.any_depth(root).pictures), str(root))


def _pictures(path: Path) -> Rows:
    """What is to be predicted: every picture below `path` that lies in no folder of masks."""
    root = path if path.is_dir() else path.parent
    files = [found.file for found in layout.any_depth(path).pictures] if path.is_dir() else [path.name]
    files = [file for file in files if not set(map(str.lower, file.split("/")[:-1])) & set(MASK_FOLDERS)]
    return Rows(root, files, list(files), None, files, [""] * len(files), [], [], {})


def _of_table(data: Any, request: Request, is_blind: bool) -> Rows:
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(data)
    reading = read_frame(data, encoding=request.encoding)
    frame, anywhere = reading.frame, isinstance(data, pd.DataFrame)
    root = Path.cwd() if anywhere else Path(data).parent
    known = request.facts.schema["path"] if request.facts else None
    path = usual_column(
        frame, request.columns.get("path") or (known if known in frame else None), _IMAGE_NAMES, where, "--column"
    )
    mask = None if is_blind else usual_column(frame, request.target, MASK_COLUMNS, where, "--target")
    bad = [BadRow(row, reading.places[row], reason) for row, reason in reading.ragged]
    cells: dict[str, list[str | None]] = {}
    for column in (name for name in (path, mask) if name is not None):
        cells[column] = [None if pd.isna(cell) or not str(cell) else str(cell) for cell in frame[column]]
        problems = [path_problem(cell, root, column, anywhere=anywhere) for cell in cells[column]]
        bad += [BadRow(row, reading.places[row], reason) for row, reason in enumerate(problems) if reason]
    notices = [*reading.notices, *unnamed_groups(frame, request, besides=(path, mask))]
    group = found_group(frame, request, besides=(path, mask))
    wanted = {name for name in (request.group, group) if name is not None and (request.facts is None or name in frame)}
    columns = {name: frame[choose_column(frame, name, where, "--group")] for name in wanted}
    files = cells[path]
    ids = [str(cell) for cell in frame[request.id_column]] if request.id_column in frame.columns else None
    if ids is None:
        whole = None not in files and len(set(files)) == len(files)
        ids = [str(file) if whole else str(row) for row, file in enumerate(files)]
    masks = cells[mask] if mask else None
    part_of = parts_of_files(frame, files, request, where=where, targets=(mask,))
    parts = [part_of.get(file or "", "") for file in files]
    return Rows(root, ids, files, masks, reading.places, parts, bad, notices, columns, path, group)


# --- pictures and masks ----------------------------------------------------------------------------------------------


def _reading(rows: Rows, request: Request, where: str, *, is_folder: bool) -> Reading:
    """Open every picture and mask once, list the faults, and make the table."""
    reasons = {row.position: row for row in rows.bad}
    good = [row for row, file in enumerate(rows.files) if file is not None and row not in reasons]
    prints = dict(zip(good, in_threads(try_print, [rows.root / str(rows.files[row]) for row in good]), strict=True))
    held: dict[int, tuple[int, ...]] = {}
    masked = [row for row in good if isinstance(prints[row], Print)] if rows.masks is not None else []
    looked = in_threads(lambda row: _mask_look(rows, row, prints[row]), masked)
    faults: dict[int, str] = {row: str(each) for row, each in prints.items() if isinstance(each, PictureError)}
    for row, each in zip(masked, looked, strict=True):
        if isinstance(each, str):
            faults[row] = each
        else:
            held[row] = each
    for row, reason in faults.items():
        reasons[row] = BadRow(
            row, f"{rows.places[row]}" if not is_folder else str(rows.root / str(rows.files[row])), reason
        )
    values, names, notices = _classes(held, rows.parts, request, where)
    for row, seen in held.items():
        if request.facts is not None and (strange := set(seen) - {*values, 255}):
            reason = f"the mask holds {sorted(strange)}; expected are {list(values)}"
            reasons[row] = BadRow(row, str(rows.places[row]), reason)
    frame = pd.DataFrame({FILE: pd.Series(rows.files, dtype=object)})
    for name, column in rows.columns.items():
        frame[name] = column.to_numpy()
    if rows.masks is not None:
        masks = [MaskPng(str(rows.root / (mask or "")), values) for mask in rows.masks]
        frame[MASK] = pd.Series(masks, dtype=object)
    seen_prints = {str(rows.files[row]): each for row, each in prints.items() if isinstance(each, Print)}
    copies = dict(zip(seen_prints, copy_groups(list(seen_prints.values())).tolist(), strict=True)) if held else {}
    if request.facts is None and held:
        paths = {row: rows.root / str((rows.masks or [])[row]) for row in held}
        notices += copy_doubts(paths, rows.ids, {row: copies[str(rows.files[row])] for row in held})
    context: dict[str, Any] = {
        "kind": KIND,
        "root": str(rows.root),
        "prints": seen_prints,
        "copies": copies,
        "values": values,
    }
    context |= {"names": names, "parts": {name: part for name, part in zip(rows.ids, rows.parts, strict=True) if part}}
    context |= {
        "held": {rows.ids[row]: ",".join(map(str, seen)) for row, seen in held.items()},
        "path_column": rows.path,
    }
    table = FrameTable(frame, rows.ids, MASK if rows.masks is not None else None, context)
    bad = tuple(reasons[row] for row in sorted(reasons))
    files = () if is_folder else tuple(rows.root / file for file in [*rows.files, *(rows.masks or [])] if file)
    told = (*rows.notices, *notices, *dim_pictures(seen_prints))
    return Reading(table, "segmentation", table.target_name, bad, told, files, group=rows.group)


def _mask_look(rows: Rows, row: int, picture: Any) -> tuple[int, ...] | str:
    """The values of a mask, or why it cannot be used."""
    assert rows.masks is not None
    try:
        mask = read_mask(rows.root / str(rows.masks[row]))
    except PictureError as error:
        return f"{rows.masks[row]}: {error}"
    if mask.shape != (picture.height, picture.width):
        sizes = f"{picture.width} x {picture.height} and {mask.shape[1]} x {mask.shape[0]} pixels"
        return f"picture and mask {rows.masks[row]} differ in size: {sizes}"
    return tuple(np.unique(mask).tolist())


def _classes(
    held: Mapping[int, tuple[int, ...]], parts: Sequence[str], request: Request, where: str
) -> tuple[tuple[int, ...], tuple[str, ...], list[str]]:
    """Values and names of the classes, and what to say of them. Raises DataError where masks hold no class."""
    if request.facts is not None:
        return tuple(request.facts.schema["values"]), tuple(request.facts.schema["names"]), []
    values, note = class_values([value for seen in held.values() for value in seen])
    if held and len(values) < 2:
        raise DataError(
            f"{where}: every mask is background, so there is nothing to learn. Check that these are the masks."
        )
    names = ("background", *(f"class {value}" for value in values[1:]))
    counts = {value: sum(value in seen for seen in held.values()) for value in values[1:]}
    shown = ", ".join(f"{name} in {counts[value]:,}" for name, value in zip(names[1:], values[1:], strict=True))
    notices: list[str] = [f"{len(held):,} pictures with masks; {shown}", *([note] if note else [])]
    return values, names, [*notices, *class_doubts(held, values, parts)]
