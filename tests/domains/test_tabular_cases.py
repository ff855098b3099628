"""Inputs that made other tools predict silently wrong; each test names the public report. All inputs are generated."""

import numpy as np
import pandas as pd
import pytest

from domains.contract import Request
from domains.tabular import data
from tests.domains.tabular_runs import FAMILIES, coloured, trained
from trainers.errors import DataError


@pytest.fixture(scope="module", params=FAMILIES)
def run(request):
    return trained(coloured(), request.param, target="y")


def test_a_german_file_has_two_numbers_and_a_category(tmp_path):
    """docling-project/docling#4097"""
    frame = coloured().rename(columns={"x1": "größe", "x2": "gewicht", "colour": "farbe", "y": "ziel"})
    frame.to_csv(tmp_path / "t.csv", sep=";", decimal=",", index=False, encoding="utf-8-sig")
    german = trained(tmp_path / "t.csv", target="ziel")
    found = {name: entry["kind"] for name, entry in german.facts.schema["columns"].items()}
    assert found == {"größe": "number", "gewicht": "number", "farbe": "category"}
    english = trained(coloured(), target="y")
    same = german.learner.predict(german.test.without_target()).scores
    np.testing.assert_array_equal(same, english.learner.predict(english.test.without_target()).scores)


def test_one_german_row_reads_like_the_file(tmp_path):
    frame = coloured().rename(columns={"y": "ziel"})
    frame.to_csv(tmp_path / "t.csv", sep=";", decimal=",", index=False)
    german = trained(tmp_path / "t.csv", target="ziel")
    frame.iloc[[3]].to_csv(tmp_path / "one.csv", sep=";", decimal=",", index=False)
    (tmp_path / "integer.csv").write_text("x1;x2;colour\n1;kaputt;red\n")
    whole, alone = german.again(tmp_path / "t.csv")[1], german.again(tmp_path / "one.csv")[1]
    np.testing.assert_array_equal(whole.scores[3], alone.scores[0])
    assert any("'kaputt'" in notice for notice in german.again(tmp_path / "integer.csv")[0].notices)


def test_a_row_gets_the_same_prediction_whatever_else_is_in_the_file(run):
    """dmlc/xgboost#11160, LightGBM#2826: category codes made again at prediction"""
    many = coloured(40, seed=7).drop(columns="y")
    together = run.again(many)[1].scores
    for position in range(40):
        alone = run.again(many.iloc[[position]])[1].scores
        np.testing.assert_array_equal(alone[0], together[position])


def test_an_unseen_category_is_missing_and_named_with_its_count(run):
    frame = coloured(20, seed=3).drop(columns="y")
    unseen = frame.assign(colour=["violet", "mauve", *frame["colour"][2:]])
    missing = frame.assign(colour=[None, None, *frame["colour"][2:]])
    reading, answers = run.again(unseen)
    assert any("'colour'" in n and "2 cells" in n and "'violet'" in n for n in reading.notices)
    np.testing.assert_array_equal(answers.scores, run.again(missing)[1].scores)
    assert run.again(missing)[0].notices == ()


def test_columns_are_matched_by_name_and_extra_ones_ignored_out_loud(run):
    """dmlc/xgboost#8357: reordered columns silently predicted wrong"""
    frame = coloured(30, seed=5).drop(columns="y")
    reading, answers = run.again(frame[["colour", "x2", "x1"]].assign(junk=1))
    np.testing.assert_array_equal(answers.scores, run.again(frame)[1].scores)
    assert any("junk" in notice for notice in reading.notices)


def test_a_missing_column_is_named(run):
    with pytest.raises(DataError, match=r"needs column 'x2', which is missing. Did you mean X2\?"):
        run.again(coloured(5).rename(columns={"x2": "X2"}))


def test_labels_that_do_not_start_at_zero_come_back_as_given(tmp_path):
    """dmlc/xgboost#11228: labels 3, 4, 5 crash, or a rare class breaks the encoder"""
    rng = np.random.default_rng(0)
    lane = np.array([3, 4, 5] * 30 + [9, 9])
    pd.DataFrame({"speed": lane * 10 + rng.normal(size=92), "gap": rng.normal(size=92), "lane": lane}).to_csv(
        tmp_path / "t.csv", index=False
    )
    for family in FAMILIES:
        run = trained(tmp_path / "t.csv", family, target="lane", task="classification")
        assert run.facts.classes == ("3", "4", "5", "9")
        answers = run.again(tmp_path / "t.csv")[1]
        assert set(answers.values) <= {"3", "4", "5", "9"}
        assert np.mean(answers.values == lane.astype(str)) > 0.9
        np.testing.assert_allclose(answers.scores.sum(axis=1), 1)


def test_codes_keep_their_zeros_as_ids_and_as_categories(tmp_path):
    """browser-use/workflow-use#174: ids read as numbers no longer join"""
    frame = coloured().assign(code=[f"{i:05d}" for i in range(160)], zip=[f"0100{i % 7}" for i in range(160)])
    frame.to_csv(tmp_path / "t.csv", index=False)
    run = trained(tmp_path / "t.csv", target="y", id_column="code")
    assert run.facts.schema["columns"]["zip"]["categories"][0] == "01000"
    codes = ["00017", "1e5", "0x1F", "007", "1_000", "٣"]
    new = coloured(6).assign(code=codes, zip="01001").drop(columns="y")
    new.to_csv(tmp_path / "new.csv", index=False)
    reading, answers = run.again(tmp_path / "new.csv")
    assert list(reading.table.ids) == codes
    assert not any("zip" in notice for notice in reading.notices)
    assert len(answers) == 6


def test_a_text_in_a_number_column_at_prediction_is_missing_and_said(run):
    frame = coloured(6).drop(columns="y").astype({"x1": object})
    frame.loc[2, "x1"] = "broken"
    reading, answers = run.again(frame)
    assert any("'x1'" in notice and "'broken'" in notice for notice in reading.notices)
    assert len(answers) == 6


def test_a_ragged_line_at_prediction_keeps_its_place_and_its_reason(run, tmp_path):
    (tmp_path / "new.csv").write_text("x1,x2,colour\n1,2,red\n1,2\n1,2,blue\n")
    reading, _ = run.again(tmp_path / "new.csv")
    assert len(reading.table) == 3
    assert [(row.position, row.place) for row in reading.bad] == [(1, "new.csv line 3")]


def test_a_target_in_the_new_file_matters_only_when_evaluating(run):
    frame = coloured(8)
    frame.loc[1, "y"] = None
    frame.loc[2, "y"] = "maybe"
    assert run.again(frame)[0].bad == ()
    bad = run.again(frame, target="y")[0].bad
    assert [row.position for row in bad] == [1, 2]
    assert "'maybe' was not in the training data" in bad[1].reason


def test_a_file_with_a_header_only_predicts_nothing(run, tmp_path):
    (tmp_path / "new.csv").write_text("x1,x2,colour\n")
    assert len(run.again(tmp_path / "new.csv")[1]) == 0


def test_whole_numbers_as_categories_match_between_dataframe_and_file(tmp_path):
    frame = coloured().assign(kind=pd.Categorical(np.arange(160) % 3))
    run = trained(frame, target="y")
    assert run.facts.schema["columns"]["kind"]["categories"] == ["0", "1", "2"]
    frame.to_csv(tmp_path / "t.csv", index=False)
    np.testing.assert_array_equal(run.again(tmp_path / "t.csv")[1].scores, run.again(frame)[1].scores)


def test_reading_again_asks_for_the_columns_of_training_alone():
    run = trained(coloured().assign(same=1), target="y")
    reading = data.read(coloured(4).drop(columns="y"), Request(facts=run.facts))
    assert list(reading.table.frame.columns) == ["x1", "x2", "colour"]
