"""What the loop promises, on small real tasks: right sums, budgets, best weights, early stops, divergence, signals."""

import gc
import math
import time

import numpy as np
import pytest
import torch
from toys import TokenTask, ToyWatch, VectorTask, plan_of, token_rows, vector_rows, vector_statistics

from trainers.contract import Batch
from trainers.errors import DataError, DivergedError, InterruptedByUser, StoppedError, UsageError
from trainers.feed import epoch_windows
from trainers.gradient import GradientLearner


@pytest.fixture(autouse=True)
def without_what_only_long_runs_need(monkeypatch):
    """Only a power cut needs fsync; and collecting the garbage of a test session takes longer than these trainings."""
    monkeypatch.setattr("trainers.checkpoint.sync", lambda path: None)
    monkeypatch.setattr("gc.collect", lambda: 0)


def fitted(folder, settings, *, rows=None, valid=None, make=VectorTask, statistics=vector_statistics, seed=0, **watch):
    """The learner, its figures and its watch after training."""
    watch = ToyWatch(folder, **watch)
    settings = {"precision": "fp32", **settings}
    learner = GradientLearner(plan_of(settings, seed=seed), statistics, lambda values, _: make(values))
    return learner, learner.fit(vector_rows(100) if rows is None else rows, valid, watch), watch


def fitted_tokens(folder, settings, num_rows=27):
    rows = token_rows(num_rows)
    return fitted(folder, settings, rows=rows, make=TokenTask, statistics=lambda _: {})


def weights(learner):
    return torch.cat([tensor.flatten() for tensor in learner.task.model.state_dict().values()])


@pytest.mark.parametrize(
    "cut", [{"micro_batch_size": 4}, {"micro_batch_size": 2}, {"micro_batch_size": 1}, {"micro_batch_tokens": 70}]
)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_ten_steps_in_micro_batches_equal_ten_steps_at_once(tmp_path, cut, optimizer):
    # 27 rows in batches of 8: ragged, masked at random, two losses, and a partial last window, twice over.
    base = {"steps": 10, "batch_size": 8, "lr": 0.02, "optimizer": optimizer}
    whole, facts, _ = fitted_tokens(tmp_path / "whole", base)
    parts, _, _ = fitted_tokens(tmp_path / "parts", {**base, **cut})
    assert facts["num_samples"] in (2 * 27 + 8 + 8, 2 * 27 + 8 + 3)
    torch.testing.assert_close(weights(parts), weights(whole), rtol=1e-5, atol=1e-5)


def test_the_loop_equals_sgd_written_out_in_float64(tmp_path):
    settings = {"steps": 9, "batch_size": 8, "lr": 0.05, "optimizer": "sgd", "momentum": 0.0, "schedule": "constant"}
    rows = vector_rows(27)
    learner, _, _ = fitted(
        tmp_path, {**settings, "warmup": 0, "clip": None, "weight_decay": 0, "micro_batch_size": 3}, rows=rows, seed=4
    )
    torch.manual_seed(4)
    values = vector_statistics(rows)
    model = VectorTask(values).model.double()
    x = torch.tensor(np.array(rows.column("x")))
    y = (torch.tensor(np.array(rows.column("target"))) - values["mean"]) / values["scale"]
    for step in range(9):
        window = epoch_windows(27, 8, seed=4, epoch=step // 4)[step % 4]
        loss = (model(x[window]).squeeze(1) - y[window]).square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.05 * gradient
    expected = torch.cat([parameter.flatten() for parameter in model.parameters()]).float()
    torch.testing.assert_close(weights(learner), expected, rtol=1e-5, atol=1e-6)


def test_every_example_is_drawn_once_an_epoch_also_from_buckets(tmp_path):
    class Noting(VectorTask):
        def sizes(self, examples):
            return [1 + at % 7 for at in examples]

        def draw(self, examples, rngs):
            self.drawn.append(list(examples))
            return super().draw(examples, rngs)

    learner, facts, _ = fitted(tmp_path, {"epochs": 1, "batch_size": 8, "micro_batch_size": 3}, make=Noting)
    # The feed draws one step ahead, so one step of the second epoch is drawn and never used.
    drawn = np.concatenate([each for each in learner.task.drawn if isinstance(each, list)]).tolist()
    assert facts["num_samples"] == 100
    assert drawn[:8] == drawn[8:16]  # the first step is drawn once before, to see how large it is
    assert sorted(drawn[8:108]) == list(range(100))


def test_a_task_without_sizes_or_labels_still_learns(tmp_path):
    _, facts, _ = fitted(tmp_path, {"epochs": 30, "lr": 0.01}, valid=vector_rows(50, 1))
    assert facts["best_score"] < 4.0, "a constant gives 14"


def test_a_term_that_counts_nothing_is_left_out_and_an_empty_step_is_skipped_aloud(tmp_path):
    rows = vector_rows(64)
    target = np.array(rows.column("target"))
    first = epoch_windows(64, 8, seed=0, epoch=0)[2]
    target[first] = math.nan
    rows.columns["target"] = list(target)
    learner, facts, watch = fitted(tmp_path, {"steps": 8, "batch_size": 8}, rows=rows)
    assert facts["num_skipped_steps"] == 1
    assert [event["text"] for event in watch.of_kind("warning")] == [
        "Step 3 skipped: none of its examples has a label."
    ]
    assert weights(learner).isfinite().all()


def test_a_term_without_labels_in_a_step_does_not_spoil_the_others(tmp_path):
    rows = token_rows(8)
    rows.columns["number"] = [math.nan] * 8
    learner, facts, _ = fitted(
        tmp_path, {"steps": 3, "batch_size": 8}, rows=rows, make=TokenTask, statistics=lambda _: {}
    )
    assert math.isfinite(facts["train_loss"])
    assert weights(learner).isfinite().all()


@pytest.mark.parametrize(
    ("budget", "num_steps", "reason"),
    [({"epochs": 1.5}, 6, "epochs"), ({"steps": 3}, 3, "steps"), ({}, 40, "epochs")],
)
def test_steps_and_epochs_end_exactly(tmp_path, budget, num_steps, reason):
    _, facts, watch = fitted(tmp_path, budget)
    assert (facts["num_steps"], facts["stopped_because"]) == (num_steps, reason)
    assert watch.of_kind("step")[-1]["progress"] == 1.0
    assert watch.of_kind("step")[-1]["last"]


def test_seconds_count_training_and_not_evaluation(tmp_path):
    _, facts, _ = fitted(tmp_path, {"seconds": 0.4}, valid=vector_rows(400, 1))
    assert facts["stopped_because"] == "seconds"
    assert 0.38 <= facts["seconds_train"] < 0.6
    assert facts["num_evaluations"] >= 1


@pytest.mark.parametrize("step_seconds", [0.01, 0.07])
def test_a_budget_in_seconds_ends_within_five_percent_of_itself(tmp_path, step_seconds):
    class Slow(VectorTask):
        def loss(self, model, inputs):
            time.sleep(step_seconds)
            return super().loss(model, inputs)

    _, facts, watch = fitted(tmp_path, {"seconds": 1.0, "lr": 0.01}, valid=vector_rows(9, 1), make=Slow)
    assert abs(facts["seconds_train"] - 1.0) <= 0.05
    assert watch.of_kind("step")[-1]["progress"] == 1.0
    assert watch.of_kind("step")[-1]["lr"] < 0.001, "the schedule came to its end"
    assert watch.of_kind("eval")[-1]["step"] == facts["num_steps"], "there was room for the last evaluation"


@pytest.mark.parametrize(("evaluations", "steps"), [(None, [4, 8, 12]), (2, [6, 12]), (5, [3, 5, 8, 10, 12])])
def test_evaluations_are_spread_or_come_once_an_epoch(tmp_path, evaluations, steps):
    settings = {"epochs": 3, "evaluations": evaluations}
    _, _, watch = fitted(tmp_path, settings, valid=vector_rows(9, 1))
    assert [event["step"] for event in watch.of_kind("eval")] == steps
    assert [event["step"] for event in watch.of_kind("save")] == steps


@pytest.mark.parametrize(("higher_is_better", "best"), [(False, 8), (True, 4)])
def test_the_best_weights_in_the_metrics_own_direction_are_kept(tmp_path, higher_is_better, best):
    valid = vector_rows(9, 1)
    scores = {"scores": [0.5, 0.1, 0.3], "higher_is_better": higher_is_better}
    learner, facts, _ = fitted(tmp_path / "a", {"epochs": 3, "schedule": "constant"}, valid=valid, **scores)
    assert (facts["best_step"], facts["kept"]) == (best, "best")
    until, _, _ = fitted(tmp_path / "b", {"steps": best, "schedule": "constant", "warmup": 0, "keep": "last"})
    again, _, _ = fitted(tmp_path / "c", {"epochs": 3, "schedule": "constant", "warmup": 0}, valid=valid, **scores)
    assert torch.equal(weights(again), weights(until))
    assert not torch.equal(weights(again), weights(learner)), "the warm-up makes a difference"


def test_patience_stops_after_that_many_evaluations_without_gain(tmp_path):
    _, facts, _ = fitted(tmp_path, {"epochs": 9, "patience": 2}, valid=vector_rows(9, 1), scores=[3, 1, 2, 1, 0])
    assert (facts["stopped_because"], facts["num_steps"], facts["best_step"]) == ("patience", 16, 8)


@pytest.mark.parametrize("undefined", [None, math.nan])
def test_an_undefined_score_keeps_the_last_weights_and_says_so(tmp_path, undefined):
    _, facts, watch = fitted(tmp_path, {"epochs": 2}, valid=vector_rows(9, 1), scores=[undefined])
    assert (facts["kept"], facts["best_score"]) == ("last", None)
    assert "mae is undefined" in watch.of_kind("warning")[0]["text"]


@pytest.mark.parametrize("valid", [None, vector_rows(9).take([])])
def test_without_validation_rows_the_last_weights_are_kept(tmp_path, valid):
    _, facts, watch = fitted(tmp_path, {"epochs": 2}, valid=valid)
    assert (facts["kept"], facts["num_evaluations"]) == ("last", 0)
    assert len(watch.of_kind("save")) == 2


def test_divergence_ends_with_a_diagnosis(tmp_path):
    with pytest.raises(DivergedError, match=r"--set train\.lr="):
        fitted(tmp_path, {"epochs": 50, "lr": 50.0, "optimizer": "sgd", "clip": None})


def test_a_layer_that_is_frozen_starts_to_learn_later(tmp_path):
    def body_and_head(settings):
        learner, _, _ = fitted(tmp_path / str(settings), settings)
        return [learner.task.model[0][0].weight.detach(), learner.task.model[1].weight.detach()]

    start = VectorTaskAt(0)
    frozen = body_and_head({"steps": 4, "freeze_epochs": 1})
    later = body_and_head({"steps": 5, "freeze_epochs": 1})
    assert torch.equal(frozen[0], start[0])
    assert not torch.equal(frozen[1], start[1])
    assert not torch.equal(later[0], start[0])


def VectorTaskAt(seed):
    """The weights that a fresh task starts from."""
    torch.manual_seed(seed)
    task = VectorTask({"mean": 0, "scale": 1})
    return [task.model[0][0].weight.detach().clone(), task.model[1].weight.detach().clone()]


@pytest.mark.parametrize(
    ("reason", "error", "code"), [("signal", StoppedError, 75), ("interrupt", InterruptedByUser, 130)]
)
def test_a_request_to_stop_saves_and_says_how_to_go_on(tmp_path, reason, error, code):
    with pytest.raises(error, match="after step 3") as caught:
        fitted(tmp_path, {"epochs": 2}, stop_at=(3, reason))
    assert caught.value.exit_code == code
    assert (tmp_path / "checkpoints" / "step-00000003" / "COMPLETE").exists()


def test_a_loss_that_couples_rows_is_not_cut(tmp_path):
    class Coupled(VectorTask):
        couples_rows = True

    fitted(tmp_path / "a", {"steps": 1, "micro_batch_size": 32}, make=Coupled)
    for cut in ({"micro_batch_size": 16}, {"micro_batch_tokens": 100}):
        with pytest.raises(UsageError, match="cannot be cut"):
            fitted(tmp_path / "b", {"steps": 1, **cut}, make=Coupled)


def test_batch_norm_never_meets_a_single_row(tmp_path):
    def make(values):
        return VectorTask(values, norm=True)

    learner, _, _ = fitted(
        tmp_path, {"epochs": 2, "batch_size": 8, "micro_batch_size": 4}, rows=vector_rows(17), make=make
    )
    assert weights(learner).isfinite().all()
    with pytest.raises(UsageError, match="micro_batch_size=2"):
        fitted(tmp_path / "b", {"epochs": 1, "micro_batch_size": 1}, make=make)
    with pytest.raises(UsageError, match="batch_size is 1"):
        fitted(tmp_path / "b", {"epochs": 1, "batch_size": 1}, make=make)
    with pytest.raises(DataError, match="1 training examples: this model needs at least 2"):
        fitted(tmp_path / "c", {"epochs": 1}, rows=vector_rows(1), make=make)


def test_the_collector_and_the_callers_chance_are_as_before(tmp_path):
    torch.manual_seed(11)
    np.random.seed(11)
    before = torch.get_rng_state()
    fitted(tmp_path, {"steps": 3})
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.rand() == np.random.RandomState(11).rand()


def test_a_failed_compile_in_the_first_step_goes_on_without(tmp_path, monkeypatch):
    def broken(model, **_):
        def forward(*_):
            raise RuntimeError("no compiler here")

        return forward

    monkeypatch.setattr(torch, "compile", broken)
    learner, facts, watch = fitted(tmp_path / "a", {"steps": 3, "compile": "on"})
    monkeypatch.undo()
    plain, _, _ = fitted(tmp_path / "b", {"steps": 3})
    assert torch.equal(weights(learner), weights(plain))
    assert facts["compiled_graphs"] == 0
    assert len(watch.of_kind("warning")) == 1


def test_bf16_trains_and_keeps_its_weights_in_float32(tmp_path):
    learner, facts, _ = fitted(tmp_path, {"epochs": 30, "lr": 0.01, "precision": "bf16"}, valid=vector_rows(50, 1))
    assert facts["best_score"] < 5.0
    assert all(parameter.dtype is torch.float32 for parameter in learner.task.model.parameters())


def test_a_loss_that_was_never_counted_is_an_error(tmp_path):
    class Uncounted(VectorTask):
        def loss(self, model, inputs):
            return {**super().loss(model, inputs), "extra": torch.zeros(())}

    with pytest.raises(ValueError, match=r"\['extra'\], which draw\(\) never counted"):
        fitted(tmp_path, {"steps": 1}, make=Uncounted)


def test_an_error_in_drawing_is_raised_as_it_is(tmp_path):
    class Broken(VectorTask):
        def draw(self, examples, rngs) -> Batch:
            raise DataError("cat.jpg cannot be read.")

    with pytest.raises(DataError, match=r"cat\.jpg"):
        fitted(tmp_path, {"steps": 3}, make=Broken)
