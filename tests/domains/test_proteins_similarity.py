"""Splits of proteins: relatives, variants and identical sequences end up on one side."""

import numpy as np
import pandas as pd
import pytest

from domains.contract import Request
from domains.proteins import data
from domains.proteins.baselines import HYDROPATHY, KmerModel, kmer_features
from domains.proteins.mutants import aligned_mutants, position_groups
from domains.shared.proteins import similarity
from domains.splits import make_split
from trainers.errors import MissingError

AMINO_ACIDS = list("ACDEFGHIKLMNPQRSTVWY")


def chain(rng, length):
    return "".join(rng.choice(AMINO_ACIDS, length))


def relative(rng, parent, share=0.4):
    """The parent with a share of its residues drawn anew: about 1 - share identical."""
    letters = np.array(list(parent))
    changed = rng.random(len(letters)) < share
    return "".join(np.where(changed, rng.choice(AMINO_ACIDS, len(letters)), letters))


def families(num, members, rng, length=120):
    parents = [chain(rng, length + 5 * i) for i in range(num)]
    return [relative(rng, parents[i % num]) for i in range(num * members)]


def table(sequences, seed=0):
    labels = np.random.default_rng(seed).choice(["a", "b"], len(sequences))
    frame = pd.DataFrame({"sequence": sequences, "label": labels})
    return data.read(frame, Request(target="label")).table


def test_families_are_found_and_divide_whole():
    rng = np.random.default_rng(0)
    rows = table(families(20, 5, rng))
    keys = data.keys(rows, "classification", Request(), fast=False)
    assert keys.rule == "grouped"
    truth = np.arange(100) % 20
    assert len(set(zip(truth, keys.group, strict=True))) == 20
    parts = make_split(keys, 100, seed=0)
    assert not set(truth[parts.train]) & set(truth[parts.test])
    assert parts.evidence["highest_similarity_across"] == 0.0


def test_links_give_the_identity_of_the_nearest_relative_and_one_for_identical_rows():
    rng = np.random.default_rng(1)
    parent = chain(rng, 150)
    rows = table([parent, parent, relative(rng, parent, 0.5), chain(rng, 150), chain(rng, 90)])
    links = data.keys(rows, "classification", Request(), fast=False).links
    nearness = links(np.array([1, 2, 3]), np.array([0, 4]))
    assert nearness[0] == 1.0
    assert 0.4 < nearness[1] < 0.7
    assert nearness[2] == 0.0


def test_a_domain_within_a_longer_chain_counts_as_near():
    rng = np.random.default_rng(2)
    domain = chain(rng, 80)
    hits = similarity.search([domain], [chain(rng, 100) + domain + chain(rng, 200), chain(rng, 380)])
    assert (hits.query.tolist(), hits.target.tolist(), hits.identity.tolist()) == ([0], [0], [1.0])


def test_peptides_of_the_letters_of_bases_are_still_proteins():
    hits = similarity.search(
        ["ACGTGATTACAGATTACCAGTACGGATA"] * 1, ["ACGTGATTACAGATTACCAGTACGGATA", "WWWWYYYYHHHHKKKKRRRREEEEDDDD"]
    )
    assert hits.target.tolist() == [0]


def check_clustering_first(monkeypatch):
    monkeypatch.setattr(similarity, "MOST_COMPARED", 20)
    chains = families(8, 5, np.random.default_rng(3))
    found = similarity.families(chains)
    truth = np.arange(40) % 8
    assert len(set(zip(truth, found.group, strict=True))) == 8
    nearness = found.links(np.array([0, 1]), np.array([8]))
    assert nearness[0] > 0.3
    assert nearness[1] == 0.0


def test_relatives_whose_clusters_were_kept_apart_are_joined_by_their_representatives(monkeypatch):
    halves = np.arange(40) % 16  # two clusters a family
    monkeypatch.setattr(similarity, "clusters", lambda chains: halves)
    check_clustering_first(monkeypatch)


@pytest.mark.slow
def test_many_sequences_are_clustered_first_and_links_are_searched_anew(monkeypatch):
    check_clustering_first(monkeypatch)


def test_fast_keeps_identical_sequences_together_and_says_what_it_skipped():
    rows = table(["MKTAYIAKQRQISFVK", "MKTAYIAKQRQISFVK", "GGGSGGGSGGGS"])
    keys = data.keys(rows, "classification", Request(), fast=True)
    assert keys.group[0] == keys.group[1] != keys.group[2]
    assert "--fast" in keys.because
    assert keys.links is None


def test_a_named_group_wins():
    rng = np.random.default_rng(4)
    frame = pd.DataFrame(
        {"sequence": [chain(rng, 30) for _ in range(6)], "label": list("ababab"), "fold": list("xxyyzz")}
    )
    request = Request(target="label", group="fold")
    rows = data.read(frame, request).table
    assert list(data.keys(rows, "classification", request, fast=False).group) == list("xxyyzz")


def test_without_mmseqs_the_error_names_the_package_and_the_way_round(monkeypatch):
    monkeypatch.setattr(similarity.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(similarity.shutil, "which", lambda name: None)
    monkeypatch.delenv("MMSEQS2_PATH", raising=False)
    with pytest.raises(MissingError, match=r"pip install .*--fast"):
        similarity.mmseqs()


def mutant(wild, *changes):
    letters = list(wild)
    for position in changes:
        letters[position] = "W" if letters[position] != "W" else "Y"
    return "".join(letters)


def test_variants_of_one_protein_are_grouped_by_mutated_position():
    rng = np.random.default_rng(5)
    wild = chain(rng, 60)
    rows = table([wild, wild, *(mutant(wild, i % 20) for i in range(40))])
    keys = data.keys(rows, "classification", Request(), fast=False)
    assert "position" in keys.because
    assert list(keys.group) == [60, 60, *(i % 20 for i in range(40))]


def test_positions_that_occur_together_stay_together():
    wild = chain(np.random.default_rng(6), 60)
    singles = [mutant(wild, i) for i in range(30)]
    found = aligned_mutants([*singles, mutant(wild, 3, 7), mutant(wild, 7, 12)])
    group, because = position_groups(found)
    assert len({group[3], group[7], group[12], group[30], group[31]}) == 1
    assert len(set(group)) == 28
    assert "share a mutated position" in because


def test_variants_whose_positions_all_connect_go_by_the_first_and_say_so():
    rng = np.random.default_rng(7)
    wild = chain(rng, 60)
    group, because = position_groups(aligned_mutants([mutant(wild, i, i + 1) for i in range(40)]))
    assert list(group) == list(range(40))
    assert "may be on both sides" in because


def test_unrelated_chains_of_one_length_are_no_variants():
    rng = np.random.default_rng(8)
    assert aligned_mutants([chain(rng, 50) for _ in range(40)]) is None


def test_a_family_that_does_not_align_is_split_at_random_aloud():
    rng = np.random.default_rng(9)
    parent = chain(rng, 100)
    chains = sorted({parent[: 90 + i % 10] + chain(rng, i % 7) for i in range(60)})
    found = similarity.families(chains)
    assert found.group is None
    assert "one family" in found.because
    assert "random" in found.because


def test_kmer_shares_are_those_of_a_count_by_hand():
    blocks = kmer_features(["AACA"])
    assert blocks["whole"][0, 0] == pytest.approx(np.sqrt(3 / 4))
    assert np.square(blocks["pairs"]).sum() == pytest.approx(1.0)
    assert blocks["pairs"][0, 1] == pytest.approx(np.sqrt(1 / 3))  # A then C: one of three


def test_the_rival_learns_what_composition_tells_and_takes_any_chain_afterwards():
    rng = np.random.default_rng(10)
    acid = ["".join(rng.choice(list("DEAG"), 40)) for _ in range(30)]
    basic = ["".join(rng.choice(list("KRAG"), 40)) for _ in range(30)]
    model = KmerModel("classification").fit(acid[:25] + basic[:25], np.array(["acid"] * 25 + ["basic"] * 25, object))
    found = model.predict_proba([*acid[25:], *basic[25:], "W"])
    assert model.classes_[found[:10].argmax(axis=1)].tolist() == ["acid"] * 5 + ["basic"] * 5
    assert np.allclose(found.sum(axis=1), 1.0)


def test_the_rival_of_variants_knows_the_effect_of_each_position():
    rng = np.random.default_rng(11)
    wild = chain(rng, 40)
    effect = rng.normal(size=40)
    places = np.tile(np.arange(40), 4)
    second = rng.permutation(places)
    chains = [mutant(wild, a, b) for a, b in zip(places, second, strict=True)]
    truth = np.where(places == second, effect[places], effect[places] + effect[second])
    model = KmerModel("regression").fit(chains[:120], truth[:120])
    assert np.corrcoef(model.predict(chains[120:]), truth[120:])[0, 1] > 0.9


def test_the_rival_of_variants_says_something_of_positions_it_never_saw():
    rng = np.random.default_rng(12)
    wild = chain(rng, 60)
    pairs = [(i, letter) for i in range(60) for letter in rng.choice(AMINO_ACIDS, 6, replace=False)]
    chains = [wild[:i] + letter + wild[i + 1 :] for i, letter in pairs]
    truth = np.array([HYDROPATHY[letter] - HYDROPATHY[wild[i]] for i, letter in pairs])
    seen = np.array([i % 3 > 0 for i, _ in pairs])
    model = KmerModel("regression").fit([c for c, s in zip(chains, seen, strict=True) if s], truth[seen])
    found = model.predict([c for c, s in zip(chains, seen, strict=True) if not s])
    assert np.corrcoef(found, truth[~seen])[0, 1] > 0.9
