"""HIV (41,127 molecules), named split scaffold-largest-first: random forests, extremely randomised and boosted trees, and
their mean, seed by seed.

    python benchmarks/molecules_hiv.py hiv.csv 10      # how many seeds

The file is read and its features are made once; the recipe then trains as many members of each kind as there are seeds, and
each is scored alone, beside the blend that the recipe would answer with. One JSON line a member, then the summary: mean and
95 % interval of the mean over seeds (Student's t). The split is fixed, so the interval is that of the forest's own chance.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score

from domains.contract import Facts, Request
from domains.molecules.data import metrics
from domains.molecules.fingerprint_trees import KINDS, FingerprintTrees, Options
from domains.molecules.fingerprints import feature_matrix
from zoo.job import Job, prepare
from zoo.plan import Wishes
from zoo.watch import RunWatch

# Chosen by the validation score of small forests alone (benchmarks/README.md).
SETS = {
    "options.features": ["ecfp", "maccs"],
    "options.model": "blend",
    "options.num_bits": 1024,
    "options.num_trees": 300,
    "options.min_leaf": 2,
    "train.lr": 0.1,
    "train.early_stopping": 20,
}


def main() -> None:
    """Train once with all seeds, then score."""
    path, num_seeds = sys.argv[1], int(sys.argv[2])
    wishes = Wishes(sets={**SETS, "options.seeds": num_seeds})
    job = prepare(
        "molecules/fingerprint-trees",
        path,
        request=Request(target="HIV_active"),
        wishes=wishes,
        split="scaffold-largest-first",
        skip_bad=True,
        fast=True,
    )
    print(json.dumps({"prepared_cpu_seconds": round(time.process_time(), 1)}), flush=True)
    learner = FingerprintTrees(job.plan)
    with tempfile.TemporaryDirectory() as folder:
        watch = RunWatch(Path(folder), metrics(Facts.from_json(job.plan.facts))[0], None)
        learner.fit(job.part("train"), job.part("valid"), watch)
    answers = {part: member_answers(job, learner, part) for part in ("valid", "test")}
    truth = {part: job.part(part).target().astype(str) == learner.facts.classes[1] for part in answers}
    show(answers, truth, num_seeds)


def member_answers(job: Job, learner: FingerprintTrees, part: str) -> dict[str, np.ndarray]:
    """(rows,) probability of the second class by each member, "KIND.0.SEED"."""
    options = Options.model_validate(job.plan.options)
    smiles = job.part(part).column("smiles").tolist()
    matrix = feature_matrix(
        smiles, options.features, radius=options.radius, num_bits=options.num_bits, cache=learner.cache
    )
    return {name: member.answers(matrix)[:, 1] for name, member in learner.members.items()}


def show(answers: dict[str, dict[str, np.ndarray]], truth: dict[str, np.ndarray], num_seeds: int) -> None:
    """A line a seed, and the summary."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in (*KINDS, "blend")}
    for seed in range(num_seeds):
        for kind, lines in found.items():
            parts = KINDS if kind == "blend" else (kind,)
            lines.append(
                {part: auc(truth[part], [by[f"{each}.0.{seed}"] for each in parts]) for part, by in answers.items()}
            )
            print(json.dumps({"kind": kind, "seed": seed, **lines[-1]}), flush=True)
    every = {part: auc(truth[part], list(by.values())) for part, by in answers.items()}
    summary = {kind: {part: mean_and_interval([line[part] for line in lines]) for part in answers}
               for kind, lines in found.items()}  # fmt: skip
    rest = {"sets": SETS, "cpu_seconds": round(time.process_time(), 1)}
    print(json.dumps({"summary": summary, "all_seeds_blended": every, **rest}))


def auc(truth: np.ndarray, answers: list[np.ndarray]) -> float:
    """ROC-AUC of the mean answer."""
    return round(float(roc_auc_score(truth, np.mean(answers, axis=0))), 4)


def mean_and_interval(values: list[float]) -> dict[str, Any]:
    """The mean, and 95 % of the mean over seeds (None with one)."""
    mean, num = float(np.mean(values)), len(values)
    if num < 2:
        return {"mean": round(mean, 4), "low": None, "high": None}
    half = float(student.ppf(0.975, num - 1) * np.std(values, ddof=1) / np.sqrt(num))
    return {"mean": round(mean, 4), "low": round(mean - half, 4), "high": round(mean + half, 4)}


if __name__ == "__main__":
    main()
