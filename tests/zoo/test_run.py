"""The pipeline from Python and from the command line, on a small table."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import zoo
from trainers.errors import DataError, UsageError

FAST = {"train.rounds": 5}


def frame(num_rows=80):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=num_rows), "colour": rng.choice(["red", "blue"], num_rows)})
    return table.assign(y=np.where(table["x"] + rng.normal(size=num_rows) > 0, "yes", "no"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return zoo.train("tabular/xgboost", frame(), target="y", set=FAST, out=tmp_path_factory.mktemp("run") / "r")


def test_a_file_and_a_frame_with_an_index_of_its_own_get_the_same_answers(run, tmp_path):
    rows = frame().drop(columns="y")
    rows.to_csv(tmp_path / "new.csv", index=False)
    of_file = zoo.load(run.folder).predict(str(tmp_path / "new.csv"))
    of_frame = run.predict(rows.set_index(pd.Index(range(1000, 1080))))
    assert of_frame.index.tolist() == list(range(1000, 1080))
    np.testing.assert_allclose(of_file["probability_yes"], of_frame["probability_yes"], atol=1e-6)
    assert list(of_file) == ["id", "prediction", "probability_no", "probability_yes", "problem"]


def test_what_is_odd_in_new_rows_is_warned_of_in_python_too(run):
    with pytest.warns(UserWarning, match="violet"):
        run.predict(frame().drop(columns="y").assign(colour="violet"))


def test_columns_named_by_numbers_work_and_other_things_than_data_are_refused(run, tmp_path):
    numbered = frame().set_axis([0, 1, 2], axis=1)
    assert zoo.train("tabular/xgboost", numbered, target=2, set=FAST, out=tmp_path / "n").metrics["num_rows"]["test"]
    with pytest.raises(DataError, match="a list: give the path"):
        run.predict([1, 2])
    with pytest.raises(DataError, match="'tags' holds lists"):
        zoo.train("tabular/xgboost", frame().assign(tags=[[1]] * 80), target="y", out=tmp_path / "l")


def test_what_was_learned_is_kept_when_the_data_fails_afterwards_and_resume_finishes_it(tmp_path, monkeypatch):
    few = {"train.epochs": 2, "options.width": 8}

    def gone(*_):
        raise DataError("test rows: gone")

    with monkeypatch.context() as broken:
        broken.setattr("zoo.run._judge", gone)
        with pytest.raises(DataError, match=r"gone What was learned is kept.*zoo resume"):
            zoo.train("tabular/mlp", frame(), target="y", set=few, out=tmp_path / "r")
    assert zoo.resume(tmp_path / "r", data=frame()).metrics["num_rows"]["test"]


def test_a_relative_path_is_found_again_from_another_folder(tmp_path, monkeypatch):
    frame().to_csv(tmp_path / "rows.csv", index=False)
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr("zoo.run._judge", lambda *_: (_ for _ in ()).throw(DataError("stop")))
        with pytest.raises(DataError, match="stop"):
            zoo.train("tabular/mlp", "rows.csv", target="y", set={"train.epochs": 1}, out=tmp_path / "r")
    monkeypatch.chdir(tmp_path.parent)
    assert zoo.resume(tmp_path / "r").metrics["num_rows"]["test"]


def test_a_rate_made_for_another_optimizer_is_told():
    notes = zoo.plan("tabular/mlp", frame(), target="y", set={"train.optimizer": "lion"}).estimates["notes"]
    assert any("lion usually begins with 0.0001" in note for note in notes)


def test_a_target_without_data_is_no_demo(tmp_path):
    with pytest.raises(UsageError, match="no --data"):
        zoo.train("tabular/xgboost", target="y", out=tmp_path / "r")


def test_a_planned_recipe_names_the_nearest_ready_one_and_a_second_run_never_overwrites(run):
    with pytest.raises(UsageError, match=r"planned|not built"):
        zoo.train("genomics/dnabert2-finetune", frame(), target="y")
    with pytest.raises(UsageError, match="never overwritten"):
        zoo.train("tabular/xgboost", frame(), target="y", out=run.folder)


def test_training_goes_on_when_the_reader_of_its_log_leaves(tmp_path):
    frame().to_csv(tmp_path / "t.csv", index=False)
    words = ["train", "tabular/xgboost", "--data", "t.csv", "--target", "y", "--set", "train.rounds=5", "--out", "r"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "zoo.cli", *words], cwd=tmp_path, stderr=writer, stdout=subprocess.PIPE
    )
    os.close(writer)
    assert done.returncode == 0
    assert json.loads((tmp_path / "r" / "complete.json").read_text())


def test_evaluating_scores_labelled_rows_with_intervals(run):
    scores = run.evaluate(frame())
    assert 0.5 < scores["auc"]["low"] <= scores["auc"]["value"] <= scores["auc"]["high"] <= 1


def test_a_score_on_the_data_of_the_run_itself_says_so(run):
    own, other = [], []
    run.evaluate(frame(), say=own.append)
    assert run.evaluate(frame().iloc[:2])["accuracy"]["value"] in (0, 0.5, 1), "two rows are enough for a score"
    run.evaluate(frame().iloc[:60], say=other.append)
    num = run.metrics["num_rows"]
    assert any(f"trained on {num['train']:,} of {sum(num.values()):,} rows" in line for line in own)
    assert not any("trained on" in line for line in other)


def test_a_score_on_rows_that_are_called_like_learned_ones_says_so(tmp_path):
    named, said = frame().assign(id=[f"row {i}" for i in range(len(frame()))]), []
    named_run = zoo.train("tabular/xgboost", named, target="y", id_column="id", set=FAST, out=tmp_path / "r")
    named_run.evaluate(named.iloc[:60], say=said.append)
    num = len(set(json.loads((tmp_path / "r" / "split.json").read_text())["ids"]["train"]) & set(named["id"][:60]))
    assert any(f"{num} of 60 rows are called like rows that the run was trained on" in line for line in said)
    named_run.evaluate(named.iloc[:60].assign(id=[f"new {i}" for i in range(60)]), say=(other := []).append)
    assert not any("called like" in line for line in other)


def test_an_order_that_no_split_heeds_is_refused(tmp_path, monkeypatch):
    from domains.contract import Keys
    from domains.tabular import data

    monkeypatch.setattr(data, "keys", lambda *_, **__: Keys("random"))
    with pytest.raises(UsageError, match="--order day: tabular/xgboost cannot split such rows by time"):
        zoo.train("tabular/xgboost", frame().assign(day=range(80)), target="y", order="day", out=tmp_path / "r")
