"""What a person reads: predictions as tables, scores beside baselines, the closing block, the model card."""

import csv
import importlib.metadata
import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from trainers.contract import JSON, Machine, Plan, Predictions, as_objects

EMPTY_ACTUAL: JSON = {
    "seconds_train": None,
    "seconds_total": None,
    "cpu_seconds": None,
    "peak_memory_bytes": None,
    "peak_gpu_memory_bytes": None,
    "samples_per_second": None,
    "num_steps": None,
    "num_parameters": None,
    "mfu": None,
    "compiled_graphs": None,
}
MOST_COLUMNS = 7
AT_RANDOM = "random_split"
"""In metrics.json: the same recipe on a random split (`zoo train --gap`)."""
PLOTS = "plots"
"""In the run folder: pictures of answers."""
FILES = "files"
"""Beside predictions.csv: answers that are files."""
_NOT_IN_NAMES = re.compile(r"[^\w.+-]")
_LONGEST_NAME = 200
"""Bytes of an id in the name of a file; with a number before it and a suffix, file systems end at 255."""
_PACKAGES = (
    *("domain-model-zoo", "torch", "torchvision", "numpy", "pandas", "scikit-learn", "xgboost", "lightgbm", "timm"),
    *("transformers", "fair-esm", "rdkit", "torch-geometric", "safetensors", "monai", "nibabel"),
)


def spread(
    found: Predictions | None, good: np.ndarray, num_rows: int, reasons: Mapping[int, str], classes: tuple[str, ...]
) -> Predictions:
    """Answers for the usable rows `good`, set among all rows; the others get none, and their reason."""
    kind = found.kind if found is not None else ("label" if classes else "number")
    values = np.full(num_rows, np.nan) if kind == "number" else np.full(num_rows, None, dtype=object)
    classes = found.classes if found is not None else classes
    has_scores = found.scores is not None if found is not None else bool(classes)
    scores = np.full((num_rows, len(classes)), np.nan) if has_scores else None
    problems = [reasons.get(i, "") for i in range(num_rows)]
    if found is not None:
        values[good] = found.values
        if scores is not None:
            scores[good] = found.scores
        for position, problem in zip(good, found.problems, strict=True):
            problems[int(position)] = problem
    return Predictions(kind, values, scores, classes, tuple(problems))


def prediction_columns(ids: Any, predictions: Predictions, folder: Path | None = None) -> dict[str, list[Any]]:
    """The columns of predictions.csv: id, prediction, probability_CLASS... (of several numbers, and of what is known of a
    text that was written, prediction_NAME...), problem. No answer is None.

    folder: where answers that are files are written; their cells hold the path within it.
    """
    columns: dict[str, list[Any]] = {"id": [str(name) for name in ids]}
    if predictions.kind == "file" and folder is not None:
        predictions = replace(predictions, values=written_files(columns["id"], predictions, folder))
    columns["prediction"] = [_plain(value) for value in predictions.values]
    prefix = "prediction" if predictions.kind in ("numbers", "text") else "probability"
    for k, name in enumerate(predictions.classes if predictions.scores is not None else ()):
        columns[f"{prefix}_{name}"] = [_plain(value) for value in predictions.scores[:, k]]  # type: ignore[index]
    columns["problem"] = list(predictions.problems)
    return columns


def written_files(ids: Sequence[str], predictions: Predictions, folder: Path) -> np.ndarray:
    """Write every answer that is a file below `folder`; returns their paths within it, None for no answer."""
    (folder / FILES).mkdir(parents=True, exist_ok=True)
    answers = list(zip(ids, predictions.values, strict=True))
    names = [
        value and f"{FILES}/{_file_name(name.removesuffix(value.suffix))}{value.suffix}" for name, value in answers
    ]
    if len(taken := [name for name in names if name]) > len(set(taken)):
        names = [name and name.replace("/", f"/{row:06d}-", 1) for row, name in enumerate(names)]
    for name, value in zip(names, predictions.values, strict=True):
        if name is not None:
            value.write(folder / name)
    return as_objects(names)


def _file_name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name).encode()[:_LONGEST_NAME].decode(errors="ignore")


def prediction_frame(ids: Any, predictions: Predictions, *, like: Any) -> Any:
    """predictions.csv as a DataFrame, with the index of `like` when that is one."""
    import pandas as pd

    return pd.DataFrame(prediction_columns(ids, predictions), index=like.index if hasattr(like, "columns") else None)


def gap_sentence(metrics: JSON) -> str:
    """What the gap to a random split is (`zoo.gap`); an empty text where none was measured."""
    name = metrics["decides"]
    if (other := metrics.get(AT_RANDOM)) is None:
        return ""
    at_random, here = other["test"][name]["value"], metrics["test"][name]["value"]
    if at_random is None or here is None:
        return ""
    return (
        f"On a random split the same recipe has {name} {at_random:.4g}, on this one {here:.4g}: {abs(at_random - here):.4g} "
        "is what rows like the test rows are worth in training. Expect the figure of this split on rows of a new kind."
    )


def write_predictions(path: Path, ids: Any, predictions: Predictions, truth: np.ndarray | None = None) -> None:
    """Write predictions.csv, one line a row in the order of the rows; `truth` adds a column after the id."""
    columns = prediction_columns(ids, predictions, path.parent)
    if truth is not None:
        columns = {"id": columns.pop("id"), "truth": [_plain(value) for value in truth], **columns}
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        write_rows(file, columns)
    temporary.replace(path)


def write_rows(file: TextIO, columns: Mapping[str, list[Any]]) -> None:
    """Columns of equal length as CSV."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))


def _plain(value: Any) -> Any:
    """A Python value; None for no answer. Numbers keep all their digits; several labels or tags are a JSON list."""
    if isinstance(value, tuple):
        return json.dumps(value, ensure_ascii=False)
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value


def score_table(metrics: JSON) -> list[list[str]]:
    """Rows of text: the model on test and valid, then the baselines on the same test rows. The first scores of each;
    metrics.json has all."""
    names = list(metrics["test"])[:MOST_COLUMNS]
    first = metrics["decides"]
    header = ["", *(f"{name} *" if name == first else name for name in names)]
    rows = [["model, test", *(score_text(metrics["test"][name]) for name in names)]]
    for rival, scores in {**metrics["baseline"], **metrics.get("reference", {})}.items():
        rows.append([f"{rival}, test", *(score_text(scores[name]) for name in names)])
    if (other := metrics.get(AT_RANDOM)) is not None:
        rows.append(["model, random split", *(score_text(other["test"][name]) for name in names)])
    if metrics["valid"]:
        rows.append(["model, valid", *(score_text(metrics["valid"][name]) for name in names)])
    return [header, *rows]


def verdict(metrics: JSON) -> str:
    """What to say where a cheap rival did as well as the model or better on the test rows; else an empty text."""
    name, sign = metrics["decides"], 1 if metrics["direction"] == "higher" else -1
    model = metrics["test"][name]
    rivals = {rival: scores[name] for rival, scores in metrics["baseline"].items() if scores[name]["value"] is not None}
    if not rivals or model["value"] is None:
        return ""
    best = max(rivals, key=lambda rival: sign * rivals[rival]["value"])
    margin = sign * (rivals[best]["value"] - model["value"])
    if margin < 0:
        return ""
    figures = f"{name} {rivals[best]['value']:.4g} against {model['value']:.4g}"
    how = "better" if margin > 0 else "as well"
    return (
        f"The baseline {best!r} did {how} on the test rows ({figures}): this model adds nothing here as it was trained."
    )


def score_text(score: JSON) -> str:
    """A score with its interval, for a table."""
    if score["value"] is None:
        return "undefined"
    if score["low"] is None:
        return f"{score['value']:.4g} (too few)"
    return f"{score['value']:.4g} ({score['low']:.4g}-{score['high']:.4g})"


def aligned(rows: list[list[str]]) -> str:
    """Rows of cells as lines of text with aligned columns."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def closing_block(metrics: JSON, actual: JSON) -> str:
    """What a run ends with: the deciding score, time, memory, throughput, steps, parameters."""
    decides = metrics["decides"]
    valid = metrics["valid"].get(decides, {}).get("value")
    shown = {
        f"valid_{decides}": valid,
        f"test_{decides}": metrics["test"][decides]["value"],
        "training_seconds": actual["seconds_train"],
        "total_seconds": actual["seconds_total"],
        "cpu_seconds": actual["cpu_seconds"],
        "peak_memory_gib": _gib(actual["peak_memory_bytes"]),
        "peak_gpu_memory_gib": _gib(actual.get("peak_gpu_memory_bytes")),
        "samples_per_second": actual["samples_per_second"],
        "tokens_per_second": actual.get("tokens_per_second"),
        "mfu": _mfu(actual),
        "num_steps": actual["num_steps"],
        "num_parameters": actual["num_parameters"],
    }
    width = max(20, 2 + max(map(len, shown)))
    return "\n".join(f"{name:<{width}}{_number(value)}" for name, value in shown.items() if value is not None)


def _gib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else num_bytes / 2**30


def _mfu(actual: JSON) -> str | None:
    """The share of the machine's peak that training made use of, with that peak: without it the share says nothing."""
    if actual["mfu"] is None:
        return None
    return f"{actual['mfu']:.3g} of {actual['peak_flops_per_second'] / 1e12:.4g} TFLOP/s ({actual['peak_from']})"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def plan_lines(job: Any) -> str:
    """A plan for a person: data, split, every setting with its origin, and what it will cost."""
    plan, evidence = job.plan, job.split.evidence
    rows = evidence["num_rows"]
    lines = [
        f"recipe   {plan.recipe} ({plan.task})",
        f"rows     {rows['train']} train, {rows['valid']} valid, {rows['test']} test; split {job.split.rule}",
        f"because  {evidence['because']}",
        f"machine  {plan.machine.device}: {plan.machine.name}, {plan.machine.cores} cores, "
        f"{plan.machine.memory_bytes / 2**30:.1f} GiB, bf16 {'yes' if plan.machine.bf16 else 'no'}",
    ]
    if "optimistic" in evidence:
        lines.append(f"warning  optimistic: {evidence['optimistic']}")
    for block, values in (("options", plan.options), ("train", plan.settings)):
        lines += [
            f"{block}.{path} = {value}   [{plan.origins.get(f'{block}.{path}', 'default')}]"
            for path, value in _flat(values)
        ]
    estimates = {name: value for name, value in plan.estimates.items() if name != "notes"}
    lines += [f"estimate {name}: {_number(value)}" for name, value in _flat(estimates)]
    return "\n".join([*lines, *(f"note     {note}" for note in plan.estimates.get("notes", []))])


def settings_of(plan: Plan) -> JSON:
    """What other viewers list beside the curves of a run: recipe, seed, options and settings, by dotted path."""
    blocks = {"options": plan.options, "train": plan.settings}
    return {"recipe": plan.recipe, "seed": plan.seed, **{name: str(value) for name, value in _flat(blocks)}}


def scores_on_test(metrics: JSON) -> dict[str, float]:
    """The test scores that are defined, as points of curves: {"test/auc": 0.91}."""
    values = {f"test/{name}": score["value"] for name, score in metrics["test"].items()}
    return {name: value for name, value in values.items() if value is not None}


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(prefix + name, value)]
    return found


def _shown(name: str, caption: str) -> str:
    is_picture = name.endswith(".png")
    return f"\n![{caption}]({PLOTS}/{name})\n{caption}" if is_picture else f"\n[{caption}]({PLOTS}/{name})"


def card(folder: Path, job: Any, metrics: JSON, actual: JSON, plots: Mapping[str, str]) -> str:
    """README.md of a run: what it is, how good, on which data and split, what to beware of, how to use it.

    plots: captions by the file below `PLOTS`.
    """
    plan, evidence = job.plan, job.split.evidence
    header, *rows = score_table(metrics)
    warnings = [*job.usable.notices, *plan.estimates.get("notes", [])]
    if "optimistic" in evidence:
        warnings.insert(0, f"The scores are optimistic: {evidence['optimistic']}.")
    licence = f"Licence of the weights: {job.recipe.licence}.\n" if job.recipe.licence else ""
    text = [
        f"# {plan.recipe}\n",
        f"{plan.task.capitalize()} of `{plan.facts['target']}` from {plan.type}, {metrics['num_rows']['train']} training rows.",
        licence,
        "## Scores\n",
        "95 % intervals by bootstrap over groups; * decides. The test rows were used once.\n",
        *table_lines(header, rows),
        *(f"\n{text}" for text in (verdict(metrics), gap_sentence(metrics)) if text),
        *(_shown(name, caption) for name, caption in plots.items()),
        "\n## Data and split\n",
        f"Split `{job.split.rule}`: {evidence['because']}. Seed {plan.seed}. Ids and proof are in split.json.",
        *(f"- {warning}" for warning in warnings),
        "\n## Training\n",
        "```\n" + closing_block(metrics, actual) + "\n```",
        *(f"- {note}" for note in actual.get("notes", ())),
        "\n## Use\n",
        f"```\nzoo predict {folder} NEW_DATA\nzoo evaluate {folder} --data LABELLED_DATA\n```",
    ]
    return "\n".join(text) + "\n"


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def experiment_row(folder: Path, recipe: str, metrics: JSON, actual: JSON) -> JSON:
    """The line of experiments.tsv."""
    decides = metrics["decides"]
    return {
        "run": folder.name,
        "recipe": recipe,
        "metric": decides,
        "valid": metrics["valid"].get(decides, {}).get("value"),
        "test": metrics["test"][decides]["value"],
        "seconds": actual["seconds_total"],
        "peak_memory_bytes": actual["peak_memory_bytes"],
    }


def environment(machine: Machine) -> JSON:
    """env.json: versions and machine."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": versions,
        "machine": asdict(machine),
    }
