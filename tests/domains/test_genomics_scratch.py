"""The strand-aware network: the same answer for both strands, whatever the batch, and a recipe from plan to prediction."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from domains.contract import Request
from domains.genomics import data, demo, scratch
from domains.genomics.bases import reverse_complement
from domains.genomics.strands import StrandNetwork, middle, other_strand, padded_shares
from trainers.contract import Machine, Plan
from trainers.settings import Gradient


def mixed_dna(num=40, seed=0):
    """Chains of 12 to 60 letters, ambiguous ones among them."""
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("ACGTACGTACGTNRYK"), rng.integers(12, 61))) for _ in range(num)]


def network(**options):
    torch.manual_seed(0)
    shape = {"filters": 16, "motif": 9, "num_blocks": 2, "hidden": 8, "num_outputs": 3, "dropout": 0.2}
    return StrandNetwork(**{**shape, **options}).eval()


def test_the_other_strand_of_padded_shares_is_that_of_the_letters():
    chains = mixed_dna()
    forward = padded_shares(chains, 50)
    backward = padded_shares([reverse_complement(chain) for chain in chains], 50)
    assert torch.equal(other_strand(*forward), backward[0])


@pytest.mark.parametrize("num_blocks", [0, 2])
def test_both_strands_get_the_same_answer_to_a_millionth(num_blocks):
    model, chains = network(num_blocks=num_blocks), mixed_dna()
    with torch.no_grad():
        one = model(*padded_shares(chains, 40))
        other = model(*padded_shares([reverse_complement(chain) for chain in chains], 40))
    assert torch.allclose(one, other, rtol=0, atol=1e-6)
    assert one.std(dim=0).min() > 1e-3


def test_an_answer_does_not_depend_on_what_else_is_in_the_batch():
    model, chains = network(), mixed_dna()
    with torch.no_grad():
        together = model(*padded_shares(chains, 1000))
        alone = torch.cat([model(*padded_shares([chain], 1000)) for chain in chains])
    assert torch.allclose(together, alone, atol=1e-5)


def test_one_strand_without_gaps_is_scanned_as_by_a_plain_convolution():
    model = network(num_blocks=0)
    bases, lengths = padded_shares(["ACGTTGCAACGGTACC"], 100)
    plain = torch.relu(model.scan((bases - 0.25).transpose(1, 2)))[0]
    expected = torch.cat([plain.amax(dim=1), plain.mean(dim=1)])
    assert torch.allclose(model.features(bases, lengths)[0], expected, atol=1e-6)


@pytest.mark.parametrize("length", [9, 10, 11, 20])
def test_cropping_shows_both_strands_the_same_bases(length):
    chain = "".join(np.random.default_rng(0).choice(list("ACGT"), length))
    assert middle(reverse_complement(chain), 9) == reverse_complement(middle(chain, 9))
    assert 0 < len(middle(chain, 9)) <= 9


def plan_of(table, task, train=None):
    options = scratch.Options(**scratch.TINY["options"])
    settings = Gradient.model_validate({**scratch.TINY["train"], **(train or {})})
    facts = data.describe(table, task, Request())
    estimates = scratch.plan(facts, options, settings, Machine())
    names = ("genomics/scratch", "genomics", task, scratch.__name__)
    return Plan(*names, options.model_dump(), settings.model_dump(), facts.as_json(), Machine(), 0, estimates)


def quiet_watch(folder):
    return SimpleNamespace(
        folder=folder / "run", cache=folder / "cache", metric="auc", higher_is_better=True, rank=0, world=1,
        score=lambda rows, predictions: 0.0, log=lambda **event: None, should_stop=lambda: None,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["two", "three", "number"])
def test_a_recipe_learns_saves_and_answers_the_same_after_loading(kind, tmp_path):
    rng = np.random.default_rng(0)
    level = rng.integers(0, 3 if kind == "three" else 2, 90)
    chains = [
        "".join(rng.choice(list("GCAT"), 40, p=np.array([1 + 3 * n, 1 + 3 * n, 4, 4]) / (10 + 6 * n))) for n in level
    ]
    target = level * 10.0 + 100 if kind == "number" else np.array(["none", "some", "much"])[level]
    reading = data.read(
        pd.DataFrame({"sequence": chains, "y": target}),
        Request(target="y", task="regression" if kind == "number" else None),
    )
    plan = plan_of(reading.table, reading.task, {"epochs": 25})
    learner = scratch.build(plan)
    learner.fit(reading.table, None, quiet_watch(tmp_path))
    answers = learner.predict(reading.table.without_target())
    learner.save(tmp_path / "model")
    again = scratch.load(Plan.from_json(plan.as_json()), tmp_path / "model").predict(reading.table.without_target())
    if kind == "number":
        assert np.corrcoef(answers.values, target)[0, 1] > 0.7
        assert np.array_equal(again.values, answers.values)
    else:
        assert np.mean(answers.values == target) > 0.75
        assert np.array_equal(again.scores, answers.scores)


def test_planned_parameters_are_those_of_the_network_and_every_one_has_a_role():
    reading = data.read(pd.DataFrame({"sequence": mixed_dna(), "y": ["a", "b"] * 20}), Request(target="y"))
    plan = plan_of(reading.table, "classification")
    model = network(filters=16, motif=7, hidden=16, num_outputs=2, num_blocks=0)
    assert plan.estimates["num_parameters"] == sum(value.numel() for value in model.parameters())
    task = scratch.StrandTask(network(), None, 100)
    assert set(task.roles()) == {name for name, _ in task.model.named_parameters()}


def test_an_even_motif_is_refused():
    with pytest.raises(ValidationError, match=r"even motif \(8\)"):
        scratch.Options(motif=8)


def test_the_demo_is_generated_with_motifs_on_both_strands():
    found = demo.load("planted-motif")
    with_motif = found.data[found.data["label"] == "motif"]["sequence"]
    forward = with_motif.str.contains("TATA[AT]A[AT][AG]")
    backward = with_motif.str.contains("[CT][AT]T[AT]TATA")
    assert (forward | backward).all()
    assert 0.3 < forward.mean() < 0.7
    assert "GENERATED" in found.about
