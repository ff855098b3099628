"""What a run writes for people: files of answers."""

from trainers.contract import Predictions
from zoo import report


def test_files_of_answers_have_names_that_a_file_system_takes_and_no_two_the_same(tmp_path):
    class Answer:
        suffix = ".txt"

        def write(self, path):
            path.write_text("x")

    ids = ["n" * 300 + "1", "n" * 300 + "2", "ü" * 200]
    names = report.written_files(ids, Predictions.of_files([Answer() for _ in ids]), tmp_path)
    assert len(set(names)) == len(ids)
    assert all((tmp_path / name).read_text() == "x" for name in names)
