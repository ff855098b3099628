"""Curves for other viewers, each read back with that viewer's own reader, and what a failing one costs: nothing."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest

import zoo
from trainers.errors import MissingError, UsageError
from zoo import cli, writers

CURVE = {1: 0.5, 2: 0.25, 7: 0.125}
SETTINGS = {"recipe": "tabular/xgboost", "train.lr": "0.1"}
CLOSED_NETWORK = """
import socket, sys
def refuse(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
        print("asked the network for", address)
        raise OSError("there is no network here")
    return connect(self, address)
connect, socket.socket.connect = socket.socket.connect, refuse
"""
WRITE = """
from pathlib import Path
from zoo.writers import opened
name, folder = sys.argv[1], Path(sys.argv[2])
with opened([name], folder, {settings}, print) as curves:
    for step, loss in {curve}.items():
        assert curves.write(step, {{"loss": loss, "valid/auc": 1 - loss}}) == []
"""


def written(name, folder, then=""):
    """The folder of a writer after a process without network has written CURVE with it, and has done `then`."""
    pytest.importorskip(writers.KINDS[name].package)
    folder.mkdir()
    program = CLOSED_NETWORK + WRITE.format(settings=SETTINGS, curve=CURVE) + then
    environment = {**os.environ, "TRACKIO_SERVER_URL": "http://192.0.2.1/", "WANDB_MODE": "online"}
    done = subprocess.run(
        [sys.executable, "-c", program, name, str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return folder / "logs" / name


def test_tensorboard_reads_back_what_was_written(tmp_path):
    folder = written("tensorboard", tmp_path / "run-001")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder)).Reload()
    assert sorted(read.Tags()["scalars"]) == ["loss", "valid/auc"]
    assert {event.step: event.value for event in read.Scalars("loss")} == CURVE


READ_MLFLOW = """
import json
from mlflow import MlflowClient
client = MlflowClient("sqlite:///" + str(folder / "logs" / "mlflow" / "mlflow.db"))
with opened(["mlflow"], folder, {}, print) as curves:  # as a resumed run does
    curves.write(9, {"loss": 0.0625})
(run,) = client.search_runs([client.get_experiment_by_name("zoo").experiment_id])
history = {each.step: each.value for each in client.get_metric_history(run.info.run_id, "loss")}
(folder / "read.json").write_text(json.dumps([run.info.run_name, run.info.status, run.data.params, history]))
"""


@pytest.mark.slow  # ten CPU-seconds
def test_mlflow_reads_back_what_was_written_and_a_resumed_run_goes_on_in_the_same_one(tmp_path):
    # In the same process: MLflow takes that long to be imported and to make its tables.
    written("mlflow", tmp_path / "run-001", then=READ_MLFLOW)
    name, status, settings, history = json.loads((tmp_path / "run-001" / "read.json").read_text())
    assert (name, status, settings) == ("run-001", "FINISHED", SETTINGS)
    assert {int(step): loss for step, loss in history.items()} == {**CURVE, 9: 0.0625}


def test_weights_and_biases_reads_back_an_offline_run_with_what_was_written(tmp_path):
    folder = written("wandb", tmp_path / "run-001")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    records = [json.loads(line) for line in lines.splitlines()]
    values = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert {row["step"]: row["loss"] for row in values} == CURVE


def test_trackio_reads_back_what_was_written_and_two_runs_of_a_process_stay_apart(tmp_path):
    folder = written("trackio", tmp_path / "run-001")
    import sqlite3

    def losses(path):
        with sqlite3.connect(path) as database:
            rows = database.execute("SELECT step, metrics FROM metrics ORDER BY step").fetchall()
        return {step: json.loads(values)["loss"] for step, values in rows}

    assert losses(folder / "zoo.db") == CURVE
    for name in ("run-002", "run-003"):
        with writers.opened(["trackio"], tmp_path / name, SETTINGS, None) as curves:
            curves.write(1, {"loss": 3.0})
        assert losses(tmp_path / name / "logs" / "trackio" / "zoo.db") == {1: 3.0}


def test_an_unknown_name_gets_a_suggestion_and_a_missing_package_the_line_that_installs_it(monkeypatch, capsys):
    with pytest.raises(UsageError, match="Did you mean tensorboard"):
        writers.check_names(["tensorbord"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingError, match=r"pip install 'domain-model-zoo\[wandb\]'"):
        writers.check_names(["wandb"])
    command = ["train", "tabular/xgboost", "--data", "never-read.csv", "--target", "y", "--log", "mlflow"]
    assert cli._exit_code(command) == 6
    assert "domain-model-zoo[mlflow]" in capsys.readouterr().err


class Failing:
    """A writer whose disk is full from the second write on."""

    num_writes = 0

    def __init__(self, folder, name, settings):
        print("a viewer's chatter")

    def write(self, step, values):
        Failing.num_writes += 1
        if Failing.num_writes > 1:
            raise OSError("no space left")

    def close(self):
        raise RuntimeError("nor to close")


def table(num_rows=80):
    y = [("no", "yes")[at % 3 == 0] for at in range(num_rows)]
    return pd.DataFrame({"x": [at * at % 17 for at in range(num_rows)], "y": y})


def test_a_writer_that_fails_is_warned_of_once_and_the_run_is_finished(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(Failing, "num_writes", 0)
    monkeypatch.setattr(writers, "KINDS", {"tensorboard": writers.Kind(Failing, "sys")})
    said = []
    settings = {"train.epochs": 4, "train.batch_size": 16}
    run = zoo.train(
        "tabular/mlp", table(), target="y", set=settings, loggers=["tensorboard"], out=tmp_path / "r", say=said.append
    )
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    warnings = [event["text"] for event in events if event["kind"] == "warning"]
    assert len([text for text in warnings if "no space left" in text]) == 1
    assert len([line for line in said if "no space left" in line]) == 1
    assert Failing.num_writes == 2
    assert capsys.readouterr().out == ""
    zoo.load(run.folder)


def test_a_package_that_does_not_start_ends_the_run_before_it_learns(monkeypatch, tmp_path):
    class Broken(Failing):
        def __init__(self, folder, name, settings):
            raise ImportError("libfoo is gone")

    monkeypatch.setattr(writers, "KINDS", {"wandb": writers.Kind(Broken, "sys")})
    with pytest.raises(MissingError, match="libfoo is gone"):
        zoo.train("tabular/xgboost", table(), target="y", loggers=["wandb"], out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_run_with_curves_holds_those_of_training_validation_and_test_and_can_be_loaded_after_a_viewer_wrote(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = {"train.epochs": 2, "train.batch_size": 16}
    run = zoo.train("tabular/mlp", table(), target="y", set=settings, loggers=["tensorboard"], out=tmp_path / "r")
    read = EventAccumulator(str(run.folder / "logs" / "tensorboard")).Reload()
    names = set(read.Tags()["scalars"])
    assert {"loss", "lr", "grad_norm", "samples_per_second", "valid/accuracy", "test/accuracy"} <= names
    score = run.metrics["test"]["accuracy"]["value"]
    assert read.Scalars("test/accuracy")[0].value == pytest.approx(score, abs=1e-6)
    (run.folder / "logs" / "tensorboard" / "more").write_text("a viewer's own")
    assert zoo.load(run.folder).metrics == run.metrics


def test_only_finite_numbers_of_steps_and_scores_make_curves():
    step = {"kind": "step", "step": 3, "loss": 0.5, "grad_norm": float("inf"), "last": True}
    assert writers.values_of(step) == {"loss": 0.5}
    assert writers.values_of({"kind": "eval", "step": 3, "metric": "auc", "score": 0.9, "best": 0.9}) == {
        "valid/auc": 0.9
    }
    assert writers.values_of({"kind": "rollback", "step": 3, "to": 1}) == {}
