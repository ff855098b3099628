"""Folds and seeds: several runs of the one pipeline in one folder, scored together, resumed, answering by their mean."""

import csv
import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

import zoo
from trainers.contract import Predictions
from trainers.errors import DataError, UsageError
from zoo.ensemble import mean_of
from zoo.many_scores import over_runs

FAST = {"train.rounds": 3}
RECIPE = "tabular/xgboost"


def frame(num_rows=60):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=num_rows), "who": [f"p{i // 4}" for i in range(num_rows)]})
    return table.assign(y=np.where(table["x"] + rng.normal(size=num_rows) > 0, "yes", "no"))


def rows_of(folder):
    with (folder / "predictions.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def json_of(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folds(tmp_path_factory):
    out = tmp_path_factory.mktemp("folds") / "p"
    return zoo.train(RECIPE, frame(), target="y", group="who", folds=3, set=FAST, out=out)


def test_every_row_has_one_out_of_fold_answer_and_no_group_is_on_two_sides(folds):
    rows, who = rows_of(folds.folder), frame()["who"]
    assert [row["id"] for row in rows] == [str(i) for i in range(60)]
    assert {row["fold"] for row in rows} == {"0", "1", "2"}
    for number in range(3):
        ids = json_of(folds.folder / f"fold-{number}" / "split.json")["ids"]
        sides = [{who[int(name)] for name in ids[part]} for part in ("train", "valid", "test")]
        assert sum(map(len, sides)) == len(set(who))
        assert sorted(ids["test"], key=int) == [row["id"] for row in rows if row["fold"] == str(number)]


def test_the_score_of_all_folds_is_that_of_scikit_learn_on_the_out_of_fold_answers(folds):
    rows = rows_of(folds.folder)
    truth, scores = [row["truth"] == "yes" for row in rows], [float(row["probability_yes"]) for row in rows]
    assert folds.metrics["test"]["auc"]["value"] == pytest.approx(roc_auc_score(truth, scores))
    assert folds.metrics["baseline"]["majority"]["auc"]["low"] is not None
    assert folds.metrics["num_rows"]["test"] == 60
    each = [json_of(folds.folder / f"fold-{k}" / "metrics.json")["test"]["auc"]["value"] for k in range(3)]
    assert folds.metrics["runs"]["test"]["auc"]["mean"] == pytest.approx(np.mean(each))


def test_a_fold_is_the_run_that_its_split_makes_alone(folds, tmp_path):
    alone = zoo.train(RECIPE, frame(), target="y", group="who", split="fold-1-of-3", set=FAST, out=tmp_path / "r")
    for name in ("predictions.csv", "metrics.json", "split.json", "plan.json"):
        assert (alone.folder / name).read_bytes() == (folds.folder / "fold-1" / name).read_bytes()


def test_the_folder_answers_by_the_mean_of_its_folds(folds):
    rows = frame().drop(columns="y")
    each = [zoo.load(folds.folder / f"fold-{k}").predict(rows)["probability_yes"] for k in range(3)]
    np.testing.assert_allclose(zoo.load(folds.folder).predict(rows)["probability_yes"], np.mean(each, axis=0))
    said: list[str] = []
    assert zoo.load(folds.folder).evaluate(frame(), say=said.append)["auc"]["value"] > 0.5
    splits = [json_of(folds.folder / f"fold-{k}" / "split.json")["ids"]["train"] for k in range(3)]
    assert any(f"trained on {len(set().union(*splits))} of {len(frame())} rows" in line for line in said)


def test_what_was_stopped_goes_on_and_finished_folds_are_not_run_again(folds, tmp_path, monkeypatch):
    from zoo import run

    whole, began = run._judge, []

    def stops_at_the_second(job, learner, say):
        began.append(job.split.evidence["fold"]["number"])
        if began == [0, 1]:
            raise DataError("gone.")
        return whole(job, learner, say)

    monkeypatch.setattr("zoo.run._judge", stops_at_the_second)
    out = tmp_path / "p"
    with pytest.raises(DataError, match=r"fold-1: gone\..*zoo resume .*p$"):
        zoo.train(RECIPE, frame(), target="y", group="who", folds=3, set=FAST, out=out)
    done = zoo.resume(out, data=frame())
    assert began == [0, 1, 1, 2]
    assert done.metrics == folds.metrics
    with pytest.raises(UsageError, match="finished"):
        zoo.resume(out, data=frame())


def test_seeds_are_whole_runs_with_mean_and_deviation_and_share_the_budget(tmp_path):
    found = zoo.train(RECIPE, frame(), target="y", seed=4, seeds=2, set=FAST, out=tmp_path / "p")
    each = [json_of(tmp_path / "p" / name / "metrics.json")["test"]["auc"]["value"] for name in ("seed-4", "seed-5")]
    assert found.metrics["test"]["auc"]["value"] == pytest.approx(np.mean(each))
    plan = zoo.plan(RECIPE, frame(), target="y", seeds=4, budget=20)
    assert (plan.settings["seconds"], plan.estimates["all_runs"]["budget_seconds"]) == (5, 20)


def test_mean_deviation_and_interval_over_runs_are_those_of_scipy():
    values = [0.5, 0.7, 0.65, 0.9]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    found = over_runs([*values, None])
    assert (found["low"], found["high"], found["sd"]) == pytest.approx((low, high, np.std(values, ddof=1)))


def test_two_runs_have_no_interval_as_it_would_leave_the_range_of_the_score():
    found = over_runs([0.9, None, 0.8])
    assert found["mean"] == pytest.approx(0.85)
    assert found["sd"] == pytest.approx(0.1 / np.sqrt(2))
    assert found["low"] is None
    assert found["high"] is None


def test_a_class_that_one_model_does_not_know_has_probability_zero_there():
    both = Predictions.of_labels(np.array([[0.5, 0.3, 0.2]]), ("a", "b", "c"))
    one = Predictions.of_labels(np.array([[0.4, 0.6]]), ("a", "c"))
    found = mean_of([both, one])
    np.testing.assert_allclose(found.scores, [[0.45, 0.15, 0.4]])
    assert found.values.tolist() == ["a"]


def test_what_cannot_be_is_refused_before_a_folder_is_made(tmp_path):
    with pytest.raises(UsageError, match="one at a time"):
        zoo.train(RECIPE, frame(), target="y", folds=2, seeds=2, out=tmp_path / "p")
    given = frame().assign(split=["train"] * 40 + ["test"] * 20)
    with pytest.raises(UsageError, match=r"fixes which rows are the test.*--seeds 5"):
        zoo.train(RECIPE, given, target="y", folds=2, out=tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_small_biomedical_sets_get_a_command_with_folds():
    assert zoo.recommend("molecules", n=1_999).next_command.endswith(" --folds 5")
    assert "--folds" not in zoo.recommend("molecules", n=2_000).next_command
    assert "--folds" not in zoo.recommend("tabular", n=100).next_command


def test_molecules_with_one_scaffold_are_in_one_fold():
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

    from domains.contract import Request
    from zoo.job import gather
    from zoo.many import jobs_of
    from zoo.plan import Wishes

    rings = ("c1ccccc1", "C1CCCCC1", "c1ccncc1", "C1CCOC1", "c1ccsc1", "C1CCNC1", "c1ccoc1", "C1CC1")
    smiles = [f"{'C' * tail}{ring}" for ring in rings for tail in (1, 2, 3, 4)]
    data = pd.DataFrame({"smiles": smiles, "y": np.linspace(0, 1, len(smiles))})
    wishes = Wishes()
    material = gather("molecules/fingerprint-trees", data, request=Request(target="y"), wishes=wishes)
    jobs = jobs_of(material, wishes, split=None, folds=4, seeds=None, say=None)
    assert sorted(np.concatenate([job.split.test for job in jobs])) == list(range(len(smiles)))
    for job in jobs:
        parts = [getattr(job.split, part) for part in ("train", "valid", "test")]
        sides = [{MurckoScaffoldSmiles(smiles[row]) for row in part} for part in parts]
        assert sum(map(len, sides)) == len(rings)
