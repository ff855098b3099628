"""Pictures of any run, for its card: curves of training, and the answers on the test rows beside the truth.

Drawn where matplotlib is installed (it comes with the extras for pictures and scans, and by itself as `figures`); a run
without it is as good. Nothing of pyplot is used, so no state is shared and no display is asked for.
"""

import json
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from trainers.contract import JSON, Predictions

_MOST_CLASSES, _MOST_NAMED = 60, 20
_MOST_POINTS = 5000
_DOTS = 110


def draw(folder: Path, predictions: Predictions, truth: np.ndarray, into: Path) -> dict[str, str]:
    """Write what can be drawn of the run in `folder` as PNG files in `into`; returns {file: caption}."""
    if find_spec("matplotlib") is None:
        return {}
    found: dict[str, str] = {}
    events = list(_events(folder / "events.jsonl"))
    for name, caption, figure in (_curves(events), _answers(predictions, truth)):
        if figure is not None:
            into.mkdir(parents=True, exist_ok=True)
            figure.savefig(into / name, dpi=_DOTS)
            found[name] = caption
    return found


def _events(path: Path) -> Iterator[JSON]:
    if path.exists():
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def _curves(events: list[JSON]) -> tuple[str, str, Any]:
    """Loss by step, and below it the validation score, each where there are two points or more."""
    steps = [event for event in events if event["kind"] == "step" and event.get("loss") is not None]
    evals = [event for event in events if event["kind"] == "eval"]
    panels = [(name, points) for name, points in (("loss", _by_step(steps, "loss")), _scores(evals)) if len(points) > 1]
    if not panels:
        return "curves.png", "", None
    figure, axes = _figure(len(panels))
    for axis, (name, points) in zip(axes, panels, strict=True):
        axis.plot(list(points), list(points.values()), marker="." if len(points) < 50 else None)
        axis.set(xlabel="step", ylabel=name)
        axis.grid(alpha=0.3)
    return "curves.png", "Training: " + ", ".join(name for name, _ in panels), figure


def _by_step(events: list[JSON], key: str) -> Mapping[int, float]:
    """What was said last of each step: a run that was resumed tells some steps twice."""
    return {event["step"]: event[key] for event in sorted(events, key=lambda event: event["time"])}


def _scores(evals: list[JSON]) -> tuple[str, Mapping[int, float]]:
    return (f"validation {evals[0]['metric']}", _by_step(evals, "score")) if evals else ("", {})


def _answers(predictions: Predictions, truth: np.ndarray) -> tuple[str, str, Any]:
    if predictions.kind == "label" and 2 <= len(predictions.classes) <= _MOST_CLASSES:
        return (
            "confusion.png",
            "Test rows by true class (line) and predicted class (column)",
            _confusion(predictions, truth),
        )
    if predictions.kind == "number":
        return "answers.png", "Test rows: predicted against true", _scatter(predictions, truth)
    return "", "", None


def _confusion(predictions: Predictions, truth: np.ndarray) -> Any:
    from sklearn.metrics import confusion_matrix

    names = list(predictions.classes)
    known = np.array([value is not None for value in predictions.values])
    if not known.any():
        return None
    counts = confusion_matrix(truth[known].astype(str), predictions.values[known].astype(str), labels=names)
    figure, (axis,) = _figure(1, side=max(4.0, 0.32 * len(names) + 2))
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axis.set(xlabel="predicted", ylabel="true")
    axis.set_xticks(range(len(names)), names, rotation=90)
    axis.set_yticks(range(len(names)), names)
    if len(names) <= _MOST_NAMED:
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axis.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)
    return figure


def _scatter(predictions: Predictions, truth: np.ndarray) -> Any:
    known = np.flatnonzero(np.isfinite(predictions.values.astype(float)))
    if not len(known):
        return None
    shown = known[np.linspace(0, len(known) - 1, min(len(known), _MOST_POINTS)).astype(int)]
    true, predicted = truth[shown].astype(float), predictions.values[shown].astype(float)
    figure, (axis,) = _figure(1, side=4.0)
    axis.scatter(true, predicted, s=8, alpha=0.5)
    ends = [float(min(true.min(), predicted.min())), float(max(true.max(), predicted.max()))]
    axis.plot(ends, ends, color="grey", linewidth=1)
    axis.set(xlabel="true", ylabel="predicted")
    return figure


def _figure(num_panels: int, side: float = 3.0) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    width = 6.5 if side == 3.0 else side
    figure = Figure(figsize=(width, side * num_panels), layout="constrained")
    return figure, [figure.add_subplot(num_panels, 1, at + 1) for at in range(num_panels)]
