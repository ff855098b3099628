"""Which task a target column asks for, its class names, and the rows that cannot be used."""

import numpy as np
import pandas as pd
import pytest

from domains.contract import Doubt
from domains.shared.label_sets import read_label_sets
from domains.shared.targets import bad_targets, class_names, infer_task, label_texts, target_values
from trainers.errors import DataError, UsageError


def column(values):
    return pd.Series(values, name="y")


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (["a", "b"] * 5, "classification"),
        ([True, False] * 5, "classification"),
        ([1.5, 2.0, 3.25], "regression"),
        (list(range(60)), "regression"),
        ([0, 1] * 5, "classification"),
        ([1.0, None, 0.0], "classification"),
        ([3, 4, 5] * 5, "classification"),
        ([str(i / 7) for i in range(40)] + ["broken"], "regression"),
    ],
)
def test_the_task_follows_from_the_values(values, task):
    assert infer_task(column(values))[0] == task


def test_whole_numbers_taken_as_classes_say_how_to_override():
    assert "--task regression" in infer_task(column([3, 4, 5] * 5))[1]
    assert infer_task(column([3, 4, 5] * 5), "regression") == ("regression", "")


def test_names_of_rows_are_refused_as_classes():
    with pytest.raises(DataError, match="look like names"):
        infer_task(column([f"row{i}" for i in range(40)]))


@pytest.mark.parametrize("values", [[f"{i},{i:03d}" for i in range(1, 40)], [f"0,{i}" for i in range(10, 50)]])
def test_numbers_with_commas_are_called_numbers_with_commas(values):
    with pytest.raises(DataError, match=r"commas .*thousands or decimals"):
        infer_task(column(values))


def test_an_unknown_task_offers_the_near_one():
    with pytest.raises(UsageError, match="Did you mean classification"):
        infer_task(column([1]), "clasification")


def test_labels_are_kept_as_given():
    assert label_texts(column([3, 4])).tolist() == ["3", "4"]
    assert label_texts(column([1.0, None, 0.5])).tolist() == ["1", None, "0.5"]
    assert label_texts(column([True, False])).tolist() == ["True", "False"]
    assert label_texts(column(["01", "1"])).tolist() == ["01", "1"]


def test_classes_sort_by_number_if_all_are_numbers_else_by_text():
    assert class_names(["10", "9", "10"]) == ("9", "10")
    assert class_names(["b", "10", "9"]) == ("10", "9", "b")


def test_one_class_is_refused():
    with pytest.raises(DataError, match="only one class"):
        class_names(["a", "a", None])


def test_bad_targets_are_listed_with_their_places_and_reasons():
    places = ["l2", "l3", "l4", "l5"]
    bad = bad_targets(column(["1", "x", None, "inf"]), "regression", places)
    assert [(row.position, row.place) for row in bad] == [(1, "l3"), (2, "l4"), (3, "l5")]
    assert "'x'" in bad[0].reason
    assert "no value" in bad[1].reason
    assert np.isnan(target_values(column(["1", "x", None, "inf"]), "regression")[1:]).all()
    (none,) = bad_targets(column([None, "b", "b", "c"]), "classification", places)
    assert "None and null count as empty" in none.reason
    with pytest.raises(DataError, match=r"no class at all \(cells like NA, None"):
        class_names([None, None])
    unknown = bad_targets(column(["yes", "yess"]), "classification", places, classes=("no", "yes"))
    assert "Did you mean yes" in unknown[0].reason
    with pytest.raises(DataError, match=r"not one of its 3 values \('x', 'y', 'z' ...\).*--target"):
        bad_targets(column(["x", "y", "z", None]), "classification", places, classes=("no", "yes"))


def test_a_label_whose_parts_are_labels_is_doubted_and_others_with_commas_are_not():
    joined = pd.DataFrame({"y": ["a", "b", "a, b", "c;a"]})
    (notice,) = read_label_sets(joined, "y").notices
    assert isinstance(notice, Doubt)
    assert "'a, b'" in notice
    assert not read_label_sets(pd.DataFrame({"y": ["a", "x, y", "a;b"]}), "y").notices
