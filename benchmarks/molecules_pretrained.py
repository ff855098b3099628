"""HIV, few labels: what a pretrained D-MPNN brings over the same network drawn at random, at the same budget.

    python benchmarks/molecules_pretrained.py hiv.csv tune          # rates by validation, one draw of rows
    python benchmarks/molecules_pretrained.py hiv.csv race 3e-4 1e-3 0 1 2    # rates (pretrained, random), draws of rows

Rates are chosen by validation before any test score is looked at. The test part is that of `scaffold-largest-first` on all
of HIV (as DeepChem and OGB cut it); of the training and validation parts 3,200 and 800 molecules are drawn. The networks of
admet-ai (pip install --no-deps admet-ai==2.0.1) never saw HIV's labels, but TDC's; molecules of HIV may be among those. One
JSON line a run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.molecules.chemistry import parsed
from domains.molecules.scaffolds import largest_first
from zoo import run

TARGET, NUM_TRAIN, NUM_VALID = "HIV_active", 3200, 800
WEIGHTS = "admet-ai:classification/0"
RATES = (1e-3, 3e-4)
EPOCHS = 10
STARTS = ("pretrained", "random")


def main() -> None:
    """One of the two parts of the job."""
    frame = with_parts(sys.argv[1])
    if sys.argv[2] == "tune":
        for start in STARTS:
            for rate in RATES:
                show(frame, start, rate, 0, "valid")
        return
    for seed in map(int, sys.argv[5:]):
        for start, rate in zip(STARTS, map(float, sys.argv[3:5]), strict=True):
            show(frame, start, rate, seed, "test")


def with_parts(path: str) -> pd.DataFrame:
    """HIV with a column that says which part of the named split a molecule is in."""
    kept = Path(tempfile.gettempdir()) / "hiv_parts.csv"
    if not kept.exists():
        frame = pd.read_csv(path)
        frame["smiles"] = [parsed(text).canonical for text in frame["smiles"]]
        frame = frame[frame["smiles"] != ""].reset_index(drop=True)
        frame["split"] = largest_first(frame["smiles"].tolist())
        frame[["smiles", TARGET, "split"]].to_csv(kept, index=False)
    return pd.read_csv(kept, keep_default_na=False)


def show(frame: pd.DataFrame, start: str, rate: float, seed: int, part: str) -> None:
    """Train once and print one line."""
    sizes = {"train": NUM_TRAIN, "valid": NUM_VALID, "test": (frame["split"] == "test").sum()}
    rng = np.random.default_rng(seed)
    rows = np.concatenate(
        [rng.choice(np.flatnonzero(frame["split"] == name), size, replace=False) for name, size in sizes.items()]
    )
    sets: dict[str, Any] = {
        "options.weights": WEIGHTS,
        "options.start": start,
        "train.lr": rate,
        "train.epochs": EPOCHS,
    }
    if start == "random":
        sets |= {"train.freeze_epochs": 0}
    with tempfile.TemporaryDirectory() as folder:
        done = run.train(
            "molecules/gnn-finetune",
            frame.iloc[rows].reset_index(drop=True),
            target=TARGET,
            task="classification",
            set=sets,
            seed=seed,
            fast=True,
            out=Path(folder) / "run",
        )
        actual = json.loads((done.folder / "actual.json").read_text())
    line = {"start": start, "lr": rate, "seed": seed, "valid": done.metrics["valid"]["auc"]}
    if part == "test":
        line |= {"test": done.metrics["test"]["auc"]["value"], "baseline": done.metrics["baseline"]}
        line["baseline"] = {name: each["auc"]["value"] for name, each in line["baseline"].items()}
    print(json.dumps({**line, "cpu_seconds": round(actual["cpu_seconds"], 1)}), flush=True)


if __name__ == "__main__":
    main()
