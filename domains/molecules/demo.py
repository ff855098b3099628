"""Measured molecules that RDKit itself ships, for `zoo train molecules/...` without --data."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from domains.contract import Demo, Request
from trainers.errors import MissingError, UsageError, did_you_mean

DEMOS = ("sodium-channel", "sodium-channel-structures")


def load(name: str) -> Demo:
    """The demo called `name`. Raises UsageError for an unknown one, MissingError without RDKit's example files."""
    if name not in DEMOS:
        raise UsageError(f"no demo {name!r} of molecules.{did_you_mean(name, DEMOS)} Known: {', '.join(DEMOS)}.")
    import pandas as pd

    folder = _folder()
    lines = [line.split() for line in (folder / "CHEMBL2321810.smi").read_text().splitlines() if line.strip()]
    frame = pd.DataFrame(lines, columns=["smiles", "name"])
    if name == DEMOS[1]:
        about = (
            f"{len(frame):,} molecules of ChEMBL document 2321810 (ChEMBL, CC BY-SA 3.0), shipped with RDKit (BSD-3)"
        )
        return Demo(frame, Request(task="generation", id_column="name"), about)
    activity = pd.read_csv(folder / "CHEMBL2321810_act.csv", dtype={"Name": str})
    frame = frame.merge(activity.rename(columns={"Name": "name", "Act": "pIC50"}), on="name")
    about = (
        f"{len(frame):,} molecules of ChEMBL document 2321810 with their measured activity (pIC50; ChEMBL, CC BY-SA 3.0), "
        "shipped with RDKit as the example of Free-Wilson analysis (BSD-3)"
    )
    return Demo(frame, Request(target="pIC50", task="regression", id_column="name"), about)


def _folder() -> Path:
    spec = find_spec("rdkit")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    for root in roots:
        folder = Path(root) / "Contrib" / "FreeWilson" / "data"
        if (folder / "CHEMBL2321810.smi").is_file():
            return folder
    raise MissingError(
        "The molecules of the demo come with RDKit's wheel and are not here: pip install "
        "'domain-model-zoo[molecules]', or give data with --data FILE."
    )
