"""A column that looks like a group is used as one though nobody named it; copies join groups."""

import numpy as np
import pandas as pd
import pytest

from domains.contract import Request
from domains.folds import divide
from domains.images import data as images
from domains.medical.patients import patients_of
from domains.shared.groupings import equal_rows, joined
from domains.shared.roles import FEWEST_GROUPS, found_group
from domains.tabular import data as tabular
from domains.text import data as text


def visits(num_patients=12, each=3):
    """A table of patients whose rows differ."""
    rng = np.random.default_rng(0)
    names = [f"P{i // each}" for i in range(num_patients * each)]
    return pd.DataFrame(
        {"x": rng.normal(size=len(names)), "patient": names, "label": np.resize(["a", "b"], len(names))}
    )


def parts_of(split, names):
    names = np.asarray(names)
    return [set(names[part]) for part in (split.train, split.valid, split.test)]


def test_the_patients_of_a_table_stay_whole_without_being_named():
    reading = tabular.read(visits(), Request("label"))
    assert reading.group == "patient"
    assert any("rows of one stay on one side" in notice for notice in reading.notices)
    keys = tabular.keys(reading.table, reading.task, Request("label", group=reading.group), fast=False)
    train, valid, test = parts_of(divide(keys, len(reading.table), seed=0), visits()["patient"])
    assert not (train & valid | train & test | valid & test)


@pytest.mark.parametrize("change", ["named", "order", "split", "few", "gap"])
def test_it_is_not_used_where_the_user_or_the_data_decide_otherwise(change):
    frame = visits(FEWEST_GROUPS - 1 if change == "few" else 12)
    if change == "split":
        frame["split"] = "train"
    if change == "gap":
        frame.loc[3, "patient"] = None
    request = {"named": Request("label", group="x"), "order": Request("label", order="x")}.get(change, Request("label"))
    assert found_group(frame, request, besides=("label",)) is None


def test_patients_come_before_their_sessions():
    frame = visits(24).assign(session=[f"S{i // 2}" for i in range(72)])
    assert found_group(frame, Request("label"), besides=("label",)) == "patient"


def test_texts_that_authors_copied_from_one_another_join_their_groups():
    words = np.random.default_rng(1).permutation([f"word{i}" for i in range(900)])
    texts = [" ".join(words[i * 12 : i * 12 + 12]) for i in range(36)]
    texts[35] = texts[0]
    frame = pd.DataFrame({"text": texts, "author": [f"A{i // 3}" for i in range(36)], "label": ["a", "b"] * 18})
    reading = text.read(frame, Request("label"))
    assert reading.group == "author"
    keys = text.keys(reading.table, reading.task, Request("label", group="author"), fast=False)
    assert keys.group[35] == keys.group[0] == keys.group[33]
    assert len(set(keys.group)) == 11


def test_pictures_of_a_patient_stay_whole_without_being_named(tmp_path):
    from PIL import Image

    frame = visits().assign(path=[f"{i}.png" for i in range(36)])
    for i, name in enumerate(frame["path"]):
        pixels = np.random.default_rng(i).integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
    frame[["path", "patient", "label"]].to_csv(tmp_path / "t.csv", index=False)
    reading = images.read(tmp_path / "t.csv", Request("label"))
    assert reading.group == "patient"
    keys = images.keys(reading.table, reading.task, Request("label", group="patient"), fast=False)
    assert len(set(keys.group)) == 12


def test_scans_whose_names_begin_with_a_patient_belong_to_it():
    assert patients_of(["patient003_1", "patient003_2", "patient004_1"])[0] == [
        "patient003",
        "patient003",
        "patient004",
    ]


def test_rows_meet_in_groups_that_meet_in_either_grouping():
    assert joined([["a", "a", "b", "c"], [1, 2, 2, 3]]).tolist() == [0, 0, 0, 1]


def test_equal_rows_are_found_among_the_others_and_say_where():
    marks = np.array([5, 7, 5, 9])
    highest, position = equal_rows(marks, np.array([0, 1]), np.array([3, 2]))
    assert highest.tolist() == [1.0, 0.0]
    assert position.tolist() == [1, -1]
