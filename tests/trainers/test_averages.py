"""Averaged weights against their closed forms, and the choice among best, last and averaged."""

import numpy as np
import pytest
import torch
from test_loop import fitted, weights
from toys import VectorTask, vector_rows

from trainers import optim
from trainers.averages import averages_of, carrying, warmed_decay
from trainers.errors import UsageError
from trainers.settings import Gradient


def small(settings):
    torch.manual_seed(0)
    task = VectorTask({"mean": 0.0, "scale": 1.0})
    return task.model, optim.make_optimizer(task.model, task.roles(), settings)


def stepped(model, optimizer):
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_the_moving_average_equals_its_recursion_in_float64():
    model, optimizer = small(Gradient(ema=0.5))
    averages = averages_of(optimizer, Gradient(ema=0.5))
    expected = model[1].weight.detach().double().clone()
    for step in range(6):
        stepped(model, optimizer)
        averages.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model[1].weight.detach().double()
    torch.testing.assert_close(averages.tensors()["1.weight"].double(), expected, rtol=1e-6, atol=1e-7)


def test_the_decay_rises_to_its_setting():
    assert [warmed_decay(0.999, step) for step in (0, 8)] == [0.1, 0.5]
    assert warmed_decay(0.9, 10_000) == 0.9


def test_the_schedule_free_average_is_the_librarys_own():
    settings = Gradient(optimizer="schedule-free")
    model, optimizer = small(settings)
    for _ in range(5):
        stepped(model, optimizer)
    found = averages_of(optimizer, settings).tensors()
    optimizer.eval()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.detach())


def test_weights_come_back_bit_by_bit_after_carrying_averages():
    model, optimizer = small(Gradient(ema=0.9))
    averages = averages_of(optimizer, Gradient(ema=0.9))
    stepped(model, optimizer)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with carrying(model, averages):
        assert not torch.equal(model[1].weight, before["1.weight"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_two_averages_at_once_are_refused():
    settings = Gradient(optimizer="schedule-free", ema=0.9)
    with pytest.raises(UsageError, match="ema=null"):
        averages_of(small(settings)[1], settings)


def test_the_better_of_raw_and_averaged_weights_is_kept(tmp_path):
    class Watchful(VectorTask):
        pass

    valid = vector_rows(50, 1)
    base = {"epochs": 20, "lr": 0.05, "schedule": "constant", "batch_size": 4}
    learner, facts, watch = fitted(tmp_path / "a", {**base, "ema": 0.99}, valid=valid, make=Watchful)
    assert facts["kept"] == "best average", "at a rate that never falls, the average is quieter"
    scores = watch.of_kind("eval")
    assert all(event["score"] == min(event["raw_score"], event["average_score"]) for event in scores)
    error = np.abs(learner.predict(valid.without_target()).values - np.asarray(valid.column("target"))).mean()
    assert error == pytest.approx(facts["best_score"], rel=1e-6)
    _, plain, _ = fitted(tmp_path / "b", base, valid=valid)
    assert facts["best_score"] < plain["best_score"]


def test_the_last_average_is_kept_where_the_last_is_asked_for(tmp_path):
    base = {"steps": 20, "keep": "last", "lr": 0.05}
    averaged, facts, _ = fitted(tmp_path / "a", {**base, "ema": 0.9})
    plain, _, _ = fitted(tmp_path / "b", base)
    assert facts["kept"] == "last average"
    assert not torch.equal(weights(averaged), weights(plain))
