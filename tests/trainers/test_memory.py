"""Running out of memory: by a named seam, and for real under a limit in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_gradient import assert_same_bits
from test_loop import fitted, fitted_tokens, weights
from toys import TokenTask, VectorTask, token_rows, vector_rows

from trainers.errors import DoesNotFitError, StoppedError
from trainers.memory import checkpoint_activations, is_out_of_memory

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def without_what_only_long_runs_need(monkeypatch):
    """Only a power cut needs fsync; and collecting the garbage of a test session takes longer than these trainings."""
    monkeypatch.setattr("trainers.checkpoint.sync", lambda path: None)
    monkeypatch.setattr("gc.collect", lambda: 0)


def short_of(task, most):
    """A task that has room for `most` rows at once."""

    class Short(task):
        def loss(self, model, inputs):
            rows = len(next(iter(inputs.values())))
            if rows > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return super().loss(model, inputs)

        def predict(self, model, inputs):
            if len(inputs) > most:
                raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")
            return super().predict(model, inputs)

    return Short


def test_what_allocators_say_is_understood_and_other_errors_are_not():
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.parametrize("most", [16, 5, 2])
def test_less_memory_gives_the_same_training_in_smaller_parts(tmp_path, most):
    settings = {"steps": 10, "batch_size": 32, "lr": 0.02, "keep": "last"}
    roomy, facts, _ = fitted(tmp_path / "a", settings)
    short, again, watch = fitted(tmp_path / "b", settings, make=short_of(VectorTask, most))
    torch.testing.assert_close(weights(short), weights(roomy), rtol=1e-5, atol=1e-5)
    assert again["train_loss"] == pytest.approx(facts["train_loss"], rel=1e-5)
    texts = [event["text"] for event in watch.of_kind("warning")]
    assert len(texts) == {16: 1, 5: 3, 2: 4}[most]
    assert "micro-batches now hold at most 16 examples, for the same batch" in texts[0]


def test_ragged_batches_cut_by_tokens_come_out_the_same(tmp_path):
    settings = {"steps": 10, "batch_size": 8, "micro_batch_tokens": 240, "lr": 0.02}
    roomy, _, _ = fitted_tokens(tmp_path / "a", settings)
    rows = token_rows(27)
    short, _, watch = fitted(tmp_path / "b", settings, rows=rows, make=short_of(TokenTask, 3), statistics=lambda _: {})
    torch.testing.assert_close(weights(short), weights(roomy), rtol=1e-5, atol=1e-5)
    assert watch.of_kind("warning")


def test_a_run_resumed_after_it_came_down_the_ladder_has_the_same_bits(tmp_path):
    settings, make = {"steps": 12, "save_steps": 2, "keep": "last"}, short_of(VectorTask, 8)
    whole, _, _ = fitted(tmp_path / "a", settings, make=make)
    with pytest.raises(StoppedError):
        fitted(tmp_path / "b", settings, make=make, stop_at=(7, "signal"))
    resumed, _, watch = fitted(tmp_path / "b", settings, make=make)
    assert not watch.of_kind("warning"), "the smaller micro-batches were remembered"
    assert_same_bits(resumed, whole)


def test_at_the_foot_of_the_ladder_the_error_says_what_else_saves_memory(tmp_path):
    with pytest.raises(DoesNotFitError, match="optimizer=adafactor") as caught:
        fitted(tmp_path, {"steps": 3}, make=short_of(VectorTask, 0))
    assert caught.value.exit_code == 4


def test_a_model_that_offers_it_computes_activations_twice_before_giving_up(tmp_path):
    calls = []

    class Offering(short_of(VectorTask, 1)):
        def __init__(self, values):
            super().__init__(values)
            self.model.set_grad_checkpointing = calls.append

        def loss(self, model, inputs):
            if not calls:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return VectorTask.loss(self, model, inputs)

    _, facts, watch = fitted(tmp_path, {"steps": 3, "batch_size": 2}, make=Offering)
    assert calls == [True]
    assert facts["num_steps"] == 3
    assert "computed twice" in watch.of_kind("warning")[-1]["text"]


def test_a_transformer_of_the_library_is_found_inside_a_recipes_model():
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=9)
    inner = BertModel(config)
    assert checkpoint_activations(torch.nn.ModuleDict({"encoder": inner}))
    assert inner.is_gradient_checkpointing
    assert not checkpoint_activations(torch.nn.Linear(2, 2))


def test_batch_norm_is_warned_of(tmp_path):
    task = short_of(VectorTask, 8)
    _, _, watch = fitted(tmp_path, {"steps": 3}, make=lambda values: task(values, norm=True))
    assert "BatchNorm" in watch.of_kind("warning")[0]["text"]


def test_evaluation_needs_no_more_memory_than_there_is(tmp_path):
    rows, valid = vector_rows(64), vector_rows(50, 1)
    settings = {"steps": 4, "eval_batch_size": 32, "micro_batch_size": 4}
    short, facts, watch = fitted(tmp_path / "a", settings, rows=rows, valid=valid, make=short_of(VectorTask, 7))
    roomy, again, _ = fitted(tmp_path / "b", settings, rows=rows, valid=valid)
    assert facts["best_score"] == pytest.approx(again["best_score"], rel=1e-6)
    texts = [event["text"] for event in watch.of_kind("warning")]
    assert texts == [f"Out of memory while predicting: now {size} rows at once." for size in (16, 8, 4)]
    np.testing.assert_allclose(
        short.predict(valid.without_target()).values, roomy.predict(valid.without_target()).values
    )


SCRIPT = """
import resource, sys
import torch
from toys import *
from trainers.gradient import GradientLearner
from pathlib import Path
torch.set_num_threads(1)
class Wide(VectorTask):
    def loss(self, model, inputs):
        x = inputs["x"].repeat(1, 250_000) * 1.0  # a million numbers a row: 4 MB, kept for backward
        wide = (x * model[1].weight.mean()).sin().sum(1) * 1e-9
        error = model(inputs["x"]).squeeze(1) + wide - inputs["y"]
        return {"mse": (error.square() * inputs["is_known"]).sum()}
settings = {"steps": 2, "batch_size": 64, "precision": "fp32", "keep": "last"}
def run(folder):
    learner = GradientLearner(plan_of(settings), vector_statistics, lambda s, p: Wide(s))
    watch = ToyWatch(Path(folder))
    facts = learner.fit(vector_rows(64), None, watch)
    print(facts["train_loss"], sum("Out of memory" in e["text"] for e in watch.of_kind("warning")), flush=True)
settings["micro_batch_size"] = 4
run(sys.argv[1] + "/roomy")
settings["micro_batch_size"] = None
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 300_000_000,) * 2)
run(sys.argv[1] + "/short")
"""


def test_under_a_real_limit_of_memory_training_ends_with_the_same_loss(tmp_path):
    paths = os.pathsep.join([str(HERE), str(HERE.parent.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (roomy, none), (short, some) = (line.split() for line in done.stdout.splitlines())
    assert (int(none), int(some) > 0) == (0, True)
    assert float(short) == pytest.approx(float(roomy), rel=1e-5)
