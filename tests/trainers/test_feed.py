"""The order of examples: nothing is lost, nothing depends on how it is cut."""

import threading
import time

import numpy as np
import pytest

from trainers.contract import Batch
from trainers.feed import (
    Ahead,
    Feed,
    Generators,
    dealt,
    epoch_windows,
    micro_batches,
    num_windows,
    size_order,
    total_counts,
)


def lengths(num_examples):
    return np.random.default_rng(0).integers(1, 100, num_examples)


@pytest.mark.parametrize("num_examples", [1, 5, 8, 31, 32, 33, 1001])
@pytest.mark.parametrize("is_bucketed", [False, True])
@pytest.mark.parametrize("min_rows", [1, 2])
def test_every_example_is_drawn_once_an_epoch(num_examples, is_bucketed, min_rows):
    sizes = lengths(num_examples) if is_bucketed else None
    windows = epoch_windows(num_examples, 8, seed=3, epoch=2, sizes=sizes, min_rows=min_rows)
    assert sorted(np.concatenate(windows).tolist()) == list(range(num_examples))
    assert len(windows) == num_windows(num_examples, 8, min_rows)


def test_the_longest_example_is_not_tied_to_the_partial_batch():
    sizes = np.arange(100)
    partial = [min(epoch_windows(100, 8, seed=0, epoch=e, sizes=sizes), key=len) for e in range(20)]
    assert len({99 in window for window in partial}) == 2 or not any(99 in window for window in partial)
    assert len({tuple(window) for window in partial}) == 20


def test_bucketing_wastes_little_padding():
    sizes = lengths(4000)
    for chosen, limit in [(None, 0.7), (sizes, 0.97)]:
        windows = epoch_windows(4000, 16, seed=0, epoch=0, sizes=chosen)
        padded = sum(len(window) * sizes[window].max() for window in windows)
        assert (sizes.sum() / padded > limit) == (chosen is not None or limit < 0.6)


def test_buckets_come_in_no_order_of_size():
    sizes = lengths(4000)
    means = [sizes[window].mean() for window in epoch_windows(4000, 16, seed=0, epoch=0, sizes=sizes)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.2


def test_the_order_follows_from_seed_and_epoch_alone():
    first = epoch_windows(100, 8, seed=1, epoch=4)
    assert all(np.array_equal(a, b) for a, b in zip(first, epoch_windows(100, 8, seed=1, epoch=4), strict=True))
    assert not np.array_equal(first[0], epoch_windows(100, 8, seed=1, epoch=5)[0])
    assert not np.array_equal(first[0], epoch_windows(100, 8, seed=2, epoch=4)[0])


def test_a_remainder_too_small_to_train_on_joins_the_window_before():
    assert [len(window) for window in epoch_windows(17, 8, seed=0, epoch=0, min_rows=2)] == [8, 9]
    assert [len(window) for window in epoch_windows(18, 8, seed=0, epoch=0, min_rows=2)] == [8, 8, 2]


@pytest.mark.parametrize(("rows", "tokens"), [(None, None), (4, None), (None, 300), (5, 200), (1, None)])
def test_micro_batches_hold_the_whole_window_within_both_limits(rows, tokens):
    sizes, window = lengths(64), np.random.default_rng(1).permutation(64)[:33]
    parts = micro_batches(window, sizes, rows=rows, tokens=tokens)
    assert sorted(np.concatenate(parts).tolist()) == sorted(window.tolist())
    for part in parts:
        assert rows is None or len(part) <= rows
        assert tokens is None or len(part) == 1 or len(part) * sizes[part].max() <= tokens


def test_an_example_longer_than_the_limit_is_alone():
    parts = micro_batches(np.arange(4), np.array([3, 50, 3, 3]), rows=None, tokens=10)
    assert [part.tolist() for part in parts] == [[0, 2, 3], [1]]


def test_no_micro_batch_is_smaller_than_the_model_can_train_on():
    assert [len(part) for part in micro_batches(np.arange(9), None, rows=4, tokens=None, min_rows=2)] == [4, 5]
    ragged = micro_batches(np.arange(4), np.array([3, 50, 3, 3]), rows=None, tokens=10, min_rows=2)
    assert [len(part) for part in ragged] == [4]


def test_dealing_gives_each_example_to_one_rank_and_like_sizes_to_all():
    window, sizes = np.array([4, 2, 0, 3, 1]), np.array([10, 20, 30, 40, 50])
    parts = [dealt(window, sizes, rank, 2).tolist() for rank in (0, 1)]
    assert parts == [[0, 2, 4], [1, 3]]
    assert [dealt(window, None, rank, 2).tolist() for rank in (0, 1)] == [[4, 0, 1], [2, 3]]


def test_ranks_for_whom_too_few_examples_are_left_get_none():
    assert [dealt(np.arange(5), None, rank, 4, min_rows=2).tolist() for rank in range(4)] == [[0, 2, 4], [1, 3], [], []]
    assert [dealt(np.arange(1), None, rank, 2, min_rows=2).tolist() for rank in range(2)] == [[0], []]


def test_a_rank_without_examples_computes_along_and_counts_nothing():
    feed = Feed(
        lambda examples, rngs: Batch(examples, {"a": float(len(examples))}),
        range(3),
        None,
        cut={"rows": None, "tokens": None, "min_rows": 1},
        batch_size=2,
        seed=0,
        rank=1,
        world=2,
    )
    assert [feed.drawn(step).is_extra for step in (0, 1)] == [False, True]
    assert feed.drawn(1).batches[0].counts == {"a": 0.0}


def test_chance_belongs_to_seed_step_and_example_not_to_place():
    these, those = Generators(7, 3, [10, 11, 12]), Generators(7, 3, [12, 10])
    assert these[2].random() == those[0].random()
    assert these[0].random() == those[1].random()
    assert these[1].random() != Generators(7, 4, [11])[0].random()
    assert these[1].random() != Generators(7, 3, [11])[0].random(), "asking again goes on where it was"
    assert len([rng.random() for rng in these]) == len(these[-2:]) + 1 == 3


def test_counts_add_up_by_term():
    batches = [Batch(None, {"a": 2.0}), Batch(None, {"a": 1.5, "b": 0.0})]
    assert total_counts(batches) == {"a": 3.5, "b": 0.0}


def test_rows_are_predicted_from_the_longest_to_the_shortest():
    assert size_order([3, 9, 9, 1], 4).tolist() == [1, 2, 0, 3]
    assert size_order(None, 3).tolist() == [0, 1, 2]


def test_ranks_together_draw_what_one_process_draws():
    def feed(rank, world):
        return Feed(
            lambda examples, rngs: Batch([(e, rng.random()) for e, rng in zip(examples, rngs, strict=True)], {}),
            range(20),
            list(range(20)),
            cut={"rows": 2, "tokens": None, "min_rows": 1},
            batch_size=8,
            seed=0,
            rank=rank,
            world=world,
        )

    for step in range(5):
        alone = [pair for batch in feed(0, 1).drawn(step).batches for pair in batch.inputs]
        both = [pair for rank in (0, 1) for batch in feed(rank, 2).drawn(step).batches for pair in batch.inputs]
        assert sorted(alone) == sorted(both)
        assert feed(1, 2).drawn(step).num_examples == len(alone)


def test_the_coming_step_is_made_in_another_thread_and_steps_come_in_order():
    threads = []

    def make(step):
        threads.append(threading.current_thread())
        time.sleep(0.002)
        return step * step

    with Ahead(make) as ahead:
        assert [ahead.take(step) for step in range(5, 9)] == [25, 36, 49, 64]
    assert threads[0] is threading.main_thread()
    assert threading.main_thread() not in threads[1:]


def test_what_is_made_in_no_time_is_made_when_it_is_asked_for():
    made = []
    with Ahead(made.append) as ahead:
        for step in range(3):
            ahead.take(step)
            assert made == list(range(step + 1))


def test_an_error_while_drawing_reaches_the_loop():
    def make(step):
        time.sleep(0.002)
        if step == 4:
            raise ValueError("bad picture in step 4")

    with Ahead(make) as ahead:
        ahead.take(3)
        with pytest.raises(ValueError, match="bad picture in step 4"):
            ahead.take(4)
