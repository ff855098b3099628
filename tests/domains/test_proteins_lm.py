"""The language model of proteins: masking, what its checkpoint gives to others, its score. All weights are small or random."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import EsmForMaskedLM

import zoo
from domains.contract import Request
from domains.proteins import data, protein_lm
from domains.shared.masked import Noise, fixed_places
from domains.shared.proteins.esm2 import MASK, RESIDUE_TOKENS
from domains.shared.proteins.esm2_weights import find, load_encoder
from trainers.errors import DataError, MissingError, UsageError

FAMILIES = ("ACDEF", "GHIKL", "MNPQR")
SETS = {
    "options.layers": 2,
    "options.width": 32,
    "options.max_residues": 32,
    "train.pretrain.batch_size": 8,
    "train.pretrain.lr": 1e-2,
    "train.pretrain.precision": "fp32",
    "train.pretrain.compile": "off",
}


def chains(num=60, seed=0):
    """Sequences of 10 to 50 residues, each of one family of letters."""
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list(FAMILIES[i % 3]), int(rng.integers(10, 51)))) for i in range(num)]


@pytest.fixture(scope="module")
def fasta(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "chains.fasta"
    path.write_text("".join(f">c{i}\n{chain}\n" for i, chain in enumerate(chains())))
    return path


@pytest.fixture(scope="module")
def finished(fasta):
    sets = {**SETS, "train.pretrain.epochs": 12}
    return zoo.train("proteins/protein-lm", fasta, task="masked-lm", set=sets, fast=True, out=fasta.parent / "run")


def test_the_run_folder_is_a_checkpoint_of_transformers_with_the_same_scores(finished):
    theirs = EsmForMaskedLM.from_pretrained(finished.folder / "model").eval()
    task = finished._learner.learner.task
    rows = data.read(pd.DataFrame({"sequence": chains(5, 7)}), Request(task="masked-lm")).table
    numbers, is_token, places, wanted, _ = task.collate(rows)
    with torch.no_grad():
        ours = task.model(numbers, is_token, places)
        logits = theirs(input_ids=numbers, attention_mask=is_token.long()).logits.flatten(0, 1)[places]
    assert torch.allclose(ours, logits, atol=1e-4)
    assert (numbers.flatten()[places] == MASK).all()
    assert not (wanted == MASK).any()


def test_it_learns_what_goes_together_and_beats_frequencies(finished):
    found = finished.metrics
    assert found["test"]["perplexity"]["value"] < 8 < 13 < found["baseline"]["unigram"]["perplexity"]["value"]
    bits = found["test"]["bits_per_residue"]["value"]
    assert 2**bits == pytest.approx(found["test"]["perplexity"]["value"])


def test_perplexity_is_the_mean_over_masked_residues_of_all_rows(finished):
    facts = data.Facts.from_json(finished.plan.facts)
    rows = data.read(pd.DataFrame({"sequence": chains(4, 9)}), Request(task="masked-lm")).table
    answers = finished.answer(rows)
    weights = np.array([len(sequence) for sequence in rows.column("sequence")], float)
    expected = np.exp((answers.values * weights).sum() / weights.sum())
    metric = data.metrics(facts)[0]
    assert metric.value(metric.stats(rows.target(), answers)) == pytest.approx(expected)


def test_frequencies_are_asked_of_the_same_masked_residues(fasta):
    rows = data.read(fasta, Request(task="masked-lm")).table
    answers = protein_lm.unigram(32).fit(rows)(rows)
    windows = protein_lm.SequenceWindows(32)
    inner = np.concatenate([window[1:-1] for window in windows.of_training(rows)])
    share = {int(number): ((inner == number).sum() + 1) / (len(inner) + 33) for number in np.unique(inner)}
    first = windows.of_rows(rows)[0]
    by_hand = np.mean([-np.log(share[int(first[at])]) for at in fixed_places(first, 0.15)])
    assert answers.values[0] == pytest.approx(by_hand)


def test_other_recipes_begin_from_the_run(finished, fasta):
    spec = str(finished.folder)
    assert find(spec).path == (finished.folder / "model").resolve()
    encoder = load_encoder(spec)
    own = finished._learner.learner.task.model.esm.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in encoder.state_dict().items() if name in own)
    frame = pd.DataFrame({"sequence": chains(), "y": [FAMILIES[i % 3] for i in range(60)]})
    sets = {"options.weights": spec, "train.head.epochs": 2}
    head = zoo.train("proteins/esm2-embed-head", frame, target="y", set=sets, fast=True, out=fasta.parent / "head")
    assert zoo.load(head.folder).predict(frame)["prediction"].notna().all()


def test_a_run_that_left_no_encoder_says_so(fasta, tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(MissingError, match="a run that left no encoder"):
        find(str(tmp_path))


def test_with_labels_it_learns_twice_and_keeps_the_checkpoint(tmp_path):
    frame = pd.DataFrame({"sequence": chains(), "y": [FAMILIES[i % 3] for i in range(60)]})
    small = {name.replace("pretrain", "tune"): value for name, value in SETS.items() if "pretrain" in name}
    sets = {**SETS, **small, "train.pretrain.epochs": 1, "train.tune.epochs": 6, "train.tune.lr": 3e-3}
    run = zoo.train("proteins/protein-lm", frame, target="y", set=sets, fast=True, out=tmp_path / "run")
    assert run.metrics["test"]["accuracy"]["value"] > 0.9
    assert find(str(run.folder)).path == (run.folder / "model" / "pretrain").resolve()


def test_alone_it_has_the_whole_budget_and_epochs_are_its_own():
    settings = protein_lm.Phases(seconds=100.0)
    assert protein_lm.pretraining("masked-lm", settings).seconds == 100
    assert protein_lm.pretraining("regression", settings).seconds == 70
    named = protein_lm.Phases(pretrain={"steps": 7}, tune={"epochs": 3})
    assert (protein_lm.pretraining("masked-lm", named).epochs, protein_lm.pretraining("masked-lm", named).steps) == (
        3,
        None,
    )
    assert protein_lm.pretraining("regression", named).steps == 7


def test_of_what_is_to_be_told_four_fifths_are_masked_and_a_tenth_replaced():
    noise = Noise(MASK, 0.15, replaced=0.1, kept=0.1, letters=tuple(RESIDUE_TOKENS[a] for a in "ACDEFGHIKL"))
    wanted = np.full(20_000, RESIDUE_TOKENS["W"])
    found = noise.standing(wanted, np.random.default_rng(0))
    # Five deviations of a share of .1 in 20,000 draws: .0106.
    assert abs((found == MASK).mean() - 0.8) < 0.015
    assert abs((found == wanted).mean() - 0.1) < 0.011
    others = found[(found != MASK) & (found != wanted)]
    assert set(others.tolist()) == set(noise.letters)


def test_long_sequences_are_read_in_windows_that_hold_every_residue_once():
    windows = protein_lm.SequenceWindows(10)
    rows = data.read(pd.DataFrame({"sequence": ["ACDEFGHIKLMNPQRSTVWYACD", "ACDEF"]}), Request(task="masked-lm")).table
    found = windows.of_training(rows)
    assert [len(window) for window in found] == [10, 9, 10, 7]
    letters = {number: letter for letter, number in RESIDUE_TOKENS.items()}
    text = "".join(letters[int(number)] for window in found for number in window[1:-1])
    assert text == "ACDEFGHIKLMNPQRSTVWYACDACDEF"


def test_fasta_without_labels_points_to_the_language_model_and_a_target_is_refused(fasta):
    with pytest.raises(DataError, match="masked-lm"):
        zoo.train("proteins/protein-lm", fasta, set=SETS)
    with pytest.raises(UsageError, match="from the sequences alone"):
        zoo.train("proteins/protein-lm", fasta, task="masked-lm", target="y", set=SETS)


def test_a_loaded_run_answers_the_same_and_statistics_are_plain(finished, fasta):
    again = zoo.load(finished.folder)
    assert np.allclose(again.predict(fasta)["prediction"], finished.predict(fasta)["prediction"], atol=1e-6)
    assert set(json.loads((finished.folder / "model" / "statistics.json").read_text())) == {"config"}
