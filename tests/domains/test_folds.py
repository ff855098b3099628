"""Folds: every row is tested once, groups never lie on two sides, relatives of the test are left out."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedKFold

from domains.contract import Keys
from domains.folds import divide, name_of
from domains.splits import make_split
from trainers.errors import DataError, UsageError


def folds_of(keys, num_rows, num_folds=5, seed=0, rule=None, named=False):
    names = [name_of(fold, num_folds, rule) for fold in range(num_folds)]
    return [divide(keys, num_rows, seed=seed, rule=name, named=named) for name in names]


@given(groups=st.lists(st.integers(0, 20), min_size=30, max_size=200), seed=st.integers(0, 1000))
@example(groups=[0] * 26 + [1, 2, 3, 4], seed=0)
@settings(max_examples=40, deadline=None)
def test_every_row_is_tested_once_and_no_group_is_on_two_sides(groups, seed):
    keys = Keys("grouped", "by family", group=groups, stratum=[g % 2 for g in groups])
    if len(set(groups)) < 5:
        with pytest.raises(DataError, match="groups"):
            folds_of(keys, len(groups), seed=seed, named=True)
        return
    found = folds_of(keys, len(groups), seed=seed, named=True)
    assert sorted(np.concatenate([fold.test for fold in found])) == list(range(len(groups)))
    for fold in found:
        parts = [fold.train, fold.valid, fold.test]
        assert sorted(np.concatenate(parts)) == list(range(len(groups)))
        assert all(map(len, parts))
        assert sum(len({groups[row] for row in part}) for part in parts) == len(set(groups))


def test_classes_in_stratified_folds_are_as_even_as_scikit_learn_makes_them():
    labels = np.array(["a"] * 103 + ["b"] * 51 + ["c"] * 7)
    ours = folds_of(Keys("stratified", stratum=labels), len(labels))
    theirs = StratifiedKFold(5, shuffle=True, random_state=0).split(labels, labels)
    for name in "abc":
        counts = sorted(int((labels[fold.test] == name).sum()) for fold in ours)
        assert max(counts) - min(counts) <= 1
    their_sizes = sorted(len(test) for _, test in StratifiedKFold(5).split(labels, labels))
    assert sorted(len(fold.test) for fold in ours) == their_sizes
    assert len(list(theirs)) == 5
    assert all(abs(len(fold.valid) / len(labels) - 0.8 * 0.15 / 0.85) < 0.02 for fold in ours)


def test_what_is_similar_to_the_test_of_a_fold_is_not_learned_in_it_and_is_tested_in_its_own():
    group = np.repeat(np.arange(10), 4)

    def links(these, those):  # row 0 of group 0 and row 4 of group 1 are relatives that grouping missed
        pair = {0: 4, 4: 0}
        return np.array([0.9 if pair.get(int(row)) in set(those.tolist()) else 0.1 for row in these])

    found = folds_of(Keys("grouped", "clusters", group=group, links=links), 40)
    assert sorted(np.concatenate([fold.test for fold in found])) == list(range(40))
    for fold in found:
        for row, relative in ((0, 4), (4, 0)):
            if row in fold.test and relative not in fold.test:
                assert relative not in np.concatenate([fold.train, fold.valid])
                assert fold.evidence["rows_left_out"] == 1
        assert not (0 in fold.train and 4 in fold.valid)
        assert not (4 in fold.train and 0 in fold.valid)
        assert fold.evidence["highest_similarity_across"] == 0.1


def test_a_group_of_half_of_the_rows_is_tested_too_and_its_fold_says_so():
    group = np.concatenate([np.zeros(50, int), np.arange(1, 51)])
    found = folds_of(Keys("grouped", "by family", group=group), 100)
    told = [fold for fold in found if fold.evidence["warnings"]]
    assert len(told) == 1
    assert set(range(50)) <= set(told[0].test.tolist())
    assert "50 of 100" in told[0].evidence["warnings"][0]


def test_a_class_that_one_fold_has_alone_is_told():
    labels = ["a"] * 30 + ["b"]
    told = [fold.evidence["warnings"] for fold in folds_of(Keys("stratified", stratum=labels), 31)]
    assert [len(each) for each in told].count(1) == 1


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        (Keys("given", "files are called so", given=["train"] * 8 + ["test"] * 2), None),
        (Keys("time", "the last rows", order=list(range(10))), None),
        (
            Keys("random", named={"as-in-the-paper": lambda seed: Keys("given", given=["train"] * 10)}),
            "as-in-the-paper",
        ),
    ],
)
def test_parts_that_are_fixed_have_no_folds_and_the_error_says_what_to_do(keys, rule):
    with pytest.raises(UsageError, match=r"fixes which rows are the test.*--seeds 5.*--split random"):
        divide(keys, 10, seed=0, rule=name_of(0, 5, rule))
    assert len(divide(keys, 10, seed=0, rule="random-fold-0-of-5").test) == 2


def test_too_many_folds_are_refused_with_the_number_that_works():
    with pytest.raises(DataError, match=r"there are 4 groups .*--folds 4"):
        folds_of(Keys("grouped", "by patient", group=[0, 1, 2, 3] * 5), 20)
    with pytest.raises(UsageError, match="count from 0 to 4"):
        divide(Keys(), 20, seed=0, rule="fold-5-of-5")


def test_other_rules_are_those_of_a_single_split():
    ours, theirs = (split(Keys(), 50, seed=3) for split in (divide, make_split))
    assert all(np.array_equal(getattr(ours, part), getattr(theirs, part)) for part in ("train", "valid", "test"))
