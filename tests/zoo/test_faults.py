"""Faults of machines and of people: an error that says what to do, and nothing lost. Kills during saves are in
tests/trainers/test_kills.py and tests/contract/test_resume.py, two runs of one name in test_saved.py."""

import errno
import itertools
import os

import numpy as np
import pandas as pd
import pytest

import zoo
from trainers.errors import DataError, StoppedError, UsageError
from zoo import saved
from zoo.cli import main
from zoo.config_yaml import read_config, write_config

FAST = {"train.rounds": 5}


@pytest.fixture
def csv(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=80), "y": ["no", "yes"] * 40})
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def stopped_run(csv, folder, monkeypatch):
    """A run folder that was written down and whose training was stopped at once."""

    def stop(*_):
        raise StoppedError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("zoo.run._fit", stop)
        with pytest.raises(StoppedError):
            zoo.train("tabular/xgboost", csv, target="y", set=FAST, out=folder)
    return folder


def test_a_disk_that_fills_up_while_scores_are_written_exits_with_4_and_resume_finishes_the_run(
    csv, tmp_path, monkeypatch, capsys
):
    def full(path, value, write=saved.write_json):
        if path.name == "metrics.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, value)

    arguments = ["train", "tabular/xgboost", "--data", str(csv), "--target", "y", "--set", "train.rounds=5"]
    with monkeypatch.context() as patch:
        patch.setattr(saved, "write_json", full)
        with pytest.raises(SystemExit) as stop:
            main([*arguments, "--out", str(tmp_path / "run")])
    assert stop.value.code == 4
    assert "No space left" in capsys.readouterr().err
    assert not saved.is_complete(tmp_path / "run")
    with pytest.raises(UsageError, match="zoo resume"):
        zoo.load(tmp_path / "run")
    assert zoo.resume(tmp_path / "run").metrics["num_rows"]["test"]


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    saved.write_text(tmp_path / "a.json", "old")

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        saved.write_text(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "old"


def test_data_that_changed_between_the_plan_and_the_training_is_refused_and_the_plan_kept(csv, tmp_path, monkeypatch):
    run = stopped_run(csv, tmp_path / "run", monkeypatch)
    before = csv.read_text()
    csv.write_text(before.replace("yes", "maybe"))
    with pytest.raises(DataError, match="changed since the run began"):
        zoo.resume(run)
    csv.write_text(before)
    assert zoo.resume(run).metrics["num_rows"]["test"]


def test_a_run_folder_that_cannot_be_written_says_so_when_it_is_resumed(csv, tmp_path, monkeypatch):
    run = stopped_run(csv, tmp_path / "run", monkeypatch)
    (run / saved.LOCK).unlink()
    (run / saved.LOCK).mkdir()  # root may write anywhere, but not into a folder as if it were a file
    with pytest.raises(UsageError, match="nothing can be written there"):
        zoo.resume(run)


def test_a_place_that_is_forbidden_is_no_fault_of_the_zoo(csv, monkeypatch, capsys):
    def forbidden(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "runs")

    monkeypatch.setattr(saved, "new_folder", forbidden)
    with pytest.raises(SystemExit) as stop:
        main(["train", "tabular/xgboost", "--data", str(csv), "--target", "y", "--set", "train.rounds=5"])
    assert stop.value.code == 2
    assert "Allow this user" in capsys.readouterr().err


def test_predicting_and_scoring_write_nothing_into_the_run(csv, tmp_path):
    run = zoo.train("tabular/xgboost", csv, target="y", set=FAST, out=tmp_path / "run").folder
    before = {path: path.stat().st_mtime_ns for path in [run, *run.rglob("*")]}
    loaded = zoo.load(run)
    loaded.predict(csv)
    loaded.evaluate(csv)
    assert {path: path.stat().st_mtime_ns for path in [run, *run.rglob("*")]} == before


def test_a_clock_that_jumps_by_days_changes_neither_the_budget_nor_the_model(csv, tmp_path, monkeypatch):
    small = {"options.width": 8}
    steady = zoo.train("tabular/mlp", csv, target="y", set=small, epochs=3, out=tmp_path / "steady")
    jumps = itertools.cycle([0.0, 9e8, -9e8])
    now = __import__("time").time
    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: now() + next(jumps))
        jumping = zoo.train("tabular/mlp", csv, target="y", set=small, budget=2, out=tmp_path / "jumping")
    actual = saved.read_json(jumping.folder / "actual.json")
    assert 1.5 < actual["seconds_train"] <= actual["seconds_total"] < 120
    assert actual["num_steps"] > 0
    assert steady.metrics["num_rows"] == jumping.metrics["num_rows"]


def test_settings_come_back_from_config_yaml_as_they_were(tmp_path):
    shared = [1, 2]
    config = {"a": shared, "b": shared, "text": ["1e5", "no", "null", "2024-01-01", "é", ""], "none": None, "x": 2e-5}
    write_config(tmp_path / "config.yaml", config)
    assert read_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &x [1]\nb: *x\n", "line 1: an alias"),
        ("a: !!python/object/apply:os.system [true]\n", "line 1: the tag"),
        ("a: 1\nb: 2\na: 3\n", "'a' occurs twice"),
        ("a: !secret x\n", "line 1: the tag"),
        ("- a\n", "holds no settings"),
        ("a: [\n", "not readable"),
        ("", "holds no settings"),
    ],
)
def test_a_config_with_more_than_values_is_refused(tmp_path, text, says):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(DataError, match=says):
        read_config(tmp_path / "config.yaml")
