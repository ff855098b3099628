"""New molecules: molecules/smiles-lm beside n-grams of tokens, on molecules of MOSES (pip download molsets==0.3.1, MIT).

    python benchmarks/molecules_writing.py moses/dataset/data/train.csv.gz 10000 5      # molecules, epochs

One JSON line: bits a token on held-out scaffolds, and validity, uniqueness and novelty of as many samples as there are test
rows (the copies of one sample among so many; MOSES itself counts among 10,000), with intervals, beside 1-grams and 6-grams.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pandas as pd

from zoo import run

SETS = {"options.width": 128, "options.depth": 4, "train.precision": "fp32"}


def main() -> None:
    """Train once and print."""
    path, num, epochs = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    frame = pd.read_csv(path).rename(columns={"SMILES": "smiles"})[["smiles"]]
    frame = frame.sample(num, random_state=0).reset_index(drop=True)
    sets = {**SETS, "train.epochs": epochs}
    with tempfile.TemporaryDirectory() as folder:
        done = run.train("molecules/smiles-lm", frame, set=sets, fast=True, out=Path(folder) / "run")
        actual = json.loads((done.folder / "actual.json").read_text())
        written = pd.read_csv(done.folder / "predictions.csv")["prediction"].dropna().head(5).tolist()
    scores = {"smiles-lm": done.metrics["test"], **done.metrics["baseline"]}
    line = {name: {metric: shown(score) for metric, score in each.items()} for name, each in scores.items()}
    print(
        json.dumps(
            {**line, "num_rows": done.metrics["num_rows"], "cpu_seconds": actual["cpu_seconds"], "some": written}
        )
    )


def shown(score: dict[str, float]) -> str:
    """Value and interval."""
    low, high = score.get("low"), score.get("high")
    return f"{score['value']:.4f}" + (f" ({low:.4f}-{high:.4f})" if low is not None and high is not None else "")


if __name__ == "__main__":
    main()
