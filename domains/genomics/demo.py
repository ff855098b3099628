"""Data that is generated, for trying the genomics recipes without any of one's own."""

from __future__ import annotations

from domains.contract import Demo, Request
from trainers.errors import UsageError, did_you_mean

NUM_ROWS, NUM_BASES = 1200, 80
DEMOS = ("planted-motif",)
# The consensus of the TATA box with its usual letters; Bucher 1990, J Mol Biol 212:563.
MOTIF = "TATAWAWR"


def load(name: str) -> Demo:
    """The demo called `name`: random DNA; half the sequences hold a motif on either strand. Raises UsageError."""
    if name not in DEMOS:
        raise UsageError(f"no demo {name!r} of genomics.{did_you_mean(name, DEMOS)} Known: {', '.join(DEMOS)}.")
    import numpy as np
    import pandas as pd

    from domains.genomics.bases import CODES, reverse_complement

    rng = np.random.default_rng(0)
    rows = []
    for number in range(NUM_ROWS):
        sequence, has_motif = "".join(rng.choice(list("ACGT"), NUM_BASES)), bool(number % 2)
        if has_motif:
            motif = "".join(str(rng.choice(list(CODES[letter]))) for letter in MOTIF)
            at = int(rng.integers(NUM_BASES - len(motif)))
            sequence = sequence[:at] + motif + sequence[at + len(motif) :]
            sequence = reverse_complement(sequence) if rng.random() < 0.5 else sequence
        rows.append({"id": f"s{number}", "sequence": sequence, "label": "motif" if has_motif else "background"})
    about = f"{NUM_ROWS:,} GENERATED sequences of {NUM_BASES} random bases, half with a {MOTIF} motif on either strand"
    return Demo(pd.DataFrame(rows), Request(target="label", id_column="id"), about, {})
