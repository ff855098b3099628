"""Data that a package ships, for trying the protein recipes without any of one's own."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from domains.contract import Demo, Request
from trainers.errors import MissingError, UsageError, did_you_mean

NUM_ROWS = 1500
"""So that fine-tuning a small network takes two or three minutes on two cores."""
PEPTIDES, TOUCHING = DEMOS = ("peptides", "touching-charges")
POSITIVE, NEGATIVE, OTHER = "KR", "DE", "ACFGHILMNPQSTVWY"


def load(name: str) -> Demo:
    """The demo called `name`. Raises UsageError for an unknown one, MissingError without the package that ships it."""
    if name not in DEMOS:
        raise UsageError(f"no demo {name!r} of proteins.{did_you_mean(name, DEMOS)} Known: {', '.join(DEMOS)}.")
    import pandas as pd

    if name == TOUCHING:
        frame = pd.DataFrame(touching(num_proteins=120, shortest=40, longest=90))
        about = (
            f"{len(frame)} MADE-UP proteins in which residues of opposite charge touch, the rarer the further apart along the "
            "chain, on RANDOM weights: nothing is pretrained here, and nothing folds. Give --set options.weights=... for "
            "real ones, such as facebook/esm2_t33_650M_UR50D"
        )
        return Demo(frame, Request(target="contacts", id_column="id"), about, {"weights": "random:4x256"})
    spec = find_spec("modlamp")
    if spec is None or not spec.submodule_search_locations:
        raise MissingError(
            "The peptides of the demo come from modlamp: pip install 'domain-model-zoo[demo]'. Or give --data FILE."
        )
    # Read as a file: importing modlamp would draw in its plotting.
    path = Path(next(iter(spec.submodule_search_locations))) / "data" / "AMPvsUniProt.csv"
    frame = pd.read_csv(path, header=None, skiprows=1, names=["sequence", "is_antimicrobial"], skipinitialspace=True)
    num_all = len(frame)
    frame["label"] = frame.pop("is_antimicrobial").map({1: "antimicrobial", 0: "other"})
    frame = frame.drop_duplicates("sequence").sample(NUM_ROWS, random_state=0).sort_index()
    frame.insert(0, "id", [f"peptide{i}" for i in frame.index])
    about = (
        f"{NUM_ROWS:,} of the {num_all:,} peptides of AMPvsUniProt, antimicrobial (APD3) or other (UniProt), from modlamp "
        "(Mueller et al. 2017, Bioinformatics 33:2753; BSD-3), on RANDOM weights: nothing is pretrained here. "
        "Give --set options.weights=... for real ones, such as facebook/esm2_t12_35M_UR50D"
    )
    return Demo(
        frame.reset_index(drop=True), Request(target="label", id_column="id"), about, {"weights": "random:4x256"}
    )


def touching(*, num_proteins: int, shortest: int, longest: int, seed: int = 0) -> dict[str, list[str]]:
    """Columns of chains and of their contacts, which a rule decides: of residues of opposite charge that are s >= 6 apart
    0.9 exp(-(s - 6) / 40) touch, of others one in a hundred."""
    rng = np.random.default_rng(seed)
    letters = np.array(list(POSITIVE + NEGATIVE + OTHER))
    rows: dict[str, list[str]] = {"id": [], "sequence": [], "contacts": []}
    for number in range(num_proteins):
        chain = rng.choice(
            letters, int(rng.integers(shortest, longest + 1)), p=[*[0.1] * 4, *[0.6 / len(OTHER)] * len(OTHER)]
        )
        charge = np.isin(chain, list(POSITIVE)).astype(int) - np.isin(chain, list(NEGATIVE))
        i, j = np.triu_indices(len(chain), 6)
        chance = np.where(charge[i] * charge[j] < 0, 0.9 * np.exp(-(j - i - 6) / 40), 0.01)
        touches = rng.random(len(i)) < chance
        rows["id"].append(f"made-up{number}")
        rows["sequence"].append("".join(chain))
        rows["contacts"].append(" ".join(f"{a + 1}-{b + 1}" for a, b in zip(i[touches], j[touches], strict=True)))
    return rows
