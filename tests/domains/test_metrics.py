"""Metrics against scikit-learn and scipy, and intervals against closed forms."""

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr
from sklearn import metrics as reference

from domains.contract import Metric
from domains.metrics import classification_metrics, interval, point, ranks_of, regression_metrics, scores
from trainers.contract import Predictions


def random_labels(num_classes, num_rows=300, seed=0):
    rng = np.random.default_rng(seed)
    names = [f"c{k}" for k in range(num_classes)]
    probabilities = rng.dirichlet(np.ones(num_classes), num_rows)
    truth = np.array([names[rng.choice(num_classes, p=row)] for row in probabilities], dtype=object)
    return names, truth, Predictions.of_labels(probabilities, names)


@pytest.mark.parametrize("num_classes", [2, 5])
def test_classification_metrics_agree_with_scikit_learn(num_classes):
    names, truth, answers = random_labels(num_classes)
    found = {m.name: point(m, truth, answers) for m in classification_metrics(names)}
    column = answers.scores[:, 1] if num_classes == 2 else answers.scores
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(truth, answers.values))
    assert found["macro_f1"] == pytest.approx(reference.f1_score(truth, answers.values, average="macro"))
    assert found["auc"] == pytest.approx(reference.roc_auc_score(truth, column, multi_class="ovr"))
    assert found["log_loss"] == pytest.approx(reference.log_loss(truth, answers.scores, labels=names))


def test_regression_metrics_agree_with_scikit_learn_and_scipy():
    rng = np.random.default_rng(1)
    truth = rng.normal(size=200)
    answers = Predictions.of_numbers(truth + rng.normal(size=200))
    found = {m.name: point(m, truth, answers) for m in regression_metrics()}
    assert found["rmse"] == pytest.approx(reference.root_mean_squared_error(truth, answers.values))
    assert found["mae"] == pytest.approx(reference.mean_absolute_error(truth, answers.values))
    assert found["r2"] == pytest.approx(reference.r2_score(truth, answers.values))
    assert found["spearman"] == pytest.approx(spearmanr(truth, answers.values).statistic)


def test_auc_with_ties_agrees_with_scikit_learn():
    truth = np.array(["n", "p", "n", "p", "p", "n"], dtype=object)
    positive = np.array([0.5, 0.5, 0.2, 0.8, 0.2, 0.5])
    answers = Predictions.of_labels(np.column_stack([1 - positive, positive]), ["n", "p"])
    auc = classification_metrics(["n", "p"])[2]
    assert point(auc, truth, answers) == pytest.approx(reference.roc_auc_score(truth == "p", positive))


def test_an_auc_with_one_class_is_null_with_a_reason_not_a_number():
    names, _, answers = random_labels(2, 12)
    found = scores(classification_metrics(names), np.array(["c0"] * 12, dtype=object), answers, np.arange(12))
    assert found["auc"] == {
        "value": None,
        "low": None,
        "high": None,
        "reason": "undefined on these 12 rows: only one class, 'c0'",
    }


def test_a_class_the_model_does_not_know_counts_as_wrong():
    answers = Predictions.of_labels(np.array([[1.0, 0.0], [1.0, 0.0]]), ["a", "b"])
    accuracy = classification_metrics(["a", "b"])[0]
    assert point(accuracy, np.array(["a", "new"], dtype=object), answers) == 0.5


def test_probabilities_follow_class_names_when_a_rival_saw_fewer_classes():
    answers = Predictions.of_labels(np.array([[0.3, 0.7]]), ["a", "c"])
    log_loss = classification_metrics(["a", "b", "c"])[3]
    assert point(log_loss, np.array(["c"], dtype=object), answers) == pytest.approx(-np.log(0.7))


def test_the_interval_of_a_mean_is_the_normal_one():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=2000)
    mae = regression_metrics()[1]
    stats = mae.stats(truth, Predictions.of_numbers(np.zeros(2000)))
    low, high = interval(mae, stats, np.arange(2000))
    error = 1.96 * np.abs(truth).std() / np.sqrt(2000)
    assert low == pytest.approx(np.abs(truth).mean() - error, abs=0.005)
    assert high == pytest.approx(np.abs(truth).mean() + error, abs=0.005)


def test_resampling_groups_widens_the_interval_of_repeated_rows():
    rng = np.random.default_rng(0)
    truth = np.repeat(rng.normal(size=40), 25)
    mae = regression_metrics()[1]
    stats = mae.stats(truth, Predictions.of_numbers(np.zeros(1000)))
    alone = np.ptp(interval(mae, stats, np.arange(1000)))
    grouped = np.ptp(interval(mae, stats, np.repeat(np.arange(40), 25)))
    assert grouped > 3 * alone


def test_fewer_than_ten_groups_give_no_interval():
    names, truth, answers = random_labels(2, 30)
    found = scores(classification_metrics(names), truth, answers, np.arange(30) % 9)
    assert found["accuracy"]["low"] is None
    assert "too few groups" in found["accuracy"]["reason"]


def test_metrics_that_share_their_stats_share_the_work_and_undefined_rows_are_counted():
    calls = []

    def stats(truth, predictions):
        calls.append(len(truth))
        return np.array([[0.5], [np.nan], [0.7]])

    def defined(values):
        return int(np.isfinite(values).sum())

    def mean(values):
        return float(np.nanmean(values))

    metrics = [Metric("mean", "", True, stats, mean, defined), Metric("twice", "", True, stats, lambda x: 2 * mean(x))]
    found = scores(metrics, np.zeros(3), Predictions.of_numbers(np.zeros(3)), np.arange(3))
    assert calls == [3]
    assert found["mean"]["value"] == pytest.approx(0.6)
    assert (found["mean"]["num_scored"], found["mean"]["num_undefined"]) == (2, 1)
    assert found["twice"]["value"] == pytest.approx(1.2)
    assert "num_scored" not in found["twice"]


def test_an_undefined_score_says_what_is_missing():
    rows = np.array(["b"] * 4, object)
    answers = Predictions.of_labels(np.tile([0.25, 0.75], (4, 1)), ("a", "b"))
    found = scores(classification_metrics(("a", "b")), rows, answers, np.arange(4))
    assert found["auc"]["value"] is None
    assert found["auc"]["reason"] == "undefined on these 4 rows: only one class, 'b'"
    numbers = scores(regression_metrics(), np.full(4, 2.5), Predictions.of_numbers(np.arange(4.0)), np.arange(4))
    assert numbers["r2"]["reason"] == numbers["spearman"]["reason"] == "undefined on these 4 rows: all truths are 2.5"


def test_ranks_are_those_of_scipy_with_and_without_ties():
    rng = np.random.default_rng(0)
    for values in (rng.normal(size=200), rng.integers(0, 5, 200).astype(float), np.array([1.0]), np.empty(0)):
        np.testing.assert_array_equal(ranks_of(values), rankdata(values))
