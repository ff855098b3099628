"""Tables as a data type: kinds of columns, keys of splits, facts, and the matrix that trees get."""

import numpy as np
import pandas as pd
import pytest

from domains.contract import Request
from domains.metrics import point
from domains.tabular import data, demo
from domains.tabular.encode import Encoder
from tests.domains.tabular_runs import FAMILIES, coloured, trained
from trainers.errors import DataError, UsageError


def read(frame, **request):
    return data.read(frame, Request(**request))


def facts_of(frame, **request):
    reading = read(frame, **request)
    return data.describe(reading.table, reading.task, Request(**request))


def kinds(facts):
    return {name: entry["kind"] for name, entry in facts.schema["columns"].items()}


def test_columns_are_numbers_categories_or_dates():
    frame = coloured().assign(
        day=pd.date_range("2024-01-30", periods=160).strftime("%Y-%m-%d"),
        moment=pd.date_range("2024-01-30", periods=160, freq="7h").strftime("%Y/%m/%d %H:%M"),
        flag=np.arange(160) % 2 == 0,
    )
    found = kinds(facts_of(frame, target="y"))
    assert found == {
        "x1": "number", "x2": "number", "colour": "category", "day": "date", "moment": "date", "flag": "category",
    }  # fmt: skip


def test_dates_become_the_numbers_that_pandas_computes():
    day = pd.Series(pd.to_datetime(["2024-02-29T00:00", "1999-12-31T00:00", None, "2030-06-01T12:30"] * 10))
    frame = pd.DataFrame({"day": day.dt.strftime("%Y-%m-%dT%H:%M"), "y": ["a", "b"] * 20})
    facts = facts_of(frame, target="y")
    matrix = Encoder(facts.schema["columns"]).matrix(read(frame, target="y").table)
    epoch_days = (day - pd.Timestamp("1970-01-01")).dt.total_seconds() / 86400
    expected = np.stack([epoch_days, day.dt.year, day.dt.month, day.dt.weekday, day.dt.hour + day.dt.minute / 60], 1)
    np.testing.assert_allclose(matrix, expected.astype(np.float32))


def test_useless_columns_are_left_out_and_the_plan_says_why():
    frame = coloured().assign(name=[f"n{i}" for i in range(160)], same=7, empty=np.nan, row=np.arange(160) + 1)
    run = trained(frame, target="y")
    assert set(kinds(run.facts)) == {"x1", "x2", "colour"}
    text = "\n".join(run.notes)
    for name, reason in (("name", "hardly repeats"), ("same", "everywhere"), ("empty", "empty"), ("row", "counts")):
        assert any(name in line and reason in line for line in text.splitlines()), (name, text)


def test_copies_of_the_target_are_flagged_but_kept():
    frame = coloured()
    leaky = frame.assign(copy=frame["y"].map({"yes": "1", "no": "2"}))
    assert set(facts_of(leaky, target="y").schema["suspects"]) == {"copy"}
    assert facts_of(frame, target="y").schema["suspects"] == {}
    scaled = frame.assign(z=frame["x1"] * 3 + 1)
    assert set(facts_of(scaled, target="z").schema["suspects"]) == {"x1"}


def test_few_stray_texts_in_a_number_column_are_missing_and_said():
    values = [f"{i / 7:.3f}" for i in range(158)] + ["broken", "n/a"]
    reading = read(coloured().assign(z=values), target="y")
    assert reading.table.column("z").isna().sum() == 2
    assert any("'z'" in notice and "'broken'" in notice for notice in reading.notices)


def test_infinite_features_are_missing_and_infinite_targets_are_bad_rows():
    frame = coloured().assign(z=[np.inf, *range(159)])
    assert np.isnan(read(frame, target="y").table.column("z").iloc[0])
    bad = read(frame, target="z", task="regression").bad
    assert [row.position for row in bad] == [0]


def test_ids_are_kept_byte_for_byte_and_are_no_feature(tmp_path):
    codes = [f"{i:05d}" for i in range(159)] + ["1e5"]
    coloured().assign(code=codes).to_csv(tmp_path / "t.csv", index=False)
    reading = read(tmp_path / "t.csv", target="y", id_column="code")
    assert list(reading.table.ids) == codes
    facts = data.describe(reading.table, "classification", Request(target="y", id_column="code"))
    assert "code" not in facts.schema["columns"]


def test_a_column_called_id_is_used_if_it_names_every_row():
    frame = coloured()
    assert list(read(frame.assign(ID=np.arange(160) * 3), target="y").table.ids[:3]) == ["0", "3", "6"]
    assert list(read(frame.assign(ID=np.arange(160) // 2), target="y").table.ids[:3]) == ["0", "1", "2"]


def test_rows_without_a_target_or_with_ragged_lines_are_all_listed(tmp_path):
    lines = coloured().to_csv(index=False).splitlines()
    lines[3] = lines[3].rsplit(",", 1)[0] + ","
    lines[5] += ",surplus"
    (tmp_path / "t.csv").write_text("\n".join(lines))
    bad = read(tmp_path / "t.csv", target="y").bad
    assert [(row.place, row.position) for row in bad] == [("t.csv line 4", 2), ("t.csv line 6", 4)]
    assert "no value" in bad[0].reason
    assert "5 cells" in bad[1].reason


@pytest.mark.parametrize(
    ("change", "request_", "message"),
    [
        (lambda f: f, {}, "--target"),
        (lambda f: f, {"target": "yy"}, "Did you mean y"),
        (lambda f: f, {"target": "y", "group": "hospital"}, "no column 'hospital'"),
        (lambda f: f.assign(y="yes"), {"target": "y"}, "one class"),
        (lambda f: f.assign(y=3.5), {"target": "y"}, "fewer than two different numbers"),
        (lambda f: f.iloc[:0], {"target": "y"}, "no row"),
    ],
)
def test_a_table_that_cannot_be_learned_from_is_refused(change, request_, message):
    with pytest.raises(DataError, match=message):
        read(change(coloured()), **request_)


def test_a_table_with_nothing_but_useless_columns_is_refused():
    with pytest.raises(DataError, match="no column is left"):
        facts_of(coloured()[["y"]].assign(same=1), target="y")


def keys(frame, **request):
    reading = read(frame, **request)
    return data.keys(reading.table, reading.task, Request(**request), fast=False)


def test_the_rule_follows_from_what_was_named_and_says_why():
    frame = coloured().assign(hospital=np.arange(160) // 8, day=pd.date_range("2024-01-01", periods=160)[::-1])
    assert keys(frame, target="y").rule == "stratified"
    assert keys(frame, target="x1").rule == "random"
    grouped = keys(frame, target="y", group="hospital")
    assert (grouped.rule, len(set(grouped.group))) == ("grouped", 20)
    by_time = keys(frame, target="y", order="day")
    assert by_time.rule == "time"
    assert list(np.argsort(by_time.order)) == list(range(160))[::-1]
    assert "'day'" in by_time.because


def test_a_column_split_gives_the_parts():
    given = keys(coloured().assign(split=["train", "val", "test", "train"] * 40), target="y")
    assert given.rule == "given"
    assert list(given.given[:4]) == ["train", "valid", "test", "train"]
    assert keys(coloured().assign(split=["banana", "stem"] * 80), target="y").rule == "stratified"


def test_repeated_rows_stay_together_unless_they_are_the_nature_of_the_table():
    frame = coloured()
    some = pd.concat([frame, frame.iloc[:10]], ignore_index=True)
    found = keys(some, target="y")
    assert found.rule == "grouped"
    assert [found.group[i] for i in range(10)] == [found.group[160 + i] for i in range(10)]
    assert len(set(found.group)) == 160
    coarse = keys(pd.concat([frame[["colour", "y"]]] * 2, ignore_index=True), target="y")
    assert coarse.rule == "stratified"
    assert "repeat" in coarse.because


def test_the_group_is_no_feature_and_macro_f1_decides_when_one_class_rules():
    frame = coloured().assign(hospital=np.arange(160) // 8)
    assert "hospital" not in facts_of(frame, target="y", group="hospital").schema["columns"]
    assert data.metrics(facts_of(frame, target="y"))[0].name == "accuracy"
    rare = frame.assign(y=["yes"] * 20 + ["no"] * 140)
    assert data.metrics(facts_of(rare, target="y"))[0].name == "macro_f1"
    assert data.metrics(facts_of(frame, target="x1"))[0].name == "rmse"


def test_facts_come_from_the_training_rows_alone():
    reading = read(coloured(), target="y")
    reds = np.flatnonzero(reading.table.column("colour") == "red")
    rest = np.setdiff1d(np.arange(160), reds)
    facts = data.describe(reading.table.take(rest), "classification", Request(target="y"))
    assert facts.schema["columns"]["colour"]["categories"] == ["blue", "green"]
    encoder = Encoder(facts.schema["columns"])
    column = encoder.categorical[0]
    assert np.isnan(encoder.matrix(reading.table)[reds, column]).all()


def test_the_order_of_rows_changes_no_fact():
    reading = read(coloured(), target="y")
    shuffled = reading.table.take(np.random.default_rng(1).permutation(160))
    request = Request(target="y")
    assert data.describe(shuffled, "classification", request) == data.describe(reading.table, "classification", request)


def test_the_linear_rival_beats_the_trivial_one():
    run = trained(coloured(400), target="y")
    accuracy = data.metrics(run.facts)[0]
    scores = []
    for baseline in data.baselines(run.facts):
        answers = baseline.fit(run.reading.table)(run.test.without_target())
        scores.append(point(accuracy, run.test.target(), answers))
    assert scores[1] > scores[0] + 0.1


def test_a_linear_rival_learns_a_line_with_missing_cells():
    frame = coloured(300).assign(z=lambda f: 3 * f["x1"] - f["x2"])
    frame.loc[::17, "x2"] = np.nan
    run = trained(frame.drop(columns="y"), target="z")
    rmse = data.metrics(run.facts)[0]
    trivial, ridge = (
        point(rmse, run.test.target(), b.fit(run.reading.table)(run.test.without_target()))
        for b in data.baselines(run.facts)
    )
    assert ridge < trivial / 3


@pytest.mark.parametrize("name", demo.NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_demo_trains_and_beats_the_trivial_answer(name, family):
    example = demo.load(name)
    run = trained(example.data, family, target=example.request.target, task=example.request.task)
    metric = data.metrics(run.facts)[0]
    ours = point(metric, run.test.target(), run.learner.predict(run.test.without_target()))
    trivial = data.baselines(run.facts)[0].fit(run.reading.table)(run.test.without_target())
    theirs = point(metric, run.test.target(), trivial)
    assert (ours > theirs) == metric.higher_is_better
    assert "scikit-learn" in example.about


def test_an_unknown_demo_offers_the_near_one():
    with pytest.raises(UsageError, match="Did you mean diabetes"):
        demo.load("diabetis")


def test_a_column_of_numbers_with_many_strays_is_taken_as_categories_aloud():
    from domains.tabular.columns import recognised

    ages = pd.Series([str(20 + i % 50) for i in range(90)] + ["n.a."] * 10, name="age")
    _, notice = recognised(ages)
    assert notice.startswith("10 of 100 filled cells are no numbers ('n.a.')")
    dates = pd.Series(["2024-01-31"] * 60 + ["soon"] * 40)
    assert "no dates ('soon')" in recognised(dates)[1]
    assert recognised(pd.Series(["red", "blue", "7"] * 10))[1] == ""
