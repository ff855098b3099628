"""The loss as it is read, smoothed and judged, and what is said of a run that is lost: lists of numbers."""

import json
import math

import numpy as np
import pytest
import torch

from trainers.diagnosis import Findings, diverged, mean_cosine, plateau_advice
from trainers.guard import (
    LARGEST,
    SMOOTHING,
    Guard,
    LossReader,
    Reading,
    Smoothed,
    is_for_nothing,
    should_skip,
    stays_high,
)
from trainers.rollback import next_position, ramp_factor


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


def seen(losses, norms=None):
    guard = Guard()
    for at, loss in enumerate(losses):
        guard.judge(Reading(at + 1, loss, 0.1, 1.0 if norms is None else norms[at]), 100.0)
    return guard


def noise(num, level=1.0, sigma=0.05, seed=0):
    return [level * math.exp(x) for x in np.random.default_rng(seed).normal(0, sigma, num)]


def test_a_spike_is_an_outlier_and_a_usual_loss_is_not():
    limit, _ = seen(noise(60)).limits(100.0)
    assert 1.5 < limit < 3.0


def test_nothing_is_an_outlier_before_enough_was_seen():
    assert seen(noise(19)).limits(100.0) == (100.0, LARGEST)
    assert seen([]).limits(7.0) == (7.0, LARGEST)


def test_squared_errors_of_single_rows_are_hardly_ever_taken_for_outliers():
    # The heaviest tails that training usually meets: squares of normal numbers.
    losses = (np.random.default_rng(0).standard_normal(5000) ** 2).tolist()
    guard, num_skipped, num_back = Guard(), 0, 0
    for at, loss in enumerate(losses):
        is_skipped = loss > guard.limits(100.0)[0]
        verdict = guard.judge(Reading(at, loss, 0.1, 1.0, is_skipped), 100.0)
        num_skipped, num_back = num_skipped + is_skipped, num_back + (verdict == "go back")
    assert (num_skipped, num_back) == (0, 0)


def test_a_falling_loss_and_a_loss_near_zero_are_left_alone():
    falling = [10 * math.exp(-at / 50) for at in range(300)]
    jumping = [1e-6 * 10 ** (at % 4) for at in range(300)]
    guard = Guard()
    for at, loss in enumerate(falling + jumping):
        assert loss <= guard.limits(100.0)[0]
        assert guard.judge(Reading(at, loss, 0.1, 1.0), 100.0) == "fine"


def test_losses_below_zero_have_limits_too():
    guard = seen([-5.0 + 0.1 * x for x in np.random.default_rng(0).standard_normal(60)])
    limit, _ = guard.limits(100.0)
    assert -4.9 < limit < 0.0


def test_a_gradient_norm_far_above_the_others_is_an_outlier():
    _, limit = seen(noise(60), noise(60, level=2.0, seed=1)).limits(100.0)
    assert 8 < limit < 14


def test_a_new_level_is_taken_after_three_outliers_in_a_row():
    guard = seen(noise(60))
    for at in range(3):
        assert guard.judge(Reading(60 + at, 9.0, 0.1, 1.0, is_skipped=True), 100.0) == "skipped"
    assert guard.limits(100.0)[0] == 100.0
    guard.judge(Reading(64, 9.0, 0.1, 1.0), 100.0)
    assert guard.limits(100.0)[0] < 9.0


def test_a_loss_that_stays_high_asks_to_go_back_and_single_spikes_do_not():
    assert not stays_high(noise(100) + [9.0] * 9, 1.0)
    assert stays_high(noise(100) + noise(20, level=2.0), 1.0)
    assert not stays_high(noise(100) + noise(20, level=1.2), 1.0)
    assert is_for_nothing(noise(100) + [2.0] * 20, 2.0)
    assert not is_for_nothing([9.0] * 100 + [1.9] * 20, 2.0)
    guard, verdicts = seen(noise(100)), []
    for at in range(30):
        verdicts.append(guard.judge(Reading(100 + at, 5.0, 0.1, 1.0), 100.0))
    assert verdicts.index("go back") in range(9, 21)


def test_bad_steps_are_skipped_and_five_in_a_row_end_it():
    guard = seen(noise(30))
    bad = [Reading(31, math.nan, 0.1, 1.0), Reading(32, 1.0, 0.1, math.inf), Reading(33, 1e9, 0.1, 1.0)]
    assert [guard.judge(reading, 100.0) for reading in bad + bad[:2]] == ["skipped"] * 4 + ["give up"]
    guard = seen(noise(30))
    for _ in range(3):
        assert [guard.judge(reading, 100.0) for reading in bad] == ["skipped"] * 3
        guard.judge(Reading(34, 1.0, 0.1, 1.0), 100.0)


def test_a_bad_first_loss_is_hopeless_but_a_scale_that_is_too_high_is_not():
    assert Guard().judge(Reading(1, math.nan, 0.1, math.nan), 100.0) == "give up"
    guard, overflow = Guard(), Reading(1, 1.0, 0.1, math.inf, is_skipped=True)
    assert Guard().judge(overflow, 100.0) == "give up"
    assert [guard.judge(overflow, 100.0, is_scaled=True) for _ in range(20)] == ["skipped"] * 19 + ["give up"]


def test_a_guard_comes_back_from_its_own_values():
    guard = seen(noise(60))
    assert Guard(**json.loads(json.dumps(guard.as_json()))) == guard


def test_skipping_compares_loss_and_norm_with_their_limits():
    fine, nan = torch.tensor(1.0), torch.tensor(math.nan)
    assert not should_skip(fine, fine, (2.0, 2.0))
    assert should_skip(fine, fine, (0.5, 2.0))
    assert should_skip(fine, fine, (2.0, 0.5))
    assert should_skip(nan, fine, (2.0, 2.0))
    assert should_skip(fine, nan, (2.0, LARGEST))
    assert should_skip(fine, torch.tensor(math.inf), (2.0, LARGEST))


def said(reading, losses=(), **facts):
    return str(diverged(reading, losses, **{"max_loss": 100.0, "peak_lr": 0.1, **facts}))


def test_a_loss_that_is_not_finite_names_step_loss_rate_and_the_next_command():
    text = said(Reading(12, math.nan, 0.04, 1.0), [0.7] * 20)
    assert "step 12: the mean loss is nan (lr 0.04). NaN: It was 0.7 before." in text
    assert "--set train.lr=0.02" in text
    assert diverged(Reading(1, 1.0, 0.1), [], max_loss=1, peak_lr=1).exit_code == 5


def test_a_large_loss_names_its_limit():
    assert "1000, above train.max_loss=100" in said(Reading(12, 1000.0, 0.1, 1.0), [0.7] * 20)


def test_a_level_that_stays_high_is_told_by_the_steps_that_made_it_and_not_by_the_last_one():
    text = said(Reading(240, 0.11, 0.1, 1.0), [0.15] * 80 + [0.4, 0.36] * 10, num_rollbacks=3)
    assert "step 240: the mean loss stays high, 0.38, after going back" in text
    assert "Spike: It was 0.15 before." in text


def test_a_first_step_is_not_blamed_on_the_learning_rate():
    for loss in (math.inf, 5000.0):
        text = said(Reading(1, loss, 0.1, 1.0))
        assert "before any update" in text
        assert "train.lr" not in text


def test_each_way_to_diverge_has_its_name_and_next_command():
    last = Reading(99, 500.0, 0.1, 1.0)
    rising = [math.exp(at / 60) for at in range(110)]
    assert "Slow divergence: " in said(last, rising)
    assert "Spike: " in said(last, noise(110))
    collapsed = said(last, noise(110), seen=Findings(embedding_cosine=0.99))
    assert "Embedding collapse: " in collapsed
    assert "--set train.embedding_lr=0.01" in collapsed
    assert "QK-norm" in said(last, noise(110), seen=Findings(attention_entropy=0.01))
    assert "train.precision=bf16" in said(Reading(9, 1.0, 0.1, math.inf), noise(9), is_scaled=True)
    assert "3 times" in said(last, noise(110), num_rollbacks=3)


def test_a_loss_that_never_falls_is_a_plateau():
    assert "Plateau" in plateau_advice(1.0, noise(100), 0.1)
    assert "train.lr=0.3" in plateau_advice(1.0, noise(100), 0.1)
    assert plateau_advice(1.0, noise(100, level=0.5), 0.1) == ""
    assert plateau_advice(None, [], 0.1) == ""


def test_the_mean_cosine_equals_that_of_all_pairs():
    weight = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    rows = torch.nn.functional.normalize(weight.double(), dim=1)
    pairs = (rows @ rows.T)[~torch.eye(20, dtype=bool)]
    assert mean_cosine(weight) == pytest.approx(float(pairs.mean()), abs=1e-6)
    assert mean_cosine(torch.cat([torch.zeros(1, 3), torch.ones(4, 3)])) == pytest.approx(1.0)


def test_batches_that_are_passed_over_are_jumped_and_chains_of_them_too():
    assert [next_position(at, [[5, 8], [8, 9], [2, 3]]) for at in (1, 2, 4, 5, 7, 8, 9)] == [1, 3, 4, 9, 9, 9, 9]


def test_a_rate_that_was_lowered_rises_again():
    assert [ramp_factor(at, 100, 0.2) for at in (100, 200, 300, 999)] == pytest.approx([0.2, 0.6, 1.0, 1.0])
    assert ramp_factor(5, None, 0.2) == 1.0


def test_on_cpu_figures_are_read_at_once():
    reader = LossReader(torch.device("cpu"))
    reading = reader.read(1, torch.tensor(0.5), 0.1, torch.tensor(2.0), True, 7)
    assert reading == Reading(1, 0.5, 0.1, 2.0, True, 7)
    assert reader.rest() is None


def test_a_small_last_batch_has_room_for_the_spread_of_its_mean():
    guard = seen(noise(60))
    loss, norm = guard.limits(100.0)
    assert guard.limits(100.0, 1 / 16) == pytest.approx((min(100.0, 4 * loss), min(LARGEST, 4 * norm)))
    assert guard.limits(100.0, 1.0) == (loss, norm)
