"""Pairs of a molecule and a protein: what is read, how they are divided, and rivals against closed forms."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from domains.contract import Request
from domains.folds import divide
from domains.molecules import data, demo, scaffolds
from domains.molecules.pair_rivals import additive
from domains.shared.frames import FrameTable
from domains.shared.proteins import similarity
from domains.splits import make_split
from trainers.errors import DataError

ASK = Request(target="affinity", task="interaction")
SEQUENCES = ["MKTAYIAKQRQISFVKSHFSRQ", "GSHMLEDPVDAFKSSLWWTE", "MNNRWQTYLLKCDEAHHPVF"]


@pytest.fixture(scope="module")
def table():
    frame = pd.DataFrame(demo.pairs(num_pairs=600, num_molecules=60, num_families=20, seed=1))
    reading = data.read(frame, ASK)
    assert reading.bad == ()
    return reading.table


@pytest.fixture(scope="module")
def keys(table):
    return data.keys(table, "interaction", ASK, fast=False)


def parts(table, split, name):
    return [set(table.column(name).to_numpy(object)[getattr(split, part)]) for part in ("train", "valid", "test")]


def relatives_across(table, split):
    train, *others = parts(table, split, "sequence")
    return [len(similarity.search(sorted(other), sorted(train)).query) for other in others]


def scaffolds_across(table, split):
    train, *others = ({scaffolds.scaffold(each) for each in part} for part in parts(table, split, "smiles"))
    return [len(train & other) for other in others]


def test_no_family_of_proteins_is_on_two_sides_by_default(table, keys):
    split = make_split(keys, len(table), seed=0)
    assert split.rule == "grouped"
    assert "cold protein" in split.evidence["because"]
    assert relatives_across(table, split) == [0, 0]
    loose = make_split(keys, len(table), seed=0, rule="random")
    assert min(relatives_across(table, loose)) > 0
    assert "optimistic" in loose.evidence


def test_no_scaffold_is_on_two_sides_of_a_split_by_molecule(table, keys):
    split = make_split(keys, len(table), seed=0, rule="cold-molecule")
    assert split.rule == "cold-molecule"
    assert scaffolds_across(table, split) == [0, 0]
    assert min(relatives_across(table, split)) > 0
    # groups are those of the molecules, over which intervals resample
    assert len(set(split.group)) == len({scaffolds.scaffold(each) for each in table.column("smiles")})
    fold = divide(keys, len(table), seed=0, rule="cold-molecule-fold-1-of-4")
    assert scaffolds_across(table, fold) == [0, 0]


def test_a_split_by_both_shares_neither_and_leaves_mixed_pairs_out(table, keys):
    split = make_split(keys, len(table), seed=0, rule="cold-both")
    assert relatives_across(table, split) == [0, 0]
    assert scaffolds_across(table, split) == [0, 0]
    assert split.evidence["num_rows"]["unused"] > 0


def test_with_few_proteins_molecules_are_divided():
    frame = pd.DataFrame(demo.pairs(num_pairs=300, num_molecules=60, num_families=4))
    table = data.read(frame, ASK).table
    keys = data.keys(table, "interaction", ASK, fast=False)
    assert "cold molecule" in keys.because
    assert scaffolds_across(table, make_split(keys, len(table), seed=0)) == [0, 0]


def test_bad_rows_are_named_and_a_pair_measured_twice_carries_the_mean():
    frame = pd.DataFrame(
        {
            "Drug": ["CCO", "C1CC", "c1ccccc1O", "CCN", "OCC", "CCCl"],
            "Target": [SEQUENCES[0], SEQUENCES[1], "MKT1AYW", SEQUENCES[2], SEQUENCES[0], SEQUENCES[1]],
            "Y": [5.0, 6.1, 7.2, np.nan, 6.0, 7.5],
        }
    )
    reading = data.read(frame, replace(ASK, target="Y"))
    assert {row.position: row.reason for row in reading.bad}.keys() == {1, 2, 3}
    reasons = " | ".join(row.reason for row in reading.bad)
    assert "C1CC" in reasons
    assert "'1' at residue 4" in reasons
    assert reading.table.target()[[0, 4]].tolist() == [5.5, 5.5]
    assert any("2 rows hold 1 pair with differing values" in notice for notice in reading.notices)
    with pytest.raises(DataError, match="one number or one class"):
        data.read(frame.assign(Z=1.0), replace(ASK, target="Y,Z"))


def test_the_additive_rival_is_the_least_squares_fit_of_two_factors():
    rng = np.random.default_rng(0)
    place = np.array([(i, j) for i in range(5) for j in range(4) if (i + j) % 3])
    y = rng.normal(size=len(place))
    frame = pd.DataFrame(
        {"smiles": [f"m{i}" for i in place[:, 0]], "sequence": [f"p{j}" for j in place[:, 1]], "affinity": y}
    )
    rows = FrameTable(frame, [str(i) for i in range(len(y))], "affinity")
    design = np.concatenate([np.eye(5)[place[:, 0]], np.eye(4)[place[:, 1]]], axis=1)
    exact = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    answer = additive(()).fit(rows)(rows)
    assert np.allclose(np.asarray(answer.values, float), exact, atol=1e-3)


def test_a_pair_is_as_like_another_as_the_less_like_of_its_halves(table):
    these, those = np.arange(20), np.arange(20, 600)
    found = data.likeness(table, these, those, ASK)
    same = data.likeness(table, these, np.arange(600), ASK)
    assert (same.highest == 1).all()
    i = int(found.highest.argmax())
    other = those[found.position[i]]
    smiles = table.column("smiles")
    assert found.highest[i] <= scaffolds.similarities([smiles.iloc[i]], [smiles.iloc[other]])[0, 0] + 1e-9
