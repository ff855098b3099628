"""Gaussian processes against scikit-learn, finite differences and refitting without a row."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from domains.shared.frames import FrameTable
from trainers.contract import Plan
from trainers.kernel import SMALLEST_NOISE, KernelLearner, distinct, evidence, fitted_weights, normal_scores, value_of
from trainers.settings import KernelSettings


class Numbers:
    """Radial kernels of two widths on numbers written as text."""

    widths = (0.3, 2.0)

    def as_json(self):
        return {}

    def names(self):
        return ("narrow", "wide")

    def each(self, these, those):
        apart = np.subtract.outer(np.array(these, float), np.array(those, float)) ** 2
        return [np.exp(-apart / (2 * width**2)) for width in self.widths]

    def matrix(self, these, those, weights):
        return np.tensordot(weights, np.array(self.each(these, those)), axes=1)


def points(num=60, seed=0):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-3, 3, num))
    return [repr(value) for value in x.tolist()], np.sin(2 * x) + 0.1 * rng.normal(size=num)


def test_the_evidence_is_scikit_learns_and_its_gradient_that_of_differences():
    texts, y = points()
    z = ((y - y.mean()) / y.std())[:, None]
    kernels, at = np.array(Numbers().each(texts, texts)), np.log([0.7, 0.4, 0.05])
    found, slope = evidence(at, kernels, z)
    kernel = ConstantKernel(0.7) * RBF(0.3) + ConstantKernel(0.4) * RBF(2.0) + WhiteKernel(0.05 + SMALLEST_NOISE)
    reference = GaussianProcessRegressor(kernel, optimizer=None, alpha=0).fit(np.array(texts, float)[:, None], z[:, 0])
    assert found == pytest.approx(-reference.log_marginal_likelihood_value_ / len(y))
    for i in range(3):
        step = np.eye(3)[i] * 1e-5
        difference = (evidence(at + step, kernels, z)[0] - evidence(at - step, kernels, z)[0]) / 2e-5
        assert slope[i] == pytest.approx(difference, abs=1e-7)


def test_a_kernel_that_explains_nothing_gets_next_to_no_weight():
    texts, y = points()
    z = ((y - y.mean()) / y.std())[:, None]
    chance = np.random.default_rng(1).normal(size=len(y))
    weights = fitted_weights([(np.array([*Numbers().each(texts, texts), np.outer(chance, chance)]), z)], 60)
    assert weights[2] < 0.05
    assert 0.005 < weights[-1] < 0.1


def learner(classes=(), **settings):
    facts = {"classes": list(classes)}
    values = KernelSettings(**{"tune_rows": 60, **settings}).model_dump()
    return KernelLearner(Plan("x/kernel", "x", "task", "m", {}, values, facts), lambda *_: Numbers(), "x")


def watch():
    return SimpleNamespace(log=lambda **event: None, should_stop=lambda: None, cache=None)


def table(texts, y):
    return FrameTable(pd.DataFrame({"x": texts, "y": y}), [str(i) for i in range(len(texts))], "y")


def test_answers_are_scikit_learns_with_the_same_weights_and_survive_saving(tmp_path):
    texts, y = points()
    fitted = learner(target="values")
    fitted.fit(table(texts[::2], y[::2]), None, watch())
    one, two, noise = fitted.state["weights"]
    kernel = ConstantKernel(max(one, 1e-12)) * RBF(0.3) + ConstantKernel(max(two, 1e-12)) * RBF(2.0)
    model = GaussianProcessRegressor(kernel, optimizer=None, alpha=noise)
    mean, std = y[::2].mean(), y[::2].std()
    model.fit(np.array(texts[::2], float)[:, None], (y[::2] - mean) / std)
    found = fitted.predict(table(texts[1::2], y[1::2])).values
    assert np.allclose(found, model.predict(np.array(texts[1::2], float)[:, None]) * std + mean, atol=1e-6)
    fitted.save(tmp_path)
    again = learner().load(tmp_path, lambda *_: Numbers())
    assert np.array_equal(again.predict(table(texts[1::2], y[1::2])).values, found)


def test_left_out_answers_are_those_of_refitting_without_the_row():
    texts, y = points(20)
    names = np.where(y > 0.5, "high", np.where(y < -0.5, "low", "middle")).astype(object)
    fitted = learner(("high", "low", "middle"))
    rows = table(texts, names)
    fitted.fit(rows, None, watch())
    targets = (names[:, None] == np.array(["high", "low", "middle"])) - fitted.state["mean"]
    weights, alpha = fitted.state["weights"], fitted.state["alpha"]
    covariance = Numbers().matrix(texts, texts, weights[:-1]) + weights[-1] * np.eye(20)
    by_formula = targets - alpha / np.diag(np.linalg.inv(covariance))[:, None]
    rest = np.arange(20) != 7
    refitted = covariance[7, rest] @ np.linalg.solve(covariance[np.ix_(rest, rest)], targets[rest])
    assert np.allclose(by_formula[7], refitted, atol=1e-8)
    answers = fitted.predict(rows)
    assert np.mean(answers.values == names) > 0.8
    assert np.allclose(answers.scores.sum(axis=1), 1)


def test_copies_of_a_row_count_once_with_their_mean():
    inputs, targets = distinct(["b", "a", "b"], np.array([[1.0], [5.0], [2.0]]))
    assert inputs == ["b", "a"]
    assert targets.tolist() == [[1.5], [5.0]]


def test_normal_scores_keep_the_order_are_standard_normal_and_turn_back():
    values = np.exp(np.random.default_rng(0).normal(size=999))
    scores = normal_scores(values)
    assert np.array_equal(np.argsort(scores), np.argsort(values))
    assert scores.mean() == pytest.approx(0, abs=1e-9)
    assert scores.std() == pytest.approx(1, abs=0.01)
    assert np.allclose(value_of(scores, np.sort(scores), np.sort(values)), values)
    assert normal_scores(np.array([1.0, 1.0, 3.0]))[0] == normal_scores(np.array([1.0, 1.0, 3.0]))[1]
    beyond = value_of(np.array([-9.0, 9.0]), np.array([0.0, 1.0, 2.0]), np.array([5.0, 6.0, 7.0]))
    assert beyond.tolist() == [4.0, 8.0]
