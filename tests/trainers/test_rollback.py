"""Skipped steps and going back, in real training: poisoned batches, fp16, and resuming across all of it."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_gradient import assert_same_bits
from test_loop import fitted, weights
from toys import ToyWatch, VectorTask, plan_of, vector_rows

from trainers.errors import DivergedError, StoppedError
from trainers.feed import epoch_windows
from trainers.gradient import GradientLearner
from trainers.guard import Guard, Reading
from trainers.rollback import WayBack
from trainers.settings import Gradient
from trainers.state import State

SETTINGS = {"steps": 300, "batch_size": 4, "lr": 0.01, "save_steps": 25, "keep": "last", "clip": None, "warmup": 0.0}
NUM_STEPS, NUM_WINDOWS = 300, 400


@pytest.fixture(autouse=True)
def without_what_only_long_runs_need(monkeypatch):
    """Only a power cut needs fsync; and collecting the garbage of a test session takes longer than these trainings."""
    monkeypatch.setattr("trainers.checkpoint.sync", lambda path: None)
    monkeypatch.setattr("gc.collect", lambda: 0)


def poisoned(steps, factor):
    """Rows whose targets are `factor` times too large in the batches of these steps of the first epoch."""
    rows = vector_rows(4 * NUM_WINDOWS)
    target = np.array(rows.column("target"))
    windows = epoch_windows(len(rows), 4, seed=0, epoch=0)
    for step in steps:
        target[windows[step]] *= factor
    rows.columns["target"] = list(target)
    return rows


def honest(values):
    """A task whose scale does not know of the poison."""
    return VectorTask({"mean": 5.0, "scale": 22.0})


def test_a_batch_that_is_not_finite_is_skipped_and_named(tmp_path):
    rows = vector_rows(1600)
    at = epoch_windows(1600, 4, seed=0, epoch=0)[50][0]
    rows.columns["x"][at] = np.array([math.inf, 0, 0, 0])
    learner, facts, watch = fitted(tmp_path, SETTINGS, rows=rows, make=honest)
    assert weights(learner).isfinite().all()
    assert facts["num_skipped_steps"] == 1
    assert "Step 51 skipped: loss nan" in watch.of_kind("warning")[0]["text"]
    assert "number 50." in watch.of_kind("warning")[0]["text"]


def test_a_spoiled_batch_changes_nothing_but_its_own_step(tmp_path):
    spoiled, facts, _ = fitted(tmp_path / "a", {**SETTINGS, "optimizer": "sgd"}, rows=poisoned([60], 50), make=honest)
    clean, _, _ = fitted(tmp_path / "b", {**SETTINGS, "optimizer": "sgd"}, rows=poisoned([], 1), make=honest)
    assert facts["num_skipped_steps"] == 1
    assert (weights(spoiled) - weights(clean)).abs().max() < 0.05


def spoiled_run(folder, **watch):
    return fitted(folder, {**SETTINGS, "rollback_lr": 0.5}, rows=poisoned(range(150, 190), 8), make=honest, **watch)


def test_a_loss_that_stays_high_goes_back_and_passes_over_its_batches(tmp_path):
    learner, facts, watch = spoiled_run(tmp_path)
    back = watch.of_kind("rollback")[0]
    assert back["to"] == 125
    assert back["passed_over"][0] <= 150
    assert back["passed_over"][1] >= 190
    assert facts["num_rollbacks"] == 1
    assert facts["num_steps"] == NUM_STEPS
    assert weights(learner).isfinite().all()


def test_resuming_after_going_back_gives_the_same_bits(tmp_path):
    whole, facts, _ = spoiled_run(tmp_path / "whole")
    with pytest.raises(StoppedError):
        spoiled_run(tmp_path / "cut", stop_at=(230, "signal"))
    resumed, again, watch = spoiled_run(tmp_path / "cut")
    assert len(watch.of_kind("resume")) == 1
    assert again["num_rollbacks"] == facts["num_rollbacks"]
    assert_same_bits(resumed, whole)


def test_without_a_snapshot_from_before_training_goes_on_and_says_so(tmp_path):
    settings = {**SETTINGS, "save_steps": None}
    _, facts, watch = fitted(tmp_path, settings, rows=poisoned(range(150, 190), 8), make=honest)
    assert facts["num_rollbacks"] == 0
    assert any("no snapshot from before" in event["text"] for event in watch.of_kind("warning"))


def test_after_three_times_it_ends_with_a_diagnosis(tmp_path):
    with pytest.raises(DivergedError, match=r"3 times.*--set train"):
        fitted(tmp_path, {**SETTINGS, "save_steps": 10}, rows=poisoned(range(110, 400), 8), make=honest)


@pytest.mark.parametrize("is_hopeless", [False, True])
@pytest.mark.parametrize("first_loss", [1.0, 0.3])
def test_after_three_times_training_goes_on_where_the_loss_is_still_below_its_start(tmp_path, first_loss, is_hopeless):
    losses = [0.15] * 80 + [0.36] * 20
    state = State(0, 100, 10, step=240, num_rollbacks=3, guard=Guard(losses=losses, first_loss=first_loss))
    snapshots = SimpleNamespace(wait=lambda: None, newest_until=lambda step: tmp_path)
    model, watch = torch.nn.Linear(1, 1), ToyWatch(tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    never = pytest.fail
    way = WayBack(state, Gradient(), snapshots, optimizer, model, watch=watch, restore=never, save=never)
    way.lost, way.is_hopeless = Reading(240, 0.11, 0.1, 1.0), is_hopeless
    if is_hopeless or first_loss < 0.36:
        with pytest.raises(DivergedError, match="stays high"):
            way.go_back()
        return
    way.go_back()
    assert not way.is_lost
    assert state.guard == Guard(first_loss=first_loss)
    assert "though below its start, after going back 3 times" in watch.of_kind("warning")[0]["text"]


def test_with_the_guard_off_the_first_bad_loss_ends_it(tmp_path):
    rows = vector_rows(1600)
    rows.columns["x"][epoch_windows(1600, 4, seed=0, epoch=0)[50][0]] = np.array([math.nan, 0, 0, 0])
    with pytest.raises(DivergedError, match="step 51"):
        fitted(tmp_path, {**SETTINGS, "guard": False}, rows=rows, make=honest)


def test_fp16_trains_with_a_scaled_loss_and_resumes_exactly(tmp_path):
    settings = {"epochs": 20, "lr": 0.01, "precision": "fp16", "keep": "last", "batch_size": 8}
    rows, valid = vector_rows(80), vector_rows(50, 1)
    whole, facts, _ = fitted(tmp_path / "whole", settings, rows=rows, valid=valid)
    assert facts["best_score"] < 8.0, "a constant gives 14"
    assert all(parameter.dtype is torch.float32 for parameter in whole.task.model.parameters())
    with pytest.raises(StoppedError):
        fitted(tmp_path / "cut", settings, rows=rows, valid=valid, stop_at=(37, "signal"))
    resumed, _, _ = fitted(tmp_path / "cut", settings, rows=rows, valid=valid)
    assert_same_bits(resumed, whole)


def test_fp16_ends_after_too_many_overflows_in_a_row(tmp_path):
    class Overflowing(VectorTask):
        def loss(self, model, inputs):
            total = super().loss(model, inputs)["mse"]
            total.register_hook(lambda gradient: gradient * math.inf)
            return {"mse": total}

    with pytest.raises(DivergedError, match=r"fp16 overflow.*precision=bf16"):
        fitted(tmp_path, {"epochs": 20, "precision": "fp16"}, make=Overflowing)


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon+adamw"])
def test_on_cuda_a_bad_step_is_left_out_by_the_device(tmp_path, optimizer):
    rows = vector_rows(1600)
    rows.columns["x"][epoch_windows(1600, 4, seed=0, epoch=0)[50][0]] = np.array([math.inf, 0, 0, 0])
    settings = {**SETTINGS, "steps": 100, "precision": "fp32", "compile": "off", "optimizer": optimizer}
    learner = GradientLearner(plan_of(settings, device="cuda"), lambda _: {}, lambda values, _: honest(values))
    watch = ToyWatch(tmp_path)
    facts = learner.fit(rows, None, watch)
    assert weights(learner).isfinite().all()
    assert facts["num_skipped_steps"] == 1
    assert "Step 51 skipped" in watch.of_kind("warning")[0]["text"]
