"""BLOSUM62: how often one residue stands for another in related proteins, in half bits. Henikoff & Henikoff 1992, PNAS
89:10915, figure 2."""

from __future__ import annotations

import numpy as np

LETTERS = "ARNDCQEGHILKMFPSTWYV"
_LOWER = """
4
-1 5
-2 0 6
-2 -2 1 6
0 -3 -3 -3 9
-1 1 0 0 -3 5
-1 0 0 2 -4 2 5
0 -2 0 -1 -3 -2 -2 6
-2 0 1 -1 -3 0 0 -2 8
-1 -3 -3 -3 -1 -3 -3 -4 -3 4
-1 -2 -3 -4 -1 -2 -3 -4 -3 2 4
-1 2 0 -1 -3 1 1 -2 -1 -3 -2 5
-1 -1 -2 -3 -1 0 -2 -3 -2 1 2 -1 5
-2 -3 -3 -3 -2 -3 -3 -3 -1 0 0 -3 0 6
-1 -2 -2 -1 -3 -1 -1 -2 -2 -3 -3 -1 -2 -4 7
1 -1 1 0 -1 0 0 0 -1 -2 -2 0 -1 -2 -1 4
0 -1 0 -1 -1 -1 -1 -2 -2 -1 -1 -1 -1 -2 -1 1 5
-3 -3 -4 -4 -2 -2 -3 -2 -2 -3 -2 -3 -1 1 -4 -3 -2 11
-2 -2 -2 -3 -2 -1 -2 -3 2 -1 -1 -2 -1 3 -3 -2 -2 2 7
0 -3 -3 -3 -1 -2 -2 -3 -3 3 1 -2 1 -1 -2 -2 0 -3 -1 4
"""
UNKNOWN = -1.0
"""For letters beyond the 20, as NCBI's table has it."""


def matrix() -> np.ndarray:
    """(20, 20) in the order of LETTERS."""
    rows = [[float(cell) for cell in line.split()] for line in _LOWER.strip().splitlines()]
    lower = np.array([[*row, *[0.0] * (len(LETTERS) - len(row))] for row in rows])
    return np.asarray(lower + np.tril(lower, -1).T)


def score(one: str, other: str) -> float:
    """The score of a pair of letters."""
    if one not in LETTERS or other not in LETTERS:
        return UNKNOWN
    return float(_MATRIX[LETTERS.index(one), LETTERS.index(other)])


_MATRIX = matrix()
