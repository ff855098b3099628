"""text/encoder-classify from plan to prediction, on small random weights saved in transformers' own format."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel, PreTrainedTokenizerFast

from domains.contract import Request
from domains.shared import attention
from domains.shared.tokens import TextTokenizer, of_words
from domains.text import encoder
from domains.text import encoder_weights as encoders
from domains.text import labelled as data
from trainers.contract import Machine, Plan, Role
from trainers.errors import DataError, MissingError, UsageError
from trainers.settings import Gradient

WORDS = ["the", "a", "film", "meal", "trip", "was", "and", "we", "had", "it", "there", "again", "of", "town"]


def texts(num=48, seed=0, target="class"):
    """2 to 25 words, of them one that decides."""
    rng = np.random.default_rng(seed)
    good = rng.random(num) < 0.5
    rows = [[*rng.choice(WORDS, rng.integers(1, 25)), "lovely" if g else "awful"] for g in good]
    y = np.where(good, "pos", "neg") if target == "class" else good * 10.0 + 100 + rng.normal(size=num)
    frame = pd.DataFrame({"text": [" ".join(rng.permutation(row)) for row in rows], "y": y})
    return data.read(frame, Request(target="y")).table


def plan_of(table, *, options=None, train=None):
    task = "classification" if isinstance(table.target()[0], str) else "regression"
    chosen = encoder.Options(**{**encoder.TINY["options"], **(options or {})})
    settings = Gradient.model_validate({**encoder.TINY["train"], **(train or {})})
    facts = data.describe(table, task, Request())
    estimates = encoder.plan(facts, chosen, settings, Machine())
    return Plan(
        *("text/x", "text", task, encoder.__name__, chosen.model_dump(), settings.model_dump()),
        *(facts.as_json(), Machine(), 0, estimates),
    )


def agreement(rows, predictions):
    truth, found = rows.target(), predictions.values
    return float(np.mean(truth == found)) if predictions.kind == "label" else -float(np.abs(truth - found).mean())


def quiet_watch(folder, told=None):
    return SimpleNamespace(
        folder=folder / "run", cache=folder / "cache", metric="accuracy", higher_is_better=True, rank=0, world=1,
        score=agreement, log=lambda **event: told is not None and told.append(event), should_stop=lambda: None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder as `save_pretrained` writes it: 2 layers of 32, random; with a word tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = of_words([*WORDS, "lovely", "awful"])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer.tokenizer, pad_token="[PAD]").save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=64, max_position_embeddings=40, **sizes)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("target", ["class", "number"])
def test_the_recipe_learns_saves_and_answers_the_same_after_loading(target, tmp_path):
    table = texts(300, target=target)
    plan = plan_of(table)
    learner = encoder.build(plan)
    learner.fit(table.take(range(240)), table.take(range(240, 300)), quiet_watch(tmp_path))
    learner.save(tmp_path / "model")
    test = texts(seed=1, target=target)
    rows = test.without_target()
    found, again = learner.predict(rows), encoder.load(plan, tmp_path / "model").predict(rows)
    assert np.array_equal(found.values, again.values)
    assert agreement(test, found) > (0.9 if target == "class" else -3.0)
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".json", ".safetensors"}


def fitted(folder, table, tmp_path, **options):
    plan = plan_of(
        table, options={"weights": str(folder), "max_tokens": 32, **options}, train={"steps": 1, "epochs": None}
    )
    learner = encoder.build(plan)
    learner.fit(table, None, quiet_watch(tmp_path))
    return learner


def test_answers_keep_rows_and_order_and_do_not_depend_on_what_else_is_in_the_batch(bert, tmp_path):
    table = texts()
    learner = fitted(bert, table, tmp_path)
    together = learner.predict(table.without_target())
    alone = [learner.predict(table.take([i]).without_target()) for i in range(len(table))]
    assert np.allclose(together.scores, np.concatenate([each.scores for each in alone]), atol=1e-5)
    order = np.random.default_rng(0).permutation(len(table))
    assert np.allclose(learner.predict(table.take(order).without_target()).scores, together.scores[order], atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_pooled_states_are_those_of_transformers_own_forward(bert, pooling):
    config = encoders.read_config(str(bert))
    ours = encoder.PooledEncoder(
        encoders.load_encoder(str(bert), config, 0.0), 32, 3, encoder.Options(pooling=pooling)
    ).eval()
    theirs = AutoModel.from_pretrained(bert, attn_implementation="eager").eval()
    tokenizer = encoders.load_tokenizer(str(bert), config)
    rows = texts(8).column("text").tolist()
    numbers, is_token = tokenizer.padded(tokenizer.encode(rows, 32).numbers)
    with torch.no_grad():
        found = ours(numbers, is_token)
        for row, text in enumerate(rows):
            ids = torch.tensor([tokenizer.encode([text], 32).numbers[0].tolist()])
            states = theirs(input_ids=ids).last_hidden_state[0]
            pooled = states.mean(dim=0) if pooling == "mean" else states[0]
            assert torch.allclose(found[row], ours.head(pooled), atol=1e-5)


def test_attention_with_a_float32_backward_has_the_gradients_of_float64():
    torch.manual_seed(0)
    query, key, value, grad = torch.randn(4, 3, 2, 17, 16)
    mask = torch.ones(3, 1, 17, 17, dtype=torch.bool)
    mask[1, :, :, 9:] = False

    def gradients(dtype, attended):
        inputs = [each.to(dtype).requires_grad_() for each in (query, key, value)]
        out = attended(*inputs)
        out.backward(grad.transpose(1, 2).to(dtype))
        return [out, *(each.grad for each in inputs)]

    def exact(q, k, v):
        scores = (q @ k.transpose(2, 3) / 4).masked_fill(~mask, -torch.inf)
        return (scores.softmax(dim=-1) @ v).transpose(1, 2)

    found = gradients(torch.bfloat16, lambda q, k, v: attention.attended(None, q, k, v, mask)[0])
    for ours, theirs in zip(found, gradients(torch.float64, exact), strict=True):
        assert (ours.double() - theirs).norm() < 0.02 * theirs.norm()


def test_cropped_texts_are_counted_aloud_and_keep_their_end_token(bert, tmp_path):
    table, told = texts(), []
    plan = plan_of(table, options={"weights": str(bert), "max_tokens": 10}, train={"steps": 1, "epochs": None})
    encoder.build(plan).fit(table, None, quiet_watch(tmp_path, told))
    num_long = sum(len(text.split()) + 2 > 10 for text in table.column("text"))
    assert num_long
    assert any(event.get("text", "").startswith(f"{num_long} of 48 training texts are longer") for event in told)
    tokenizer = encoders.load_tokenizer(str(bert), encoders.read_config(str(bert)))
    found = tokenizer.encode(table.column("text").tolist(), 10)
    assert max(found.lengths) == 10
    assert {int(numbers[-1]) for numbers in found.numbers} == {3}
    assert any("texts are cropped after 10" in note for note in plan.estimates["notes"])


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(bert, tmp_path):
    for file in bert.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    other = of_words([f"word{i}" for i in range(100)])
    PreTrainedTokenizerFast(tokenizer_object=other.tokenizer, pad_token="[PAD]").save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"104 tokens, the model only 64: they do not belong together"):
        encoders.load_tokenizer(str(tmp_path), encoders.read_config(str(tmp_path)))


def test_a_damaged_or_foreign_folder_is_refused_with_a_reason(bert, tmp_path):
    for file in bert.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((bert / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    with pytest.raises(DataError, match="'gpt2' model is no BERT-like encoder"):
        encoders.read_config(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(DataError, match="tensors of the encoder are missing"):
        encoders.load_encoder(str(tmp_path), encoders.read_config(str(tmp_path)), 0.0)
    with pytest.raises(MissingError, match="no such file or folder"):
        encoders.read_config(str(tmp_path / "nowhere"))
    for spec in ("random:2x30", "random:0x32", "random"):
        with pytest.raises(UsageError, match="random:LAYERSxWIDTH"):
            encoders.read_config(spec)


def test_more_tokens_than_positions_are_refused_and_the_limit_is_named(bert):
    with pytest.raises(UsageError, match=r"options.max_tokens=40"):
        plan_of(texts(), options={"weights": str(bert), "max_tokens": 64})
    roberta = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    assert encoders.most_tokens(roberta) == 512


def test_estimated_parameters_are_those_of_the_network_and_each_has_a_role(bert, tmp_path):
    table = texts()
    learner = fitted(bert, table, tmp_path)
    named = dict(learner.task.model.named_parameters())
    assert learner.plan.estimates["num_parameters"] == sum(p.numel() for p in named.values())
    roles = learner.task.roles()
    assert roles.keys() == named.keys()
    assert roles["encoder.embeddings.word_embeddings.weight"].kind == "embedding"
    assert {roles[name].depth for name in named if ".layer.1." in name} == {2}
    assert roles["head.weight"] == roles["head.bias"] == Role("head", 3)


@pytest.mark.parametrize("kind", ["modernbert", "distilbert", "roberta", "deberta-v2"])
def test_other_encoders_run_too_and_every_parameter_that_has_a_role_gets_a_gradient(kind):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    if kind == "distilbert":
        sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    from transformers import AutoConfig

    values = {
        **AutoConfig.for_model(kind, vocab_size=64, max_position_embeddings=64, pad_token_id=0, **sizes).to_dict()
    }
    config = encoders.completed({**values, "model_type": kind})
    network = encoder.PooledEncoder(encoders.empty_encoder(config, 0.0), 32, 2, encoder.Options())
    is_token = torch.ones(2, 9, dtype=torch.bool)
    network(torch.randint(4, 60, (2, 9)), is_token).sum().backward()
    roles = encoders.encoder_roles(network.encoder)
    assert {role.depth for role in roles.values()} == {0, 1, 2}
    without = [name for name, p in network.encoder.named_parameters() if p.grad is None]
    assert not without


def test_the_tokenizer_travels_as_json():
    tokenizer, rows = of_words(["Größe matters", "größe again"]), ["GRÖSSE größe x 🙂", ""]
    again = TextTokenizer.from_json(json.loads(json.dumps(tokenizer.as_json())))
    found, expected = again.encode(rows, 8).numbers, tokenizer.encode(rows, 8).numbers
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]
