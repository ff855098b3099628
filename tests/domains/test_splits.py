"""Splits: sizes, class shares, whole groups, time order, and rows moved for likeness."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domains.contract import Keys, Request
from domains.splits import make_split, sortable
from domains.tabular import data as tabular
from domains.text import data as texts
from trainers.errors import DataError, UsageError


def parts_of(split):
    return [set(split.train.tolist()), set(split.valid.tolist()), set(split.test.tolist())]


@given(
    groups=st.lists(st.integers(0, 12), min_size=30, max_size=200),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_no_group_is_ever_on_two_sides_and_no_row_is_lost(groups, seed):
    keys = Keys("grouped", "by family", group=groups, stratum=[g % 2 for g in groups])
    try:
        split = make_split(keys, len(groups), seed=seed, named=True)
    except DataError:
        return  # too few groups for three parts
    train, valid, test = parts_of(split)
    assert train | valid | test == set(range(len(groups)))
    sides = [{groups[i] for i in part} for part in (train, valid, test)]
    assert not sides[0] & sides[1]
    assert not sides[0] & sides[2]
    assert not sides[1] & sides[2]


def test_stratified_shares_are_within_one_row_of_70_15_15_in_every_class():
    labels = ["a"] * 200 + ["b"] * 100 + ["c"] * 20
    split = make_split(Keys("stratified", stratum=labels), len(labels), seed=1)
    for name in "abc":
        rows = {i for i, label in enumerate(labels) if label == name}
        for part, share in zip(parts_of(split), (0.7, 0.15, 0.15), strict=True):
            assert abs(len(part & rows) - share * len(rows)) <= 1


def test_a_class_of_two_rows_goes_to_train():
    labels = [3] * 40 + [9] * 2
    split = make_split(Keys("stratified", stratum=labels), len(labels), seed=0)
    assert {40, 41} <= set(split.train.tolist())


def test_grouped_split_keeps_sizes_and_class_shares_near_the_target():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 300, 2000)
    label = (group % 5 == 0).astype(int)
    split = make_split(Keys("grouped", group=group, stratum=label), 2000, seed=3)
    sizes = [len(part) / 2000 for part in parts_of(split)]
    assert np.allclose(sizes, [0.7, 0.15, 0.15], atol=0.02)
    shares = [label[list(part)].mean() for part in parts_of(split)]
    assert np.ptp(shares) < 0.05


def test_a_family_with_a_fifth_of_the_rows_goes_whole_to_train():
    group = [0] * 300 + list(range(1, 701))
    split = make_split(Keys("grouped", group=group), 1000, seed=0)
    assert set(range(300)) <= set(split.train.tolist())


def test_rows_that_still_hit_train_move_there_with_their_group_until_nothing_hits():
    """Rows i and i + 1 are alike for i in a chain of four: moving one pulls the next."""
    chain = [10, 11, 12, 13]

    def links(these, those):
        near = {(a, b) for a, b in itertools.pairwise(chain)}
        return np.array([0.9 if any((a, b) in near or (b, a) in near for b in those) else 0.0 for a in these])

    split = make_split(Keys("grouped", group=list(range(100)), links=links), 100, seed=5)
    sides = [next(k for k, part in enumerate(parts_of(split)) if row in part) for row in chain]
    assert len(set(sides)) == 1
    assert split.evidence["highest_similarity_across"] == 0.0


def test_time_split_puts_the_last_rows_in_the_test_and_keeps_a_moment_whole():
    order = np.repeat(np.arange(50), 4)
    split = make_split(Keys("time", order=order), 200, seed=0)
    assert order[split.train].max() < order[split.valid].min()
    assert order[split.valid].max() < order[split.test].min()


def test_given_parts_are_respected_and_valid_is_carved_from_train():
    given = ["train"] * 80 + ["test"] * 20
    split = make_split(Keys("given", given=given, stratum=["x", "y"] * 50), 100, seed=0)
    assert split.test.tolist() == list(range(80, 100))
    assert set(split.train.tolist()) | set(split.valid.tolist()) == set(range(80))
    assert 12 <= len(split.valid) <= 16


def test_overriding_a_grouped_default_says_optimistic():
    split = make_split(Keys("grouped", "families", group=[0, 1] * 50), 100, seed=0, rule="random")
    assert "optimistic" in split.evidence


def test_the_same_seed_gives_the_same_split_and_another_seed_another():
    first, same, other = (make_split(Keys(), 100, seed=seed) for seed in (1, 1, 2))
    assert first.test.tolist() == same.test.tolist()
    assert first.test.tolist() != other.test.tolist()


def test_an_unknown_rule_or_a_missing_key_is_named():
    with pytest.raises(UsageError, match="Did you mean stratified"):
        make_split(Keys(), 10, seed=0, rule="stratifed")
    with pytest.raises(UsageError, match="--group"):
        make_split(Keys(), 10, seed=0, rule="grouped")


def test_groups_found_by_likeness_that_leave_no_test_are_given_up_out_loud_but_not_named_ones():
    keys = Keys("grouped", "look alike", group=[0] * 40, stratum=["a", "b"] * 20)
    split = make_split(keys, 40, seed=0)
    assert all(len(part) for part in parts_of(split))
    assert "given up" in split.evidence["optimistic"]
    with pytest.raises(DataError, match="leaves no rows for test"):
        make_split(keys, 40, seed=0, named=True)


def test_four_rows_still_give_three_parts():
    split = make_split(Keys("stratified", stratum=["a", "b", "a", "b"]), 4, seed=0)
    assert [len(part) for part in parts_of(split)] == [2, 1, 1]


def test_a_class_that_only_trains_is_said():
    split = make_split(Keys("stratified", stratum=[3] * 40 + [9] * 2), 42, seed=0)
    assert split.evidence["warnings"] == ["class '9' has no row in the test: its few rows train"]


def test_given_parts_without_a_training_row_are_refused_with_groups_too():
    for group in (None, [0, 0, 1]):
        with pytest.raises(DataError, match="leaves no rows for train"):
            make_split(Keys("given", "as laid out", given=["test"] * 3, group=group), 3, seed=0)


@pytest.mark.parametrize("order", [["31/12/2019", "01/02/2020"] * 20, np.array(["Jan", "Oct"] * 20, dtype=object)])
def test_text_has_no_order_in_time(order):
    with pytest.raises(DataError, match=r"The order column holds text .*2020-01-31"):
        make_split(Keys("time", order=order), 40, seed=0)


@pytest.mark.parametrize(
    "order", [np.array([*range(39), np.nan]), np.array([*["2020-01-01"] * 39, "NaT"], dtype="datetime64[ns]")]
)
def test_rows_without_a_time_are_not_put_anywhere(order):
    with pytest.raises(DataError, match="1 rows have no value in the order column"):
        make_split(Keys("time", order=order), 40, seed=0)


def test_a_rule_that_the_user_named_is_the_reason():
    keys = Keys("given", "a column says so", group=np.arange(40) // 4, given=["train", "test"] * 20)
    because = make_split(keys, 40, seed=0, rule="grouped").evidence["because"]
    assert because == "--split grouped was named; without it given: a column says so"
    assert make_split(keys, 40, seed=0, rule="given").evidence["because"] == "a column says so"


def test_dates_are_in_order_whatever_their_unit():
    days = np.datetime64("2020-01-01") + np.arange(40)[::-1]
    split = make_split(Keys("time", order=days.astype("datetime64[us]")), 40, seed=0)
    assert days[split.train].max() < days[split.test].min()


def with_parts(parts):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"x": rng.normal(size=len(parts)), "y": ["a", "b"] * (len(parts) // 2), "split": parts})


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (["train"] * 20 + ["test"] * 10 + [None] * 10, "says nothing in 10 of 40 rows"),
        (["train"] * 30 + ["Test"] * 5 + ["tset"] * 5, "says 'tset' in 5 of 40 rows"),
        (["train"] * 30 + ["extra"] * 10, "says 'extra' in 10 of 40 rows"),
    ],
)
def test_rows_that_a_split_column_gives_no_part_are_neither_dropped_nor_is_the_column_a_feature(parts, said):
    frame = with_parts(parts)
    reading = tabular.read(frame, Request(target="y"))
    with pytest.raises(DataError, match=said):
        tabular.keys(reading.table, reading.task, Request(target="y"), fast=True)
    with pytest.raises(DataError, match=said):
        texts.read(frame.assign(text="some words"), Request(target="y"))


@pytest.mark.parametrize("parts", [["long", "short"] * 20, ["test", "valid"] * 20])
def test_a_column_called_split_that_names_no_training_rows_is_a_feature(parts):
    reading = tabular.read(with_parts(parts), Request(target="y"))
    assert tabular.keys(reading.table, reading.task, Request(target="y"), fast=True).given is None


def test_texts_that_are_iso_dates_have_an_order_and_others_none():
    np.testing.assert_array_equal(
        np.argsort(sortable(np.array(["2020-01-31", "2019-12-31", "2020-01-31T08:00"], dtype=object))), [1, 0, 2]
    )
    for days in (["31/12/2019", "01/02/2020"], ["2020-01-31", "later"]):
        with pytest.raises(DataError, match="no order in time"):
            sortable(np.array(days, dtype=object))
    with pytest.raises(DataError, match="1 rows have no value"):
        sortable(np.array(["2020-01-31", None], dtype=object))
