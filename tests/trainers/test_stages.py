"""Training in stages: which step is in which, what a task that has them draws, and that a resumed run draws the same."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from test_loop import fitted, weights
from toys import VectorTask, vector_rows

from trainers import meter
from trainers.contract import Batch, Stage, Staged
from trainers.errors import StoppedError, UsageError
from trainers.feed import Feed
from trainers.peak import Peak
from trainers.stages import Stages

CUT = {"rows": None, "tokens": None, "min_rows": 1}


@pytest.fixture(autouse=True)
def without_what_only_long_runs_need(monkeypatch):
    """Only a power cut needs fsync; and collecting the garbage of a test session takes longer than these trainings."""
    monkeypatch.setattr("trainers.checkpoint.sync", lambda path: None)
    monkeypatch.setattr("gc.collect", lambda: 0)


class GrowingTask(VectorTask):
    """Learns from one more copy of each vector in each stage, with noise of its own."""

    stages = (Stage(1 / 3, 1), Stage(2 / 3, 2), Stage(1.0, 3))

    def __init__(self, *args, **more) -> None:
        super().__init__(*args, noise=0.1, **more)
        self.drawn_in: list[int] = []

    def draw(self, examples, rngs, stage: int = -1) -> Batch:
        stage = range(len(self.stages))[stage]
        self.drawn_in.append(stage)
        parts = [super(GrowingTask, self).draw(examples, rngs) for _ in range(stage + 1)]
        inputs = {name: torch.cat([part.inputs[name] for part in parts]) for name in parts[0].inputs}
        return Batch(inputs, {"mse": sum(part.counts["mse"] for part in parts)})


@pytest.mark.parametrize("num_steps", [1, 2, 7, 9, 100])
@pytest.mark.parametrize("num_stages", [1, 3, 4])
def test_a_step_is_in_the_first_stage_that_ends_after_it(num_steps, num_stages):
    stages = Stages([Stage((at + 1) / num_stages) for at in range(num_stages)], num_steps)
    found = [stages.at(step) for step in range(num_steps)]
    # Step s of n lies in stage floor(s k / n), in whole numbers.
    assert found == [step * num_stages // num_steps for step in range(num_steps)]
    for stage in set(found):
        assert found.index(stage) == stages.start(stage)
    assert stages.at(num_steps + 30) == num_stages - 1


def test_the_price_of_a_middling_step_is_the_median_over_all_steps():
    stages = [Stage(0.2, 1), Stage(0.5, 4), Stage(0.9, 9), Stage(1.0, 6)]
    found = Stages(stages, 1000)
    costs = [
        next(stage.cost for stage in stages if Fraction(step, 1000) < Fraction(str(stage.until)))
        for step in range(1000)
    ]
    assert found.median_cost() == np.median(costs) / 9
    assert found.costliest() == 2


def test_the_step_that_is_forecast_is_a_whole_one_of_the_costliest_stage():
    # 4 epochs of 3 steps, the third of each short; stages begin at steps 0, 5 and 10.
    stages = Stages([Stage(5 / 12, 1), Stage(10 / 12, 4), Stage(1.0, 2)], 12)
    draw = lambda examples, rngs, stage: Batch((len(examples), stage), {})  # noqa: E731
    feed = Feed(draw, range(17), None, cut=CUT, batch_size=8, seed=0, stages=stages)
    step, share = feed.largest_step()
    assert feed.drawn(step).batches[0].inputs == (8, 1)
    assert share == 0.5


def test_each_step_is_drawn_in_its_stage_and_the_last_one_is_the_default(tmp_path):
    learner, facts, _ = fitted(tmp_path, {"epochs": 3, "batch_size": 20}, make=GrowingTask)
    assert isinstance(learner.task, Staged)
    assert not isinstance(VectorTask({"mean": 0, "scale": 1}), Staged)
    assert facts["num_steps"] == 15
    # Before the first step one is drawn to see whether a forecast is worth its time, and the feed may draw one more ahead.
    assert learner.task.drawn_in[1:16] == [0] * 5 + [1] * 5 + [2] * 5
    rng = np.random.default_rng
    last, default = (learner.task.draw([3], [rng(0)], *stage).inputs["x"] for stage in ((2,), ()))
    assert torch.equal(last, default)
    assert len(last) == 3


@pytest.mark.parametrize("stop", [4, 7, 12])
def test_a_run_stopped_in_any_stage_and_resumed_ends_with_the_same_bits(tmp_path, stop):
    settings = {"epochs": 3, "batch_size": 20, "save_steps": 2, "micro_batch_size": 7}
    whole, _, _ = fitted(tmp_path / "whole", settings, make=GrowingTask)
    with pytest.raises(StoppedError):
        fitted(tmp_path / "cut", settings, make=GrowingTask, stop_at=(stop, "signal"))
    resumed, _, watch = fitted(tmp_path / "cut", settings, make=GrowingTask)
    assert watch.of_kind("resume")[0]["step"] == stop
    assert torch.equal(weights(resumed), weights(whole))


def test_a_task_without_stages_and_one_with_an_empty_list_learn_the_same_bits(tmp_path):
    class Plain(GrowingTask):
        stages = ()

        def draw(self, examples, rngs, stage: int = -1) -> Batch:
            assert stage == -1
            return VectorTask.draw(self, examples, rngs)

    settings = {"epochs": 2, "batch_size": 20}
    one, _, _ = fitted(tmp_path / "a", settings, make=Plain)
    other, _, _ = fitted(tmp_path / "b", settings, make=lambda values: VectorTask(values, noise=0.1))
    assert torch.equal(weights(one), weights(other))


def test_a_budget_in_seconds_is_refused_for_it_leaves_the_stages_open(tmp_path):
    with pytest.raises(UsageError, match="--epochs"):
        fitted(tmp_path, {"seconds": 5.0}, make=GrowingTask)


def test_each_stage_is_counted_anew_for_the_share_of_the_peak(tmp_path, monkeypatch):
    monkeypatch.setattr(meter, "SECONDS_BEFORE", 0.0)
    monkeypatch.setattr(meter, "peak_of", lambda machine, dtype, cache: Peak(1e9, "a test"))
    _, facts, _ = fitted(tmp_path, {"epochs": 3, "batch_size": 20}, rows=vector_rows(100), make=GrowingTask)
    assert facts["flops_per_sample"] == 3 * (2 * 4 * 16 * 2 + 2 * 16 * 3)  # three vectors an example by the end
