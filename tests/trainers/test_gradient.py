"""The learner around a task: predicting, saving, and exact resuming after any kind of end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from toys import TokenTask, ToyWatch, VectorTask, plan_of, token_rows, vector_rows, vector_statistics

from trainers.contract import Predictions
from trainers.errors import StoppedError, UsageError
from trainers.gradient import GradientLearner, kept_statistics

HERE = Path(__file__).parent
FULL = {"epochs": 3, "batch_size": 8, "lr": 0.01, "precision": "fp32", "keep": "last"}


@pytest.fixture(autouse=True)
def without_what_only_long_runs_need(monkeypatch):
    """Only a power cut needs fsync; and collecting the garbage of a test session takes longer than these trainings."""
    monkeypatch.setattr("trainers.checkpoint.sync", lambda path: None)
    monkeypatch.setattr("gc.collect", lambda: 0)


def learner_of(settings, *, seed=0, **task):
    calls = []

    def statistics(train):
        calls.append("statistics")
        return vector_statistics(train)

    def make_task(values, pretrained):
        calls.append(pretrained)
        return VectorTask(values, **task)

    learner = GradientLearner(plan_of(settings, seed=seed), statistics, make_task)
    learner.calls = calls
    return learner


def bits(learner):
    return {name: tensor.clone() for name, tensor in learner.task.model.state_dict().items()}


def assert_same_bits(learner, other):
    found, expected = bits(learner), bits(other)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


VARIANTS = {
    "plain": ({}, {}),
    "dropout": ({}, {"dropout": 0.3}),
    "accumulation": ({"micro_batch_size": 3}, {"dropout": 0.3}),
    "batch norm": ({}, {"norm": True}),
    "augmented": ({}, {"noise": 0.5}),
    "sgd": ({"optimizer": "sgd"}, {}),
    "muon": ({"optimizer": "muon+adamw"}, {"dropout": 0.3}),
    "soap": ({"optimizer": "soap"}, {}),
    "averaged": ({"ema": 0.9, "keep": "best"}, {"dropout": 0.3}),
    "averaged to the last": ({"ema": 0.9}, {}),
    "schedule-free": ({"optimizer": "schedule-free", "keep": "best"}, {"norm": True}),
    "frozen at first": ({"freeze_epochs": 1.5}, {"dropout": 0.3}),
    "best": ({"keep": "best", "evaluations": 5, "patience": 4}, {"dropout": 0.3}),
    "mid-epoch saves": ({"save_steps": 3}, {"dropout": 0.3, "noise": 0.5}),
}


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory):
    """Each variant trained without a break: (learner, figures)."""
    runs = {}
    for name, (settings, task) in VARIANTS.items():
        learner = learner_of({**FULL, **settings}, **task)
        facts = learner.fit(vector_rows(45), vector_rows(20, 1), ToyWatch(tmp_path_factory.mktemp("whole")))
        runs[name] = learner, facts
    return runs


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("end", [(2, "signal"), (7, "signal"), (11, "crash")])
def test_a_run_that_ended_early_and_was_resumed_has_the_same_bits(tmp_path, whole_runs, name, end):
    settings, task = VARIANTS[name]
    settings, rows, valid = {**FULL, **settings}, vector_rows(45), vector_rows(20, 1)
    whole, facts = whole_runs[name]
    with pytest.raises((StoppedError, RuntimeError)):
        learner_of(settings, **task).fit(rows, valid, ToyWatch(tmp_path / "cut", stop_at=end))
    resumed, watch = learner_of(settings, **task), ToyWatch(tmp_path / "cut")
    again = resumed.fit(rows, valid, watch)
    assert_same_bits(resumed, whole)
    assert len(watch.of_kind("resume")) == 1
    assert resumed.calls == [False], "statistics are read back, and no pretrained weights are fetched"
    for figure in ("num_steps", "num_samples", "best_step", "best_score", "train_loss", "stopped_because", "kept"):
        assert again[figure] == facts[figure]


def test_killed_with_sigkill_in_its_second_epoch_and_resumed_the_bits_are_the_same(tmp_path):
    settings = {**FULL, "save_steps": 2, "micro_batch_size": 4, "keep": "best"}
    script = (
        "from toys import *; from trainers.gradient import GradientLearner; from pathlib import Path\n"
        f"learner = GradientLearner(plan_of({settings!r}), vector_statistics, lambda s, p: VectorTask(s, dropout=0.3))\n"
        f"watch = ToyWatch(Path({str(tmp_path / 'killed')!r}), stop_at=(9, 'kill'))\n"
        "learner.fit(vector_rows(45), vector_rows(20, 1), watch)"
    )
    paths = os.pathsep.join([str(HERE), str(HERE.parent.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    assert subprocess.run([sys.executable, "-c", script], env=environment, check=False).returncode == -signal.SIGKILL
    resumed, whole = learner_of(settings, dropout=0.3), learner_of(settings, dropout=0.3)
    watch = ToyWatch(tmp_path / "killed")
    resumed.fit(vector_rows(45), vector_rows(20, 1), watch)
    whole.fit(vector_rows(45), vector_rows(20, 1), ToyWatch(tmp_path / "whole"))
    # Step 8's snapshot was given to the thread just before the kill: it is there as a whole or not at all.
    assert watch.of_kind("resume")[0]["step"] in (6, 8)
    assert_same_bits(resumed, whole)


def test_a_torn_newest_snapshot_costs_steps_and_no_bits(tmp_path):
    settings = {**FULL, "save_steps": 2}
    whole = learner_of(settings)
    whole.fit(vector_rows(45), None, ToyWatch(tmp_path / "whole"))
    with pytest.raises(StoppedError):
        learner_of(settings).fit(vector_rows(45), None, ToyWatch(tmp_path / "cut", stop_at=(9, "signal")))
    (tmp_path / "cut" / "checkpoints" / "step-00000009" / "model.safetensors").write_bytes(b"torn")
    resumed, watch = learner_of(settings), ToyWatch(tmp_path / "cut")
    resumed.fit(vector_rows(45), None, watch)
    assert [event["step"] for event in watch.of_kind("resume")] == [8]
    assert "step-00000009 is not used: model.safetensors has changed" in watch.of_kind("warning")[0]["text"]
    assert_same_bits(resumed, whole)


def test_a_finished_run_that_is_fitted_again_takes_no_step(tmp_path):
    first, second = learner_of({**FULL, "keep": "best"}), learner_of({**FULL, "keep": "best"})
    facts = first.fit(vector_rows(45), vector_rows(20, 1), ToyWatch(tmp_path))
    watch = ToyWatch(tmp_path)
    assert second.fit(vector_rows(45), vector_rows(20, 1), watch)["best_step"] == facts["best_step"]
    assert watch.calls == 0
    assert_same_bits(second, first)


def test_other_rows_or_another_seed_are_no_continuation(tmp_path):
    with pytest.raises(StoppedError):
        learner_of(FULL).fit(vector_rows(45), None, ToyWatch(tmp_path, stop_at=(2, "signal")))
    with pytest.raises(UsageError, match="num_examples=45, now it is 44"):
        learner_of(FULL).fit(vector_rows(44), None, ToyWatch(tmp_path))
    with pytest.raises(UsageError, match="seed=0, now it is 1"):
        learner_of(FULL, seed=1).fit(vector_rows(45), None, ToyWatch(tmp_path))


def test_the_seed_decides_everything(tmp_path):
    runs = [learner_of(FULL, seed=seed, dropout=0.3, noise=0.1) for seed in (3, 3, 4)]
    for at, learner in enumerate(runs):
        torch.manual_seed(at)
        learner.fit(vector_rows(45), None, ToyWatch(tmp_path / str(at)))
    assert_same_bits(runs[0], runs[1])
    assert not torch.equal(bits(runs[0])["1.weight"], bits(runs[2])["1.weight"])


def test_statistics_are_fitted_once_and_hold_what_json_holds(tmp_path):
    learner = GradientLearner(
        plan_of(FULL), lambda train: {**vector_statistics(train), "pair": (1, 2)}, lambda s, _: VectorTask(s)
    )
    learner.fit(vector_rows(20), None, ToyWatch(tmp_path))
    assert learner.statistics["pair"] == [1, 2]


def test_a_saved_learner_predicts_the_same_and_needs_nothing_else(tmp_path):
    learner = learner_of(FULL, norm=True)
    learner.fit(vector_rows(45), None, ToyWatch(tmp_path))
    learner.save(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.safetensors", "statistics.json"]
    flags = []
    loaded = GradientLearner.load(
        learner.plan, tmp_path / "model", lambda s, pretrained: flags.append(pretrained) or VectorTask(s, norm=True)
    )
    rows = vector_rows(20, 1).without_target()
    assert flags == [False]
    assert np.array_equal(loaded.predict(rows).values, learner.predict(rows).values)
    loaded.save(tmp_path / "again")
    for name in ("model.safetensors", "statistics.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()


def test_predictions_keep_the_order_of_rows_and_do_not_depend_on_the_batch(tmp_path):
    rows = token_rows(40)
    answers = []
    for size in (1, 7, 64):
        plan = plan_of({**FULL, "eval_batch_size": size})
        learner = GradientLearner(plan, lambda _: {}, lambda s, _: TokenTask(s))
        learner.fit(rows, None, ToyWatch(tmp_path / str(size)))
        answers.append(learner.predict(rows).values)
    np.testing.assert_allclose(answers[1], answers[0], atol=1e-6)
    np.testing.assert_allclose(answers[2], answers[0], atol=1e-6)
    mixed = np.random.default_rng(0).permutation(40)
    np.testing.assert_allclose(learner.predict(rows.take(mixed)).values, answers[2][mixed], atol=1e-6)


def test_training_goes_on_after_a_forward_that_cached_a_table(tmp_path):
    class Caching(VectorTask):
        """Keeps the table of its first forward, as rotary embeddings do."""

        table = None

        def features(self, x):
            if self.table is None:
                self.table = torch.ones(16) * x.new_ones(1)
            return self.model[0](x) * self.table

        def loss(self, model, inputs):
            error = model[1](self.features(inputs["x"])).squeeze(1) - inputs["y"]
            return {"mse": error.square().sum()}

        def predict(self, model, inputs):
            self.table = None
            return Predictions.of_numbers(model[1](self.features(inputs)).squeeze(1).numpy())

    learner = GradientLearner(plan_of(FULL), vector_statistics, lambda s, _: Caching(s))
    learner.fit(vector_rows(20), vector_rows(9, 1), ToyWatch(tmp_path))


def test_settings_are_validated_when_the_learner_is_made():
    with pytest.raises(ValueError, match="micro_batchsize"):
        learner_of({"micro_batchsize": 4})
    with pytest.raises(ValueError, match="more than one budget"):
        learner_of({"epochs": 1, "steps": 4})


def test_predicting_before_there_is_a_model_is_our_own_fault():
    with pytest.raises(RuntimeError, match=r"before fit\(\) or load\(\)"):
        learner_of(FULL).predict(vector_rows(3))


def test_statistics_that_were_changed_are_said_aloud_and_computed_again(tmp_path):
    said, path = [], tmp_path / "statistics.json"
    first = kept_statistics(path, lambda: {"mean": 1.0})
    assert kept_statistics(path, lambda: {"mean": 2.0}) == first
    path.write_text(path.read_text().replace("1.0", "1.5"))
    assert kept_statistics(path, lambda: {"mean": 1.0}, lambda **event: said.append(event["text"])) == first
    path.write_text("{")
    assert kept_statistics(path, lambda: {"mean": 1.0}) == first
    assert len(said) == 1
    assert "changed since it was written" in said[0]
