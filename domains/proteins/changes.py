"""What a variant changes: mutants as they are written ("A42G:K3R"), or as whole sequences beside the wild type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from domains.shared.proteins.residues import RARE, STANDARD

SEPARATORS = re.compile(r"[:;,+/]")
WILD_TYPE_NAMES = ("wt", "_wt", "wild_type", "wildtype", "wild-type", "wild type")
_ONE = re.compile(r"(?:p\.)?([A-Za-z*])(\d+)([A-Za-z*=-])")


@dataclass(frozen=True)
class Change:
    """at: place in the wild type, from 0.   lost, gained: letters."""

    at: int
    lost: str
    gained: str


def parsed(text: str) -> list[Change]:
    """The changes that a mutant's name lists; [] for the wild type. "A42A" (synonymous) is a change to the same residue.

    Raises ValueError with the reason for what is no substitution of residues.
    """
    if text.strip().lower() in WILD_TYPE_NAMES:
        return []
    found = [_one(part.strip()) for part in SEPARATORS.split(text.strip())]
    places = [change.at for change in found]
    twice = next((at for at in places if places.count(at) > 1), None)
    if twice is not None:
        raise ValueError(f"{text!r} changes position {twice + 1} twice; write one substitution for each position")
    return found


def between(wild: str, sequence: str) -> list[Change]:
    """Where a sequence differs from the wild type. Raises ValueError for one of another length."""
    if len(sequence) != len(wild):
        raise ValueError(
            f"{len(sequence)} residues where the wild type has {len(wild)}: insertions and deletions are not scored here"
        )
    return [Change(at, a, b) for at, (a, b) in enumerate(zip(wild, sequence, strict=True)) if a != b]


def checked(changes: Sequence[Change], wild: str) -> list[Change]:
    """The same changes. Raises ValueError where the wild type has another residue at their place, or none."""
    for change in changes:
        name = f"{change.lost}{change.at + 1}{change.gained}"
        if change.at >= len(wild):
            raise ValueError(f"{name}: the wild type has {len(wild)} residues only")
        if wild[change.at] != change.lost:
            raise ValueError(
                f"{name}: the wild type has {wild[change.at]} at {change.at + 1}; are positions counted from 1?"
            )
    return list(changes)


def _one(text: str) -> Change:
    found = _ONE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no substitution; write A42G, several as A42G:K3R")
    lost, at, gained = found[1].upper(), int(found[2]), found[3].upper()
    gained = lost if gained == "=" else gained
    for letter in (lost, gained):
        if letter not in STANDARD + RARE:
            raise ValueError(f"{text!r}: {letter!r} is no residue; stops, insertions and deletions are not scored here")
    if at == 0:
        raise ValueError(f"{text!r}: positions are counted from 1")
    return Change(at - 1, lost, gained)
