"""What letters may be in a protein sequence, and what is done to each of the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from domains.shared.sequences import Cleaned, counted

STANDARD = "ACDEFGHIKLMNPQRSTVWY"
# X unknown, B D or N, Z E or Q, U selenocysteine, O pyrrolysine: rare, but each is a token of ESM-2.
RARE = "XUBZO"
_NOT_ALLOWED = re.compile(f"[^{STANDARD}{RARE}]")
_LOOKS_LIKE = re.compile(rf"[{STANDARD}{RARE}J]{{5,}}\*?", re.IGNORECASE)
_BASES = re.compile(r"[ACGTUN]+", re.IGNORECASE)
_MEANINGS = {"*": "a stop inside the chain", "-": "a gap of an alignment", ".": "a gap of an alignment"}
_MOSTLY, _FEWEST_ROWS, _TYPICAL_RESIDUES = 0.9, 5, 20


def cleaned(texts: Sequence[str | None]) -> Cleaned:
    """Every sequence as a model takes it: spaces and one trailing stop removed, upper case, J (I or L) as X."""
    changes: Counter[str] = Counter()
    rare: Counter[str] = Counter()
    found = Cleaned([])
    for position, text in enumerate(texts):
        sequence = _changed(text or "", changes)
        reason = _reason(sequence)
        if reason:
            found.reasons[position] = reason
        else:
            rare.update({letter: sequence.count(letter) for letter in RARE if letter in sequence})
        found.sequences.append("" if reason else sequence.replace("J", "X"))
    said = [f"{counted(count, 'sequence')} {what}" for what, count in changes.items()]
    if rare:
        letters = ", ".join(f"{letter} {count:,}" for letter, count in sorted(rare.items()))
        said.append(f"residues beyond the 20 standard ones are kept as they are: {letters}")
    found.notices = tuple(said)
    return found


def looks_like_protein(text: str) -> bool:
    """Whether `text` could be an amino-acid chain of five residues or more."""
    return _LOOKS_LIKE.fullmatch(text.strip()) is not None


def num_like_dna(sequences: Sequence[str]) -> int:
    """How many sequences of 20 letters or more have none but those of bases."""
    return sum(len(sequence) >= _TYPICAL_RESIDUES and _BASES.fullmatch(sequence) is not None for sequence in sequences)


def look_like_dna(sequences: Sequence[str]) -> bool:
    """Whether nearly all of several sequences, of typical length 20 or more, have no letters but those of bases."""
    full = sorted((sequence for sequence in sequences if sequence), key=len)
    if len(full) < _FEWEST_ROWS or len(full[len(full) // 2]) < _TYPICAL_RESIDUES:
        return False
    return sum(_BASES.fullmatch(sequence) is not None for sequence in full) >= _MOSTLY * len(full)


def _changed(text: str, changes: Counter[str]) -> str:
    sequence = "".join(text.split())
    if sequence != text.strip():
        changes["held spaces, which were removed"] += 1
    if sequence.endswith("*"):
        changes["ended in a stop (*), which was removed"] += 1
        sequence = sequence[:-1]
    # Only ASCII: upper() turns other letters into something else ("ß" into "SS").
    if sequence.isascii() and sequence != sequence.upper():
        changes["held lower-case letters, which were read as upper case"] += 1
        sequence = sequence.upper()
    if "J" in sequence:
        changes["held J (leucine or isoleucine), which was read as X"] += 1
    return sequence


def _reason(sequence: str) -> str:
    if not sequence:
        return "no sequence"
    wrong = _NOT_ALLOWED.findall(sequence.replace("J", "X"))
    if not wrong:
        return ""
    letter, place = wrong[0], sequence.index(wrong[0]) + 1
    meaning = f", {_MEANINGS[letter]}" if letter in _MEANINGS else ""
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"{letter!r} at residue {place} is no amino acid{meaning}{more}"
