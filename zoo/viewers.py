"""What TensorBoard, trackio, Weights & Biases and MLflow want to be told: one small class each, a `writers.Writer` all.

Each gets a folder of its own below the run's, the name of the run, and its settings. None may ask the network, whatever
the environment says; packages that read the environment when they are imported get it set before.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Any

from trainers.contract import JSON

PROJECT = "zoo"
_REMOTE_TRACKIO = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID", "TRACKIO_WEBHOOK_URL")


class TensorBoard:
    """An event file that `tensorboard --logdir RUN/logs` shows. Needs the package tensorboard alone, not torch."""

    def __init__(self, folder: Path, name: str, settings: JSON) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._file = EventFileWriter(str(folder))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append one event that holds all values."""
        found = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._file.add_event(self._event(step=step, wall_time=time(), summary=self._summary(value=found)))

    def close(self) -> None:
        """Write what is still held back."""
        self._file.close()


class WandB:
    """A run of Weights & Biases in offline mode; `wandb sync RUN/logs/wandb/offline-run-*` uploads it, if ever. A resumed
    run is a second one of the same name."""

    def __init__(self, folder: Path, name: str, settings: JSON) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        import wandb

        quiet = wandb.Settings(console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True)
        self._run = wandb.init(
            project=PROJECT, name=name, dir=str(folder.parent), mode="offline", config=settings, settings=quiet,
            reinit="create_new",
        )  # fmt: skip

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values, the step among them: wandb's own never goes back, as ours does after a rollback."""
        self._run.log({**values, "step": step})

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class Trackio:
    """A database that `TRACKIO_DIR=RUN/logs/trackio trackio show` shows. One run at a time in a process."""

    def __init__(self, folder: Path, name: str, settings: JSON) -> None:
        os.environ["TRACKIO_DIR"] = str(folder)
        import trackio

        self._trackio: Any = trackio
        # It reads its folder once, at import: a second run of this process would be written into the first one's.
        modules: list[Any] = [module for name, module in sys.modules.items() if name.partition(".")[0] == "trackio"]
        for module in modules:
            if hasattr(module, "TRACKIO_DIR"):
                module.TRACKIO_DIR = folder
        with _without(*_REMOTE_TRACKIO):
            self._run = trackio.init(
                PROJECT, name, config=settings, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
            )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values as of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run, and wait until a thread has written what it holds."""
        self._trackio.finish()


class MLflow:
    """A database that `mlflow ui --backend-store-uri sqlite:///RUN/logs/mlflow/mlflow.db` shows.

    SQLite, because MLflow no longer opens its store of plain files unasked. Making the tables takes seconds.
    """

    def __init__(self, folder: Path, name: str, settings: JSON) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = MlflowClient(f"sqlite:///{(folder / 'mlflow.db').resolve()}")
        place = self._experiment((folder / "artifacts").resolve().as_uri())
        if earlier := self._client.search_runs([place], max_results=1):
            self._run = earlier[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._run = self._client.create_run(place, run_name=name).info.run_id
            self._client.log_batch(self._run, params=[Param(key, str(value)) for key, value in settings.items()])

    def _experiment(self, artifacts: str) -> str:
        found = self._client.get_experiment_by_name(PROJECT)
        return str(found.experiment_id if found else self._client.create_experiment(PROJECT, artifacts))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values in one transaction."""
        now = round(1000 * time())
        self._client.log_batch(self._run, [self._metric(name, value, now, step) for name, value in values.items()])

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run)


@contextmanager
def _without(*variables: str) -> Iterator[None]:
    """Hide environment variables for a while."""
    hidden = {name: os.environ.pop(name) for name in variables if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
