"""Zero-shot effects of variants against fair-esm's logits on random weights, and how mutants are read."""

import argparse

import esm
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr

import zoo
from domains.contract import Request
from domains.proteins import blosum, changes, data
from domains.proteins.esm2_variant_effect import _window_start, wild_type_of
from domains.shared.proteins.esm2_weights import load_encoder, load_masked
from trainers.errors import DataError, UsageError

LAYERS, WIDTH, HEADS = 2, 48, 3
WILD = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"
RECIPE = "proteins/esm2-variant-effect"


@pytest.fixture(scope="module")
def reference():
    torch.manual_seed(0)
    model = esm.ESM2(LAYERS, WIDTH, HEADS, "ESM-1b").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def checkpoint(reference, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "esm2_tiny.pt"
    settings = argparse.Namespace(
        encoder_layers=LAYERS, encoder_embed_dim=WIDTH, encoder_attention_heads=HEADS, token_dropout=True
    )
    torch.save({"cfg": {"model": settings}, "model": reference.state_dict()}, path)
    return str(path)


def mutants(num=60, seed=0):
    """Rows with one or two substitutions by name and as a whole sequence, and a measured number."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(num):
        places = rng.choice(len(WILD), int(rng.integers(1, 3)), replace=False)
        gained = rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), len(places))
        letters = list(WILD)
        for at, letter in zip(places, gained, strict=True):
            letters[at] = letter
        name = ":".join(f"{WILD[at]}{at + 1}{letter}" for at, letter in zip(places, gained, strict=True))
        rows.append({"mutant": name, "mutated_sequence": "".join(letters), "score": float(rng.normal())})
    return pd.DataFrame(rows)


def by_fair_esm(reference, name, *, masked):
    alphabet = esm.data.Alphabet.from_architecture("ESM-1b")
    _, _, tokens = alphabet.get_batch_converter()([("wild", WILD)])
    total = 0.0
    for part in name.split(":"):
        at = int(part[1:-1])
        asked = tokens.clone()
        if masked:
            asked[0, at] = alphabet.mask_idx
        with torch.no_grad():
            logs = reference(asked)["logits"].log_softmax(dim=-1)[0, at]
        total += float(logs[alphabet.get_idx(part[-1])] - logs[alphabet.get_idx(part[0])])
    return total


@pytest.mark.parametrize("marginal", ["masked", "wild-type"])
def test_effects_are_the_likelihood_ratios_of_fair_esm_with_random_weights(reference, checkpoint, marginal, tmp_path):
    rows = mutants()[["mutant", "score"]]
    sets = {"options.weights": checkpoint, "options.wild_type": WILD, "options.marginal": marginal}
    run = zoo.train(RECIPE, rows, target="score", set=sets, out=tmp_path / "run")
    expected = [by_fair_esm(reference, name, masked=marginal == "masked") for name in rows["mutant"]]
    assert np.allclose(run.predict(rows)["prediction"], expected, atol=1e-4)
    assert np.allclose(zoo.load(run.folder).predict(rows)["prediction"], expected, atol=1e-4)
    test = pd.read_csv(run.folder / "predictions.csv")
    assert run.metrics["test"]["spearman"]["value"] == pytest.approx(spearmanr(test["truth"], test["prediction"])[0])
    assert run.evaluate(rows)["spearman"]["value"] == pytest.approx(spearmanr(rows["score"], expected)[0], abs=1e-6)


def test_whole_sequences_give_what_names_give_with_random_weights(checkpoint, tmp_path):
    rows = mutants()
    sets = {"options.weights": checkpoint}
    by_sequence = zoo.train(RECIPE, rows[["mutated_sequence", "score"]], target="score", set=sets, out=tmp_path / "a")
    frame = rows[["mutant", "score"]].assign(wild_type=WILD)
    by_name = zoo.train(RECIPE, frame, target="score", set=sets, out=tmp_path / "b")
    a, b = by_sequence.predict(rows[["mutated_sequence"]]), by_name.predict(frame)
    assert np.allclose(a["prediction"], b["prediction"], atol=1e-5)


def test_a_sequence_that_is_the_same_in_all_rows_is_the_wild_type(checkpoint):
    frame = mutants()[["mutant", "score"]].assign(sequence=WILD)
    reading = data.read(frame, Request(task="variant-effect", target="score"))
    assert set(reading.table.column("wild_type")) == {WILD}
    assert not any(reading.table.column("sequence"))
    assert any("wild type" in notice for notice in reading.notices)


def test_without_a_target_effects_are_predicted_and_no_score_is_claimed_with_random_weights(checkpoint, tmp_path):
    frame = mutants()[["mutant"]].assign(wild_type=WILD)
    run = zoo.train(RECIPE, frame, set={"options.weights": checkpoint}, out=tmp_path / "run")
    assert run.metrics["test"]["spearman"]["value"] is None
    assert run.predict(frame)["prediction"].notna().all()


def test_rows_of_other_proteins_or_lengths_say_why_they_have_no_answer(checkpoint, tmp_path):
    frame = mutants()[["mutant"]].assign(wild_type=WILD)
    run = zoo.train(RECIPE, frame, set={"options.weights": checkpoint}, out=tmp_path / "run")
    other = pd.DataFrame({"mutant": ["A1G", "M1A", "M99A", "M1*", "wt"], "wild_type": WILD})
    found = run.predict(other)
    problems = found["problem"].tolist()
    assert "has M at 1" in problems[0]
    assert problems[1] == problems[4] == ""
    assert "33 residues only" in problems[2]
    assert "no residue" in problems[3]
    assert found["prediction"][4] == 0
    said = []
    run.evaluate(frame.assign(score=1.0), target="score", say=said.append)
    assert not any("trained on" in line or "no answer" in line for line in said)
    odd = pd.DataFrame({"sequence": [WILD, WILD + "A"], "wild_type": WILD, "score": [0.0, 1.0]}).loc[[0, 1, 0, 1]]
    run.evaluate(odd, target="score", say=said.append)
    assert any(line.startswith("warning: 2 of 4 rows got no answer") for line in said)
    longer = run.predict(pd.DataFrame({"sequence": [WILD + "A"], "wild_type": [WILD], "mutant": [""]}))
    assert "insertions and deletions" in longer["problem"][0]


def test_a_mutant_is_read_in_the_ways_it_is_written():
    wild = "MKT"
    assert changes.parsed("K2R") == changes.parsed("p.K2R") == changes.between(wild, "MRT")
    assert changes.parsed("M1A:K2R") == changes.parsed("M1A, K2R".replace(" ", "")) == changes.between(wild, "ART")
    assert changes.parsed("WT") == []
    assert changes.parsed("K2=") == changes.parsed("K2K")
    for text in ("K2", "K0R", "2KR", "K2del", "K2-"):
        with pytest.raises(ValueError, match=r"substitution|counted|no residue"):
            changes.parsed(text)


def test_of_long_proteins_the_stretch_around_a_position_is_read(reference, checkpoint, tmp_path):
    assert [_window_start(at, 100, 20) for at in (0, 9, 50, 95, 99)] == [0, 0, 40, 80, 80]
    frame = mutants()[["mutant"]].assign(wild_type=WILD)
    sets = {"options.weights": checkpoint, "options.max_residues": 12, "train.encode_tokens": 40}
    run = zoo.train(RECIPE, frame, set=sets, out=tmp_path / "run")
    alphabet = esm.data.Alphabet.from_architecture("ESM-1b")
    _, _, tokens = alphabet.get_batch_converter()([("part", WILD[14:26])])
    tokens[0, 1 + 20 - 14] = alphabet.mask_idx
    with torch.no_grad():
        logits = reference(tokens)["logits"][0, 1 + 20 - 14]
    expected = float(logits[alphabet.get_idx("W")] - logits[alphabet.get_idx(WILD[20])])
    found = run.predict(pd.DataFrame({"mutant": [f"{WILD[20]}21W"], "wild_type": [WILD]}))
    assert found["prediction"][0] == pytest.approx(expected, abs=1e-4)


def test_a_checkpoint_without_its_language_head_is_refused(checkpoint, tmp_path):
    load_encoder(checkpoint).save_pretrained(tmp_path / "encoder")
    with pytest.raises(DataError, match="no language head"):
        load_masked(str(tmp_path / "encoder"))


def test_a_wild_type_comes_from_a_file_with_it_alone_and_must_be_a_protein(tmp_path):
    (tmp_path / "wild.fasta").write_text(f">wild\n{WILD}\n")
    assert wild_type_of(str(tmp_path / "wild.fasta")) == WILD
    with pytest.raises(UsageError, match="wild_type"):
        wild_type_of("MK1")
    (tmp_path / "two.fasta").write_text(">a\nMK\n>b\nMK\n")
    with pytest.raises(UsageError, match="2 sequences"):
        wild_type_of(str(tmp_path / "two.fasta"))


def test_unmeasured_variants_are_listed_and_an_unknown_wild_type_ends_the_run(checkpoint, tmp_path):
    frame = mutants(20)
    frame.loc[3, "score"] = np.nan
    with pytest.raises(DataError, match="score"):
        zoo.train(RECIPE, frame, target="score", set={"options.weights": checkpoint}, out=tmp_path / "a")
    few = mutants(12)[["mutant", "score"]]
    with pytest.raises(DataError, match="Which protein"):
        zoo.train(RECIPE, few, target="score", set={"options.weights": checkpoint}, out=tmp_path / "b")


def test_blosum_is_symmetric_and_keeps_what_is_rare():
    found = blosum.matrix()
    assert np.array_equal(found, found.T)
    assert found.shape == (20, 20)
    # Henikoff & Henikoff 1992, figure 2: tryptophan 11, cysteine 9, isoleucine for valine 3.
    assert (blosum.score("W", "W"), blosum.score("C", "C"), blosum.score("I", "V")) == (11, 9, 3)
    assert blosum.score("X", "A") == -1


@pytest.mark.parametrize(
    ("name", "reason"), [("M1A:M1G", "position 1 twice"), ("A999G", "33 residues only"), ("A1G", "has M at 1")]
)
def test_a_name_that_does_not_fit_its_wild_type_is_a_bad_row_of_training(name, reason):
    frame = mutants(20)[["mutant", "score"]].assign(wild_type=WILD)
    frame.loc[3, "mutant"] = name
    (row,) = data.read(frame, Request(task="variant-effect", target="score")).bad
    assert row.position == 3
    assert reason in row.reason


def test_names_are_checked_against_a_wild_type_that_an_option_gives(checkpoint, tmp_path):
    frame = mutants(40)[["mutant", "score"]].assign(mutant="A1G")
    with pytest.raises(DataError, match=r"mutants do not fit the wild type \(row .*has M at 1"):
        zoo.train(
            *(RECIPE, frame),
            target="score",
            set={"options.weights": checkpoint, "options.wild_type": WILD},
            out=tmp_path / "run",
        )


def test_names_alone_have_no_lengths():
    table = data.read(mutants()[["mutant"]], Request(task="variant-effect")).table
    found = data.profile(table, "variant-effect", Request())
    assert dict(found.lengths) == dict(found.marks) == {}
