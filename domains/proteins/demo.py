"""Data that a package ships, for trying the protein recipes without any of one's own."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from domains.contract import Demo, Request
from trainers.errors import MissingError, UsageError, did_you_mean

NUM_ROWS = 1500
"""So that fine-tuning a small network takes two or three minutes on two cores."""
DEMOS = ("peptides",)


def load(name: str) -> Demo:
    """The demo called `name`. Raises UsageError for an unknown one, MissingError without the package that ships it."""
    if name not in DEMOS:
        raise UsageError(f"no demo {name!r} of proteins.{did_you_mean(name, DEMOS)} Known: {', '.join(DEMOS)}.")
    import pandas as pd

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
