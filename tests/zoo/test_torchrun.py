"""The command line under torchrun: two real processes, one run folder like that of one process."""

import csv
import json
import subprocess
import sys

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


def zoo(folder, *arguments, num_processes):
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes), "-m")
    words = [sys.executable, "-m", *(torchrun if num_processes > 1 else ()), "zoo.cli", *arguments]
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
