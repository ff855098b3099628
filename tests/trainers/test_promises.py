"""The promises of the gradient core, kept on real data (handwritten digits), with a table of what came out.

    python -m pytest tests/trainers/test_promises.py

prints `promise | figure` when it is done. Each promise has closer tests in its own file; a hundred kills are in
test_kills.py (-m slow).
"""

import math
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import nn
from toys import ToyRows, ToyWatch, in_two_processes, plan_of

from trainers.contract import Batch, Predictions, Role
from trainers.errors import InterruptedByUser, StoppedError
from trainers.feed import epoch_windows
from trainers.gradient import GradientLearner
from zoo.watch import RunWatch

BASE = {"batch_size": 32, "lr": 0.003, "precision": "fp32"}


@pytest.fixture(autouse=True)
def without_what_only_long_runs_need(monkeypatch):
    """Only a power cut needs fsync; and collecting the garbage of a test session takes longer than these trainings."""
    monkeypatch.setattr("trainers.checkpoint.sync", lambda path: None)
    monkeypatch.setattr("gc.collect", lambda: 0)


@pytest.fixture(scope="module")
def table(request):
    """Collects (promise, figure), and prints them past pytest's capturing."""
    lines = []
    yield lambda promise, figure: lines.append((promise, figure))
    width = max(len(promise) for promise, _ in lines)
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{'promise':{width}} | figure")
        for promise, figure in lines:
            print(f"{promise:{width}} | {figure}")


class DigitsTask:
    """A small convolutional network on 8 x 8 pictures, with dropout."""

    couples_rows = False
    min_rows = 1

    def __init__(self, dropout=0.1):
        convolution = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.model = nn.Sequential(convolution, nn.Dropout(dropout), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10))

    def roles(self):
        kinds = {name: "matrix" if p.ndim > 1 else "scalar" for name, p in self.model.named_parameters()}
        return {name: Role("head" if name.startswith("4.") else kind) for name, kind in kinds.items()}

    def examples(self, train, folder):
        self.train = train
        return range(len(train))

    def sizes(self, examples):
        return None

    def draw(self, examples, rngs):
        pictures = torch.tensor(np.array([self.train.column("picture")[at] for at in examples], np.float32))
        labels = torch.tensor([self.train.column("target")[at] for at in examples])
        return Batch({"pictures": pictures, "labels": labels}, {"nll": float(len(labels))})

    def loss(self, model, inputs):
        return {"nll": nn.functional.cross_entropy(model(inputs["pictures"]), inputs["labels"], reduction="sum")}

    def row_sizes(self, rows):
        return None

    def collate(self, rows):
        return torch.tensor(np.array(rows.column("picture"), np.float32))

    def predict(self, model, inputs):
        return Predictions.of_labels(model(inputs).float().softmax(1).numpy(), list(range(10)))


def digits(part):
    """1,200 pictures for "train", the other 597 for "valid"."""
    found = load_digits()
    rows = slice(0, 1200) if part == "train" else slice(1200, None)
    pictures = (found.images[rows] / 16).astype(np.float32)[:, None]
    return ToyRows(picture=list(pictures), target=found.target[rows].tolist())


def trained(folder, settings, *, rows=None, valid=None, task=DigitsTask, **watch):
    watch = ToyWatch(folder, metric="error", **watch)
    learner = GradientLearner(plan_of({**BASE, **settings}), lambda _: {}, lambda *_: task())
    return learner, learner.fit(digits("train") if rows is None else rows, valid, watch), watch


def weights(learner):
    return torch.cat([tensor.flatten() for tensor in learner.task.model.state_dict().values()])


def exact():
    return DigitsTask(dropout=0.0)


def test_micro_batches_add_up_to_the_batch(tmp_path, table):
    whole, _, _ = trained(tmp_path / "0", {"steps": 10}, task=exact)
    worst = 0.0
    for size in (16, 8, 5):
        parts, _, _ = trained(tmp_path / str(size), {"steps": 10, "micro_batch_size": size}, task=exact)
        worst = max(worst, float((weights(parts) - weights(whole)).abs().max()))
    table("ten steps in micro-batches of 16, 8, 5 equal ten at once", f"largest difference of a weight {worst:.1e}")
    assert worst < 1e-5


TWO_RESUMED = {"epochs": 2, "save_steps": 20}


def digits_in_two(rank, folder):
    """Ten steps, and two epochs that were cut in the second one and resumed."""
    ten, _, seen = trained(folder / "ten", {"steps": 10}, task=exact, valid=digits("valid"), rank=rank, world=2)
    whole, _, _ = trained(folder / "whole", TWO_RESUMED, rank=rank, world=2)
    with pytest.raises(StoppedError):
        trained(folder / "cut", TWO_RESUMED, stop_at=(50, "signal") if rank else None, rank=rank, world=2)
    resumed, _, _ = trained(folder / "cut", TWO_RESUMED, rank=rank, world=2)
    found = {"ten": weights(ten), "whole": weights(whole), "resumed": weights(resumed)}
    save_file({**found, "score": torch.tensor(seen.of_kind("eval")[-1]["score"])}, folder / f"{rank}.safetensors")


def test_two_processes_are_as_good_as_one(tmp_path, table):
    in_two_processes(digits_in_two, tmp_path)
    alone, _, seen = trained(tmp_path / "alone", {"steps": 10}, task=exact, valid=digits("valid"))
    found = [load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1)]
    worst = max(float((each["ten"] - weights(alone)).abs().max()) for each in found)
    table("ten steps in two processes equal ten in one", f"largest difference of a weight {worst:.1e}")
    assert worst < 1e-5
    assert all(float(each["score"]) == pytest.approx(seen.of_kind("eval")[-1]["score"], abs=1e-6) for each in found)
    num_different = max(int((each["resumed"] != each["whole"]).sum()) for each in found)
    table("stopped and resumed with two processes", f"{num_different} of {len(found[0]['whole'])} weights differ")
    assert num_different == 0


def test_scores_do_not_depend_on_the_batch(tmp_path, table):
    learner, _, _ = trained(tmp_path, {"steps": 30})
    rows, found = digits("valid").without_target(), []
    for size in (1, 7, 64):
        learner.batch.size = size
        found.append(learner.predict(rows).scores)
    worst = max(float(np.abs(each - found[0]).max()) for each in found)
    table("predictions in batches of 1, 7, 64 are the same", f"largest difference {worst:.1e}")
    assert worst < 1e-6


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_a_time_budget_is_kept(tmp_path, table, seconds):
    _, facts, watch = trained(tmp_path, {"seconds": seconds}, valid=digits("valid"))
    off = facts["seconds_train"] / seconds - 1
    table(
        f"a budget of {seconds} s of training", f"{off:+.1%}, and {watch.of_kind('step')[-1]['progress']:.0%} progress"
    )
    assert abs(off) < 0.05


CASES = {
    "at the end of an epoch": ({}, 38),
    "within epoch 1": ({}, 11),
    "within epoch 2": ({}, 50),
    "with accumulation": ({"micro_batch_size": 10}, 50),
    "with averaged weights": ({"ema": 0.95}, 50),
    "with muon+adamw": ({"optimizer": "muon+adamw", "lr": 0.02}, 50),
    "with fp16": ({"precision": "fp16"}, 50),
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_has_the_same_bits(tmp_path, table, case):
    settings, stop = CASES[case]
    settings, valid = {"epochs": 2, **settings}, digits("valid").take(range(100))
    whole, facts, _ = trained(tmp_path / "whole", settings, valid=valid)
    with pytest.raises(StoppedError):
        trained(tmp_path / "cut", settings, valid=valid, stop_at=(stop, "signal"))
    resumed, again, _ = trained(tmp_path / "cut", settings, valid=valid)
    num_different = int((weights(resumed) != weights(whole)).sum())
    table(f"stopped and resumed {case}", f"{num_different} of {len(weights(whole))} weights differ")
    assert num_different == 0
    assert again["best_score"] == facts["best_score"]


def test_spoiled_batches_do_no_harm(tmp_path, table):
    rows, windows = digits("train"), epoch_windows(1200, 32, seed=0, epoch=0)
    rows.columns["picture"][windows[25][0]] = np.full((1, 8, 8), np.nan, np.float32)
    spoiled, facts, watch = trained(tmp_path / "a", {"epochs": 4}, rows=rows, valid=digits("valid"))
    _, clean, _ = trained(tmp_path / "b", {"epochs": 4}, valid=digits("valid"))
    table(
        "a picture of NaN: its step is skipped",
        f"{facts['num_skipped_steps']} skipped of {facts['num_steps']}, error {facts['best_score']:.3f}, without it "
        f"{clean['best_score']:.3f}",
    )
    assert weights(spoiled).isfinite().all()
    assert facts["num_skipped_steps"] == 4
    assert facts["best_score"] < clean["best_score"] + 0.03
    assert all("its batch is number" in event["text"] for event in watch.of_kind("warning"))


def test_a_loss_that_stays_high_is_left_behind(tmp_path, table):
    # Each picture three times, and a stretch of batches whose labels mean nothing.
    rows, rng = digits("train").take([at % 1200 for at in range(3600)]), np.random.default_rng(0)
    for window in epoch_windows(3600, 8, seed=0, epoch=0)[300:340]:
        for at in window:
            rows.columns["target"][at] = int(rng.integers(10))
    settings = {"steps": 350, "batch_size": 8, "save_steps": 20, "lr": 0.01}
    _, facts, watch = trained(tmp_path, settings, rows=rows, valid=digits("valid"))
    back = watch.of_kind("rollback")
    stretch = f"batches {back[0]['passed_over'][0]} to {back[0]['passed_over'][1] - 1}" if back else "none"
    table("random labels in batches 300 to 339: passed over", f"{stretch}, error {facts['best_score']:.3f}")
    assert facts["num_rollbacks"] >= 1
    assert back[0]["passed_over"][0] <= 300


def test_less_memory_gives_the_same_loss(tmp_path, table):
    class Short(DigitsTask):
        def __init__(self):
            super().__init__(dropout=0.0)

        def loss(self, model, inputs):
            if len(inputs["labels"]) > 6:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().loss(model, inputs)

    _, roomy, _ = trained(tmp_path / "a", {"steps": 30}, task=exact)
    _, short, watch = trained(tmp_path / "b", {"steps": 30}, task=Short)
    off = abs(short["train_loss"] / roomy["train_loss"] - 1)
    steps_down = len(watch.of_kind("warning"))
    table("room for 6 of 32 pictures: the same loss", f"{steps_down} halvings, loss off by {off:.1e}")
    assert (steps_down, off < 1e-5) == (3, True)


def watched(folder):
    folder.mkdir()
    return RunWatch(folder, SimpleNamespace(name="error", higher_is_better=False), None)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)], ids=["TERM", "USR1", "INT"]
)
def test_signals_save_and_end_with_their_code(tmp_path, table, number, code):
    class Sending(DigitsTask):
        def loss(self, model, inputs):
            if self.num_losses == 7:
                os.kill(os.getpid(), number)
            self.num_losses += 1
            return super().loss(model, inputs)

        num_losses = 0

    watch = watched(tmp_path / "run")
    learner = GradientLearner(plan_of({**BASE, "epochs": 1}), lambda _: {}, lambda *_: Sending())
    with pytest.raises((StoppedError, InterruptedByUser)) as caught, watch.hearing_signals():
        learner.fit(digits("train"), None, watch)
    saved = [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")]
    table(f"{number.name} at step 8", f"exit code {caught.value.exit_code}, saved {saved[0]}")
    assert (caught.value.exit_code, saved) == (code, ["step-00000008"])


def test_a_file_named_stop_ends_the_run(tmp_path, table):
    watch = watched(tmp_path / "run")
    (tmp_path / "run" / "STOP").touch()
    learner = GradientLearner(plan_of({**BASE, "epochs": 1}), lambda _: {}, lambda *_: DigitsTask())
    with pytest.raises(StoppedError) as caught:
        learner.fit(digits("train"), None, watch)
    table("a file STOP in the run folder", f"exit code {caught.value.exit_code}")


def test_every_promise_learns_something(tmp_path, table):
    _, facts, _ = trained(tmp_path, {"epochs": 8, "ema": 0.98, "lr": 0.01}, valid=digits("valid"))
    table("all of it together learns digits", f"error {facts['best_score']:.3f} ({facts['kept']})")
    assert facts["best_score"] < 0.12
    assert math.isfinite(facts["train_loss"])
