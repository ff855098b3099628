"""Several labels a text: reading, what is unknown, loss, scores, rivals, and the recipe on random weights."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score
from torch.nn import functional

from domains.contract import Request
from domains.metrics import label_set_metrics, point
from domains.splits import make_split
from domains.text import data, encoder
from trainers.contract import Machine, Plan, Predictions, as_objects, known_labels
from trainers.errors import DataError
from trainers.outcome import Outcome, fit_outcome
from trainers.settings import Gradient

SETS = Request(target="y", task="multilabel")
CLASSES = ("awful", "film", "lovely")


def texts(num=200, seed=0):
    rng = np.random.default_rng(seed)
    rows = [
        rng.choice([*CLASSES, "the", "a", "we", "had", "it", "again"], rng.integers(3, 9)).tolist() for _ in range(num)
    ]
    y = [";".join(sorted({word for word in row if word in CLASSES})) for row in rows]
    return pd.DataFrame({"text": [" ".join(row) for row in rows], "y": y})


def random_sets(num=150, seed=0, unknown=0.0):
    rng = np.random.default_rng(seed)
    has = (rng.random((num, 3)) < [0.1, 0.4, 0.7]).astype(float)
    has[rng.random((num, 3)) < unknown] = np.nan
    named = [tuple(n + "?" if np.isnan(v) else n for n, v in zip(CLASSES, row, strict=True) if v != 0) for row in has]
    return has, as_objects(named)


# --- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written", [["a;b", "b", "", "c; a ;a"], ["a|b", "b", "", "c | a"], ['["a", "b"]', '["b"]', "[]", '["c","a"]']]
)
def test_a_cell_holds_labels_with_a_separator_between_or_a_json_list(written):
    frame = pd.DataFrame({"text": [f"some words {i}" for i in range(4)], "y": written})
    reading = data.read(frame, SETS)
    assert reading.table.target().tolist() == [("a", "b"), ("b",), (), ("a", "c")]
    assert not reading.bad
    assert any("having no label" in notice for notice in reading.notices) == (written[2] == "")


def test_columns_of_0_and_1_are_labels_and_empty_cells_are_unknown():
    frame = pd.DataFrame(
        {
            "text": [f"some words {i}" for i in range(5)],
            "a": [1, 0, np.nan, 1, np.nan],
            "b": ["1", "0", "1", "maybe", None],
            "c": [True, False, True, False, True],
        }
    )
    reading = data.read(frame, Request(target="a, b,c", task="multilabel"))
    assert reading.table.target()[:3].tolist() == [("a", "b", "c"), (), ("a?", "b", "c")]
    assert [(row.position, row.reason) for row in reading.bad] == [(3, "target 'b' is 'maybe', neither 0 nor 1")]
    facts = data.describe(reading.table.take([0, 1, 2, 4]), "multilabel", Request())
    assert facts.classes == ("a", "b", "c")
    assert any("unknown" in notice for notice in reading.notices)


def test_a_row_of_which_no_label_is_known_is_bad():
    frame = pd.DataFrame({"text": ["x y", "z w"], "a": [1, np.nan], "b": [0, np.nan]})
    reading = data.read(frame, Request(target="a,b", task="multilabel"))
    assert [row.position for row in reading.bad] == [1]


def test_unknown_columns_and_single_labels_are_refused():
    frame = pd.DataFrame({"text": ["x y", "z w"], "a": ["p", "p"]})
    with pytest.raises(DataError, match="nonsense"):
        data.read(frame, Request(target="a,nonsense", task="multilabel"))
    with pytest.raises(DataError, match="several are needed"):
        data.read(frame, Request(target="a", task="multilabel"))


def test_evaluating_names_a_label_that_training_did_not_know():
    facts = data.describe(data.read(texts(), SETS).table, "multilabel", SETS)
    frame = pd.DataFrame({"text": ["some film", "other words"], "y": ["film;flim", "film"]})
    reading = data.read(frame, Request(target="y", facts=facts))
    assert [row.position for row in reading.bad] == [0]
    assert "'flim' was not in the training data. Did you mean film" in reading.bad[0].reason


def test_a_semicolon_in_a_class_is_no_set_unless_it_is_asked_for():
    frame = pd.DataFrame({"text": [f"words {i}" for i in range(6)], "y": ["a;b", "c"] * 3})
    assert data.read(frame, Request(target="y")).task == "classification"


def test_rare_labels_are_in_every_part():
    frame = texts(300)
    frame["y"] = [f"{y};rare" if i % 30 == 0 else y for i, y in enumerate(frame["y"])]
    table = data.read(frame, SETS).table
    split = make_split(data.keys(table, "multilabel", SETS, fast=False), len(table), seed=0)
    for part in (split.train, split.valid, split.test):
        assert any("rare" in row for row in table.take(part).target())


# --- loss --------------------------------------------------------------------------------------------------------------


def loss_of(outcome, logits, encoded):
    totals, counts = outcome.totals(logits, torch.from_numpy(encoded)), outcome.counts(encoded)
    assert totals.keys() == counts.keys()
    return sum((totals[term] / counts[term] for term in totals if counts[term]), torch.zeros(()))


@pytest.mark.parametrize("unknown", [0.0, 0.4])
@pytest.mark.parametrize("weighing", ["none", "balanced"])
def test_the_loss_is_the_mean_over_labels_of_torch_s_own_over_known_rows(unknown, weighing):
    has, sets = random_sets(unknown=unknown)
    outcome = Outcome.from_json(json.loads(json.dumps(fit_outcome(sets, CLASSES, weighing).as_json())))
    assert outcome.has_unknown == (unknown > 0)
    logits = torch.randn(len(has), 3, generator=torch.Generator().manual_seed(0))
    expected = []
    for k in range(3):
        known = np.isfinite(has[:, k])
        weight = (
            torch.tensor((has[known, k] == 0).sum() / (has[known, k] == 1).sum()) if weighing == "balanced" else None
        )
        truth = torch.from_numpy(has[known, k])
        expected.append(
            functional.binary_cross_entropy_with_logits(logits[known, k].double(), truth, pos_weight=weight)
        )
    assert loss_of(outcome, logits, outcome.encoded(sets)).item() == pytest.approx(
        torch.stack(expected).mean().item(), rel=1e-5
    )


def test_micro_batches_with_unknown_labels_add_up_to_the_whole():
    _, sets = random_sets(40, unknown=0.5)
    outcome = fit_outcome(sets, CLASSES)
    encoded, logits = outcome.encoded(sets), torch.randn(40, 3)
    whole = outcome.totals(logits, torch.from_numpy(encoded))
    parts = [outcome.totals(logits[rows], torch.from_numpy(encoded[rows])) for rows in (slice(0, 7), slice(7, 40))]
    counts = [outcome.counts(encoded[rows]) for rows in (slice(0, 7), slice(7, 40))]
    for term, total in whole.items():
        assert total.item() == pytest.approx(sum(part[term].item() for part in parts), rel=1e-5)
        assert outcome.counts(encoded)[term] == sum(count[term] for count in counts)


def test_an_unknown_label_gives_no_gradient_even_where_the_network_overflows():
    outcome = fit_outcome(as_objects([("awful", "film?"), ("film",)]), CLASSES)
    logits = torch.tensor([[0.0, float("inf"), 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    encoded = torch.from_numpy(outcome.encoded(as_objects([("awful", "film?"), ("film",)])))
    sum(outcome.totals(logits, encoded).values()).backward()
    assert logits.grad[0, 1] == 0
    assert torch.isfinite(logits.grad).all()


def test_an_ensemble_s_answer_is_the_mean_probability_and_its_loss_the_mean_loss():
    _, sets = random_sets(10)
    outcome = fit_outcome(sets, CLASSES)
    outputs, encoded = torch.randn(10, 4, 3), torch.from_numpy(outcome.encoded(sets))
    assert np.allclose(outcome.predictions(outputs).scores, outputs.double().sigmoid().mean(1).numpy())
    alone = [outcome.totals(outputs[:, m], encoded)["binary_cross_entropy"] for m in range(4)]
    assert outcome.totals(outputs, encoded)["binary_cross_entropy"].item() == pytest.approx(
        torch.stack(alone).mean().item(), rel=1e-5
    )


def test_balanced_weights_of_single_classes_weigh_the_loss_as_torch_does():
    target = np.array(["a"] * 9 + ["b"], dtype=object)
    outcome = fit_outcome(target, ("a", "b"), "balanced")
    encoded, logits = outcome.encoded(target), torch.randn(10, 2, generator=torch.Generator().manual_seed(1))
    expected = functional.cross_entropy(logits, torch.from_numpy(encoded), weight=torch.tensor([10 / 18, 10 / 2]))
    assert loss_of(outcome, logits, encoded).item() == pytest.approx(expected.item(), rel=1e-5)


# --- scores ------------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_scikit_learn():
    has, sets = random_sets()
    rng = np.random.default_rng(1)
    scores = np.round(np.clip(0.5 * has + rng.random(has.shape) * 0.6, 0, 1), 1)  # rounded: there are ties
    found = {m.name: point(m, sets, Predictions.of_label_sets(scores, CLASSES)) for m in label_set_metrics(CLASSES)}
    assert found["micro_f1"] == pytest.approx(f1_score(has, scores > 0.5, average="micro"))
    assert found["macro_f1"] == pytest.approx(f1_score(has, scores > 0.5, average="macro"))
    assert found["mean_average_precision"] == pytest.approx(average_precision_score(has, scores, average="macro"))


def test_unknown_labels_do_not_count_and_labels_of_another_order_are_found():
    has, sets = random_sets(unknown=0.3)
    scores = np.random.default_rng(1).random(has.shape)
    mixed = Predictions.of_label_sets(scores[:, [2, 0]], ("lovely", "awful"))  # knows two of the three
    found = {m.name: point(m, sets, mixed) for m in label_set_metrics(CLASSES)}
    known = np.isfinite(has)
    scores[:, 1] = 0.0
    assert found["micro_f1"] == pytest.approx(f1_score(has[known], scores[known] > 0.5))
    expected = [average_precision_score(has[known[:, k], k], scores[known[:, k], k]) for k in range(3)]
    assert found["mean_average_precision"] == pytest.approx(np.mean(expected))


def test_nothing_named_is_zero_and_nothing_to_name_is_undefined():
    nothing = Predictions.of_label_sets(np.zeros((1, 3)), CLASSES)
    micro, macro, precision = label_set_metrics(CLASSES)
    assert point(micro, as_objects([("film",)]), nothing) == 0
    assert point(macro, as_objects([("film",)]), nothing) == 0
    assert point(micro, as_objects([()]), nothing) is None
    assert point(precision, as_objects([()]), nothing) is None


def test_known_labels_marks_what_nobody_knows():
    found = known_labels(as_objects([("awful", "film?"), ()]), CLASSES)
    assert np.array_equal(found, [[1, np.nan, 0], [0, 0, 0]], equal_nan=True)


# --- rivals and the recipe ---------------------------------------------------------------------------------------------


def test_the_rivals_answer_and_the_linear_one_learns_also_from_partly_known_labels():
    table, new = data.read(texts(), SETS).table, data.read(texts(60, seed=1), SETS).table
    facts = data.describe(table, "multilabel", SETS)
    metric = data.metrics(facts)[0]
    shares, linear = (baseline.fit(table)(new.without_target()) for baseline in data.baselines(facts))
    assert shares.kind == linear.kind == "labels"
    assert point(metric, new.target(), linear) > 0.9 > point(metric, new.target(), shares)
    table.frame["y"] = as_objects(
        [(*row, "film?") if "film" not in row and i % 2 else row for i, row in enumerate(table.target())]
    )
    partly = data.baselines(facts)[1].fit(table)(new.without_target())
    assert point(metric, new.target(), partly) > 0.9


def test_the_recipe_learns_on_random_weights_saves_and_answers_the_same_after_loading(tmp_path):
    table = data.read(texts(300), SETS).table
    facts = data.describe(table, "multilabel", SETS)
    options = encoder.Options(**encoder.TINY["options"])
    settings = Gradient.model_validate(encoder.TINY["train"])
    plan = Plan(
        *("text/x", "text", "multilabel", encoder.__name__, options.model_dump(), settings.model_dump()),
        *(facts.as_json(), Machine(), 0, encoder.plan(facts, options, settings, Machine())),
    )
    metric = data.metrics(facts)[0]
    watch = SimpleNamespace(
        folder=tmp_path / "run", cache=tmp_path, metric=metric.name, higher_is_better=True, rank=0, world=1,
        score=lambda rows, found: point(metric, rows.target(), found), log=lambda **event: None, should_stop=lambda: None,
    )  # fmt: skip
    learner = encoder.build(plan)
    learner.fit(table.take(range(240)), table.take(range(240, 300)), watch)
    learner.save(tmp_path / "model")
    test = data.read(texts(80, seed=1), SETS).table
    found = learner.predict(test.without_target())
    again = encoder.load(plan, tmp_path / "model").predict(test.without_target())
    assert np.allclose(found.scores, again.scores, atol=1e-6)
    assert found.kind == "labels"
    assert point(metric, test.target(), found) > 0.85
