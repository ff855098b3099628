"""Answers that are files: written beside predictions.csv, which holds their paths."""

import csv
from dataclasses import dataclass

import pytest

from trainers.contract import Predictions
from zoo import report


@dataclass(frozen=True)
class Note:
    """An answer that is a file."""

    text: str
    suffix = ".txt"

    def write(self, path):
        path.write_text(self.text)


@pytest.mark.parametrize("ids", [("a", "b/../c", "d"), ("x/y", "x:y", "z")])
def test_every_answer_is_a_file_of_its_own_inside_the_folder_and_none_has_an_empty_cell(ids, tmp_path):
    answers = Predictions.of_files([Note("one"), Note("two"), None])
    report.write_predictions(tmp_path / "predictions.csv", ids, answers)
    rows = list(csv.DictReader((tmp_path / "predictions.csv").open()))
    assert [row["id"] for row in rows] == list(ids)
    assert rows[2]["prediction"] == ""
    assert rows[2]["problem"]
    paths = [tmp_path / row["prediction"] for row in rows[:2]]
    assert [path.read_text() for path in paths] == ["one", "two"]
    assert all(path.resolve().parent == (tmp_path / report.FILES).resolve() for path in paths)
