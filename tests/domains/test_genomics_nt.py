"""The Nucleotide Transformer recipe on small random weights saved in the real format; nothing here is pretrained."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import EsmConfig, EsmForMaskedLM, EsmTokenizer

from domains.contract import Request
from domains.genomics import data, nt_finetune
from domains.genomics.bases import reverse_complement
from domains.genomics.kmer_tokens import numbers, places, usual_vocabulary
from domains.genomics.nt_weights import load_encoder, read_model
from domains.shared.esm import empty_encoder, num_parameters
from trainers.contract import Machine, Plan
from trainers.errors import DataError, UsageError
from trainers.settings import Gradient

SEQUENCES = ["ACGTACGTACGTAC", "ACGNACGTACGTTTG", "NNACGTAC", "AC", "GATTACAGATTACA"]


def random_checkpoint(folder, **changed):
    """A masked language model of the Nucleotide Transformer's shape, random, as its folder on the hub looks."""
    torch.manual_seed(0)
    config = {**read_model("random:2x32")["config"], "emb_layer_norm_before": False, **changed}
    EsmForMaskedLM(EsmConfig(**config)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(usual_vocabulary()))
    return folder


def test_tokens_are_those_of_transformers_own_tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(usual_vocabulary()))
    tokenizer = EsmTokenizer(str(tmp_path / "vocab.txt"), eos_token=None)
    place = places(usual_vocabulary())
    for sequence in SEQUENCES:
        assert numbers(sequence, place, 100) == tokenizer(sequence)["input_ids"]
    assert numbers("ACGRAC", place, 100) == numbers("ACGNAC", place, 100)
    assert len(numbers("ACGTAC" * 50, place, 10)) == 10


def test_states_of_a_random_checkpoint_are_those_of_transformers(tmp_path):
    folder = random_checkpoint(tmp_path)
    reference = EsmForMaskedLM.from_pretrained(folder).eval()
    ids = torch.tensor([numbers("ACGTACGTACGTNAC", places(usual_vocabulary()), 100)])
    with torch.no_grad():
        found = load_encoder(str(folder))(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        expected = reference(input_ids=ids, output_hidden_states=True).hidden_states[-1]
    assert torch.allclose(found, expected, atol=1e-6)


def test_parameters_by_formula_are_those_of_the_random_network():
    config = read_model("random:3x48")["config"]
    assert num_parameters(config) == sum(value.numel() for value in empty_encoder(config).parameters())


def test_the_second_generation_and_foreign_models_are_refused_by_name(tmp_path):
    folder = random_checkpoint(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "add_bias_fnn": False}))
    with pytest.raises(DataError, match="Nucleotide Transformer v2"):
        read_model(str(folder))
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    with pytest.raises(DataError, match="'bert' model"):
        read_model(str(folder))


def plan_of(table, task, folder, **train):
    options = nt_finetune.Options(**{**nt_finetune.TINY["options"], "weights": str(folder)})
    settings = Gradient.model_validate({**nt_finetune.TINY["train"], **train})
    facts = data.describe(table, task, Request())
    estimates = nt_finetune.plan(facts, options, settings, Machine())
    names = ("genomics/x", "genomics", task, nt_finetune.__name__)
    return Plan(*names, options.model_dump(), settings.model_dump(), facts.as_json(), Machine(), 0, estimates)


def quiet_watch(folder):
    return SimpleNamespace(
        folder=folder / "run", cache=folder / "cache", metric="auc", higher_is_better=True, rank=0, world=1,
        score=lambda rows, predictions: 0.0, log=lambda **event: None, should_stop=lambda: None,
    )  # fmt: skip


def labelled(num=60):
    rng = np.random.default_rng(0)
    rich = rng.random(num) < 0.5
    chains = [
        "".join(rng.choice(list("GCAT"), 36, p=[0.4, 0.4, 0.1, 0.1] if r else [0.1, 0.1, 0.4, 0.4])) for r in rich
    ]
    return data.read(pd.DataFrame({"sequence": chains, "y": np.where(rich, "gc", "at")}), Request(target="y")).table


def test_from_random_weights_it_learns_and_answers_both_strands_alike_after_loading(tmp_path):
    (tmp_path / "hub").mkdir()
    table = labelled()
    plan = plan_of(table, "classification", random_checkpoint(tmp_path / "hub"))
    learner = nt_finetune.build(plan)
    learner.fit(table, None, quiet_watch(tmp_path))
    answers = learner.predict(table.without_target())
    assert np.mean(answers.values == table.target()) > 0.9
    learner.save(tmp_path / "model")
    loaded = nt_finetune.load(Plan.from_json(plan.as_json()), tmp_path / "model")
    assert np.array_equal(loaded.predict(table.without_target()).scores, answers.scores)
    frame = pd.DataFrame({"sequence": [reverse_complement(chain) for chain in table.column("sequence")]})
    other = data.read(frame, Request(facts=data.describe(table, "classification", Request()))).table
    assert np.allclose(loaded.predict(other).scores, answers.scores, atol=1e-5)


def test_more_tokens_than_the_random_weights_have_positions_are_refused(tmp_path):
    table = labelled(8)
    options = nt_finetune.Options(weights="random:1x32", max_tokens=1001)
    facts = data.describe(table, "classification", Request())
    with pytest.raises(UsageError, match="Set at most 1000"):
        nt_finetune.plan(facts, options, Gradient(), Machine())
