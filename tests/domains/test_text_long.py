"""text/long-context: Mamba of transformers, read in blocks; random weights throughout."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, MambaConfig, MambaModel

from domains.contract import Request
from domains.text import causal, labelled, long_context, mamba
from domains.text import causal_weights as languages
from domains.text import encoder_weights as encoders
from domains.text.causal_task import last_states
from trainers.contract import Machine, Plan
from trainers.errors import DataError, UsageError
from trainers.settings import Gradient

SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return MambaModel(MambaConfig(**SIZES)).eval()


def batch(length=30):
    rng = np.random.default_rng(0)
    is_token = torch.arange(length)[None] < torch.tensor([[length], [length // 3], [1]])
    return torch.from_numpy(rng.integers(2, 60, (3, length))), is_token


@pytest.mark.parametrize("size", [1, 7, 64])
def test_states_and_gradients_in_blocks_are_those_of_transformers_own_forward(model, monkeypatch, size):
    monkeypatch.setattr(mamba, "BLOCK", size)
    numbers, is_token = batch()
    theirs = model(input_ids=numbers, attention_mask=is_token.long(), use_cache=False).last_hidden_state
    ours = mamba.last_states(model, numbers, is_token)
    assert torch.allclose(ours[is_token], theirs[is_token], atol=1e-5)
    weight = torch.randn_like(ours) * is_token[:, :, None]
    parameters = list(model.parameters())
    expected = torch.autograd.grad((theirs * weight).sum(), parameters)
    for found, wanted in zip(torch.autograd.grad((ours * weight).sum(), parameters), expected, strict=True):
        assert (found - wanted).norm() <= 1e-4 * wanted.norm()


def test_the_written_gradient_of_the_recurrence_is_the_numerical_one():
    torch.manual_seed(0)
    keep, add = torch.rand(2, 5, 2, 3, 2, dtype=torch.float64)
    state = torch.randn(2, 3, 2, dtype=torch.float64)
    given = [each.requires_grad_() for each in (keep, add, state)]
    assert torch.autograd.gradcheck(mamba.Recurrence.apply, given)


def test_long_texts_cost_time_by_their_length_not_its_square(model):
    kept = []

    def saved(tensor):
        kept.append(tensor.numel())
        return tensor

    def numbers_kept(length):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor):
            mamba.last_states(model, torch.ones(1, length, dtype=torch.long), torch.ones(1, length, dtype=torch.bool))
        return sum(kept)

    # What the backward pass keeps is the same a token, and no state of a token is among it: that alone would be
    # layers x inner width x states = 2 x 32 x 4 of them, on top of some 24 widths a layer.
    assert numbers_kept(2048) < 2.1 * numbers_kept(1024)


def plan_of(rows, task="classification", **options):
    chosen = long_context.Options(**{**long_context.TINY["options"], **options})
    settings = Gradient.model_validate({**long_context.TINY["train"], "steps": 2, "epochs": None})
    facts = labelled.describe(rows, task, Request())
    estimates = long_context.plan(facts, chosen, settings, Machine())
    return Plan(
        *("text/x", "text", task, long_context.__name__, chosen.model_dump(), settings.model_dump()),
        *(facts.as_json(), Machine(), 0, estimates),
    )


def table(num=24, words=20):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["old", "town", "trip", "meal"], int(rng.integers(2, words)))) for _ in range(num)]
    return labelled.read(pd.DataFrame({"text": texts, "y": rng.choice(["a", "b"], num)}), Request(target="y")).table


def quiet(folder, told=None):
    return SimpleNamespace(
        folder=folder / "run", cache=folder / "cache", metric="accuracy", higher_is_better=True, rank=0, world=1,
        score=lambda rows, found: 0.0, log=lambda **event: told is not None and told.append(event),
        should_stop=lambda: None,
    )  # fmt: skip


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_answers_do_not_depend_on_what_else_is_in_the_batch(pooling, tmp_path):
    rows = table()
    learner = long_context.build(plan_of(rows, pooling=pooling))
    learner.fit(rows, None, quiet(tmp_path))
    together = learner.predict(rows.without_target()).scores
    alone = [learner.predict(rows.take([i]).without_target()).scores for i in range(len(rows))]
    assert np.allclose(together, np.concatenate(alone), atol=1e-5)


def test_texts_are_cropped_only_beyond_the_stated_length_and_that_is_told(tmp_path):
    rows, told = table(words=60), []
    long_context.build(plan_of(rows, max_tokens=16)).fit(rows, None, quiet(tmp_path, told))
    assert any("longer than 16 tokens" in str(event.get("text")) for event in told)
    plan = plan_of(rows, max_tokens=16)
    assert any("16 are read" in note for note in plan.estimates["notes"])
    assert any("token by token" in note for note in plan.estimates["notes"])


def test_a_mamba_in_a_folder_is_loaded_and_another_model_refused(tmp_path, model):
    from domains.shared.tokens import of_pieces, write_for_transformers

    tokenizer = of_pieces(["old town trip meal"] * 4, 300, lowercase=True)
    torch.manual_seed(0)
    large = MambaModel(MambaConfig(**{**SIZES, "vocab_size": tokenizer.size}))
    large.save_pretrained(tmp_path / "mamba")
    write_for_transformers(tokenizer, tmp_path / "mamba", 1000)
    rows = table()
    learner = long_context.build(plan_of(rows, weights=str(tmp_path / "mamba")))
    learner.fit(rows, None, quiet(tmp_path))
    found = dict(learner.task.model.encoder.named_parameters())
    assert found.keys() == dict(large.named_parameters()).keys()
    assert (found["embeddings.weight"] - large.embeddings.weight).abs().max() < 0.1
    (tmp_path / "mamba" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(DataError, match="'bert' model is no Mamba"):
        plan_of(rows, weights=str(tmp_path / "mamba"))


def test_rates_of_the_recurrence_are_not_decayed_as_matrices(tmp_path):
    rows = table()
    learner = long_context.build(plan_of(rows))
    learner.fit(rows, None, quiet(tmp_path))
    roles = learner.task.roles()
    assert {role.kind for name, role in roles.items() if name.endswith(("A_log", "conv1d.weight", ".D"))} == {"scalar"}
    assert roles["encoder.layers.1.mixer.in_proj.weight"].kind == "matrix"
    assert roles.keys() == dict(learner.task.model.named_parameters()).keys()


def test_answers_are_learned_and_written_by_the_same_states_as_transformers():
    config = languages.read_config("random-mamba:2x32")
    language = languages.load_language("random-mamba:2x32", config).eval()
    assert isinstance(language, type(AutoModelForCausalLM.from_config(config)))
    numbers, is_token = batch()
    theirs = language.backbone(input_ids=numbers, attention_mask=is_token.long(), use_cache=False).last_hidden_state
    assert torch.allclose(last_states(language, numbers, is_token)[is_token], theirs[is_token], atol=1e-5)
    assert causal.Options(weights="random-mamba:2x32", method="all")
    with pytest.raises(UsageError, match="random-mamba"):
        encoders.read_config("random-mamba:2x32")
