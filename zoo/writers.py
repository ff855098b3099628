"""Curves for other people's viewers: TensorBoard, trackio, Weights & Biases, MLflow. Off unless asked (`--log NAME`).

Every writer keeps what it writes below logs/ in the run folder and asks no network. events.jsonl is written in any case;
a writer that fails is left out with a warning, and training goes on.
"""

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from trainers.contract import JSON
from trainers.errors import MissingError, UsageError, did_you_mean
from zoo import viewers

FOLDER = "logs"
_MARKS = ("kind", "step", "last")
Say = Callable[[str], None] | None


class Writer(Protocol):
    """One viewer's file or database."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Keep finite numbers by name as of `step` (from 1)."""

    def close(self) -> None:
        """Bring everything to the disk. Called once, last."""


@dataclass(frozen=True)
class Kind:
    """A writer that can be asked for: open(folder, run name, settings), and the package (and extra) that it needs."""

    open: Callable[[Path, str, JSON], Writer]
    package: str


KINDS: Mapping[str, Kind] = {
    "tensorboard": Kind(viewers.TensorBoard, "tensorboard"),
    "trackio": Kind(viewers.Trackio, "trackio"),
    "wandb": Kind(viewers.WandB, "wandb"),
    "mlflow": Kind(viewers.MLflow, "mlflow"),
}


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names, each once. Raises UsageError for an unknown one, MissingError for one whose package is not installed."""
    for name in names:
        if name not in KINDS:
            raise UsageError(f"--log {name!r}: unknown.{did_you_mean(name, KINDS)} Known: {', '.join(KINDS)}.")
        if importlib.util.find_spec(KINDS[name].package) is None:
            raise MissingError(
                f"--log {name} needs package {KINDS[name].package!r}, which is not installed. Install it with: "
                f"pip install 'domain-model-zoo[{name}]'"
            )
    return tuple(dict.fromkeys(names))


class Curves:
    """The writers of one run. A writer that fails is missing from then on."""

    def __init__(self) -> None:
        self._writers: dict[str, Writer] = {}

    def add(self, name: str, writer: Writer) -> None:
        """Let `writer` get what is written from now on."""
        self._writers[name] = writer

    def write(self, step: int, values: Mapping[str, float]) -> list[str]:
        """Hand `values` to every writer; a text for each that failed at it."""
        return self._each(lambda writer: writer.write(step, values)) if values else []

    def close(self) -> list[str]:
        """Close every writer; a text for each that failed at it."""
        problems = self._each(lambda writer: writer.close())
        self._writers.clear()
        return problems

    def _each(self, act: Callable[[Writer], None]) -> list[str]:
        problems = []
        for name, writer in list(self._writers.items()):
            try:
                with redirect_stdout(StringIO()):  # they are chatty, and stdout is for results
                    act(writer)
            except Exception as error:
                del self._writers[name]
                problems.append(f"--log {name} failed and is left out from here on: {type(error).__name__}: {error}")
        return problems


@contextmanager
def opened(names: Sequence[str], folder: Path, settings: JSON, say: Say) -> Iterator[Curves]:
    """The writers called `names` for the run in `folder`, closed at the end. settings: what viewers list beside curves.

    Raises MissingError for a package that is installed but does not start: at that time nothing is lost yet.
    """
    curves = Curves()
    try:
        for name in names:
            curves.add(name, _started(name, folder, settings))
        yield curves
    finally:
        for problem in curves.close():
            if say:
                say(f"warning: {problem}")


def _started(name: str, folder: Path, settings: JSON) -> Writer:
    place = folder / FOLDER / name
    place.mkdir(parents=True, exist_ok=True)
    try:
        with redirect_stdout(StringIO()):
            return KINDS[name].open(place, folder.name, settings)
    except Exception as error:
        package = KINDS[name].package
        says = (
            f"--log {name}: package {package!r} does not start ({type(error).__name__}: {error}). Leave --log out, or"
        )
        raise MissingError(f"{says} mend it: pip install --upgrade 'domain-model-zoo[{name}]'") from error


def values_of(event: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an event that make a curve, by the name of the curve; none for events of other kinds."""
    kind = event.get("kind")
    if kind == "eval":
        return _finite({f"valid/{event['metric']}": event["score"]})
    if kind == "activations":
        return _finite({"dead_units": event["dead_units"]})
    return _finite({name: value for name, value in event.items() if name not in _MARKS}) if kind == "step" else {}


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
    return {name: value for name, value in numbers.items() if isfinite(value)}
