"""The data report of `zoo check --data` and of every run; what --strict refuses; the likeness across the sides of a split."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from domains.contract import Keys, Profile, Reading, Request
from domains.shared.frames import FrameTable
from trainers.contract import as_objects
from trainers.errors import DataError, UsageError
from zoo import run, saved
from zoo.cli import main
from zoo.data_report import check_data, class_counts
from zoo.leakage import leakage

SMALL = {"train.rounds": 5, "train.max_depth": 2}


def table(num=60):
    rng = np.random.default_rng(3)
    return pd.DataFrame({"x": rng.normal(size=num), "z": rng.normal(size=num), "y": ["no", "yes"] * (num // 2)})


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "t.csv"
    table().to_csv(path, index=False)
    return path


def checked(capsys, *arguments):
    """(exit code, stdout, stderr) of `zoo check ...`."""
    with pytest.raises(SystemExit) as stop:
        main(["check", *map(str, arguments)])
    said = capsys.readouterr()
    return stop.value.code, said.out, said.err


def test_a_sound_table_is_reported_without_a_warning(csv, capsys):
    code, out, _ = checked(capsys, "--data", csv, "--type", "tabular", "--target", "y", "--strict", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["ok"]
    assert found["warnings"] == []
    assert found["num_rows_used"] == 60
    assert found["classes"] == {"no": 30, "yes": 30}
    assert found["groups"]["num"] == 60


def test_constants_copies_of_the_target_hidden_groups_and_gaps_are_told(tmp_path, capsys):
    frame = table().assign(same="k", site=[f"s{i // 6}" for i in range(60)])
    frame["y"] = ["no" if i // 6 % 2 else "yes" for i in range(60)]
    frame["copy"] = frame["y"].str.upper()
    frame.loc[4, "x"] = np.nan
    frame = pd.concat([frame, frame.iloc[:1]])
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, out, err = checked(capsys, "--data", tmp_path / "t.csv", "--target", "y", "--json", "--type", "tabular")
    found = json.loads(out)
    assert code == 0
    assert set(found["suspicious"]) == {"same", "site", "copy"}
    assert "--group" in found["suspicious"]["site"]
    assert found["missing"] == {"x": 1}
    assert found["num_copies"] == 1
    code, _, err = checked(capsys, "--data", tmp_path / "t.csv", "--target", "y", "--type", "tabular", "--strict")
    assert code == 2
    assert "--strict: 3 warnings" in err
    assert "'copy' is suspicious" in err


def test_classes_that_a_person_takes_for_the_same_are_told(tmp_path, capsys):
    frame = table()
    frame["y"] = ["caf\u00e9", "cafe\u0301", "Tea ", "tea", "water", "milk"] * 10
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, out, _ = checked(capsys, "--data", tmp_path / "t.csv", "--type", "tabular", "--target", "y", "--json")
    alike = [line for line in json.loads(out)["warnings"] if "differ in case, spaces or the form of letters" in line]
    assert code == 0
    assert len(alike) == 2
    assert any("'tea'" in line for line in alike)
    assert not any("water" in line or "milk" in line for line in alike)


def test_bad_rows_are_all_listed_and_exit_with_2_unless_they_are_skipped(tmp_path, capsys):
    frame = table()
    frame.loc[[5, 9], "y"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    about = ("--data", tmp_path / "t.csv", "--target", "y", "--type", "tabular")
    code, out, _ = checked(capsys, *about)
    assert code == 2
    assert "line 7" in out
    assert "line 11" in out
    assert checked(capsys, *about, "--skip-bad")[0] == 0
    assert checked(capsys, *about, "--skip-bad", "--strict")[0] == 2


def test_a_run_keeps_the_same_report_and_says_it_before_training(csv, tmp_path, capsys):
    said = []
    done = run.train("tabular/xgboost", csv, target="y", set=SMALL, out=tmp_path / "run", say=said.append)
    kept = saved.read_json(done.folder / "data.json")
    _, out, _ = checked(capsys, "--data", csv, "--type", "tabular", "--target", "y", "--json")
    found = json.loads(out)
    assert {name: kept[name] for name in found if name not in ("data", "ok")} == {
        name: value for name, value in found.items() if name not in ("data", "ok")
    }
    assert any("60 rows, 0 repeat another exactly; classification of 2 classes: no 30, yes 30" in line for line in said)


def test_strict_refuses_to_train_and_leaves_no_folder(csv, tmp_path):
    frame = table().assign(constant=1)
    with pytest.raises(DataError, match=r"--strict: 1 warnings[\s\S]*'constant'"):
        run.train("tabular/xgboost", frame, target="y", set=SMALL, out=tmp_path / "run", strict=True)
    assert not (tmp_path / "run").exists()


def test_an_overridden_split_does_not_pass_strict(tmp_path):
    frame = table().assign(patient=[f"P{i // 4}" for i in range(60)])
    with pytest.raises(DataError, match="similar rows may be on both sides"):
        run.train("tabular/xgboost", frame, target="y", set=SMALL, out=tmp_path / "r", split="random", strict=True)


def test_leakage_names_the_equal_rows_across_a_random_split_and_none_across_the_default(tmp_path, capsys):
    frame = pd.concat([table(), table().iloc[:10]])
    frame.to_csv(tmp_path / "t.csv", index=False)
    for name, split in (("default", None), ("random", "random")):
        run.train("tabular/xgboost", tmp_path / "t.csv", target="y", set=SMALL, out=tmp_path / name, split=split)
    code, out, _ = checked(capsys, "--leakage", tmp_path / "random", "--json")
    sides = json.loads(out)["sides"]
    assert code == 0
    features = frame[["x", "z"]].to_numpy()
    ids = saved.read_json(tmp_path / "random" / "split.json")["ids"]
    held, learned = ({tuple(features[int(i)]) for i in ids[part]} for part in ("test", "train"))
    assert (sides["test to train"]["highest"] == 1.0) == bool(held & learned)
    for side in sides.values():
        for pair in side["pairs"]:
            one, other = list(pair.values())[:2]
            assert tuple(features[int(one)]) == tuple(features[int(other)])
    assert leakage(tmp_path / "random")["highest"] == 1.0
    assert all(side["num_near"] == 0 for side in leakage(tmp_path / "default")["sides"].values())


def test_no_run_and_unready_types_are_refused_by_name(csv, tmp_path, capsys):
    code, _, err = checked(capsys, "--leakage", tmp_path)
    assert code == 2
    assert "not a run folder" in err
    code, _, err = checked(capsys, "--data", csv, "--type", "audio")
    assert code == 2
    assert "not read yet" in err
    code, _, err = checked(capsys, "--data", csv, "--type", "tabluar")
    assert code == 2
    assert "tabular" in err


def test_a_run_folder_inside_its_own_data_is_refused(tmp_path):
    (tmp_path / "pictures" / "a").mkdir(parents=True)
    with pytest.raises(UsageError, match="inside its own data folder"):
        run.train("images/cnn-finetune", tmp_path / "pictures", out=tmp_path / "pictures" / "run")
    assert not (tmp_path / "pictures" / "run").exists()


def test_target_texts_are_no_classes_and_running_text_has_a_report_too(tmp_path, capsys):
    words = np.random.default_rng(0).permutation([f"word{i}" for i in range(600)])
    texts = [" ".join(words[i * 10 : i * 10 + 10]) for i in range(40)]
    pd.DataFrame({"source": texts, "target": texts[::-1]}).to_csv(tmp_path / "t.csv", index=False)
    _, out, _ = checked(capsys, "--data", tmp_path / "t.csv", "--type", "text", "--task", "seq2seq", "--json")
    found = json.loads(out)
    assert (found["classes"], found["target_range"], found["warnings"]) == (None, None, [])
    assert found["lengths"]["words"] == {"least": 10.0, "median": 10.0, "most": 10.0}
    (tmp_path / "c.txt").write_text("\n\n".join(texts * 200))
    _, out, _ = checked(capsys, "--data", tmp_path / "c.txt", "--type", "text", "--task", "generation", "--json")
    assert json.loads(out)["num_rows_used"] > 0


def test_every_label_of_several_columns_is_counted_and_what_is_not_known_is_no_class():
    sets = as_objects([("a", "c?"), ("a", "b?"), ("c?",)])
    assert class_counts(sets, ["a", "b", "c"]) == {"a": 2, "b": 0, "c": 0}
    assert class_counts(as_objects([("x", "y"), ("y",)])) == {"x": 1, "y": 2}


def test_groups_that_training_would_give_up_are_told():
    rows = FrameTable(pd.DataFrame({"y": np.arange(20.0)}), [str(i) for i in range(20)], "y", {})
    twins = SimpleNamespace(
        __name__="domains.twins.data",
        read=lambda data, request: Reading(rows, "regression", "y"),
        keys=lambda *_, **__: Keys("grouped", "two families", group=["a", "b"] * 10),
        profile=lambda *_: Profile(0),
    )
    found = check_data(twins, pd.DataFrame({"y": range(20)}), Request(), skip_bad=False, fast=False)
    (said,) = found["warnings"]
    assert said.startswith("optimistic scores: the groups leave a part without rows")
