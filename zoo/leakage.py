"""`zoo check --leakage RUN`: how like the rows on one side of a split are to those on another, by the measure of their type."""

from pathlib import Path
from typing import Any

import numpy as np

from trainers.contract import JSON
from zoo import saved
from zoo.job import Job, read_again
from zoo.plan import domain_of

SIDES = (("test", "train"), ("test", "valid"), ("valid", "train"))
_MOST_PAIRS = 5


def leakage(folder: Path, data: Any = None) -> JSON:
    """The highest similarity across the sides of a run's split, and the pairs that have it; of several runs for each.

    data: only for runs on a DataFrame. Raises UsageError where there is no run, DataError where the data changed since.
    """
    if saved.is_parent(folder):
        return {
            "schema_version": 1,
            "run": str(folder),
            "runs": [leakage(each, data) for each in saved.members(folder)],
        }
    job = read_again(folder, data)
    sides = {f"{these} to {those}": _across(job, these, those) for these, those in SIDES}
    highest = max((side["highest"] for side in sides.values() if side["highest"] is not None), default=None)
    return {"schema_version": 1, "run": str(folder), "rule": job.split.rule, "highest": highest, "sides": sides}


def _across(job: Job, these: str, those: str) -> JSON:
    domain = domain_of(job.recipe)
    table = job.usable.table
    mine, yours = getattr(job.split, these), getattr(job.split, those)
    found = domain.likeness(table, mine, yours, job.request)
    order = np.argsort(-found.highest, kind="stable")[:_MOST_PAIRS]
    pairs = [
        {
            these: str(table.ids[mine[i]]),
            those: str(table.ids[yours[found.position[i]]]),
            "similarity": found.highest[i],
        }
        for i in order.tolist()
        if found.position[i] >= 0 and found.highest[i] > 0
    ]
    return {
        "measure": found.measure,
        "near": found.near,
        "num_rows": len(mine),
        "num_near": int((found.highest >= found.near).sum()),
        "highest": float(found.highest.max()) if len(mine) and len(yours) else None,
        "median": float(np.median(found.highest)) if len(mine) and len(yours) else None,
        "pairs": [{**pair, "similarity": float(pair["similarity"])} for pair in pairs],
    }


def leakage_lines(found: JSON) -> list[str]:
    """The figures in words, one line a pair of sides, then the most similar rows."""
    if "runs" in found:
        return [line for each in found["runs"] for line in leakage_lines(each)]
    lines = [f"{found['run']}: split {found['rule']}; {next(iter(found['sides'].values()))['measure']}"]
    for name, side in found["sides"].items():
        if side["highest"] is None:
            lines.append(f"{name}: one of them has no rows")
            continue
        near = f"{side['num_near']:,} of {side['num_rows']:,} rows at {side['near']:.3g} or more"
        lines.append(f"{name}: highest {side['highest']:.4g}, median {side['median']:.4g}; {near}")
        lines += [
            "  " + " ~ ".join(str(value) for value in list(pair.values())[:2]) + f"  {pair['similarity']:.4g}"
            for pair in side["pairs"][:2]
        ]
    return lines
