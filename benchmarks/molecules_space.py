"""Labels that only positions tell: SchNet beside a graph network and fingerprints that see none.

    python benchmarks/molecules_space.py gdb1k.sdf 0 1 2        # seeds

GDB's molecules have positions and no label, so two are computed from the positions themselves: the radius of gyration in Å,
and the energy of the nuclei's repulsion in hartree. Each molecule is written as it is, and once more in another conformer
(ETKDG, no force field), with the same bonds: what tells the two apart no graph can see. One JSON line a run, with the share
of the variance within pairs that is explained ("within": 0 for anything that sees bonds alone).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem, RDLogger
from rdkit.Chem import rdDistGeom

from zoo import run

BOHR = 0.529177
TARGETS = ("gyration", "repulsion")
SETS = {
    "molecules/schnet": {"options.width": 64, "options.depth": 3, "train.epochs": 40, "train.lr": 1e-3},
    "molecules/gnn-scratch": {"options.width": 128, "options.hidden": 128, "train.epochs": 20},
}


def main() -> None:
    """Every recipe on every label, seed by seed."""
    RDLogger.DisableLog("rdApp.*")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.sdf"
        write_pairs(sys.argv[1], path)
        for seed in map(int, sys.argv[2:]):
            for target in TARGETS:
                for recipe, sets in SETS.items():
                    show(recipe, path, target, seed, sets)


def write_pairs(source: str, path: Path) -> None:
    """Each molecule twice, with both labels."""
    writer = Chem.SDWriter(str(path))
    for at, mol in enumerate(Chem.SDMolSupplier(source, removeHs=False)):
        if mol is None:
            continue
        other = Chem.AddHs(Chem.Mol(mol), addCoords=True)
        if rdDistGeom.EmbedMolecule(other, randomSeed=at) != 0:
            continue
        for number, each in enumerate((mol, other)):
            for name, value in zip(TARGETS, labels(each), strict=True):
                each.SetProp(name, f"{value:.6f}")
            each.SetProp("_Name", f"{at}-{number}")
            writer.write(each)
    writer.close()


def labels(mol: Chem.Mol) -> tuple[float, float]:
    """Radius of gyration (all atoms alike) in Å, and the repulsion of the nuclei in hartree."""
    positions = mol.GetConformer().GetPositions()
    charges = np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()], float)
    here, there = np.triu_indices(len(charges), k=1)
    apart = np.linalg.norm(positions[here] - positions[there], axis=1) / BOHR
    spread = np.sqrt(((positions - positions.mean(axis=0)) ** 2).sum(axis=1).mean())
    return float(spread), float((charges[here] * charges[there] / apart).sum())


def show(recipe: str, path: Path, target: str, seed: int, sets: dict[str, object]) -> None:
    """Train once and print one line."""
    with tempfile.TemporaryDirectory() as folder:
        done = run.train(recipe, path, target=target, seed=seed, set=sets, fast=True, out=Path(folder) / "run")
        actual = json.loads((done.folder / "actual.json").read_text())
        answers = pd.read_csv(done.folder / "predictions.csv", dtype={"id": str})
    test, baseline = done.metrics["test"], done.metrics["baseline"]
    line = {
        "recipe": recipe,
        "target": target,
        "seed": seed,
        "rmse": round(test["rmse"]["value"], 4),
        "r2": round(test["r2"]["value"], 4),
        "within": round(within(answers), 3),
        "baselines": {name: round(each["rmse"]["value"], 4) for name, each in baseline.items()},
        "cpu_seconds": round(actual["cpu_seconds"], 1),
    }
    print(json.dumps(line), flush=True)


def within(answers: pd.DataFrame) -> float:
    """Share of the difference between the two conformers of a molecule that is explained."""
    pairs = answers.assign(mol=answers["id"].str.split("-").str[0]).sort_values("id").groupby("mol")
    gaps = pairs[["truth", "prediction"]].agg(lambda pair: pair.iloc[0] - pair.iloc[-1])
    return float(1 - ((gaps["truth"] - gaps["prediction"]) ** 2).sum() / (gaps["truth"] ** 2).sum())


if __name__ == "__main__":
    main()
