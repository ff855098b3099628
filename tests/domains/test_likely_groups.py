"""A column that looks like a group and was not named is told, in whichever type of table it stands."""

import importlib

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from domains.contract import Doubt, Request
from domains.shared.roles import unnamed_groups
from trainers.errors import DataError

LETTERS = {
    "text": ("text", lambda i: f"The film number {i} was rather {'good' if i % 2 else 'bad'} this time."),
    "proteins": ("sequence", lambda i: "MKTAYIAKQR" + "ACDEFGHIKL"[i % 10] * (8 + i)),
    "genomics": ("sequence", lambda i: "ACGTTGCATTGC" + "ACGT"[i % 4] * (8 + i)),
    "molecules": ("smiles", lambda i: "C" * (i + 2) + "O"),
    "tabular": ("x", lambda i: i * 0.37),
}


def table(name, row):
    rows = range(24)
    return pd.DataFrame({name: map(row, rows), "patient": [f"P{i // 4}" for i in rows], "label": ["a", "b"] * 12})


@pytest.mark.parametrize("kind", LETTERS)
def test_a_repeated_patient_is_told_unless_it_is_named_or_rows_are_predicted(kind):
    frame, data = table(*LETTERS[kind]), importlib.import_module(f"domains.{kind}.data")
    reading = data.read(frame, Request("label"))
    assert any("'patient' looks like a group (6 values in 24 rows)" in notice for notice in reading.notices)
    assert any("--group patient" in notice for notice in reading.notices)
    named = data.read(frame, Request("label", group="patient"))
    assert not any("looks like a group" in notice for notice in named.notices)
    facts = data.describe(reading.table, reading.task, Request("label"))
    again = data.read(frame, Request("label", facts=facts))
    assert not any("looks like a group" in notice for notice in again.notices)


def test_so_it_is_for_pictures(tmp_path):
    from domains.images import data

    frame = table("path", lambda i: f"{i}.png")
    for name in frame["path"]:
        pixels = np.random.default_rng(len(name)).integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
    frame.to_csv(tmp_path / "t.csv", index=False)
    reading = data.read(tmp_path / "t.csv", Request("label"))
    assert any("'patient' looks like a group" in notice for notice in reading.notices)


@pytest.mark.parametrize(
    ("name", "values", "is_told"),
    [
        ("Patient ID", [0, 0, 1, 1, 2, 2], True),
        ("speaker_id", ["a", "a", "b", "b", "c", "c"], True),
        ("user", ["a", "b", "c", "d", "e", "f"], False),  # one row each
        ("session", ["am", "pm"] * 3, False),  # too few for three parts
        ("patience", [0, 0, 1, 1, 2, 2], False),
        ("subject_line", ["a", "a", "b", "b", "c", "c"], False),
    ],
)
def test_it_must_have_such_a_name_and_repeat(name, values, is_told):
    assert bool(unnamed_groups(pd.DataFrame({name: values}), Request("y"))) == is_told
    assert not unnamed_groups(pd.DataFrame({name: values}), Request(name))


@pytest.mark.parametrize("kind", [kind for kind in LETTERS if kind != "tabular"])
def test_rows_without_a_group_are_told_and_an_order_is_heeded_beside_a_group(kind):
    frame, data = table(*LETTERS[kind]).assign(day=range(24)), importlib.import_module(f"domains.{kind}.data")
    frame.loc[:2, "patient"] = None
    request = Request("label", group="patient", order="day")
    reading = data.read(frame, request)
    assert any("3 rows have no value in the group column 'patient'" in notice for notice in reading.notices)
    keys = data.keys(reading.table, reading.task, request, fast=True)
    assert (keys.rule, list(keys.order), len(set(keys.group))) == ("time", list(range(24)), 7)


@pytest.mark.parametrize("kind", LETTERS)
def test_given_parts_that_break_a_named_group_are_kept_and_told_with_numbers(kind):
    frame, data = table(*LETTERS[kind]), importlib.import_module(f"domains.{kind}.data")
    request = Request("label", group="patient")
    across = frame.assign(split=["Training", "training", "val", "Testing"] * 6)
    reading = data.read(across, request)
    (said,) = [notice for notice in reading.notices if "more than one part" in notice]
    assert "puts 6 groups of 'patient' into more than one part (of 6" in said
    assert isinstance(said, Doubt)
    keys = data.keys(reading.table, reading.task, request, fast=True)
    assert (keys.rule, len(set(keys.group))) == ("given", 6)
    assert list(keys.given) == ["train", "train", "valid", "test"] * 6
    whole = frame.assign(split=["training_set"] * 16 + ["holdout"] * 8)
    assert not any("more than one part" in notice for notice in data.read(whole, request).notices)
    unnamed = data.read(across, Request("label"))
    assert any("--group patient with --split grouped" in notice for notice in unnamed.notices)


@pytest.mark.parametrize("kind", LETTERS)
def test_columns_that_seem_to_name_parts_and_are_not_used_are_told(kind):
    frame, data = table(*LETTERS[kind]), importlib.import_module(f"domains.{kind}.data")
    for name, parts, words in (
        ("split", [0, 1, 2], "its values (0, 1, 2)"),
        ("set", ["train", "test", "test"], "train, test"),
    ):
        notices = data.read(frame.assign(**{name: parts * 8}), Request("label")).notices
        (said,) = [notice for notice in notices if f"column {name!r}" in notice and "not used to split" in notice]
        assert words in said
        assert isinstance(said, Doubt)
    used = data.read(frame.assign(split=["train", "test"] * 12), Request("label"))
    assert not any("not used to split" in notice for notice in used.notices)


@pytest.mark.parametrize("kind", ["proteins", "genomics"])
def test_several_targets_where_one_is_predicted_are_refused_by_number(kind):
    frame, data = table(*LETTERS[kind]).assign(b=[0, 1] * 12), importlib.import_module(f"domains.{kind}.data")
    with pytest.raises(DataError, match="names 2 columns, and one is predicted"):
        data.read(frame, Request("label,b"))
