"""What in a chain says where the cell sends it: stretches that cross membranes, signal peptides, clusters of charge.

Kyte & Doolittle 1982, J Mol Biol 157:105 (stretches of 19 residues of mean hydropathy above 1.6 cross membranes); von Heijne
1985, J Mol Biol 184:99 (signal peptides: a short greasy stretch near the start, charge before it); Dingwall & Laskey 1991,
Trends Biochem Sci 16:478 (clusters of lysine and arginine send a chain into the nucleus).
"""

from __future__ import annotations

import numpy as np

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
# Kyte & Doolittle 1982, table 2.
HYDROPATHY = dict(zip("ARNDCQEGHILKMFPSTWYV", (
    *(1.8, -4.5, -3.5, -3.5, 2.5, -3.5, -3.5, -0.4, -3.2, 4.5),
    *(3.8, -3.9, 1.9, 2.8, -1.6, -0.8, -0.7, -0.9, -1.3, 4.2),
), strict=True))  # fmt: skip
CHARGE = {"K": 1.0, "R": 1.0, "H": 0.1, "D": -1.0, "E": -1.0}
MEMBRANE_RESIDUES, MEMBRANE_HYDROPATHY = 19, 1.6
SIGNAL_RESIDUES = (8, 12)
"""Lengths of the greasy stretch; the whole signal lies within the first `SIGNAL_REGION`."""
SIGNAL_REGION = 45
CLUSTER_RESIDUES = (5, 9)
START_RESIDUES = (12, 25, 40)


def sorting_signals(codes: np.ndarray) -> np.ndarray:
    """(17,) features of a chain. codes: (residues,) places in AMINO_ACIDS, one more for any other letter; not empty."""
    hydropathy, charge = _OF_LETTERS[0][codes], _OF_LETTERS[1][codes]
    basic = (charge == 1.0).astype(np.float64)
    wide = window_means(hydropathy, MEMBRANE_RESIDUES)
    behind = window_means(hydropathy[40:], MEMBRANE_RESIDUES) if len(codes) > 60 else np.zeros(1)
    starts = [window_means(hydropathy[:SIGNAL_REGION], length) for length in SIGNAL_RESIDUES]
    return np.array(
        [
            *(start.max() for start in starts),
            *(wide.max(), behind.max(), np.log1p(num_crossings(wide))),
            *(window_means(basic, length).max() for length in CLUSTER_RESIDUES),
            *(charge[:length].sum() for length in START_RESIDUES),
            *(charge.mean(), np.abs(charge).mean(), hydropathy.mean()),
            *(hydropathy[:20].mean(), hydropathy[:40].mean(), hydropathy[-20:].mean()),
            window_means(hydropathy[:60], SIGNAL_RESIDUES[0]).argmax() / 50,
        ]
    )


def window_means(values: np.ndarray, length: int) -> np.ndarray:
    """Mean of every stretch of `length` values; of all of them where they are fewer."""
    if len(values) < length:
        return np.array([values.mean()])
    sums = np.cumsum(np.append(0.0, values))
    return np.asarray((sums[length:] - sums[:-length]) / length)


def num_crossings(wide: np.ndarray) -> int:
    """Stretches that do not overlap and are greasy enough to cross a membrane, from the start of the chain on."""
    found, free = 0, 0
    for at in np.flatnonzero(wide > MEMBRANE_HYDROPATHY):
        if at >= free:
            found, free = found + 1, int(at) + MEMBRANE_RESIDUES
    return found


_OF_LETTERS = np.array(
    [[*(HYDROPATHY[a] for a in AMINO_ACIDS), 0.0], [*(CHARGE.get(a, 0.0) for a in AMINO_ACIDS), 0.0]]
)
