"""The Nucleotide Transformer's tokens: six bases each from the left, single letters for what is left over or ambiguous.

Dalla-Torre et al. 2024, Nature Methods, methods ("tokenization"): 4,096 6-mers, five letters, and special tokens; N stands
alone. The list is the checkpoint's vocab.txt, one token a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from trainers.errors import DataError

K = 6
PAD, START = "<pad>", "<cls>"
LETTERS = "ATCGN"
_AMBIGUOUS = re.compile("[^ACGTN]")


def usual_vocabulary() -> list[str]:
    """The tokens of the first models (4,105), for random weights."""
    return ["<unk>", PAD, "<mask>", START, *map("".join, product("ATCG", repeat=K)), *LETTERS]


def read_vocabulary(path: Path) -> list[str]:
    """The tokens of a vocab.txt in the order of their numbers. Raises DataError where it is not one of 6-mers."""
    if not path.is_file():
        raise DataError(
            f"{path}: no such file. The 6-mer tokens of the weights are listed there: give the whole folder."
        )
    found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    while found and not found[-1]:
        found.pop()
    missing = [token for token in (PAD, START, *LETTERS, "A" * K) if token not in found]
    if missing:
        raise DataError(f"{path}: not the vocabulary of a Nucleotide Transformer: no token {missing[0]!r}.")
    return found


def numbers(sequence: str, place: Mapping[str, int], most_tokens: int) -> list[int]:
    """Token numbers of a sequence: start, then the longest token at each place; at most `most_tokens`.

    Ambiguous letters other than N are read as N. No token marks the end: the models were trained without.
    """
    letters, at = _AMBIGUOUS.sub("N", sequence), 0
    found = [place[START]]
    while at < len(letters) and len(found) < most_tokens:
        token = letters[at : at + K]
        token = token if token in place else letters[at]
        found.append(place[token])
        at += len(token)
    return found


def places(vocabulary: Sequence[str]) -> dict[str, int]:
    """Number of every token."""
    return {token: number for number, token in enumerate(vocabulary)}
