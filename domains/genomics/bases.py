"""What letters may be in a DNA sequence, what is done to each of the others, and the other strand.

IUPAC codes: Cornish-Bowden 1985, Nucleic Acids Research 13:3021.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from domains.shared.sequences import Cleaned, counted

STANDARD = "ACGT"
CODES = {
    **{base: base for base in STANDARD},
    "R": "AG",
    "Y": "CT",
    "S": "CG",
    "W": "AT",
    "K": "GT",
    "M": "AC",
    "B": "CGT",
    "D": "AGT",
    "H": "ACT",
    "V": "ACG",
    "N": "ACGT",
}
"""The bases that each letter may stand for."""
# In the order A, C, G, T the other strand's shares are these read backwards.
SHARES = {code: [(base in bases) / len(bases) for base in STANDARD] for code, bases in CODES.items()}
_OTHER_STRAND = str.maketrans("ACGTRYSWKMBDHVN", "TGCAYRSWMKVHDBN")
_NOT_ALLOWED = re.compile(f"[^{''.join(CODES)}]")
_LOOKS_LIKE = re.compile(f"[{''.join(CODES)}U]{{5,}}", re.IGNORECASE)
_MEANINGS = {"-": ", a gap of an alignment", ".": ", a gap of an alignment"}
_FEWEST_STANDARD = 0.5


def cleaned(texts: Sequence[str | None]) -> Cleaned:
    """Every sequence as a model takes it: spaces removed, lower case (soft-masked) as upper case, U as T, codes kept."""
    raw = ["".join((text or "").split()) for text in texts]
    upper = [sequence.upper() if sequence.isascii() else sequence for sequence in raw]
    found = Cleaned([sequence.replace("U", "T") for sequence in upper])
    found.notices = tuple(_notices(texts, raw, upper))
    for position, sequence in enumerate(found.sequences):
        if reason := _reason(sequence):
            found.reasons[position] = reason
            found.sequences[position] = ""
    return found


def reverse_complement(sequence: str) -> str:
    """The other strand, read in its own direction. Upper-case letters of `CODES`."""
    return sequence.translate(_OTHER_STRAND)[::-1]


def one_strand(sequence: str) -> str:
    """The same text for a sequence and its reverse complement: the one that comes first in the alphabet."""
    return min(sequence, reverse_complement(sequence))


def looks_like_dna(text: str) -> bool:
    """Whether `text` could be a nucleic acid of five bases or more: IUPAC codes, at least half of them A, C, G, T or U.

    Proteins are written with many of the same letters, but not mostly with these five.
    """
    letters = text.strip()
    if _LOOKS_LIKE.fullmatch(letters) is None:
        return False
    return sum(letters.upper().count(base) for base in "ACGTUN") >= _FEWEST_STANDARD * len(letters)


def shares(sequence: str) -> np.ndarray:
    """(bases, 4) float32 probability of A, C, G and T at each place: 1 for a base, .25 each for N."""
    return _SHARE_TABLE[np.frombuffer(sequence.encode("ascii"), np.uint8)]


def _share_table() -> np.ndarray:
    table = np.zeros((128, len(STANDARD)), np.float32)
    for code, values in SHARES.items():
        table[ord(code)] = values
    return table


_SHARE_TABLE = _share_table()


def _notices(texts: Sequence[str | None], raw: Sequence[str], upper: Sequence[str]) -> list[str]:
    num_bases = max(1, sum(map(len, raw)))
    num_lower = sum(
        a != b for one, other in zip(raw, upper, strict=True) if one != other for a, b in zip(one, other, strict=True)
    )
    num_spaced = sum(sequence != (text or "").strip() for sequence, text in zip(raw, texts, strict=True))
    num_rna = sum("U" in sequence for sequence in upper)
    codes = {code: sum(sequence.count(code) for sequence in upper) for code in CODES if code not in STANDARD}
    said = ", ".join(f"{code} {count:,}" for code, count in sorted(codes.items()) if count)
    return [
        *(
            [f"{num_lower / num_bases:.1%} of the bases are lower case (soft-masked) and read as upper case"]
            if num_lower
            else []
        ),
        *([f"{counted(num_rna, 'sequence')} with U (RNA), read as T"] if num_rna else []),
        *([f"{counted(num_spaced, 'sequence')} held spaces, which were removed"] if num_spaced else []),
        *([f"ambiguous bases are kept as what they may be, in equal shares: {said}"] if said else []),
    ]


def _reason(sequence: str) -> str:
    if not sequence:
        return "no sequence"
    wrong = _NOT_ALLOWED.findall(sequence)
    if wrong:
        place, more = sequence.index(wrong[0]) + 1, f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return f"{wrong[0]!r} at base {place} is no base{_MEANINGS.get(wrong[0], '')}{more}"
    if not any(base in sequence for base in STANDARD):
        return f"only ambiguous bases ({sequence[:10]})"
    return ""
