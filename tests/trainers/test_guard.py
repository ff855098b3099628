"""The loss as it is read, smoothed and judged."""

import math

import pytest
import torch

from trainers.errors import DivergedError
from trainers.guard import SMOOTHING, LossReader, Reading, Smoothed, check_loss


def test_smoothing_has_no_pull_to_zero_and_equals_the_weighted_mean():
    losses = [3.0, 1.0, 4.0, 1.0, 5.0]
    smoothed = Smoothed()
    assert smoothed.value is None
    for loss in losses:
        smoothed.add(loss)
    weights = [SMOOTHING ** (len(losses) - 1 - at) for at in range(len(losses))]
    assert smoothed.value == pytest.approx(sum(w * x for w, x in zip(weights, losses, strict=True)) / sum(weights))


def test_a_constant_loss_is_shown_as_it_is_from_the_first_step():
    smoothed = Smoothed()
    smoothed.add(2.5)
    assert smoothed.value == pytest.approx(2.5)


def test_a_usual_loss_passes():
    check_loss(Reading(1, 99.0, 0.1), max_loss=100.0, usual=None, peak_lr=0.1)


def test_a_loss_that_is_not_finite_names_step_loss_rate_and_the_next_command():
    with pytest.raises(
        DivergedError, match=r"step 12: the mean loss is nan \(lr 0.04\).*--set train.lr=0.02"
    ) as caught:
        check_loss(Reading(12, math.nan, 0.04), max_loss=100.0, usual=0.7, peak_lr=0.1)
    assert caught.value.exit_code == 5


def test_a_large_loss_names_its_limit():
    with pytest.raises(DivergedError, match=r"1000, above train.max_loss=100"):
        check_loss(Reading(12, 1000.0, 0.1), max_loss=100.0, usual=0.7, peak_lr=0.1)


def test_a_first_step_is_not_blamed_on_the_learning_rate():
    for loss in (math.inf, 5000.0):
        with pytest.raises(DivergedError, match="before any update") as caught:
            check_loss(Reading(1, loss, 0.1), max_loss=100.0, usual=None, peak_lr=0.1)
        assert "train.lr" not in str(caught.value)


def test_a_gradient_that_is_not_finite_ends_training_before_it_spoils_the_weights():
    with pytest.raises(DivergedError, match="the norm of its gradient inf"):
        check_loss(Reading(3, 0.5, 0.1, math.inf), max_loss=100.0, usual=0.7, peak_lr=0.1)


def test_on_cpu_a_loss_is_read_at_once():
    reader = LossReader(torch.device("cpu"))
    assert reader.read(1, torch.tensor(0.5), 0.1) == Reading(1, 0.5, 0.1)
    assert reader.read(1, torch.tensor(0.5), 0.1, torch.tensor(2.0)) == Reading(1, 0.5, 0.1, 2.0)
    assert reader.rest() is None
