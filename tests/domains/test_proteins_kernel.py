"""Kernels between variants and between compositions, and the recipe from plan to prediction."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from domains.contract import Facts, Request
from domains.proteins import data, kernel
from domains.proteins.baselines import HYDROPATHY
from domains.proteins.composition_kernels import CompositionKernels
from domains.proteins.substitutions import SubstitutionKernels
from trainers.contract import Machine, Plan
from trainers.errors import UsageError
from trainers.settings import KernelSettings

WILD = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVK"


def variants(num=200, seed=0):
    """Substitutions that cost what they lose in hydropathy, times how buried their position is."""
    rng = np.random.default_rng(seed)
    buried = np.abs(np.sin(np.arange(len(WILD)) / 6))
    rows = []
    for _ in range(num):
        at, gained = int(rng.integers(len(WILD))), str(rng.choice(sorted(HYDROPATHY)))
        cost = -buried[at] * abs(HYDROPATHY[gained] - HYDROPATHY[WILD[at]])
        rows.append((WILD[:at] + gained + WILD[at + 1 :], cost + 0.05 * rng.normal()))
    return pd.DataFrame(rows, columns=["sequence", "y"]).drop_duplicates("sequence")


@pytest.mark.parametrize("kernels", [SubstitutionKernels(WILD), CompositionKernels.of(variants()["sequence"].tolist())])
def test_every_kernel_is_symmetric_without_negative_eigenvalues_and_their_sum_is_the_matrix(kernels):
    rows = [*variants(30)["sequence"], WILD, WILD[:50], WILD.replace("K", "R")]
    each = kernels.each(rows, rows)
    weights = np.linspace(0.1, 1, len(each))
    for found in each:
        assert np.allclose(found, found.T, atol=1e-4)
        assert np.linalg.eigvalsh(found.astype(float)).min() > -1e-3 * max(1, np.trace(found) / len(rows))
    assert np.allclose(kernels.matrix(rows, rows, weights), np.tensordot(weights, each, axes=1), rtol=1e-3, atol=1e-3)
    assert len(kernels.names()) == len(each)


def test_kernels_of_substitutions_are_those_written_out_by_hand():
    kernels = SubstitutionKernels(WILD)
    one, other, third = "A" + WILD[1:], "G" + WILD[1:], WILD[:1] + "A" + WILD[2:]
    found = dict(zip(kernels.names(), kernels.each([one, WILD], [one, other, third]), strict=True))
    assert found["position"].tolist() == [[1, 1, 0], [0, 0, 0]]
    assert found["position_gained"].tolist() == [[1, 0, 0], [0, 0, 0]]
    assert found["gained"].tolist() == [[1, 0, 1], [0, 0, 0]]
    for name, length in (("next", 1), ("near", 2), ("turn", 5)):
        assert found[name][0] == pytest.approx([1, 1, np.exp(-0.5 / length**2)])
    turned = np.exp(-1 / 6) * np.cos(2 * np.pi / 3.6)
    assert found["helix_gained_like"][0, 2] == pytest.approx(turned * found["gained_like"][0, 2])
    assert found["near_lost_like"][0, 1] == 1
    both = "AA" + WILD[2:]
    assert kernels.each([both], [both])[kernels.names().index("position")][0, 0] == 2


def plan_of(table, task, **train):
    facts = data.describe(table, task, Request())
    settings = KernelSettings(**{**kernel.TINY["train"], **train})
    estimates = kernel.plan(facts, kernel.Options(), settings, Machine())
    names = ("proteins/kernel", "proteins", task, kernel.__name__)
    return Plan(*names, {}, settings.model_dump(), facts.as_json(), Machine(), 0, estimates)


def watch():
    return SimpleNamespace(log=lambda **event: None, should_stop=lambda: None, cache=None)


def test_effects_are_predicted_for_positions_never_seen_and_after_loading(tmp_path):
    frame = variants(500)
    at = np.array([next((i for i in range(len(WILD)) if s[i] != WILD[i]), 0) for s in frame["sequence"]])
    is_test = at % 5 == 2
    table = data.read(frame, Request(target="y")).table
    train, test = table.take(np.flatnonzero(~is_test)), table.take(np.flatnonzero(is_test))
    plan = plan_of(train, "regression", tune_rows=200)
    learner = kernel.build(plan)
    learner.fit(train, None, watch())
    answers = learner.predict(test.without_target()).values
    assert spearmanr(answers, test.target())[0] > 0.6
    learner.save(tmp_path)
    again = kernel.load(Plan.from_json(plan.as_json()), tmp_path).predict(test.without_target()).values
    assert np.array_equal(again, answers)


def test_proteins_that_do_not_align_are_classified_by_composition(tmp_path):
    rng = np.random.default_rng(0)
    basic = rng.random(80) < 0.5
    letters = ["KRACDFGHILMN" if b else "EDACSFGHILMN" for b in basic]
    chains = ["".join(rng.choice(list(each), rng.integers(20, 50))) for each in letters]
    frame = pd.DataFrame({"sequence": chains, "y": np.where(basic, "basic", "acid")})
    table = data.read(frame, Request(target="y")).table
    train, test = table.take(np.arange(50)), table.take(np.arange(50, 80))
    learner = kernel.build(plan_of(train, "classification"))
    learner.fit(train, None, watch())
    answers = learner.predict(test.without_target())
    assert np.mean(answers.values == test.target()) > 0.85
    learner.save(tmp_path)
    again = kernel.load(learner.plan, tmp_path).predict(test.without_target())
    assert np.allclose(again.scores, answers.scores, atol=1e-6)


def test_more_rows_than_memory_holds_are_refused_before_training():
    facts = Facts("proteins", "regression", "y", 20_000)
    with pytest.raises(UsageError, match="20,000 training rows are more than"):
        kernel.plan(facts, kernel.Options(), KernelSettings(), Machine())
