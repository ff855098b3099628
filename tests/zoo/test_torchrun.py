"""The command line under torchrun: two real processes, one run folder like that of one process."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from zoo.finished import load

SETTINGS = (
    "--target",
    "y",
    "--epochs",
    "2",
    "--precision",
    "fp32",
    "--set",
    "train.keep=last",
    "--set",
    "options.dropout=0",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with rows.csv: a number that depends on three."""
    folder, rng = tmp_path_factory.mktemp("torchrun"), np.random.default_rng(0)
    x = rng.standard_normal((203, 3))
    y = x[:, 0] - 2 * x[:, 1] + 0.1 * rng.standard_normal(203)
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": y}).to_csv(folder / "rows.csv", index=False)
    return folder


def command(*arguments, num_processes):
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes), "-m")
    return [sys.executable, "-m", *(torchrun if num_processes > 1 else ()), "zoo.cli", *arguments]


def zoo(folder, *arguments, num_processes):
    words = command(*arguments, num_processes=num_processes)
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)


def answers(folder):
    with (folder / "predictions.csv").open() as file:
        return {row["id"]: float(row["prediction"]) for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def alone(folder):
    assert (
        zoo(
            folder, "train", "tabular/mlp", "--data", "rows.csv", *SETTINGS, "--out", "alone", num_processes=1
        ).returncode
        == 0
    )
    return folder / "alone"


@pytest.mark.parametrize("extra", [(), ("--shard",)], ids=["copies", "parts"])
def test_two_processes_make_the_run_that_one_makes(folder, alone, extra):
    name = "-".join(("pair", *extra))
    done = zoo(folder, "train", "tabular/mlp", "--data", "rows.csv", *SETTINGS, *extra, "--out", name, num_processes=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(name) == 1, "one of the processes answers"
    expected, found = answers(alone), answers(folder / name)
    assert list(found) == list(expected)
    assert np.allclose(list(found.values()), list(expected.values()), atol=1e-3)
    assert json.loads((folder / name / "actual.json").read_text())["num_samples"] == 2 * 142
    assert len(load(folder / name).predict(folder / "rows.csv")) == 203


def test_what_learns_in_one_process_says_so_and_leaves_nothing(folder):
    done = zoo(
        folder, "train", "tabular/xgboost", "--data", "rows.csv", "--target", "y", "--out", "trees", num_processes=2
    )
    assert done.returncode != 0
    assert "torchrun started 2 processes, but tabular/xgboost learns in one (trees)" in done.stderr
    assert not (folder / "trees").exists()


def process_of_rank(rank, parent):
    """The id of the child of `parent` that torchrun gave this rank."""
    children = " ".join(path.read_text() for path in Path(f"/proc/{parent}/task").glob("*/children"))
    for child in children.split():
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.slow  # half a minute each
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed_ends_the_others_with_a_clear_error_and_the_run_resumes(folder, alone, rank):
    """Ends as a run does that nobody disturbed."""
    name = f"killed-{rank}"
    words = ("train", "tabular/mlp", "--data", "rows.csv", *SETTINGS, "--set", "train.save_steps=1", "--out", name)
    started = {"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command(*words, num_processes=2), **started) as process:
        until = time.monotonic() + 120
        while not saved_steps(folder / name):
            assert process.poll() is None, "the run ended before anything was saved"
            assert time.monotonic() < until, "nothing was saved"
            time.sleep(0.01)
        os.kill(process_of_rank(rank, process.pid), signal.SIGKILL)
        _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Another of the 2 processes has ended" in said
    assert f"resume {name}" in said
    assert "internal error" not in said
    newest, num_before = max(saved_steps(folder / name)), len(events(folder / name))
    done = zoo(folder, "resume", name, num_processes=2)
    assert done.returncode == 0, done.stderr
    later = [event["step"] for event in events(folder / name)[num_before:] if event["kind"] == "save"]
    assert later[0] == newest + 1
    expected, found = answers(alone), answers(folder / name)
    assert np.allclose([found[row] for row in expected], list(expected.values()), atol=1e-3)


def saved_steps(run):
    return [int(path.name[5:]) for path in (run / "checkpoints").glob("step-????????")]


def events(run):
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
