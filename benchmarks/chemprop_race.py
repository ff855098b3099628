"""ESOL, scaffold split: molecules/gnn-scratch against chemprop on identical rows, for the same number of epochs.

    python benchmarks/chemprop_race.py esol.csv /path/to/chemprop 5     # how many seeds

chemprop (2.3) lives in an environment of its own; the second word is its command. Both are whole processes on one thread,
start-up and reading included, ours with its baselines and its report; both score the validation rows every epoch, keep the
best epoch, and use their own defaults otherwise (both: D-MPNN, width 300, three layers). One JSON line a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import Request
from zoo.job import Job, prepare
from zoo.plan import Wishes

TARGET = "measured log solubility in mols per litre"
EPOCHS = 50
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def main() -> None:
    """Both, seed by seed."""
    path, chemprop, num_seeds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    for seed in range(num_seeds):
        with tempfile.TemporaryDirectory() as folder:
            show("gnn-scratch", seed, *ours(path, seed, Path(folder)))
            show("chemprop", seed, *theirs(path, chemprop, seed, Path(folder)))


def show(name: str, seed: int, rmse: float, cpu_seconds: float) -> None:
    """One line."""
    line = {"name": name, "seed": seed, "epochs": EPOCHS, "test_rmse": round(rmse, 4), "cpu_seconds": cpu_seconds}
    print(json.dumps(line), flush=True)


def ours(path: str, seed: int, folder: Path) -> tuple[float, float]:
    """Test RMSE and CPU-seconds of `zoo train`."""
    out = folder / "ours"
    words = ["train", "molecules/gnn-scratch", "--data", path, "--target", TARGET, "--seed", str(seed), "--fast"]
    words += ["--skip-bad", "--epochs", str(EPOCHS), "--out", str(out)]
    seconds = cpu_seconds([sys.executable, "-m", "zoo.cli", *words])
    return float(json.loads((out / "metrics.json").read_text())["test"]["rmse"]["value"]), seconds


def theirs(path: str, chemprop: str, seed: int, folder: Path) -> tuple[float, float]:
    """Test RMSE and CPU-seconds of `chemprop train` on the same three parts."""
    wishes = Wishes(seed=seed)
    job = prepare(
        "molecules/gnn-scratch", path, request=Request(target=TARGET), wishes=wishes, skip_bad=True, fast=True
    )
    parts(job).to_csv(folder / "parts.csv", index=False)
    words = ["train", "--data-path", folder / "parts.csv", "--splits-column", "split", "--task-type", "regression"]
    words += ["--smiles-columns", "smiles", "--target-columns", "y", "--epochs", EPOCHS, "--pytorch-seed", seed]
    words += ["--accelerator", "cpu", "--num-workers", 0, "--output-dir", folder / "theirs"]
    seconds = cpu_seconds([chemprop, *map(str, words)])
    found = pd.read_csv(next((folder / "theirs").rglob("test_predictions.csv")))
    actual = np.asarray(job.part("test").target(), np.float64)
    return float(np.sqrt(np.mean((found["y"].to_numpy() - actual) ** 2))), seconds


def parts(job: Job) -> pd.DataFrame:
    """The canonical SMILES and the target of every row, and where it goes in chemprop's words."""
    named = {"train": "train", "valid": "val", "test": "test"}
    frames = [
        pd.DataFrame({"smiles": job.part(ours).column("smiles").tolist(), "y": job.part(ours).target(), "split": name})
        for ours, name in named.items()
    ]
    return pd.concat(frames)


def cpu_seconds(command: list[str]) -> float:
    """Of a whole process with its children. Raises CalledProcessError if it fails."""
    before: Any = os.times()
    subprocess.run(command, check=True, env={**os.environ, **THREADS}, stdout=subprocess.DEVNULL)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return round(float(spent), 1)


if __name__ == "__main__":
    main()
