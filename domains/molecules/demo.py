"""Measured molecules that RDKit itself ships, and made-up pairs with proteins, for `zoo train molecules/...` without --data."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from domains.contract import Demo, Request
from trainers.errors import MissingError, UsageError, did_you_mean

PAIRS = "made-up-pairs"
DEMOS = ("sodium-channel", "sodium-channel-structures", PAIRS)
RINGS = (
    *(
        "c1ccc({})c({})c1",
        "c1cc({})nc({})c1",
        "C1CCC({})C({})C1",
        "c1cc({})sc1{}",
        "C1CN({})CC1{}",
        "c1ccc2cc({})ccc2c1{}",
    ),
    *(
        "c1nc({})ncc1{}",
        "C1COC({})C1{}",
        "c1cc({})oc1{}",
        "C1CC({})CC1{}",
        "c1cc({})ccc1Oc1ccccc1{}",
        "c1cc({})ccc1CC1CCCC1{}",
    ),
)
ACIDS, AMINES = ("C(=O)O", "CC(=O)O", "CP(=O)(O)O"), ("CCN", "CCN(C)C", "CNC")
NEUTRAL = ("C", "CC", "COC", "CF", "CC#N")
ACIDIC, BASIC, OTHER = "DE", "KR", "ACFGHILMNPQSTVWY"


def load(name: str) -> Demo:
    """The demo called `name`. Raises UsageError for an unknown one, MissingError without RDKit's example files."""
    if name not in DEMOS:
        raise UsageError(f"no demo {name!r} of molecules.{did_you_mean(name, DEMOS)} Known: {', '.join(DEMOS)}.")
    import pandas as pd

    if name == PAIRS:
        frame = pd.DataFrame(pairs(num_pairs=1500, num_molecules=150, num_families=100))
        about = (
            f"{len(frame):,} MADE-UP pairs of 150 molecules and 200 proteins in 100 families, in which acids bind basic "
            "proteins and amines acidic ones, on RANDOM weights: nothing is pretrained here. Give --set "
            "options.weights=facebook/esm2_t12_35M_UR50D for the real ones"
        )
        return Demo(frame, Request(target="affinity", task="interaction"), about, {"weights": "random:2x128"})
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


def pairs(*, num_pairs: int, num_molecules: int, num_families: int, seed: int = 0) -> dict[str, list[Any]]:
    """Columns of pairs with an affinity (about 6, as of -log10 M) that only both halves together explain.

    Acids and amines of the molecule times the protein's share of basic less acidic residues, and noise of 0.2. A family has
    two proteins, which share 85 % of their 60 to 120 residues.
    """
    rng = np.random.default_rng(seed)
    molecules = [_molecule(rng) for _ in range(num_molecules)]
    proteins = [protein for _ in range(num_families) for protein in _family(rng)]
    rows: dict[str, list[Any]] = {"smiles": [], "protein": [], "affinity": []}
    for at in rng.choice(num_molecules * len(proteins), num_pairs, replace=False).tolist():
        (smiles, acidity), (sequence, basicity) = molecules[at // len(proteins)], proteins[at % len(proteins)]
        rows["smiles"].append(smiles)
        rows["protein"].append(sequence)
        rows["affinity"].append(round(6 + acidity * basicity + 0.2 * float(rng.normal()), 3))
    return rows


def _molecule(rng: np.random.Generator) -> tuple[str, float]:
    """A ring with two ends; the number of acids less that of amines."""
    kinds = rng.integers(-1, 2, 2)
    ends = [str(rng.choice({-1: AMINES, 0: NEUTRAL, 1: ACIDS}[kind])) for kind in kinds.tolist()]
    return str(rng.choice(RINGS)).format(*ends), float(kinds.sum())


def _family(rng: np.random.Generator) -> list[tuple[str, float]]:
    """Two relatives, each with what acids like of it, from about -2 to 2."""
    share = rng.uniform(0, 1)
    letters = np.array(list(ACIDIC + BASIC + OTHER))
    weights = np.array([*[0.15 * (1 - share)] * 2, *[0.15 * share] * 2, *[0.7 / len(OTHER)] * len(OTHER)])
    weights /= weights.sum()
    length = int(rng.integers(60, 121))
    ancestor = rng.choice(letters, length, p=weights)
    found = []
    for _ in range(2):
        chain = np.where(rng.random(length) < 0.08, rng.choice(letters, length, p=weights), ancestor)
        found.append(
            ("".join(chain), 6.0 * float(np.isin(chain, list(BASIC)).mean() - np.isin(chain, list(ACIDIC)).mean()))
        )
    return found
