"""Does the split of a protein file leave relatives on two sides? Checked by a search of its own, and the price of not caring.

    python benchmarks/deeploc_split.py deeploc.csv location           # pairs across sides, default split and random
    python benchmarks/deeploc_split.py deeploc.csv location --scores  # and the rivals' scores on both splits
    python benchmarks/deeploc_split.py deeploc.csv location --five    # the rivals by random five-fold, four fifths to learn

The check does not use the search that made the split: here MMseqs2 compares along every diagonal whatever that costs, and
aligns whatever scores at all, with 300 times the usual limit of chance (E-value 0.3 in place of 1e-3 is counted apart).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from domains.contract import Facts, Request
from domains.metrics import scores
from domains.proteins import data
from domains.shared.proteins import similarity
from trainers.contract import Predictions
from zoo.job import Job, prepare

IDENTITY, COVERAGE = 0.30, 0.80
LOOSEST_E_VALUE, USUAL_E_VALUE = 0.3, 1e-3


def main() -> None:
    """Print one JSON line a split."""
    path, target = sys.argv[1:3]
    if "--five" in sys.argv:
        print(json.dumps(five_folds(prepare("proteins/kernel", path, request=Request(target=target), fast=True))))
        return
    for rule in (None, "random"):
        job = prepare("proteins/kernel", path, request=Request(target=target), split=rule)
        found = {"split": job.split.rule, "rows": [len(job.part(name)) for name in ("train", "valid", "test")]}
        found |= across(job)
        if "--scores" in sys.argv:
            found["scores"] = rivals(job)
        print(json.dumps(found), flush=True)


def across(job: Job) -> dict[str, Any]:
    """Near pairs between the training rows and the held-out ones, and between validation and test rows."""
    parts = {name: job.part(name).column("sequence").tolist() for name in ("train", "valid", "test")}
    pairs = (("valid", "train"), ("test", "train"), ("test", "valid"))
    return {f"{one} to {other}": near_pairs(parts[one], parts[other]) for one, other in pairs}


def near_pairs(queries: list[str], targets: list[str]) -> dict[str, Any]:
    """How many pairs are near, by the usual and by the loosest E-value, how many queries they touch, the highest identity."""
    table = searched(queries, targets)
    near = table[table[:, 3:5].max(axis=1) >= COVERAGE - 5e-4] if len(table) else table
    usual = near[near[:, 5] <= USUAL_E_VALUE]
    return {
        "pairs": len(usual),
        "queries": len(np.unique(usual[:, 0])),
        "pairs_by_chance_too": len(near),
        "highest_identity": round(float(near[:, 2].max()), 3) if len(near) else 0.0,
    }


def searched(queries: list[str], targets: list[str]) -> np.ndarray:
    """(pairs, 6) query, target, identity, coverage of each, E-value: identity above 30 %, by all diagonals."""
    with tempfile.TemporaryDirectory(prefix="deeploc-split-") as name:
        for side, sequences in (("q", queries), ("t", targets)):
            text = "".join(f">{at}\n{sequence}\n" for at, sequence in enumerate(sequences))
            Path(name, f"{side}.fasta").write_text(text)
        command = [similarity.mmseqs(), "easy-search", "q.fasta", "t.fasta", "hits.tsv", "tmp", "--prefilter-mode", "1"]
        command += ["--min-ungapped-score", "15", "--max-seqs", str(len(targets)), "-s", "7.5"]
        command += ["--min-seq-id", str(IDENTITY), "-e", str(LOOSEST_E_VALUE), "--dbtype", "1", "-v", "1"]
        command += ["--threads", str(similarity.num_cores())]
        command += ["--format-output", "query,target,fident,qcov,tcov,evalue"]
        subprocess.run(command, cwd=name, check=True, capture_output=True)
        hits = Path(name, "hits.tsv")
        return np.loadtxt(hits, ndmin=2) if hits.stat().st_size else np.empty((0, 6))


def rivals(job: Job) -> dict[str, Any]:
    """The baselines' scores on the test rows."""
    facts = Facts.from_json(job.plan.facts)
    train, test = job.part("train"), job.part("test")
    groups = job.split.group[job.split.test]
    return {
        rival.name: scores(data.metrics(facts), test.target(), rival.fit(train)(test.without_target()), groups)
        for rival in data.baselines(facts)
    }


def five_folds(job: Job) -> dict[str, Any]:
    """The rivals' scores on all rows, each answered by what learned on the other four fifths; no validation rows are
    left out, as in papers."""
    facts, table = Facts.from_json(job.plan.facts), job.usable.table
    folds = np.random.default_rng(0).permutation(len(table)) % 5
    order = np.concatenate([np.flatnonzero(folds == fold) for fold in range(5)])
    found = {}
    for rival in data.baselines(facts):
        parts = []
        for fold in range(5):
            predict = rival.fit(table.take(np.flatnonzero(folds != fold)))
            parts.append(predict(table.take(np.flatnonzero(folds == fold)).without_target()))
        whole = table.take(order)
        found[rival.name] = scores(
            data.metrics(facts), whole.target(), Predictions.joined(parts), np.arange(len(whole))
        )
    return found


if __name__ == "__main__":
    main()
