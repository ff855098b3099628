"""What several runs say together: out-of-fold answers and their scores, mean and deviation over runs, the card.

Of folds every row has one answer, by a model that did not learn from it: all of them are scored together, with intervals
over groups. Mean, standard deviation and the 95 % interval of Student's t over the runs stand beside it. Folds and seeds
share most of their training rows, so that interval says how the runs differ, and is no bound for other data: the variance
of cross-validation has no unbiased estimator (Bengio & Grandvalet 2004, JMLR 5).
"""

import csv
from collections.abc import Sequence
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from domains import metrics as scoring
from domains.contract import Facts
from trainers.contract import JSON, Predictions
from zoo import many_text, report, saved
from zoo.job import Job
from zoo.plan import domain_of
from zoo.registry import load_registry

MODEL = "model"
ROW_SCORES = "row_scores.json"
"""In a fold: what each test row adds to the scores of the model and of each rival."""
_KINDS_OF_RIVALS = ("baseline", "reference")
_SUMS = ("seconds_train", "seconds_total", "cpu_seconds", "num_steps")
_LARGEST = ("peak_memory_bytes", "peak_gpu_memory_bytes", "num_parameters")


def keep_row_scores(folder: Path, job: Job, answers: dict[str, Predictions]) -> None:
    """Write what the parent needs to score the test rows of all folds together. answers: by model or rival, on the test
    rows of the job."""
    domain = domain_of(job.recipe)
    metrics, truth = domain.metrics(job.pooled), job.part("test").target()
    found = {}
    for name, predictions in answers.items():
        answered, stats = scoring.row_stats(metrics, truth, predictions)
        rows = job.split.test[answered]
        plain = [[[_plain(value) for value in row] for row in each.tolist()] for each in stats]
        found[name] = {"rows": rows.tolist(), "groups": job.split.group[rows].tolist(), "stats": plain}
    saved.write_json(folder / ROW_SCORES, {"test": job.split.test.tolist(), "scores": found})


def _plain(value: float) -> float | str:
    return value if isfinite(value) else str(value)  # JSON has no word for them; numpy reads the text


def write(parent: Path, folders: Sequence[Path], pooled: Facts | None) -> None:
    """Write metrics.json, actual.json, README.md and, of folds, predictions.csv. pooled: None for seeds."""
    runs = [saved.read_json(folder / "metrics.json") for folder in folders]
    over = {
        "kind": "seeds" if pooled is None else "folds",
        "count": len(folders),
        "test": _over_runs([run["test"] for run in runs]),
        "valid": _over_runs([run["valid"] for run in runs]),
    }
    for kind in _KINDS_OF_RIVALS:
        over[kind] = {name: _over_runs([run[kind][name] for run in runs]) for name in _in_all(runs, kind)}
    if pooled is None:
        metrics = _shell(runs, over, runs[0]["decides"], runs[0]["direction"])
    else:
        metrics = _pooled(parent, folders, runs, over, pooled)
    actual = _actual(folders)
    saved.write_json(parent / "metrics.json", metrics)
    saved.write_json(parent / "actual.json", actual)
    if pooled is not None:
        write_out_of_fold(parent / "predictions.csv", folders)
    saved.write_text(parent / "README.md", many_text.card(parent, folders, metrics, actual))


def _in_all(runs: Sequence[JSON], kind: str) -> list[str]:
    return [name for name in runs[0].get(kind, {}) if all(name in run.get(kind, {}) for run in runs)]


def _over_runs(scores: Sequence[JSON]) -> JSON:
    """{metric: mean, sd, low, high, values}; runs in which the metric is undefined count as None and not in the mean."""
    names = [name for name in scores[0] if all(name in each for each in scores)]
    return {name: over_runs([each[name]["value"] for each in scores]) for name in names}


def over_runs(values: Sequence[float | None]) -> JSON:
    """Mean, standard deviation (n - 1) and the 95 % interval of the mean by Student's t; None where undefined, and of two
    runs, where it would be nine deviations wide to each side: beyond what the score can be."""
    found = [value for value in values if value is not None]
    mean = sum(found) / len(found) if found else None
    if mean is None or len(found) < 2:
        return {"mean": mean, "sd": None, "low": None, "high": None, "values": list(values)}
    sd = float(np.std(found, ddof=1))
    if len(found) == 2:
        return {"mean": mean, "sd": sd, "low": None, "high": None, "values": list(values)}
    half = float(student.ppf(0.975, len(found) - 1)) * sd / sqrt(len(found))
    return {"mean": mean, "sd": sd, "low": mean - half, "high": mean + half, "values": list(values)}


def _as_scores(over: JSON) -> JSON:
    return {name: {"value": each["mean"], "low": each["low"], "high": each["high"]} for name, each in over.items()}


def _shell(runs: Sequence[JSON], over: JSON, decides: str, direction: str) -> JSON:
    rows = {part: round(sum(run["num_rows"][part] for run in runs) / len(runs)) for part in runs[0]["num_rows"]}
    rivals = {kind: {name: _as_scores(each) for name, each in over[kind].items()} for kind in _KINDS_OF_RIVALS}
    return {
        "schema_version": saved.SCHEMA_VERSION,
        "decides": decides,
        "direction": direction,
        "test": _as_scores(over["test"]),
        "valid": _as_scores(over["valid"]),
        "baseline": rivals["baseline"],
        **({"reference": rivals["reference"]} if rivals["reference"] else {}),
        "num_rows": rows,
        "runs": over,
    }


def _pooled(parent: Path, folders: Sequence[Path], runs: Sequence[JSON], over: JSON, facts: Facts) -> JSON:
    """The scores with those on all out-of-fold answers in the place of means."""
    domain = domain_of(load_registry().get(saved.read_json(parent / saved.MANY)["recipe"]))
    metrics = domain.metrics(facts)
    kept = [saved.read_json(folder / ROW_SCORES)["scores"] for folder in folders]
    shell = _shell(runs, over, metrics[0].name, "higher" if metrics[0].higher_is_better else "lower")
    for kind in shell.keys() & set(_KINDS_OF_RIVALS):
        shell[kind] = {name: _together(metrics, [each[name] for each in kept]) for name in over[kind]}
    shell["test"] = _together(metrics, [each[MODEL] for each in kept])
    shell["num_rows"]["test"] = sum(run["num_rows"]["test"] for run in runs)
    return shell


def _together(metrics: Sequence[Any], kept: Sequence[JSON]) -> JSON:
    """Scores of one model or rival on the rows of all folds, in the order of the data."""
    order = np.argsort(np.concatenate([np.asarray(each["rows"], np.int64) for each in kept]))
    groups = np.concatenate([np.asarray(each["groups"], np.int64) for each in kept])[order]
    filled = [each for each in kept if each["rows"]]
    num_functions = len(kept[0]["stats"])
    stats = [
        np.concatenate([np.asarray(each["stats"][k], np.float64) for each in filled]) for k in range(num_functions)
    ]
    return scoring.scores_of_stats(metrics, [each[order] for each in stats], groups)


def write_out_of_fold(path: Path, folders: Sequence[Path]) -> None:
    """The predictions.csv of all folds as one, in the order of the data, with the number of the fold after the id.

    A class that a fold has not learned has an empty probability there; answers that are files are found in their fold.
    """
    found: dict[int, dict[str, str]] = {}
    for number, folder in enumerate(folders):
        positions = saved.read_json(folder / ROW_SCORES)["test"]
        with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
            for position, row in zip(positions, csv.DictReader(file), strict=True):
                if row["prediction"].startswith(f"{report.FILES}/"):
                    row["prediction"] = f"{folder.name}/{row['prediction']}"
                found[position] = {"fold": str(number), **row}
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    scores = sorted((name for name in names if name.startswith(("probability_", "prediction_"))), key=names.index)
    ordered = ["id", "fold", "truth", "prediction", *scores, "problem"]
    rows = [found[position] for position in sorted(found)]
    with path.open("w", encoding="utf-8", newline="") as file:
        report.write_rows(file, {name: [row.get(name, "") for row in rows] for name in ordered})


def _actual(folders: Sequence[Path]) -> JSON:
    """Times and steps added up, the largest memory."""
    each = [saved.read_json(folder / "actual.json") for folder in folders]
    values = {name: [one[name] for one in each if one.get(name) is not None] for name in (*_SUMS, *_LARGEST)}
    sums = {name: round(sum(values[name]), 3) for name in _SUMS if values[name]}
    return {**report.EMPTY_ACTUAL, **sums, **{name: max(values[name]) for name in _LARGEST if values[name]}}
