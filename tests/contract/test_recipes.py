"""The battery that every ready recipe passes: it learns, keeps what it learned, and leaks nothing."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import yaml
from contract import tiny
from contract.conftest import ready_cases, tiny_sets, train_tiny

import zoo
from domains.contract import Request
from trainers.errors import DataError, UsageError
from zoo import run, saved
from zoo.job import prepare
from zoo.plan import Wishes
from zoo.registry import load_registry


def test_it_does_better_than_the_trivial_baseline(tried):
    metrics = tried.run.metrics
    decides, sign = metrics["decides"], 1 if metrics["direction"] == "higher" else -1
    trivial = next(iter(metrics["baseline"].values()))[decides]["value"]
    # A constant has no rank correlation: then anything above zero is better.
    assert sign * metrics["test"][decides]["value"] > sign * (trivial if trivial is not None else 0.0)


def test_a_loaded_run_predicts_what_the_trained_one_did(tried):
    before, after = tried.run.predict(tried.data), zoo.load(tried.run.folder).predict(tried.data)
    pd.testing.assert_frame_equal(before, after, check_exact=False, atol=1e-6)


def test_every_row_is_answered_in_order_and_the_order_is_irrelevant(tried):
    frame = tiny.new_rows(tried.data)
    mixed = frame.sample(frac=1, random_state=0)
    straight, shuffled = tried.run.predict(frame), tried.run.predict(mixed)
    assert len(straight) == len(frame)
    assert shuffled.index.tolist() == mixed.index.tolist()
    again = shuffled.loc[frame.index]
    # bf16 in other batches: the same to a few parts in a thousand
    is_number = pd.api.types.is_numeric_dtype(straight["prediction"].dtype)
    if not is_number and not any(name.startswith(("probability_", "prediction_")) for name in straight):
        assert (straight["prediction"] == again["prediction"]).all()
        return
    for name in [c for c in straight if c.startswith(("probability_", "prediction_"))] or ["prediction"]:
        assert np.allclose(straight[name].astype(float), again[name].astype(float), atol=2e-2)


def test_no_id_is_in_two_parts(tried):
    ids = json.loads((tried.run.folder / "split.json").read_text())["ids"]
    everything = [name for part in ids.values() for name in part]
    assert len(everything) == len(set(everything))
    assert all(ids[part] for part in ("train", "valid", "test"))


def test_the_run_folder_holds_what_the_design_says(tried):
    folder = tried.run.folder
    for name in ("config.yaml", "plan.json", "actual.json", "split.json", "data.json", "env.json", "README.md"):
        assert (folder / name).is_file(), name
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["recipe"] == tried.recipe
    assert "--set" in config["origins"].values()
    actual = json.loads((folder / "actual.json").read_text())
    assert {"seconds_train", "peak_memory_bytes", "num_steps", "mfu", "compiled_graphs"} <= set(actual)
    lines = (folder / "predictions.csv").read_text().splitlines()
    assert lines[0].startswith("id,truth,prediction")
    assert len(lines) == 1 + tried.run.metrics["num_rows"]["test"]
    assert not list(folder.rglob("*.pkl")) + list(folder.rglob("*.pt"))
    saved.verify(folder)


def test_planning_twice_gives_the_same_plan(tried):
    def planned():
        wishes = Wishes(tried.sets)
        request = Request(target=tried.target, task=tried.task)
        return prepare(tried.recipe, tried.data, request=request, wishes=wishes, fast=True).plan

    assert planned() == planned()


@pytest.mark.parametrize("case", ready_cases(), ids="-".join)
def test_an_unknown_target_or_setting_ends_before_a_run_folder_is_made(case, tmp_path):
    recipe, task = case
    with pytest.raises((DataError, UsageError), match="nonsense"):
        train_tiny(recipe, task, tmp_path, target="nonsense")
    with pytest.raises(UsageError, match=r"train\.nonsense"):
        train_tiny(recipe, task, tmp_path, set={"train.nonsense": 1})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("case", [case for case in ready_cases() if case[1] == "classification"], ids="-".join)
def test_data_of_one_class_ends_before_a_run_folder_is_made(case, tmp_path):
    recipe, task = case
    data, target = tiny.made(recipe, task, tmp_path)
    if data.is_dir():
        shutil.rmtree(data / "blue")
    else:
        pd.read_csv(data).assign(**{str(target): "same"}).to_csv(data, index=False)
    with pytest.raises(DataError, match=r"one class|two classes|two different"):
        run.train(recipe, data, target=target, task=task, set=tiny_sets(recipe), fast=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_battery_checks_every_ready_recipe(request):
    """As many cases go through as the registry calls ready; conftest turns a skip among them into a failure."""
    ready = [recipe for recipe in load_registry().recipes.values() if recipe.status == "ready"]
    first = test_it_does_better_than_the_trivial_baseline.__name__
    cases = {item.callspec.params["tried"] for item in request.session.items if item.name.startswith(first)}
    assert cases == {(recipe.name, task) for recipe in ready for task in recipe.tasks}
    assert len(ready) >= 5
