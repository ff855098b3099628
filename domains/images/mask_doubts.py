"""What is doubtful in masks that can be read: classes that nothing teaches, masks of two kinds, pictures with two answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from domains.contract import Doubt
from domains.images.mask_files import IGNORED, read_mask

FEWEST_A_CLASS = 3
"""Masks that hold a class: one for each part of the split."""
_MANY_RARE = 8
_FEW_SHOWN = 5


def class_doubts(held: Mapping[int, Sequence[int]], values: Sequence[int], parts: Sequence[str]) -> list[str]:
    """What to say of the classes.

    held: the values in the mask of each row.   values: that are classes, the background first.   parts: of all rows, or "".
    """
    counts = {value: sum(value in seen for seen in held.values()) for value in values[1:]}
    said = list[str]()
    if empty := sum(not set(seen) & set(values[1:]) for seen in held.values()):
        said.append(Doubt(f"pictures without any foreground: {empty:,}{_mixed(held, values)}"))
    if rare := [value for value, num in counts.items() if num < FEWEST_A_CLASS]:
        text = (
            f"classes in fewer than {FEWEST_A_CLASS} masks, which no split can spread over its parts: {_classes(rare)}"
        )
        if len(rare) >= _MANY_RARE and 2 * len(rare) >= len(counts):
            text += (
                f". {len(rare):,} of {len(counts):,} classes are so rare: do the masks number objects one by one, or have they "
                "soft edges? A pixel must hold the number of its class"
            )
        said.append(Doubt(text))
    if "train" in parts:
        unseen = set(values[1:]).difference(*(seen for row, seen in held.items() if parts[row] == "train"))
        if unseen:
            said.append(Doubt(f"in no mask to train on, so never learned: {_classes(sorted(unseen))}"))
    return said


def unlearned(held: Sequence[str], values: Sequence[int]) -> list[int]:
    """The classes in no mask to train on. held: of each training row the values in its mask, separated by commas."""
    seen = {int(value) for each in held for value in each.split(",") if value}
    return sorted(set(values[1:]) - seen)


def copy_doubts(masks: Mapping[int, Path], names: Sequence[str], copies: Mapping[int, int]) -> list[str]:
    """What to say of pictures that have copies with another mask.

    masks: by row.   names: of all rows.   copies: the number of its group of copies by row.
    """
    groups: dict[int, list[int]] = {}
    for row in masks:
        groups.setdefault(copies[row], []).append(row)
    found = []
    for rows in groups.values():
        paths = {masks[row]: row for row in reversed(rows)}
        different = {read_mask(path).tobytes(): row for path, row in paths.items()} if len(paths) > 1 else {}
        if len(different) > 1:
            found.append(" = ".join(names[row] for row in sorted(different.values())))
    shown = "; ".join(found[:_FEW_SHOWN]) + ("; ..." if len(found) > _FEW_SHOWN else "")
    return [Doubt(f"{len(found):,} pictures have copies with another mask: {shown}")] if found else []


def _mixed(held: Mapping[int, Sequence[int]], values: Sequence[int]) -> str:
    """The likely cause where some masks hold 0 and 255 alone and others 0 and one class."""
    with_255 = [set(seen) - {0} for seen in held.values() if IGNORED in seen]
    if len(values) != 2 or IGNORED in values or not with_255 or any(len(seen) > 1 for seen in with_255):
        return ""
    return (
        f". {len(with_255):,} masks hold 255 where others hold {values[1]}: if both mean the class, write {values[1]} for 255 "
        "in them, for 255 counts as unlabelled beside other classes"
    )


def _classes(values: Sequence[int]) -> str:
    return ", ".join(f"class {value}" for value in values[:_FEW_SHOWN]) + (", ..." if len(values) > _FEW_SHOWN else "")
