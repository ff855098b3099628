"""Answers as columns: labels, sets of labels, numbers, tags, texts and files keep their shape through joining and taking."""

from dataclasses import dataclass

import numpy as np
import pytest

from trainers.contract import Predictions


@dataclass(frozen=True)
class Note:
    """An answer that is a file."""

    text: str
    suffix = ".txt"

    def write(self, path):
        path.write_text(self.text)


ANSWERS = {
    "label": Predictions.of_labels(np.array([[0.9, 0.1], [0.2, 0.8]]), ["a", "b"]),
    "labels": Predictions.of_label_sets(np.array([[0.9, 0.6], [0.2, 0.1]]), ["a", "b"]),
    "number": Predictions.of_numbers(np.array([1.5, -2.0])),
    "tags": Predictions.of_tags([["O", "B-x"], ["O", "O"]], ["B-x", "O"]),
    "text": Predictions.of_texts(["yes", "no"]),
    "file": Predictions.of_files([Note("yes"), Note("no")]),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_joined_and_taken_apart_answers_are_the_same(kind):
    answers = ANSWERS[kind]
    twice = Predictions.joined([answers, answers])
    assert twice.kind == kind
    assert len(twice) == 4
    assert twice.values.shape == (4,)
    assert [p.value for p in twice.take([2, 3])] == [p.value for p in answers] == [p.value for p in twice.take([0, 1])]


def test_sets_of_labels_hold_every_class_above_the_threshold():
    assert ANSWERS["labels"].values.tolist() == [("a", "b"), ()]
    stricter = Predictions.of_label_sets(np.array([[0.9, 0.6]]), ["a", "b"], threshold=0.7)
    assert stricter.values.tolist() == [("a",)]


def test_tags_of_rows_of_equal_length_stay_one_object_a_row():
    assert ANSWERS["tags"].values.tolist() == [("O", "B-x"), ("O", "O")]


def test_an_answer_that_is_not_finite_is_none_and_says_so():
    nan, inf = float("nan"), float("inf")
    labels = Predictions.of_labels(np.array([[nan, nan], [0.2, 0.8]]), ["a", "b"])
    sets = Predictions.of_label_sets(np.array([[nan, 0.9], [0.2, 0.8]]), ["a", "b"])
    numbers = Predictions.of_numbers(np.array([inf, 1.0]))
    for answers in (labels, sets, numbers):
        assert answers.problems == ("the model's answer is not finite", "")
    assert labels.values.tolist() == [None, "b"]
    assert sets.values.tolist() == [None, ("b",)]
    assert np.isnan(numbers.values[0])


def test_an_answer_that_is_no_file_has_a_problem():
    answers = Predictions.of_files([Note("yes"), None])
    assert answers.problems == ("", "the model's answer is not finite")
