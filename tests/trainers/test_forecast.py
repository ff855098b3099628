"""What is said before the first step: live bytes against closed forms, the allocator's holes, time by rates and experience."""

import json
import time

import numpy as np
import pytest
import torch
from contract import tiny
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from domains.contract import Request
from trainers import experience, replay
from trainers.feed import Feed
from trainers.forecast import closed, hollow, whole_story
from trainers.speed import Rates, seconds_of
from trainers.trace import Operation, TooSlowError, Trace, stop_at
from zoo import forecasts, run
from zoo.job import prepare
from zoo.plan import Wishes

MIB = 1 << 20


def traced(inputs, compute):
    """The trace of `compute(*inputs)`, and what it returned."""
    shapes = FakeTensorMode(allow_non_fake_inputs=True)
    trace = Trace(shapes)
    fakes = trace.faked(list(inputs))
    with shapes, trace:
        return trace, compute(*fakes)


def test_live_bytes_are_those_of_tensors_that_are_held():
    def compute(x):
        a = x + 1  # held
        b = a * 2  # dropped with the next line
        return a, b.sum()

    trace, kept = traced([torch.zeros(1000)], compute)
    assert trace.live == 4000 + 4
    assert trace.peak == 2 * 4000 + 4
    del kept
    assert trace.live == 0


def test_a_training_step_holds_what_its_backward_pass_needs():
    rows, width = 64, 128
    shapes, model = hollow(nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(3))))
    trace = Trace(shapes)
    trace.know(list(model.parameters()))
    x = trace.faked(torch.zeros(rows, width))
    with shapes, trace:
        out = model(x)
        # The inputs of the second and third layer, and the answer.
        assert trace.live == 3 * 4 * rows * width
        out.sum().backward()
        del out
    assert trace.live == 3 * 4 * width * width  # gradients alone


def test_views_and_changes_in_place_take_nothing():
    trace, _ = traced([torch.zeros(10, 10)], lambda x: x.t().reshape(10, 10).add_(1)[:5])
    assert trace.peak <= 400  # reshape of the transposed one copies


def test_shapes_that_hang_on_whole_numbers_are_known():
    mask, ids = torch.tensor([True, False, True, True]), torch.tensor([3, 1, 2, 0])

    def compute(x, mask, ids):
        return x[mask], x[: int(ids.max())], torch.repeat_interleave(x, ids, dim=0), bool(mask.all())

    _, (chosen, some, repeated, is_all) = traced([torch.zeros(4, 7), mask, ids], compute)
    assert chosen.shape == (3, 7)
    assert some.shape == (3, 7)
    assert repeated.shape == (6, 7)
    assert not is_all


def test_flops_and_bytes_of_a_product_are_those_of_its_shapes():
    trace, _ = traced([torch.zeros(20, 30), torch.zeros(30, 40)], torch.mm)
    assert trace.operations == [Operation(2 * 20 * 30 * 40, 4 * (20 * 30 + 30 * 40 + 20 * 40), False)]


def worked(seconds):
    """Keep this thread busy for so long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_a_trace_that_takes_too_long_ends_between_two_modules():
    """And never inside of an operation, where PyTorch may end the whole process instead."""
    called = []

    class Slow(nn.Module):
        def forward(self, x):
            called.append(len(called))
            worked(0.05)
            return x + 1

    shapes, model = hollow(nn.Sequential(*(Slow() for _ in range(100))))
    stop_at(time.thread_time() + 0.2, model)
    trace = Trace(shapes)
    inputs = trace.faked(torch.zeros(3))
    with shapes, trace, pytest.raises(TooSlowError):
        model(inputs)
    assert 0 < len(called) < 100


def test_the_allocator_takes_what_is_held_and_reuses_what_is_free():
    made = [(number, MIB) for number in range(50)]
    once = replay.grown_by(closed(made))
    assert once == pytest.approx(50 * MIB, rel=0.05)
    again = [(number + 50, MIB) for number in range(50)]
    # Not all of it: an aligned piece needs a little more than one like it leaves, so neighbours have to join first.
    assert replay.grown_by([*closed(made), *closed(again)]) < 1.4 * once


def test_the_allocator_cannot_use_holes_for_larger_pieces():
    holes = [event for number in range(0, 100, 2) for event in ((number, MIB), (number + 1, MIB // 8))]
    freed = [(number, 0) for number in range(0, 100, 2)]
    larger = [(200 + number, 2 * MIB) for number in range(25)]
    assert replay.grown_by([*holes, *freed, *larger]) > 95 * MIB  # never more than 57 MiB are held


def test_tensors_take_more_than_their_numbers():
    """Single numbers: torch's objects are most of what they take."""
    grown = replay.grown_by([(number, 4) for number in range(20_000)])
    assert grown > 20_000 * (4 + sum(replay.RECORD_BYTES))


def test_what_the_first_step_leaves_is_made_only_once():
    step = [(0, 10), (1, 5), (1, 0)]  # 0: a state of the optimizer
    story = whole_story(step, [], averages=0, snapshot=0)
    assert [size for number, size in story if number == 0] == [10]
    assert sum(number == 1 and size == 5 for number, size in story) == 5
    halves = whole_story(step, [], averages=0, snapshot=0, other=0.5)
    assert [size for number, size in halves if number == 1 and size] == [5, 2, 5, 2, 5]


def test_whole_numbers_that_were_found_inside_are_known_to_what_hangs_on_them():
    shapes = FakeTensorMode(allow_non_fake_inputs=True)
    trace = Trace(shapes)
    ends = trace.faked(torch.tensor([0, 2, 2]))
    with shapes, trace:
        copies = torch.repeat_interleave(torch.bincount(ends))
        found = copies[copies.sort().values != 0]
    assert copies.shape == (3,)
    assert found.shape == (2,)


def test_time_is_the_longer_of_computing_and_moving():
    rates = Rates(flops_32=100.0, flops_16=200.0, bytes_per_second=10.0, call_seconds=0.5)
    both = [Operation(400, 10, False), Operation(400, 10, True), Operation(0, 30, False)]
    assert seconds_of(both, rates) == pytest.approx(4 + 2 + 3 + 3 * 0.5)


def past(recipe, took, bound=1.0, shape="s", batch_size=8):
    return {
        "time": 0.0, "recipe": recipe, "shape": shape, "batch_size": batch_size, "step_seconds": took,
        "typical_seconds": took, "bound_seconds": bound,
    }  # fmt: skip


def test_experience_of_the_same_recipe_counts_before_that_of_others():
    runs = [past("a", 2), past("a", 4), past("b", 9)]
    assert experience.learned(runs, "a", "other", 1.0).factor == 3
    assert experience.learned(runs, "c", "other", 1.0).factor == 4
    assert experience.learned([], "a", "other", 1.0).factor == 1
    assert not experience.learned(runs, "a", "other", 1.0).is_own


def test_of_runs_of_the_same_model_the_nearest_in_size_counts_and_of_those_the_last():
    runs = [past("a", 30, 10), past("a", 2, 1, batch_size=4), past("a", 5, 1, batch_size=5), past("b", 9)]
    assert experience.learned(runs, "a", "s", 12.0).factor == 3
    known = experience.learned(runs, "a", "s", 1.5)
    assert known.factor == 5
    assert known.is_own
    assert "batch 5" in known.source


def test_a_few_steps_of_long_rows_tell_of_a_middling_one():
    step = {"middling_tokens": 100.0}
    assert experience._typical_seconds(step, {"step_seconds": 9.0, "seconds_per_token": 0.02}) == pytest.approx(2)
    assert experience._typical_seconds({"middling_tokens": None}, {"step_seconds": 9.0}) == 9


def test_the_largest_step_is_found_by_its_padded_size():
    sizes = np.array([1, 1, 1, 1, 1, 9, 1, 1])
    feed = Feed(
        lambda *_: None, range(8), sizes, cut={"rows": None, "tokens": None, "min_rows": 1}, batch_size=2, seed=0
    )
    step, share = feed.largest_step()
    assert 5 in feed.window(step)
    assert share == pytest.approx(2 / 18)
    assert feed.largest_step(num_steps=step + 1)[0] == step
    assert feed.largest_step(num_steps=step or None)[0] < (step or feed.steps_per_epoch)


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(experience, "WORTH_BYTES", 0)
    data, target = tiny.made("tabular/mlp", "classification", tmp_path)
    return data, target, tiny.sets("tabular/mlp", "classification", data, target, tmp_path)


def test_a_plan_says_memory_by_term_and_takes_no_step(small):
    data, target, sets = small
    job = prepare("tabular/mlp", data, request=Request(target=target, task="classification"), wishes=Wishes(sets))
    found = forecasts.forecast_of(job)
    memory, weights = found["memory"], 4 * job.plan.estimates["num_parameters"]
    # float32 weights, a gradient each, two moments each and AdamW's counters
    assert memory["gradients_bytes"] == pytest.approx(weights, abs=64)
    assert memory["weights_bytes"] >= weights
    assert memory["optimizer_bytes"] == pytest.approx(2 * weights, rel=0.02)
    assert memory["peak_bytes"] >= memory["held_bytes"] + memory["kept_bytes"] > 100 * MIB
    assert memory["kept_bytes"] >= 0.09 * memory["held_bytes"]
    assert found["time"]["flops"] > 0
    assert any("memory, weights" in line for line in forecasts.lines_of(found))


def test_a_few_real_steps_tell_how_long_one_takes(small):
    data, target, sets = small
    job = prepare("tabular/mlp", data, request=Request(target=target, task="classification"), wishes=Wishes(sets))
    assert "roofline" in forecasts.forecast_of(job)["text"]
    took = forecasts.measured_step(job)
    assert 0 < took < 1
    # Half the batch has no more to do, by the same model's measurement.
    half = prepare(
        "tabular/mlp",
        data,
        request=Request(target=target, task="classification"),
        wishes=Wishes({**sets, "train.batch_size": max(1, job.plan.settings["batch_size"] // 2)}),
    )
    found = forecasts.forecast_of(half)
    assert f"with batch {job.plan.settings['batch_size']}" in found["text"]
    assert 0 < found["time"]["seconds"] <= took
    assert found["time"]["is_measured"]


def test_a_run_keeps_its_forecast_and_what_came_of_it(small):
    data, target, sets = small
    done = run.train("tabular/mlp", data, target=target, task="classification", set=sets)
    said = json.loads((done.folder / experience.FORECAST_FILE).read_text())
    actual = json.loads((done.folder / "actual.json").read_text())
    assert actual["forecast_memory_bytes"] == said["memory"]["peak_bytes"]
    assert actual["peak_training_bytes"] > 0
    (line,) = forecasts.past("tabular/mlp")
    assert line["peak_training_bytes"] == actual["peak_training_bytes"]
    assert forecasts.past("text/gpt-pretrain") == []
    assert "planned" in forecasts.table_of([line])[0]


def test_all_steps_take_their_number_times_a_step_with_a_range_and_cost_what_hours_do(small):
    data, target, sets = small
    job = prepare("tabular/mlp", data, request=Request(target=target, task="classification"), wishes=Wishes(sets))
    num = job.plan.estimates["num_steps"]
    measured = forecasts.total_of(job, {"measured_step_seconds": 36.0}, price=2.0, watts=500.0)
    assert measured["seconds"] == 36 * num
    assert measured["seconds_high"] == pytest.approx(1.25 * 36 * num)
    assert measured["cost"] == pytest.approx(0.02 * num)
    assert measured["kwh_low"] == pytest.approx(0.005 * num / 1.25)
    time = {"seconds": 3.0, "bound_seconds": 1.0, "is_measured": False}
    assert forecasts.total_of(job, {"time": time}, None, None) == {
        "num_steps": num, "seconds": 3 * num, "seconds_low": num, "seconds_high": 4 * num,
    }  # fmt: skip
    assert forecasts.total_of(job, None, 1.0, 1.0) == {}
