"""Answers that are files: written beside predictions.csv, which holds their paths."""

import csv
from dataclasses import dataclass

import pytest

from trainers.contract import Predictions
from zoo import report
from zoo.cli import main


@dataclass(frozen=True)
class Note:
    """An answer that is a file."""

    text: str
    suffix = ".txt"

    def write(self, path):
        path.write_text(self.text)


@pytest.mark.parametrize("ids", [("a", "b/../c", "d"), ("x/y", "x:y", "z"), ("n.txt", "n", "m")])
def test_every_answer_is_a_file_of_its_own_inside_the_folder_and_none_has_an_empty_cell(ids, tmp_path):
    answers = Predictions.of_files([Note("one"), Note("two"), None])
    report.write_predictions(tmp_path / "predictions.csv", ids, answers)
    rows = list(csv.DictReader((tmp_path / "predictions.csv").open()))
    assert [row["id"] for row in rows] == list(ids)
    assert rows[2]["prediction"] == ""
    assert rows[2]["problem"]
    paths = [tmp_path / row["prediction"] for row in rows[:2]]
    assert [path.read_text() for path in paths] == ["one", "two"]
    assert not any(path.name.endswith(".txt.txt") for path in paths)
    assert all(path.resolve().parent == (tmp_path / report.FILES).resolve() for path in paths)


def test_a_run_whose_answers_are_files_asks_for_a_folder_before_it_computes(tmp_path, monkeypatch, capsys):
    class Finished:
        answers_with_files = True

        def answers(self, *_, **__):
            raise AssertionError("it computed")

    monkeypatch.setattr("zoo.finished.load", lambda *_, **__: Finished())
    for name in ("plan.json", "config.yaml"):
        (tmp_path / name).write_text("{}")
    for out in (
        (),
        ("--out", str(tmp_path / "answers.csv")),
    ):  # and a folder that cannot be written to is refused as early
        with pytest.raises(SystemExit) as stopped:
            main(["predict", "run", "rows.csv", *out])
        assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "Name a folder for them: --out FOLDER" in said
    assert "is the folder of a run" in said


def test_a_plan_that_was_printed_into_the_folder_makes_it_no_run(tmp_path):
    from zoo.cli_runs import _predictions_path

    (tmp_path / "plan.json").write_text("{}")
    assert _predictions_path(tmp_path / "p.csv", None) == tmp_path / "p.csv"
