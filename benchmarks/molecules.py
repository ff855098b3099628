"""Molecules on MoleculeNet's files: scores of the recipes on named splits, one JSON line a run.

    python benchmarks/molecules.py esol esol.csv            # scaffold split, five seeds, three recipes
    python benchmarks/molecules.py esol esol.csv 5 trees    # of them those whose name holds the last word
    python benchmarks/molecules.py esol-random esol.csv     # random split, with descriptors
    python benchmarks/molecules.py esol-kernel esol.csv     # both splits by a Gaussian process, five seeds
    python benchmarks/molecules.py esol-five esol.csv       # the same, five networks side by side
    python benchmarks/molecules.py esol-trees esol.csv      # random split, settings of the trees side by side
    python benchmarks/molecules.py tox21 tox21.csv.gz       # random split, twelve labels with gaps
    python benchmarks/molecules.py tox21-gnn tox21.csv.gz   # the same by gnn-scratch

Each line has the validation score beside the test score: whoever compares settings does so by the first. HIV has a
script of its own, molecules_hiv.py.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from zoo import run

SOLUBILITY = "measured log solubility in mols per litre"
TOX21 = "NR-AR,NR-AR-LBD,NR-AhR,NR-Aromatase,NR-ER,NR-ER-LBD,NR-PPAR-gamma,SR-ARE,SR-ATAD5,SR-HSE,SR-MMP,SR-p53"
GNN, TREES, KERNEL = "molecules/gnn-scratch", "molecules/fingerprint-trees", "molecules/kernel"
WITH_DESCRIPTORS = {"options.descriptors": True}
# By the validation score of extremely randomised trees on seed 0 (benchmarks/README.md).
ON_TOX21 = {"options.features": ["ecfp", "maccs", "descriptors"], "options.num_trees": 500, "options.min_leaf": 2}
FEW = {"options.features": ["descriptors"], "options.num_trees": 200}
ON_ESOL: tuple[dict[str, Any], ...] = (
    FEW,
    {**FEW, "options.seeds": 3, "options.model": "blend", "train.max_depth": 4},
    {"options.num_trees": 200},
)


def main() -> None:
    """Run what the first word names on the file that the second one does."""
    what, path = sys.argv[1:3]
    seeds = range(int(sys.argv[3])) if len(sys.argv) > 3 else None
    word = sys.argv[4] if len(sys.argv) > 4 else ""
    if what == "esol":
        for seed in seeds or range(5):
            for recipe, sets in ((GNN, {}), (GNN, WITH_DESCRIPTORS), (TREES, {"options.num_trees": 200})):
                if word in recipe:
                    show(recipe, path, SOLUBILITY, seed, sets, split=None)
    elif what == "esol-random":
        for seed in seeds or range(3):
            for recipe, sets in ((GNN, WITH_DESCRIPTORS), (TREES, {"options.num_trees": 200})):
                show(recipe, path, SOLUBILITY, seed, sets, split="random")
    elif what == "esol-kernel":
        for split in ("random", None):
            for seed in seeds or range(5):
                show(KERNEL, path, SOLUBILITY, seed, {}, split=split)
    elif what == "esol-five":
        for seed in seeds or range(3):
            show(GNN, path, SOLUBILITY, seed, {**WITH_DESCRIPTORS, "options.ensemble": 5}, split="random")
    elif what == "esol-trees":
        for seed in seeds or range(3):
            for sets in ON_ESOL:
                show(TREES, path, SOLUBILITY, seed, sets, split="random")
    elif what == "tox21":
        for seed in seeds or range(3):
            show(TREES, path, TOX21, seed, ON_TOX21, split="random")
    elif what == "tox21-gnn":
        for seed in seeds or range(1):
            show(GNN, path, TOX21, seed, {"train.epochs": 20}, split="random")
    else:
        raise SystemExit(__doc__)


def show(recipe: str, path: str, target: str, seed: int, sets: dict[str, Any], *, split: str | None) -> None:
    """Train once and print one line."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        done = run.train(
            recipe,
            path,
            target=target,
            seed=seed,
            set=sets,
            split=split,
            skip_bad=True,
            fast=True,
            out=Path(folder) / "r",
        )
        actual = json.loads((done.folder / "actual.json").read_text())
    decides = done.metrics["decides"]
    line = {
        "recipe": recipe,
        "sets": sets,
        "split": split or "scaffold",
        "seed": seed,
        "metric": decides,
        "valid": done.metrics["valid"][decides]["value"],
        "test": done.metrics["test"][decides],
        "baseline": {name: scores[decides]["value"] for name, scores in done.metrics["baseline"].items()},
        "num_rows": done.metrics["num_rows"],
        "chosen": actual.get("chosen"),
        "cpu_seconds": round(time.process_time() - began, 1),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
