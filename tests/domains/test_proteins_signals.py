"""Sorting signals, several labels, and adapters. Networks are small and random."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import zoo
from domains.contract import Request
from domains.proteins import data
from domains.proteins.adapters import is_adapter, num_adapted, with_adapters
from domains.proteins.baselines import composition, kmer_features, letter_codes
from domains.proteins.composition_kernels import CompositionKernels
from domains.proteins.signals import HYDROPATHY, num_crossings, sorting_signals, window_means
from domains.shared.proteins.esm2 import pooled, tokens
from domains.shared.proteins.esm2_weights import load_encoder, read_config


def test_means_of_stretches_are_those_of_a_convolution():
    values = np.random.default_rng(0).normal(size=40)
    assert np.allclose(window_means(values, 7), np.convolve(values, np.ones(7) / 7, "valid"))
    assert window_means(values[:3], 7) == pytest.approx(values[:3].mean())


def test_stretches_that_cross_a_membrane_are_counted_without_overlap():
    greasy, polar = "L" * 19, "N" * 30
    for count in (0, 1, 3):
        chain = polar + (greasy + polar) * count
        wide = window_means(np.array([HYDROPATHY[letter] for letter in chain]), 19)
        assert num_crossings(wide) == count
    assert num_crossings(window_means(np.full(38, 3.8), 19)) == 2


def test_signals_tell_a_signal_peptide_from_the_same_residues_in_another_order():
    signal = "MKK" + "LLLLLLLLLLLL" + "ASA" + "NDEQSTNDEQST" * 5
    mixed = "".join(np.random.default_rng(0).permutation(list(signal)))
    features = [sorting_signals(letter_codes(chain)) for chain in (signal, mixed)]
    assert features[0][0] > features[1][0] + 1
    assert np.allclose(features[0][10:13], features[1][10:13])  # composition alone
    assert all(np.isfinite(sorting_signals(letter_codes(chain))).all() for chain in ("M", "MK", "X" * 30))


def test_kernels_of_a_run_that_knew_fewer_blocks_are_as_they_were():
    chains = ["".join(np.random.default_rng(i).choice(list("ACDEFGHIKL"), 30)) for i in range(12)]
    new = CompositionKernels.of(chains)
    old = CompositionKernels({name: pair for name, pair in new.scaling.items() if name != "signals"})
    assert "signals" not in old.names()
    assert len(old.each(chains, chains)) == len(old.names())
    assert set(new.names()) - set(old.names()) == {"signals"}
    assert set(kmer_features(chains)) == set(new.scaling)


def test_the_rival_learns_what_only_the_order_of_residues_tells():
    rng = np.random.default_rng(0)
    rows = []
    for i in range(80):
        tail = list(rng.permutation(list("NDEQST" * 12)))
        greasy = list("L" * 14)
        spread = [letter for pair in zip(greasy, tail[30:], strict=False) for letter in pair]
        chain = greasy + tail if i % 2 else tail[:30] + spread
        rows.append({"sequence": "M" + "".join(chain), "y": "out" if i % 2 else "in"})
    table = data.read(pd.DataFrame(rows), Request(target="y")).table
    predict = composition("classification").fit(table.take(range(60)))
    held = table.take(range(60, 80))
    assert np.mean(predict(held.without_target()).values == held.target()) == 1.0


def test_several_labels_a_protein_are_learned_and_rivals_are_asked_too(tmp_path):
    rng = np.random.default_rng(0)
    chains = ["".join(rng.choice(list("KEAG"), 30, p=rng.dirichlet([1] * 4))) for _ in range(120)]
    frame = pd.DataFrame({"sequence": chains})
    for name, letter in (("basic", "K"), ("acidic", "E")):
        frame[name] = (frame["sequence"].str.count(letter) > 6).astype(float)
    frame.loc[:9, "basic"] = np.nan
    sets = {"options.weights": "random:2x32", "train.head.epochs": 30, "train.head.lr": 1e-2}
    recipe, target = "proteins/esm2-embed-head", "basic,acidic"
    run = zoo.train(recipe, frame, target=target, task="multilabel", set=sets, fast=True, out=tmp_path / "run")
    scores = {**run.metrics["baseline"], "model": run.metrics["test"]}
    assert scores["kmers"]["micro_f1"]["value"] > scores["label shares"]["micro_f1"]["value"]
    assert scores["model"]["micro_f1"]["value"] > scores["label shares"]["micro_f1"]["value"]
    answers = zoo.load(run.folder).predict(frame[["sequence"]])
    assert {"probability_basic", "probability_acidic"} <= set(answers)


def test_adapters_change_nothing_at_first_and_are_all_that_is_trained_beside_the_head(tmp_path):
    numbers = tokens(["MKTAYIAK", "ACDEF"], max_residues=20)
    torch.manual_seed(0)
    encoder = load_encoder("random:2x32")
    with torch.no_grad():
        before = pooled(encoder, *numbers)
        adapted = with_adapters(encoder, 4, 8.0).eval()
        assert torch.allclose(pooled(adapted, *numbers), before, atol=1e-5)
        nn.init.normal_(dict(adapted.named_parameters())["encoder.layer.0.attention.self.query.lora_B.default.weight"])
        assert not torch.allclose(pooled(adapted, *numbers), before, atol=1e-3)
    count = sum(p.numel() for name, p in adapted.named_parameters() if is_adapter(name))
    assert count == num_adapted(read_config("random:2x32"), 4)


def test_training_adapters_leaves_the_random_weights_and_learns_and_loads(tmp_path):
    rng = np.random.default_rng(0)
    basic = np.arange(60) % 2 == 0
    chains = ["".join(rng.choice(list("KR" if b else "DE"), 8)) + "ACDFGHIL" for b in basic]
    frame = pd.DataFrame({"sequence": chains, "y": np.where(basic, "basic", "acid")})
    encoder = load_encoder("random:2x32")
    encoder.save_pretrained(tmp_path / "weights")
    sets = {"options.weights": str(tmp_path / "weights"), "options.method": "lora", "options.rank": 4, "train.lr": 5e-3}
    sets |= {"train.head_lr": 1e-2, "train.precision": "fp32", "train.compile": "off", "train.batch_size": 8}
    run = zoo.train("proteins/esm2-finetune", frame, target="y", set=sets, epochs=8, fast=True, out=tmp_path / "run")
    assert run.metrics["test"]["accuracy"]["value"] == 1
    trained = run._learner.task.model.encoder
    for name, value in encoder.state_dict().items():
        kept = {key.replace(".base_layer", ""): each for key, each in trained.state_dict().items()}
        assert torch.equal(kept[name], value), name
    before, after = run.predict(frame), zoo.load(run.folder).predict(frame)
    assert np.allclose(before["probability_acid"], after["probability_acid"], atol=1e-6)
