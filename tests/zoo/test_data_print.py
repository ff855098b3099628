"""What identifies the data of a run: a change is noticed whatever it leaves as it was, and while it is read."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from domains.contract import Request
from domains.tabular import data as tables
from trainers.errors import DataError
from zoo import data_print, job
from zoo.data_print import fingerprint, moment, refuse_change


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.txt").write_text("one")
    (tmp_path / "2.txt").write_text("two")
    return tmp_path


def test_a_file_of_a_folder_changed_to_as_many_bytes_at_the_same_time_is_noticed(folder):
    before, file = fingerprint(folder, Request()), folder / "a" / "1.txt"
    time = file.stat().st_mtime_ns
    file.write_text("eno")
    os.utime(file, ns=(time, time))
    assert fingerprint(folder, Request()) != before


def test_a_renamed_file_is_noticed_and_a_copied_folder_or_a_hidden_file_is_not(folder, tmp_path_factory):
    before = fingerprint(folder, Request())
    (folder / ".DS_Store").write_text("hidden")
    copy = tmp_path_factory.mktemp("copy")
    for file in ("a/1.txt", "2.txt"):
        (copy / file).parent.mkdir(exist_ok=True)
        (copy / file).write_text((folder / file).read_text())
    assert fingerprint(folder, Request()) == before == fingerprint(copy, Request())
    (folder / "2.txt").rename(folder / "3.txt")
    assert fingerprint(folder, Request()) != before


def test_a_large_file_of_a_folder_counts_by_size_and_time(folder, monkeypatch):
    monkeypatch.setattr(data_print, "LARGEST_HASHED", 2)
    before, file = fingerprint(folder, Request()), folder / "2.txt"
    os.utime(file, ns=(1, 1))
    assert fingerprint(folder, Request()) != before


def test_what_is_not_there_is_left_to_the_reader(tmp_path):
    assert fingerprint(tmp_path / "none.csv", Request()) == {"data": "missing"}


def test_a_file_that_changes_is_named(folder):
    before = moment(folder, Request())
    (folder / "2.txt").write_text("three")
    with pytest.raises(DataError, match=r"2\.txt: changed while it was read\. Start again"):
        refuse_change(before, moment(folder, Request()))
    refuse_change(before, before)


def test_a_table_that_is_written_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=40), "y": ["a", "b"] * 20})
    frame.to_csv(path, index=False)
    real = tables.read

    def slow(data, request):
        found = real(data, request)
        frame.head(20).to_csv(path, index=False)
        return found

    monkeypatch.setattr(tables, "read", slow)
    with pytest.raises(DataError, match="changed while it was read"):
        job.prepare("tabular/xgboost", path, request=Request("y"))


def test_a_picture_that_a_table_names_belongs_to_the_fingerprint(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(12):
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(tmp_path / f"{i}.png")
    lines = "".join(f"{i}.png,{'ab'[i % 2]}\n" for i in range(12))
    Path(tmp_path / "t.csv").write_text("path,label\n" + lines)

    def found():
        from domains.images import data

        return job._read(data, tmp_path / "t.csv", Request("label"))[1]

    before = found()
    assert before == found()
    Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(tmp_path / "3.png")
    assert {name for name, value in found().items() if value != before[name]} == {"files"}
