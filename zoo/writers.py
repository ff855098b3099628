"""Curves for other people's viewers: TensorBoard, trackio, Weights & Biases, MLflow. Off unless asked (`--log NAME`).

Every writer keeps what it writes below logs/ in the run folder and asks no network. events.jsonl is written in any case;
a writer that fails is closed with a warning, and training goes on.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from trainers.contract import JSON
from trainers.errors import MissingError, UsageError, did_you_mean

FOLDER = "logs"
_MARKS = ("kind", "step", "last")
Say = Callable[[str], None] | None


class Writer(Protocol):
    """One viewer's file or database."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Keep finite numbers by name as of `step` (from 1)."""

    def close(self) -> None:
        """Bring everything to the disk. Called once, last."""


class TensorBoard:
    """An event file that `tensorboard --logdir RUN/logs` shows. Needs the package tensorboard, not torch."""

    def __init__(self, folder: Path, name: str, settings: JSON) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._file = EventFileWriter(str(folder))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        from time import time

        found = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._file.add_event(self._event(step=step, wall_time=time(), summary=self._summary(value=found)))

    def close(self) -> None:
        self._file.close()


class WandB:
    """A run of Weights & Biases in offline mode; `wandb sync RUN/logs/wandb/offline-run-*` uploads it, if ever."""

    def __init__(self, folder: Path, name: str, settings: JSON) -> None:
        for variable in ("WANDB_ERROR_REPORTING", "WANDB_DISABLE_GIT"):
            os.environ.setdefault(variable, "false" if variable.endswith("REPORTING") else "true")
        import wandb

        quiet = wandb.Settings(console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True)
        self._run = wandb.init(
            project="zoo", name=name, dir=str(folder.parent), mode="offline", config=settings, settings=quiet,
            reinit="create_new",
        )  # fmt: skip

    def write(self, step: int, values: Mapping[str, float]) -> None:
        # A step of its own, because wandb's never goes back, as ours does after a rollback.
        self._run.log({**values, "step": step})

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """A database that `TRACKIO_DIR=RUN/logs/trackio trackio show` shows."""

    def __init__(self, folder: Path, name: str, settings: JSON) -> None:
        os.environ["TRACKIO_DIR"] = str(folder)
        import trackio

        self._run = trackio.init(project="zoo", name=name, config=settings, resume="allow", embed=False)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A database that `mlflow ui --backend-store-uri sqlite:///RUN/logs/mlflow/mlflow.db` shows."""

    def __init__(self, folder: Path, name: str, settings: JSON) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        folder.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(f"sqlite:///{(folder / 'mlflow.db').resolve()}")
        found = self._client.get_experiment_by_name("zoo")
        artifacts = (folder / "artifacts").resolve().as_uri()
        place = found.experiment_id if found else self._client.create_experiment("zoo", artifact_location=artifacts)
        self._run = self._client.create_run(place, run_name=name).info.run_id
        for key, value in settings.items():
            self._client.log_param(self._run, key, value)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._client.log_metric(self._run, key, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


@dataclass(frozen=True)
class Kind:
    """A writer that can be asked for: open(folder, run name, settings), and the package (and extra) that it needs."""

    open: Callable[[Path, str, JSON], Writer]
    package: str


KINDS: dict[str, Kind] = {
    "tensorboard": Kind(TensorBoard, "tensorboard"),
    "trackio": Kind(Trackio, "trackio"),
    "wandb": Kind(WandB, "wandb"),
    "mlflow": Kind(MLflow, "mlflow"),
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
    """The writers of one run. A writer that fails is closed, and is missing from then on."""

    def __init__(self, writers: Mapping[str, Writer]) -> None:
        self._writers = dict(writers)

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
                with redirect_stdout(sys.stderr):  # stdout is for results
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
    curves = Curves({name: _started(name, folder, settings) for name in names})
    try:
        yield curves
    finally:
        for problem in curves.close():
            if say:
                say(f"warning: {problem}")


def _started(name: str, folder: Path, settings: JSON) -> Writer:
    place = folder / FOLDER / name
    place.mkdir(parents=True, exist_ok=True)
    try:
        with redirect_stdout(sys.stderr):
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
