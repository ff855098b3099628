"""Which columns of a table are what, beside the features: target, parts of a split, groups and order; and the rows that are
bad for several reasons."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Doubt, Keys, Request
from domains.shared.cells import clean_texts
from domains.shared.frames import FrameTable, choose_column
from domains.shared.targets import infer_task
from trainers.errors import DataError

_PART_WORDS = {
    "train": ("train", "training"),
    "valid": ("valid", "val", "validation", "dev", "development"),
    "test": ("test", "testing", "holdout", "hold_out"),
}
PARTS = {f"{word}{end}": part for part, words in _PART_WORDS.items() for word in words for end in ("", "_set", "set")}
"""Part of a split by the names it goes by, in small letters with underscores (`part_of`)."""
_OWNERS = (
    *("patient", "subject", "participant", "donor", "animal", "mouse", "person", "speaker", "author", "user"),
    *("customer", "client", "household", "session", "recording", "slide", "well"),
)
_LIKELY_GROUP = re.compile(rf"({'|'.join(_OWNERS)})s?([ _.-]*(id|ids|no|nr|num|number|code|key|name))?", re.IGNORECASE)
_FEWEST_A_GROUP = 2.0
_FEW_SHOWN = 5
_HEAD = 200
FEWEST_GROUPS = 10
"""To be used without being named: fewer would leave parts of one or two groups, and no interval."""
IMBALANCED_SHARE = 0.8
"""Of the rows: where one class has more, accuracy says little."""


def named_or_only_target(
    frame: pd.DataFrame, request: Request, left: Sequence[str], *, where: str, what: str, advice: str = ""
) -> tuple[str | None, list[str]]:
    """The target column, None where predicting; and what to say about it.

    left: columns without another role.   what: the rows' content in the plural, for messages.   advice: where there is none.
    Raises DataError where it is not clear.
    """
    if request.facts is not None and request.target is None:
        return None, []
    if request.target is not None:
        parts = request.target.split(",")
        if request.target not in frame.columns and len(parts) > 1 and all(name in frame.columns for name in parts):
            raise DataError(
                f"{where}: --target {request.target} names {len(parts)} columns, and one is predicted here."
            )
        return choose_column(frame, request.target, where, "--target"), []
    if len(left) == 1:
        return left[0], [f"column {left[0]!r} is predicted: it is the only one besides ids and {what}"]
    if not left:
        raise DataError(f"{where}: no column of labels beside the {what}.{advice}")
    raise DataError(f"{where}: which column is to be predicted? Name it with --target. Columns: {', '.join(left)}.")


def refuse_target_called(own: str, target: str | None, where: str) -> None:
    """Raise DataError where the target has the name under which the reader keeps what models see: it would take its place."""
    if target is not None and own in (target, *target.split(",")):
        raise DataError(
            f"{where}: the target cannot be called {own!r}, as what the model sees is. Rename the column, or choose another "
            "with --target."
        )


def task_of_target(frame: pd.DataFrame, target: str | None, request: Request, *, comma: bool) -> tuple[str, str]:
    """The task as in training where that is known, else what the target asks for; and a notice, or ""."""
    if request.facts is not None:
        return request.facts.task, ""
    assert target is not None
    return infer_task(frame[target], request.task, comma=comma)


def keep_split_columns(
    columns: dict[str, Any],
    frame: pd.DataFrame,
    request: Request,
    *,
    where: str,
    target: str | None,
    uses_found: bool = True,
) -> list[str]:
    """Add to `columns` what a split may ask for: the group, the order, and "split" as train, valid and test.

    uses_found: whether the data type keeps together what `found_group` finds; that column is kept too. Returns what to say
    of columns that look like groups and were not named.
    """
    for name in (request.group, request.order):
        if name is not None and (request.facts is None or name in frame.columns):
            columns.setdefault(name, frame[choose_column(frame, name, where, "--group or --order")])
    said = list[str]()
    if request.group in columns and (num := int(frame[request.group].isna().sum())) and request.facts is None:
        said.append(Doubt(f"{num:,} rows have no value in the group column {request.group!r} and are one group"))
    column = split_column(frame)
    if column is not None and column != target and request.facts is None:
        parts = named_parts(frame[column], where)
        if parts is not None:
            columns["split"] = np.array(parts, dtype=object)
    found = found_group(frame, request, besides=(target,)) if uses_found else None
    if found is not None:
        columns.setdefault(found, frame[found])
    return [*said, *unnamed_groups(frame, request, besides=(target,), uses=uses_found)]


def part_of(word: str) -> str:
    """The part of a split that goes by a name, in whatever case; "" for other names."""
    return PARTS.get(re.sub(r"[ -]", "_", word.strip().lower()), "")


def named_parts(values: pd.Series, where: str) -> list[str] | None:
    """The part of every row that a column "split" names; None where it names none.

    Raises DataError where some rows name a part and others none, or one that nobody knows: whoever wrote the column meant
    something by it.
    """
    texts = [cell.lower() for cell in clean_texts(values).fillna("")]
    known = {part_of(text) for text in texts} - {""}
    if "train" not in known or len(set(texts)) == 1:
        return None
    strange = [text for text in texts if not part_of(text)]
    if strange:
        told = f"{strange[0]!r}" if strange[0] else "nothing"
        raise DataError(
            f"{where}: column 'split' names parts, but says {told} in {len(strange):,} of {len(texts):,} rows. Write train, "
            "valid or test into each row, or give the column another name."
        )
    return [part_of(text) for text in texts] if len(known) > 1 else None


def parts_of_files(
    frame: pd.DataFrame, files: Sequence[str | None], request: Request, *, where: str, targets: Sequence[str | None]
) -> dict[str, str]:
    """The part of each file by a column "split" of a table to learn from; none where it names none or is a target.

    files: the path in each row, None where it has none. Raises DataError for a file in two parts, or as `named_parts`.
    """
    column = split_column(frame)
    if request.facts is not None or column is None or column in targets:
        return {}
    found: dict[str, str] = {}
    for file, part in zip(files, named_parts(frame[column], where) or [""] * len(files), strict=True):
        if part and file is not None and found.setdefault(file, part) != part:
            raise DataError(
                f"{where}: column {column!r} puts {file} into {found[file]} and into {part}. Keep one of the rows."
            )
    return found


def split_column(frame: pd.DataFrame) -> str | None:
    """The column called "split", in whatever case."""
    return next((str(name) for name in frame.columns if str(name).lower() == "split"), None)


def parted_groups(
    groups: Sequence[str], parts: Sequence[str], what: str, cure: str = "--split grouped keeps them whole"
) -> list[str]:
    """What to say where members of a group are in several given parts.

    groups, parts: of each row, "" for no part.   what: the groups are, in the plural.   cure: what to do.
    """
    seen: dict[str, set[str]] = {}
    for group, part in zip(groups, parts, strict=True):
        seen.setdefault(group, set()).add(part)
    across = [group for group, found in seen.items() if len(found - {""}) > 1]
    if not across:
        return []
    return [
        Doubt(
            f"the given split puts {len(across):,} {what} into more than one part (of {len(seen):,} in all), so its scores "
            f"flatter ({_shown(across)}). {cure}"
        )
    ]


def id_texts(request: Request, names: Sequence[str]) -> set[str]:
    """Columns to be read letter for letter because they name the rows: "1e5" and "1.10" are no numbers there.

    names: usual names of ids; the one that the user named comes to them, what has another role does not.
    """
    usual = {case for name in names for case in (name, name.capitalize(), name.upper())} | {request.id_column or ""}
    return usual - {request.target, request.group, request.order, "", *(request.target or "").split(",")}


def unnamed_groups(
    frame: pd.DataFrame, request: Request, *, besides: Sequence[str | None] = (), uses: bool = True
) -> list[str]:
    """What to say of columns that look as if they named patients, speakers or the like while no --group was named; of groups,
    also named ones, that a column "split" breaks; and of columns that seem to name parts and do not.

    besides: columns that have another role.   uses: whether the data type keeps together what `found_group` finds.
    """
    if request.facts is not None:
        return []
    taken = _taken(request, besides)
    if parts := _parts_or_none(frame, taken):
        return [*_broken_groups(frame, request, besides, parts), *_unused_parts(frame, taken)]
    used = found_group(frame, request, besides=besides) if uses else None
    said = []
    for name, num in _likely_groups(frame, request, besides).items():
        looks = f"column {name!r} looks like a group ({num:,} values in {len(frame):,} rows): "
        if name == used:
            said.append(f"{looks}rows of one stay on one side of the split. If it is none, say --split random")
        else:
            advice = f"which flatters the scores. Keep them together with --group {name}"
            said.append(Doubt(f"{looks}rows of one may be on both sides of the split, {advice}"))
    return [*said, *_unused_parts(frame, taken)]


def _broken_groups(
    frame: pd.DataFrame, request: Request, besides: Sequence[str | None], parts: Sequence[str]
) -> list[str]:
    """What to say of the group, or of what looks like one, where given parts hold some of its rows each."""
    named = request.group if request.group in frame.columns else None
    said = []
    for name in [named] if named else _likely_groups(frame, request, besides):
        known = frame[name].notna().tolist()
        values = [f"{value}" for value, is_known in zip(frame[name], known, strict=True) if is_known]
        given = [part for part, is_known in zip(parts, known, strict=True) if is_known]
        cure = f"{'' if named else f'--group {name} with '}--split grouped keeps them whole"
        said += parted_groups(values, given, f"groups of {name!r}", cure)
    return said


def _unused_parts(frame: pd.DataFrame, taken: set[str | None]) -> list[str]:
    """What to say of a column called "split" that names no parts, and of others that name nothing else."""
    own = split_column(frame)
    own = None if own in taken else own
    is_used, said = _parts_or_none(frame, taken) is not None, list[str]()
    if own is not None and not is_used and len(words := _different(frame[own])) > 1:
        said.append(
            Doubt(
                f"column {own!r} is not used to split: its values ({_shown(words)}) do not name a training part and another. "
                "If it should, write train, valid or test into each row"
            )
        )
    for name in map(str, frame.columns):
        if name in taken or name == own or not all(map(part_of, map(str, frame[name].dropna().head(_HEAD)))):
            continue
        words = _different(frame[name])
        if {"train", "test"} <= set(map(part_of, words)) and all(map(part_of, words)):
            advice = f"column {own!r} does" if is_used else "call it 'split' if it should"
            said.append(Doubt(f"column {name!r} ({_shown(words)}) is not used to split: {advice}"))
    return said


def _different(values: pd.Series) -> list[str]:
    return list(dict.fromkeys(map(str, values.dropna())))


def _shown(words: Sequence[str]) -> str:
    return ", ".join(words[:_FEW_SHOWN]) + (", ..." if len(words) > _FEW_SHOWN else "")


def _parts_or_none(frame: pd.DataFrame, taken: set[str | None]) -> list[str] | None:
    """As `named_parts` of the column "split", "" where a row names none; None where it has another role."""
    column = split_column(frame)
    if column is None or column in taken:
        return None
    parts = [part_of(cell) for cell in clean_texts(frame[column]).fillna("")]
    return parts if "train" in parts and len(set(parts)) > 1 else None


def _taken(request: Request, besides: Sequence[str | None]) -> set[str | None]:
    return {request.target, request.id_column, request.order, *besides, *(request.target or "").split(",")}


def found_group(frame: pd.DataFrame, request: Request, *, besides: Sequence[str | None] = ()) -> str | None:
    """The column that is used as the group though nobody named it: of those that look like one, without gaps and with
    `FEWEST_GROUPS` values at least, the one with the fewest (patients before their sessions). None where the user named
    an order, or a column "split" says where rows go."""
    column = split_column(frame)
    has_split = column is not None and column not in _taken(request, besides)
    if request.order is not None or (has_split and "train" in map(part_of, _different(frame[column]))):
        return None
    likely = _likely_groups(frame, request, besides)
    fit = {name: num for name, num in likely.items() if num >= FEWEST_GROUPS and not frame[name].isna().any()}
    return min(fit, key=lambda name: fit[name], default=None)


def _likely_groups(frame: pd.DataFrame, request: Request, besides: Sequence[str | None]) -> dict[str, int]:
    """Columns with the name of a group whose values repeat, and their number of values; none where one was named."""
    if request.facts is not None or request.group is not None:
        return {}
    taken = _taken(request, besides)
    found = {}
    for name in map(str, frame.columns):
        if name in taken or not _LIKELY_GROUP.fullmatch(name.strip()):
            continue
        values = frame[name].dropna().astype(str)
        num = values.nunique()
        if len(set(PARTS.values())) <= num <= len(values) / _FEWEST_A_GROUP:
            found[name] = num
    return found


def named_keys(table: FrameTable, request: Request, stratum: np.ndarray | None = None) -> Keys | None:
    """The keys of a split by the column that was named with --group or --order; None where none was, or it is not here.

    Where both were, the order decides: a group may then be on both sides, and intervals resample it whole. A column "split"
    decides before either; `unnamed_groups` tells of groups that it breaks.
    """
    group, order = (
        table.column(name).to_numpy() if name and name in table.frame.columns else None
        for name in (request.group, request.order)
    )
    if group is not None:
        group = group.astype(str)
    if "split" in table.frame.columns and table.target_name != "split" and (group is not None or order is not None):
        because = "the column 'split' says which row goes where"
        because += f"; groups follow {request.group!r}" if group is not None else ""
        given = table.column("split").tolist()
        return Keys("given", because, group=group, order=order, given=given, stratum=stratum)
    if order is not None:
        because = f"column {request.order!r} was named with --order"
        return Keys("time", because, group=group, order=order, stratum=stratum)
    if group is not None:
        return Keys("grouped", f"column {request.group!r} was named with --group", group=group, stratum=stratum)
    return None


def largest_share(target: np.ndarray) -> float:
    """The share of the rows that the most frequent class has."""
    return float(np.unique(target.astype(str), return_counts=True)[1].max() / len(target))


def one_a_row(bad: Sequence[BadRow]) -> list[BadRow]:
    """The reasons of each row as one, in the order of the file."""
    found: dict[int, BadRow] = {}
    for row in bad:
        before = found.get(row.position)
        reason = f"{before.reason}; {row.reason}" if before else row.reason
        found[row.position] = BadRow(row.position, row.place, reason)
    return [found[position] for position in sorted(found)]
