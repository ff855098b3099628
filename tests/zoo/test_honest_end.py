"""What must not end well: weights that answer nothing, outputs over somebody's files, impossible seeds and folders."""

import json

import numpy as np
import pandas as pd
import pytest

import zoo
from trainers.errors import DataError, DivergedError, UsageError
from zoo import cli
from zoo.report import verdict


def table(num_rows=120):
    x = np.random.default_rng(0).normal(size=(num_rows, 2))
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": np.where(x[:, 0] > 0, "yes", "no")})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    table().to_csv(folder / "rows.csv", index=False)
    return zoo.train("tabular/xgboost", folder / "rows.csv", target="y", set={"train.rounds": 5}, out=folder / "run")


def exit_code(*words):
    with pytest.raises(SystemExit) as stop:
        cli.main([str(word) for word in words])
    return stop.value.code


def test_weights_that_answer_nothing_end_the_run_with_a_diagnosis(tmp_path):
    options = {"train.lr": 1e30, "train.compile": "off", "train.batch_size": 32}
    with pytest.raises(DivergedError, match=r"finite|diverged"):
        zoo.train("tabular/mlp", table(), target="y", epochs=3, set=options, out=tmp_path / "run")
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert all(json.loads(line, parse_constant=pytest.fail) for line in lines)


def test_predictions_never_go_into_the_folder_of_a_run_nor_over_other_files(finished, tmp_path, capsys):
    data, before = finished.folder.parent / "rows.csv", (finished.folder / "predictions.csv").read_bytes()
    assert exit_code("predict", finished.folder, data, "--out", str(finished.folder)) == 2
    assert "is the folder of a run" in capsys.readouterr().err
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n")
    assert exit_code("predict", finished.folder, data, "--out", str(tmp_path / "mine.csv")) == 2
    assert "holds no predictions" in capsys.readouterr().err
    for _ in range(2):
        assert exit_code("predict", finished.folder, data, "--out", str(tmp_path / "new.csv")) == 0
    assert (finished.folder / "predictions.csv").read_bytes() == before
    assert (tmp_path / "mine.csv").read_text() == "a,b\n1,2\n"
    zoo.load(finished.folder)


@pytest.mark.parametrize("seed", [-1, 2**40])
def test_an_impossible_seed_is_the_users_fault(seed):
    with pytest.raises(UsageError, match="--seed"):
        zoo.train("tabular/xgboost", table(), target="y", seed=seed)


def test_a_folder_that_cannot_be_made_is_the_users_fault(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="no folder can be made there"):
        zoo.train("tabular/xgboost", table(), target="y", out=tmp_path / "file" / "run")


def test_a_target_beyond_float32_is_a_bad_row():
    frame = table().assign(y=np.arange(120.0))
    frame.loc[7, "y"] = 1e308
    with pytest.raises(DataError, match="beyond what models compute with"):
        zoo.train("tabular/xgboost", frame, target="y", task="regression")


def test_a_baseline_that_does_better_is_said():
    def scores(model, rival, direction):
        wrap = lambda value: {"m": {"value": value, "low": None, "high": None}}  # noqa: E731
        return verdict(
            {"decides": "m", "direction": direction, "test": wrap(model), "baseline": {"cheap": wrap(rival)}}
        )

    assert "'cheap' did better" in scores(0.4, 0.6, "higher")
    assert scores(0.6, 0.4, "higher") == ""
    assert "'cheap' did as well" in scores(0.0, 0.0, "higher")
    assert "0.4 against 0.6" in scores(0.6, 0.4, "lower")
    assert scores(None, 0.4, "higher") == scores(0.4, None, "higher") == ""
