"""`zoo train --gap`: the same recipe on a random split, beside the split that keeps like rows together."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import zoo
from trainers.errors import UsageError
from zoo import gap, report

SETS = {"train.rounds": 20}


def grouped(num_groups: int = 20, size: int = 12) -> pd.DataFrame:
    """Rows of a group are copies but for a hair, and a group's label is drawn by lot: nothing holds for another group."""
    rng = np.random.default_rng(0)
    centre = np.repeat(rng.normal(size=(num_groups, 3)), size, axis=0)
    group = np.repeat(np.arange(num_groups), size)
    frame = pd.DataFrame(centre + rng.normal(scale=0.01, size=centre.shape), columns=["a", "b", "c"])
    return frame.assign(patient=group, y=np.repeat(rng.permutation(np.arange(num_groups) % 2), size).astype(str))


def test_the_gap_is_what_rows_of_the_same_group_are_worth(tmp_path):
    said = []
    run = zoo.train(
        "tabular/xgboost",
        grouped(),
        target="y",
        group="patient",
        set=SETS,
        gap=True,
        out=tmp_path / "run",
        say=said.append,
    )
    other = run.metrics[report.AT_RANDOM]
    assert other["test"]["auc"]["value"] > 0.9 > 0.8 > run.metrics["test"]["auc"]["value"]
    assert other["test"] == json.loads((tmp_path / "run-random" / "metrics.json").read_text())["test"]
    assert "On a random split" in report.gap_sentence(run.metrics)
    assert "On a random split" in (tmp_path / "run" / "README.md").read_text()
    assert any(line.startswith("gap: first") for line in said)
    assert zoo.load(tmp_path / "run-random").predict(grouped()[["a", "b", "c", "patient"]]) is not None


def test_a_gap_between_random_and_random_is_refused_before_there_is_a_folder(tmp_path):
    frame = grouped().drop(columns="patient").drop_duplicates()
    with pytest.raises(UsageError, match="already"):
        zoo.train("tabular/xgboost", frame, target="y", split="random", gap=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("several", [{"folds": 3}, {"seeds": 2}])
def test_a_gap_of_several_runs_is_refused(tmp_path, several):
    with pytest.raises(UsageError, match="one at a time"):
        zoo.train("tabular/xgboost", grouped(), target="y", group="patient", gap=True, out=tmp_path / "run", **several)


def test_a_run_that_was_killed_after_the_first_half_goes_on_with_the_second(tmp_path, monkeypatch):
    arguments = {"target": "y", "group": "patient", "set": SETS, "gap": True, "out": tmp_path / "run"}
    grouped().to_csv(tmp_path / "data.csv", index=False)
    monkeypatch.setattr("zoo.run._judge", _stopping_on_groups())
    with pytest.raises(KeyboardInterrupt):
        zoo.train("tabular/xgboost", tmp_path / "data.csv", **arguments)
    monkeypatch.undo()
    first = (gap.folder_beside(tmp_path / "run") / "metrics.json").read_bytes()
    run = zoo.resume(tmp_path / "run")
    assert (gap.folder_beside(tmp_path / "run") / "metrics.json").read_bytes() == first
    assert run.metrics[report.AT_RANDOM]["test"] == json.loads(first)["test"]


def _stopping_on_groups():
    """`_judge` that stops the process in the run of the split by groups."""
    from zoo import run

    judge = run._judge

    def stopping(job, learner, say):
        if job.split.rule == "grouped":
            raise KeyboardInterrupt
        return judge(job, learner, say)

    return stopping
