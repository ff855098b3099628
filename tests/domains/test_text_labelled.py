"""Reading labelled texts: hostile files, bad rows, JSON lines, and what a split must know of copies."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from domains.contract import Request
from domains.shared.frames import read_frame
from domains.splits import make_split
from domains.text import copies
from domains.text import labelled as data
from domains.text.baselines import words
from trainers.errors import DataError, UsageError

ODD = [
    "👩‍👩‍👧‍👦🏽 great",
    "مرحبا",
    "ﷺ \U0001d4fb\U0001d4b6",
    "line1\nline2",
    'he said "no", ok',
    "\u2028 in\u2029side",
    "=1+1",
    "\\N",
    "日本語",
    "\u200b\u200b",
    "'''",
    ",,,",
]


def read(source, **request):
    return data.read(source, Request(**{"target": "label", **request}))


def table_of(num=40, **columns):
    frame = pd.DataFrame(
        {"text": [f"a text number {i} about things" for i in range(num)], "label": ["x", "y"] * (num // 2)}
    )
    return frame.assign(**columns)


def test_every_odd_text_comes_back_as_it_was_and_in_order(tmp_path):
    frame = pd.DataFrame({"text": ODD, "label": ["x", "y"] * (len(ODD) // 2)})
    frame.to_csv(tmp_path / "a.csv", index=False)
    found = read(tmp_path / "a.csv")
    assert found.table.column("text").tolist() == ODD
    assert not found.bad


@pytest.mark.parametrize("suffix", ["jsonl", "ndjson", "parquet"])
def test_json_lines_and_parquet_hold_the_same_rows_as_a_frame(tmp_path, suffix):
    frame, path = pd.DataFrame({"text": ODD, "label": ["x", "y"] * (len(ODD) // 2)}), tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(path)
    else:
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in frame.to_dict("records")), "utf-8")
    found, expected = read(path), read(frame)
    assert found.table.column("text").tolist() == expected.table.column("text").tolist() == ODD
    assert found.table.target().tolist() == expected.table.target().tolist()


def test_blank_texts_and_missing_labels_are_listed_with_file_and_line_and_the_word_none_is_text(tmp_path):
    lines = ["id,text,label", "0,fine,pos", "1,,neg", '2,"  \t",neg', "3,None,pos", "4,NA,", "5,bad,neg"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    found = read(tmp_path / "a.csv")
    assert [(row.position, row.place) for row in found.bad] == [
        (1, "a.csv line 3"),
        (2, "a.csv line 4"),
        (4, "a.csv line 6"),
    ]
    assert "no text" in found.bad[0].reason
    assert "no value in target" in found.bad[2].reason
    assert found.table.column("text").tolist()[3] == "None"
    assert list(found.table.ids) == ["0", "1", "2", "3", "4", "5"]


def test_a_byte_order_mark_latin_1_and_zero_bytes_are_read_and_told(tmp_path):
    rows = "".join(f"café numéro {i},{'oui' if i % 2 else 'non'}\n" for i in range(10))
    (tmp_path / "bom.csv").write_bytes(("\ufefftext,label\n" + rows).encode("utf-8"))
    (tmp_path / "latin.csv").write_bytes(("text,label\n" + rows).encode("latin-1"))
    (tmp_path / "nul.csv").write_bytes(("text,label\n" + rows).replace("numéro 3", "num\0éro 3").encode("utf-8"))
    tables = {name: read(tmp_path / f"{name}.csv", encoding="cp1252") for name in ("bom", "latin", "nul")}
    assert len({tuple(found.table.column("text")) for found in tables.values()}) == 1
    assert any("line 2" in note and "cp1252" in note for note in tables["latin"].notices)
    assert any("zero bytes" in note for note in tables["nul"].notices)


def test_lines_that_are_no_json_objects_are_bad_rows_and_a_file_of_them_is_refused(tmp_path):
    lines = ['{"text": "a b", "label": "x"}', "", "{broken", '{"text": "c", "label": "y"}', "[1, 2]"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n" + lines[0])
    found = read(tmp_path / "a.jsonl")
    assert [(row.position, row.place) for row in found.bad] == [(1, "a.jsonl line 3"), (3, "a.jsonl line 5")]
    assert "not JSON" in found.bad[0].reason
    (tmp_path / "two.jsonl").write_text("\n".join(lines[:3:2]))
    assert [row.place for row in read(tmp_path / "two.jsonl").bad] == ["two.jsonl line 2"]  # not: only one class
    (tmp_path / "b.jsonl").write_text("1\n2\n")
    with pytest.raises(DataError, match=r"b.jsonl line 1: holds a int"):
        read(tmp_path / "b.jsonl")
    (tmp_path / "c.jsonl").write_text("\n \n")
    with pytest.raises(DataError, match="empty"):
        read(tmp_path / "c.jsonl")


def test_json_cells_of_every_kind_become_plain_columns(tmp_path):
    rows = [
        {"text": "half \ud83d emoji", "n": 1, "f": 0.5, "list": [1, "é"]},
        {"text": "b", "n": 2, "f": None, "more": True},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    frame = read_frame(tmp_path / "a.jsonl", text_columns=["text"]).frame
    assert frame["text"].tolist() == ["half \ufffd emoji", "b"]
    assert frame["n"].dtype == np.int64
    assert np.isnan(frame["f"][1])
    assert frame["list"][0] == '[1, "é"]'


def test_the_longest_column_with_text_is_read_and_another_one_on_request():
    frame = table_of(title=[f"short {i}" for i in range(40)]).rename(columns={"text": "story"})
    found = read(frame)
    assert found.table.column("text")[0] == frame["story"][0]
    assert any("column 'story', the longest of 2" in note for note in found.notices)
    chosen = read(frame, columns={"text": "title"})
    assert chosen.table.column("text")[0] == "short 0"
    with pytest.raises(DataError, match=r"Did you mean title"):
        read(frame, columns={"text": "titel"})


def test_without_a_column_of_text_or_a_target_the_error_names_the_columns():
    with pytest.raises(DataError, match="no column holds text"):
        read(pd.DataFrame({"a": [1, 2], "label": ["x", "y"]}))
    with pytest.raises(DataError, match="which column is to be predicted"):
        read(table_of(other=["p", "q"] * 20), target=None)
    assert read(table_of(), target=None).target == "label"
    with pytest.raises(UsageError, match="--task ner: unknown task"):
        read(table_of(), task="ner")


def test_a_new_file_is_read_as_the_training_file_was():
    table = read(table_of().rename(columns={"text": "story"})).table
    facts = data.describe(table, "classification", Request())
    new = pd.DataFrame({"story": ["short", "", "None"], "other": ["much longer than the other one"] * 3})
    found = data.read(new, Request(facts=facts))
    assert found.table.column("text").tolist() == ["short", "", "None"]
    assert [row.position for row in found.bad] == [1]
    renamed = data.read(pd.DataFrame({"words": ["a b"]}), Request(facts=facts))
    assert any("column 'words'" in note for note in renamed.notices)
    with pytest.raises(DataError, match="no column 'story'"):
        data.read(new.rename(columns={"story": "words"}), Request(facts=facts))


def test_labels_written_as_numbers_and_as_text_are_the_same_classes(tmp_path):
    rows = [{"text": f"text {i}", "label": str(i % 2) if i % 4 < 2 else i % 2} for i in range(12)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table = read(tmp_path / "a.jsonl").table
    assert data.describe(table, "classification", Request()).classes == ("0", "1")


def test_copies_that_differ_in_case_and_space_stay_on_one_side_and_class_shares_are_even():
    frame = table_of(200)
    frame.loc[100:, "text"] = ["  " + text.upper().replace(" ", "\n") for text in frame["text"][:100]]
    frame.loc[100:, "label"] = frame["label"][:100].tolist()
    table = read(frame).table
    keys = data.keys(table, "classification", Request(), fast=False)
    assert keys.rule == "grouped"
    assert "copies" in keys.because
    split = make_split(keys, len(table), seed=0)
    side = np.full(200, -1)
    for number, part in enumerate((split.train, split.valid, split.test)):
        side[part] = number
    assert (side[:100] == side[100:]).all()
    assert split.evidence["class_shares"]["test"] == pytest.approx({"x": 0.5, "y": 0.5}, abs=0.05)


def test_without_copies_the_split_is_stratified_and_fast_says_that_near_ones_were_not_looked_for():
    frame = table_of()
    frame["text"] = [f"{i} {i} {i} all of these differ {i} {i}" for i in range(40)]
    table = read(frame).table
    keys = data.keys(table, "classification", Request(), fast=False)
    assert (keys.rule, keys.group) == ("stratified", None)
    assert "no two texts are copies or near copies" in keys.because
    assert "only exact" in data.keys(table, "classification", Request(), fast=True).because


def test_near_copies_are_the_pairs_whose_sets_of_runs_overlap_by_definition():
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(40):
        words = rng.choice([f"w{i}" for i in range(50)], 20).tolist()
        for num_changed in (0, 1, 2, 6):
            changed = list(words)
            for at in rng.choice(20, num_changed, replace=False):
                changed[at] = "other"
            texts.append(" ".join(changed))
    texts = list(dict.fromkeys(texts))
    runs = [{tuple(t.split()[i : i + 3]) for i in range(len(t.split()) - 2)} for t in texts]
    expected = {
        (a, b)
        for a in range(len(texts))
        for b in range(a + 1, len(texts))
        if len(runs[a] & runs[b]) >= 0.7 * len(runs[a] | runs[b])
    }
    assert set(zip(*map(np.ndarray.tolist, copies.near_pairs(texts)), strict=True)) == expected
    assert len(expected) > 20


def test_boilerplate_that_very_many_texts_share_makes_no_copies():
    texts = [f"this mail is private and not for you {i} {i + 1} {i + 2}" for i in range(copies.MOST_SHARED + 100)]
    assert len(np.unique(copies.copy_groups(texts, near=True))) == len(texts)
    assert len(np.unique(copies.copy_groups(["a b", "A  B", "c", ""], near=True))) == 3


def test_copies_with_another_label_are_told():
    frame = table_of()
    frame.loc[1, "text"] = frame["text"][0].upper()
    assert any("1 texts occur more than once with another" in note for note in read(frame).notices)


def test_the_words_baseline_is_scikit_learns_pipeline_and_answers_rows_without_a_known_word():
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    frame = table_of()
    frame["text"] = [
        f"{'good' if label == 'x' else 'bad'} {text}" for text, label in zip(frame["text"], frame["label"], strict=True)
    ]
    table = read(frame).table
    new = data.read(
        pd.DataFrame({"text": ["good thing", "🙂", "bad"], "label": ["x", "x", "y"]}), Request(target="label")
    ).table
    found = words("classification").fit(table)(new.without_target())
    counts = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b|[^\w\s]", ngram_range=(1, 2), sublinear_tf=True)
    model = LogisticRegression(C=10.0, max_iter=1000).fit(counts.fit_transform(frame["text"]), frame["label"])
    expected = model.predict_proba(counts.transform(new.column("text")))
    assert np.allclose(found.scores, expected, atol=1e-6)
    assert found.values[[0, 2]].tolist() == ["x", "y"]
