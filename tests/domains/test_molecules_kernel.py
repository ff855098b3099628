"""Kernels between molecules against scikit-learn and counting by hand, and the recipe from plan to prediction."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.gaussian_process.kernels import Matern

from domains.contract import Facts, Request
from domains.molecules import data, kernel
from domains.molecules.fingerprints import feature_matrix
from domains.molecules.molecule_kernels import LENGTHS, NUM_BITS, MoleculeKernels
from trainers.contract import Machine, Plan
from trainers.errors import UsageError
from trainers.settings import KernelSettings

ENDS = ("O", "N", "Cl", "F", "Br", "C#N", "C=C", "c1ccccc1", "C1CCCC1", "c1ccncc1", "C(=O)O", "c1ccco1")
SMILES = ["C" * length + end for length in range(1, 9) for end in ENDS]


def test_kernels_are_scikit_learns_and_shares_of_fragments_counted_by_hand():
    known, new = SMILES[::3], SMILES[1::7]
    kernels = MoleculeKernels.of(known)
    found = dict(zip(kernels.names(), kernels.each(new, known), strict=True))
    one, other = (feature_matrix(each, ["descriptors"], radius=2, num_bits=16).astype(float) for each in (new, known))
    one, other = (np.sign(each) * np.log1p(np.abs(each)) for each in (one, other))
    varies = other.std(axis=0) > 1e-6
    mean, spread = other[:, varies].mean(axis=0), other[:, varies].std(axis=0)
    one, other = (np.clip((each[:, varies] - mean) / spread, -5, 5) / np.sqrt(varies.sum()) for each in (one, other))
    np.testing.assert_allclose(found["linear"], one @ other.T, atol=1e-5)
    for length in LENGTHS:
        expected = Matern(length_scale=length, nu=1.5)(one, other)
        np.testing.assert_allclose(found[f"descriptors_{length:g}"], expected, atol=1e-5)
    for kind in ("ecfp", "pairs", "torsions"):
        mine, yours = (feature_matrix(each, [kind], radius=2, num_bits=NUM_BITS) for each in (new, known))
        least = np.minimum(mine[:, None], yours[None]).sum(axis=2)
        most = np.maximum(mine[:, None], yours[None]).sum(axis=2)
        np.testing.assert_allclose(found[kind], least / np.maximum(most, 1), atol=1e-6)


def test_every_kernel_is_symmetric_without_negative_eigenvalues_and_their_sum_is_the_matrix():
    rows = SMILES[:40]
    kernels = MoleculeKernels.of(rows)
    each = kernels.each(rows, list(rows))
    for found in each:
        assert np.allclose(found, found.T, atol=1e-5)
        assert np.linalg.eigvalsh(found.astype(float)).min() > -1e-4
    weights = np.linspace(0, 1, len(each))  # the first one, of no weight, is left out
    assert np.allclose(kernels.matrix(rows, rows, weights), np.tensordot(weights, each, axes=1), atol=1e-4)
    again = MoleculeKernels(**kernels.as_json())
    assert np.array_equal(again.matrix(rows[:5], rows, weights), kernels.matrix(rows[:5], rows, weights))


def learner_of(table, task):
    facts = data.describe(table, task, Request())
    settings = KernelSettings(**{**kernel.TINY["train"], "target": "values"})
    estimates = kernel.plan(facts, kernel.Options(), settings, Machine())
    names = ("molecules/kernel", "molecules", task, kernel.__name__)
    return kernel.build(Plan(*names, {}, settings.model_dump(), facts.as_json(), Machine(), 0, estimates))


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_molecules_never_seen_are_predicted_also_after_loading(tmp_path, task):
    number = np.array([0.5 * text.count("C") - 2.0 * ("O" in text) for text in SMILES])
    y = number if task == "regression" else np.where(number > 1.5, "high", "low")
    table = data.read(pd.DataFrame({"smiles": SMILES, "y": y}), Request(target="y", task=task)).table
    rows = np.random.default_rng(0).permutation(len(SMILES))
    train, test = table.take(rows[:70]), table.take(rows[70:])
    learner = learner_of(train, task)
    learner.fit(train, None, SimpleNamespace(log=lambda **event: None, should_stop=lambda: None, cache=tmp_path))
    answers = learner.predict(test.without_target())
    if task == "regression":
        assert np.sqrt(np.mean((answers.values - test.target()) ** 2)) < 0.3 * np.std(test.target())
    else:
        assert np.mean(answers.values == test.target()) > 0.85
    learner.save(tmp_path / "model")
    again = kernel.load(learner.plan, tmp_path / "model").predict(test.without_target())
    assert np.array_equal(again.values, answers.values)


def test_more_rows_than_memory_holds_are_refused_before_training():
    facts = Facts("molecules", "regression", "y", 20_000)
    with pytest.raises(UsageError, match="20,000 training rows are more than"):
        kernel.plan(facts, kernel.Options(), KernelSettings(), Machine())
