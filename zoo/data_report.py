"""What is in the data, before anything learns from it: kept as data.json by every run, and all that `zoo check --data` does."""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from domains.contract import Doubt, Keys, Profile, Reading, Request, Split
from domains.splits import codes, make_split
from trainers.contract import JSON
from trainers.errors import DataError
from zoo.data_in import Usable, accepted, named, refuse_unread, usable_rows

FEWEST_A_CLASS = 3
"""One row for each part of the split."""
CLASS_TASKS = ("classification", "multilabel", "ner")
"""Tasks whose targets are names of classes; others are numbers, texts or masks."""
_MOST_SHOWN = 10


def report_of(domain: Any, usable: Usable, reading: Reading, request: Request, keys: Keys | None) -> JSON:
    """Counts, classes, lengths, copies, groups, suspicious columns, and warnings in words.

    usable: the rows of `reading` that can be used.   keys: None where the split of another run is taken.
    """
    table, task = usable.table, reading.task
    profile: Profile = domain.profile(table, task, request)
    target = np.empty(0, object) if reading.target is None else table.target()
    columns = (reading.target or "").split(",") if task == "multilabel" else []
    classes = class_counts(target, columns if len(columns) > 1 else ()) if task in CLASS_TASKS else None
    found = {
        "task": task,
        "target": reading.target,
        "num_rows_read": usable.num_read,
        "num_rows_used": len(table),
        "bad_rows": usable.dropped,
        "notices": list(usable.notices),
        "classes": classes,
        "target_range": None if target.dtype == object else _quantiles(np.asarray(target, np.float64)),
        "lengths": {name: _quantiles(values) for name, values in profile.lengths.items()},
        "share_longer": _longer(profile),
        "missing": dict(profile.missing),
        "num_copies": profile.num_copies,
        "suspicious": dict(profile.suspicious),
        "groups": None if keys is None else groups_of(keys, len(table)),
    }
    return {**found, "warnings": _warnings(found, usable)}


def check_data(domain: Any, data: Any, request: Request, *, skip_bad: bool, fast: bool) -> JSON:
    """The report on a file, folder or DataFrame, without a recipe. Bad rows are in it, and no error; `ok` says whether
    training would begin. Raises DataError for what is no data of this type."""
    refuse_unread(domain, request)
    reading = domain.read(accepted(data), request)
    usable = usable_rows(reading, data, skip_bad=True)
    if not skip_bad:  # then none was skipped: training would stop
        usable = replace(usable, notices=reading.notices)
    is_named = request.group is not None
    request = replace(request, group=request.group or reading.group)
    keys = domain.keys(usable.table, reading.task, request, fast=fast)
    found = report_of(domain, usable, reading, request, keys)
    found["warnings"] += _split_doubts(keys, len(usable.table), is_named=is_named)
    return {"schema_version": 1, "data": named(data), "ok": skip_bad or not reading.bad, **found}


def _split_doubts(keys: Keys, num_rows: int, *, is_named: bool) -> list[str]:
    """What training would say of the split with seed 0."""
    try:
        evidence = make_split(keys, num_rows, seed=0, named=is_named).evidence
    except DataError as error:
        return [str(error)]
    return [
        *evidence["warnings"],
        *([f"optimistic scores: {evidence['optimistic']}"] if "optimistic" in evidence else []),
    ]


def refuse_doubts(report: JSON, splits: Sequence[Split] = ()) -> None:
    """For --strict: raise DataError where the report or a split of the data holds warnings."""
    said = [*report["warnings"]]
    for split in splits:
        said += split.evidence["warnings"]
        said += [split.evidence["optimistic"]] if "optimistic" in split.evidence else []
    if said := list(dict.fromkeys(said)):
        lines = "\n".join(f"  {line}" for line in said)
        raise DataError(f"--strict: {len(said)} warnings about the data:\n{lines}\nMend them, or leave --strict out.")


def groups_of(keys: Keys, num_rows: int) -> JSON:
    """How the rows hang together, by what the split will respect."""
    group = np.arange(num_rows) if keys.group is None else codes(keys.group)
    sizes = np.bincount(group)
    return {
        "rule": keys.rule,
        "because": keys.because,
        "num": len(sizes),
        "largest": int(sizes.max(initial=0)),
        "num_alone": int((sizes == 1).sum()),
        **keys.evidence,
    }


def class_counts(target: np.ndarray, columns: Sequence[str] = ()) -> dict[str, int]:
    """Rows of each class; where a row has several labels or tags, how often each occurs.

    columns: those that say a label each; one that no row has counts too, and what is not known does not.
    """
    counts = Counter(str(name) for value in target for name in (value if isinstance(value, tuple) else (value,)))
    return {name: counts[name] for name in columns} if columns else dict(sorted(counts.items()))


def report_lines(report: JSON) -> list[str]:
    """The report in a few lines, warnings left to `warnings`."""
    used, read = report["num_rows_used"], report["num_rows_read"]
    dropped = f" of {read:,} read" if read != used else ""
    lines = [
        f"{used:,} rows{dropped}, {report['num_copies']:,} repeat another exactly; {report['task']}{_target(report)}"
    ]
    lines += [
        f"{name}: {_number(each['least'])} to {_number(each['most'])}, median {_number(each['median'])}"
        for name, each in report["lengths"].items()
    ]
    lines += [f"longer than {name}: {share:.1%} of the rows" for name, share in report["share_longer"].items() if share]
    if report["missing"]:
        lines.append(f"cells without a value: {_some({name: f'{num:,}' for name, num in report['missing'].items()})}")
    if (groups := report["groups"]) is not None:
        sizes = f"{groups['num']:,} groups, the largest of {groups['largest']:,} rows; "
        lines.append(f"split: {groups['rule']}; {sizes if groups['largest'] > 1 else ''}{groups['because']}")
    return lines


def _target(report: JSON) -> str:
    if report["classes"]:
        return (
            f" of {len(report['classes'])} classes: {_some({name: f'{n:,}' for name, n in report['classes'].items()})}"
        )
    if report["target_range"]:
        least, median, most = (_number(report["target_range"][name]) for name in ("least", "median", "most"))
        return f" of {report['target']!r}: {least} to {most}, median {median}"
    return ""


def _some(values: Mapping[str, str]) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in list(values.items())[:_MOST_SHOWN])
    return shown + (f" and {len(values) - _MOST_SHOWN} more" if len(values) > _MOST_SHOWN else "")


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def _quantiles(values: np.ndarray) -> JSON | None:
    known = np.asarray(values, np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return None
    return {"least": float(known.min()), "median": float(np.median(known)), "most": float(known.max())}


def _longer(profile: Profile) -> dict[str, float]:
    """The share of rows longer than what usual models read; there they are cropped."""
    return {
        f"{mark:,} {name}": float(np.mean(profile.lengths[name] > mark))
        for name, marks in profile.marks.items()
        for mark in marks
    }


def _warnings(found: JSON, usable: Usable) -> list[str]:
    said = [str(notice) for notice in usable.notices if isinstance(notice, Doubt)]
    if found["bad_rows"]:
        said.append(f"{len(found['bad_rows']):,} of {found['num_rows_read']:,} rows cannot be used")
    said += [f"column {name!r} is suspicious: {why}" for name, why in found["suspicious"].items()]
    few = {name: num for name, num in (found["classes"] or {}).items() if num < FEWEST_A_CLASS}
    if few:
        shown = _some({name: f"{num}" for name, num in few.items()})
        said.append(f"classes with fewer than {FEWEST_A_CLASS} rows, which no split can spread over its parts: {shown}")
    said += [f"classes that differ in case, spaces or the form of letters alone: {each}" for each in _alike(found)]
    return said


def _alike(found: JSON) -> list[str]:
    """Names of classes that a person would take for the same."""
    names: dict[str, list[str]] = {}
    for name in found["classes"] or ():
        names.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    return [", ".join(map(repr, each)) for each in names.values() if len(each) > 1][:_MOST_SHOWN]
