"""A small language model of proteins from nothing: what it brings to a head on its states, beside random weights of its shape.

    python benchmarks/protein_lm.py data DB.fasta out.fasta deeploc.csv mutants.csv   # leave out what is like these
    zoo train proteins/protein-lm --data out.fasta --task masked-lm --set options.layers=6 --set options.width=160 ...
    python benchmarks/protein_lm.py compare RUN deeploc.csv location                  # embed-head on both, default split

DB.fasta: 20,000 proteins of UniProt (CC BY 4.0) that the Debian package mmseqs2-examples ships. Left out is every one that
MMseqs2 at its most sensitive finds alike to an evaluation protein by an E-value of 1e-3, at any identity and coverage.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from domains.contract import Request
from domains.proteins.mutants import aligned_mutants
from domains.shared.fasta import read_fasta
from domains.shared.proteins import similarity
from domains.shared.proteins.esm2_weights import read_config
from zoo import run
from zoo.job import prepare

E_VALUE = 1e-3
MOST_RESIDUES = 400
"""Longer proteins are left out: ten minutes of one core then read each several times, and relatives are found in minutes."""
CROPPED = 256
"""Residues that the head's states are made of: what lies behind costs minutes of a shared machine."""
RESAMPLES = 2000


def main() -> None:
    """Run what the first word names."""
    {"data": data, "compare": compare}[sys.argv[1]](*sys.argv[2:])


def data(source: str, out: str, *without: str) -> None:
    """Write the proteins of `source` that are like none of those in the tables `without`."""
    records = [(each.name.split()[0], "".join(each.text.split())) for each in read_fasta(Path(source))]
    short = [record for record in records if len(record[1]) <= MOST_RESIDUES]
    short = list({sequence: (name, sequence) for name, sequence in short}.values())
    held = sorted({sequence for path in without for sequence in _held(pd.read_csv(path)["sequence"].tolist())})
    like = alike([sequence for _, sequence in short], held)
    kept = [record for at, record in enumerate(short) if at not in like]
    Path(out).write_text("".join(f">{name}\n{sequence}\n" for name, sequence in kept))
    residues = sum(len(sequence) for _, sequence in kept)
    sizes = {"read": len(records), "short": len(short), "left_out": len(like), "kept": len(kept), "residues": residues}
    print(json.dumps(sizes))


def _held(sequences: list[str]) -> list[str]:
    """The sequences; of variants of one protein this alone."""
    variants = aligned_mutants(sequences)
    return [variants.consensus] if variants else sequences


def alike(sequences: list[str], held: list[str]) -> set[int]:
    """Positions of the sequences that a search from `held` finds."""
    with tempfile.TemporaryDirectory(prefix="protein-lm-") as name:
        for side, chains in (("q", held), ("t", sequences)):
            Path(name, f"{side}.fasta").write_text("".join(f">{i}\n{chain}\n" for i, chain in enumerate(chains)))
        command = [similarity.mmseqs(), "easy-search", "q.fasta", "t.fasta", "hits.tsv", "tmp", "-s", "7.5"]
        command += ["--max-seqs", str(len(sequences)), "-e", str(E_VALUE), "--dbtype", "1", "-v", "1"]
        command += ["--threads", str(similarity.num_cores()), "--format-output", "target"]
        subprocess.run(command, cwd=name, check=True, capture_output=True)
        return {int(line) for line in Path(name, "hits.tsv").read_text().split()}


def compare(checkpoint: str, path: str, target: str) -> None:
    """Print scores of embed-head on the checkpoint and on random weights of its shape, and the interval of the difference."""
    config = read_config(checkpoint)
    shape = f"random:{config['num_hidden_layers']}x{config['hidden_size']}"
    frame, answers = divided(path, target), {}
    for weights in (shape, checkpoint):
        with tempfile.TemporaryDirectory() as folder:
            sets = {"options.weights": weights, "options.max_residues": CROPPED, "train.precision": "bf16"}
            sets |= {"train.head.epochs": 60}
            done = run.train("proteins/esm2-embed-head", frame, target=target, set=sets, out=Path(folder, "run"))
            answers[weights] = pd.read_csv(Path(folder, "run", "predictions.csv"))
            scores = {part: done.metrics[part] for part in ("test", "valid")}
            print(json.dumps({"weights": weights, **scores}), flush=True)
    print(json.dumps({"gain": gain(answers[shape], answers[checkpoint])}))


def divided(path: str, target: str) -> pd.DataFrame:
    """The rows with their part of the default split: relatives are looked for once, not for each model."""
    job = prepare("proteins/kernel", path, request=Request(target=target))
    table = job.usable.table
    part = np.full(len(table), "train", dtype=object)
    part[job.split.valid], part[job.split.test] = "valid", "test"
    return pd.DataFrame({"sequence": table.column("sequence"), target: table.target(), "split": part})


def gain(before: pd.DataFrame, after: pd.DataFrame) -> dict[str, float]:
    """Accuracy gained on the test rows, with the central 95 % of resampled rows."""
    right = [(each["truth"] == each["prediction"]).to_numpy(float) for each in (before, after)]
    difference = right[1] - right[0]
    rng = np.random.default_rng(0)
    means = [difference[rng.integers(len(difference), size=len(difference))].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    return {"value": float(difference.mean()), "low": float(low), "high": float(high)}


if __name__ == "__main__":
    main()
