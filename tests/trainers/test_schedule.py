"""Schedules against their closed forms."""

import math

import pytest

from trainers.schedule import (
    STEPS_GUESSED,
    Budget,
    crosses_mark,
    decay_factor,
    is_affordable,
    lr_factor,
    momentum_at,
    short_budget_advice,
)
from trainers.settings import Gradient

SHAPES = ["cosine", "trapezoid", "wsd", "constant"]


def settings(**values):
    return Gradient(**values)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_rises_linearly_through_its_warm_up(shape):
    chosen = settings(schedule=shape, warmup=0.2)
    assert [lr_factor(p, settings(schedule="constant", warmup=0.2)) for p in (0.0, 0.05, 0.1)] == [0.0, 0.25, 0.5]
    assert lr_factor(0.1, chosen) == pytest.approx(0.5)
    assert lr_factor(0.2, chosen) == pytest.approx(1.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_without_warm_up_the_first_step_has_the_full_rate(shape):
    assert lr_factor(0.0, settings(schedule=shape, warmup=0)) == 1.0


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_every_falling_shape_ends_at_its_floor(shape):
    assert lr_factor(1.0, settings(schedule=shape, final_lr=0.1)) == pytest.approx(0.1)


def test_cosine_is_half_a_cosine_between_peak_and_floor():
    chosen = settings(schedule="cosine", warmup=0.1, final_lr=0.2)
    for share in (0.25, 0.5, 0.9):
        expected = 0.2 + 0.8 * (1 + math.cos(math.pi * share)) / 2
        assert lr_factor(0.1 + 0.9 * share, chosen) == pytest.approx(expected)


def test_trapezoid_is_flat_and_then_a_straight_line():
    chosen = settings(schedule="trapezoid", warmup=0.1, warmdown=0.4)
    assert [lr_factor(p, chosen) for p in (0.3, 0.6, 0.7, 0.8)] == pytest.approx([1, 1, 0.75, 0.5])


def test_wsd_falls_by_one_minus_the_root():
    chosen = settings(schedule="wsd", warmup=0, warmdown=0.5)
    assert [lr_factor(p, chosen) for p in (0.5, 0.625, 0.755)] == pytest.approx([1, 0.5, 1 - math.sqrt(0.51)])


def test_a_warm_down_of_nothing_stays_at_the_peak():
    assert lr_factor(1.0, settings(schedule="trapezoid", warmup=0, warmdown=0)) == 1.0


def test_fractions_of_epochs_become_steps_and_never_none():
    assert Budget.of(settings(epochs=2.5), 10) == Budget("epochs", 25)
    assert Budget.of(settings(epochs=0.01), 10) == Budget("epochs", 1)
    assert Budget.of(settings(), 7) == Budget("epochs", 70)


def test_progress_counts_steps_or_seconds_and_stops_at_one():
    assert Budget("steps", 8).progress(2, 99.0) == 0.25
    assert Budget("seconds", 8).progress(99, 2.0) == 0.25
    assert Budget("seconds", 8).progress(0, 80.0) == 1.0


def test_no_step_of_a_schedule_has_a_rate_of_zero():
    budget, chosen = Budget("steps", 20), settings(schedule="cosine", warmup=0.05)
    assert min(lr_factor(budget.progress_within(step, 0.0), chosen) for step in range(20)) > 0


@pytest.mark.parametrize("num_steps", [1, 3, 7, 29, 100])
@pytest.mark.parametrize("num_marks", [1, 2, 5])
def test_marks_are_crossed_as_often_as_there_are_marks(num_steps, num_marks):
    crossed = [crosses_mark(at / num_steps, (at + 1) / num_steps, num_marks) for at in range(num_steps)]
    assert sum(crossed) == min(num_steps, num_marks)
    assert crossed[-1]


def test_evaluating_stays_within_a_tenth_of_the_time():
    assert is_affordable(0.0, 0, 0.1)
    assert is_affordable(4.0, 4, 50.0)
    assert not is_affordable(4.0, 4, 49.0)


def test_weight_decay_falls_to_nothing_where_it_is_linear():
    assert [decay_factor(at, Gradient(decay_schedule="linear")) for at in (0.0, 0.25, 1.0)] == [1.0, 0.75, 0.0]
    assert decay_factor(0.5, Gradient()) == 1.0


def test_momentum_rises_from_its_start_over_its_share_of_training():
    settings = Gradient(optimizer="sgd", momentum=0.95, momentum_warmup=0.5)
    assert [momentum_at(at, settings) for at in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.85, 0.9, 0.95, 0.95])
    assert momentum_at(0.5, Gradient()) is None


def test_momentum_is_not_warmed_up_where_betas_say_it_and_betas_are_shares():
    with pytest.raises(ValueError, match="adamw has betas"):
        Gradient(momentum_warmup=0.5)
    with pytest.raises(ValueError, match="less than 1"):
        Gradient(betas=(1.5, 2))


@pytest.mark.parametrize("num_examples", [1, 63, 64, 65, 84, 1000])
@pytest.mark.parametrize("epochs", [0.1, 1.5, 10])
def test_the_steps_of_a_plan_are_those_of_the_budget(num_examples, epochs):
    settings = Gradient(batch_size=64, epochs=epochs)
    assert settings.planned_steps(num_examples) == Budget.of(settings, -(-num_examples // 64)).amount


def test_seconds_end_at_the_step_that_ends_nearest_to_them():
    budget = Budget("seconds", 10.0)
    assert budget.progress(0, 9.4, 1.0) == pytest.approx(0.94)
    assert budget.progress(0, 9.5, 1.0) == 1.0
    assert budget.progress_within(0, 9.4, 1.0) == pytest.approx(0.99)
    assert budget.progress_within(0, 0.0) == pytest.approx(0.5 / STEPS_GUESSED)


def test_the_first_step_of_a_budget_in_seconds_learns_at_some_rate():
    settings = Gradient(seconds=60, warmup=0.05)
    assert lr_factor(Budget.of(settings, 10).progress_within(0, 0.0), settings) > 0.05


def test_a_budget_for_few_steps_is_told_and_one_in_steps_is_not():
    seconds = Budget.of(Gradient(seconds=60), 10)
    assert "1 step of 58 s" in short_budget_advice(seconds, 1, 58.0)
    assert short_budget_advice(seconds, 500, 60.0) == ""
    assert short_budget_advice(Budget.of(Gradient(steps=3), 10), 3, 1.0) == ""
