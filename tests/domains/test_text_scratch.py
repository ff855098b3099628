"""text/encoder-scratch: masked pretraining on one's own texts, then fine-tuning; random weights throughout."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM

from domains.contract import Request
from domains.shared.masked import masked_places
from domains.shared.tokens import of_pieces
from domains.text import encoder, encoder_scratch, labelled, unlabelled
from domains.text import encoder_weights as encoders
from domains.text.masked import MaskedEncoder, masked_task
from trainers.contract import Machine, Plan
from trainers.errors import MissingError, StoppedError
from trainers.settings import Phases

WORDS = ["the", "a", "film", "meal", "trip", "was", "and", "we", "had", "it", "there", "again", "of", "town"]


def texts(num=64, seed=0):
    rng = np.random.default_rng(seed)
    good = rng.random(num) < 0.5
    rows = [[*rng.choice(WORDS, rng.integers(2, 20)), "lovely" if g else "awful"] for g in good]
    return [" ".join(rng.permutation(row)) for row in rows], np.where(good, "pos", "neg")


def table(num=64, seed=0):
    rows, y = texts(num, seed)
    return labelled.read(pd.DataFrame({"text": rows, "y": y}), Request(target="y")).table


def plan_of(rows, *, options=None, train=None):
    chosen = encoder_scratch.Options(**{**encoder_scratch.TINY["options"], **(options or {})})
    tree = encoder_scratch.TINY["train"]
    settings = Phases.model_validate({**tree, **(train or {})})
    facts = labelled.describe(rows, "classification", Request())
    estimates = encoder_scratch.plan(facts, chosen, settings, Machine())
    return Plan(
        *("text/x", "text", "classification", encoder_scratch.__name__, chosen.model_dump(), settings.model_dump()),
        *(facts.as_json(), Machine(), 0, estimates),
    )


def watch(folder, *, told=None, should_stop=lambda: None):
    return SimpleNamespace(
        folder=folder / "run", cache=folder / "cache", metric="accuracy", higher_is_better=True, rank=0, world=1,
        score=lambda rows, found: float(np.mean(rows.target() == found.values)),
        log=lambda **event: told is not None and told.append(event), should_stop=should_stop,
    )  # fmt: skip


@pytest.fixture(scope="module")
def task():
    tokenizer = of_pieces(texts()[0], 300, lowercase=True)
    config = {"model_type": "bert", "vocab_size": tokenizer.size, "hidden_size": 32, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 2, "intermediate_size": 64, "type_vocab_size": 1, "pad_token_id": 0}
    torch.manual_seed(0)
    model = MaskedEncoder(encoders.empty_encoder(config, 0.0), 32)
    return masked_task(model.eval(), tokenizer, lambda rows: list(rows.column("text")), max_tokens=12, share=0.3)


def drawn(task, num):
    examples = task.examples(table(num), None)
    return examples, task.draw(examples, [np.random.default_rng(i) for i in range(len(examples))])


def test_the_masked_loss_is_that_of_transformers_own_bert(task):
    _, batch = drawn(task, 6)
    numbers, is_token, places, wanted = batch.inputs
    config = BertConfig(**{**task.model.encoder.config.to_dict(), "attn_implementation": "eager"})
    theirs = BertForMaskedLM(config).eval()
    theirs.bert.load_state_dict(task.model.encoder.state_dict())
    head = theirs.cls.predictions
    head.transform.dense.load_state_dict(task.model.transform.state_dict())
    head.transform.LayerNorm.load_state_dict(task.model.norm.state_dict())
    head.transform.LayerNorm.eps = task.model.norm.eps
    labels = torch.full(numbers.shape, -100)
    labels.view(-1)[places] = wanted
    with torch.no_grad():
        logits = theirs(input_ids=numbers, attention_mask=is_token.long()).logits
        reference = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        assert torch.isclose(task.loss(task.model, batch.inputs)["cross_entropy"], reference, rtol=1e-5)
    assert batch.counts == {"cross_entropy": float(len(wanted))}


def test_masks_are_the_share_of_a_text_never_its_ends_and_depend_on_the_generator_alone():
    window = np.arange(42, dtype=np.int32)
    found = [masked_places(window, np.random.default_rng(i), 0.3) for i in range(400)]
    assert {len(places) for places in found} == {12}
    counts = np.bincount(np.concatenate(found), minlength=42)
    assert counts[0] == counts[-1] == 0
    # 400 draws of chance 0.3 each: five deviations around 120.
    assert (np.abs(counts[1:-1] - 120) < 5 * np.sqrt(400 * 0.3 * 0.7)).all()
    assert np.array_equal(found[3], masked_places(window, np.random.default_rng(3), 0.3))
    assert len(masked_places(window[:2], np.random.default_rng(0), 0.3)) == 0


def test_every_token_of_a_long_text_is_in_a_window(task):
    long = " ".join(texts(20)[0])
    windows = task.windows.tokenizer.windows([long], 12)[0]
    assert max(len(window) for window in windows) == 12
    inner = [number for window in windows for number in window[1:-1]]
    assert inner == task.windows.tokenizer.encode([long], 10_000).numbers[0][1:-1].tolist()


def test_what_is_masked_is_all_that_changes_and_what_stood_there_is_wanted(task):
    examples, batch = drawn(task, 5)
    numbers, is_token, places, wanted = batch.inputs
    before, _ = task.windows.tokenizer.padded(examples)
    assert (numbers.flatten()[places] == task.noise.mask).all()
    restored = numbers.clone()
    restored.view(-1)[places] = wanted
    assert torch.equal(restored, before)
    assert is_token.flatten()[places].all()


def test_texts_of_a_second_file_leave_out_every_text_of_the_labelled_one(tmp_path):
    known, _ = texts(10)
    lines = [known[0], known[3].upper(), "  " + known[4] + " ", "a line of its own", "another one"]
    (tmp_path / "more.txt").write_text("\n".join(lines) + "\n")
    pd.DataFrame({"text": lines}).to_csv(tmp_path / "more.csv", index=False)
    for name in ("more.txt", "more.csv"):
        found, num_out = unlabelled.texts_of(str(tmp_path / name), known)
        assert "\n".join(found).split("\n") == ["a line of its own", "another one"]
        assert num_out == 3
    with pytest.raises(MissingError, match=r"nowhere\.txt"):
        plan_of(table(), options={"texts": str(tmp_path / "nowhere.txt")})


def test_held_out_texts_reach_neither_tokenizer_nor_pretraining(tmp_path):
    rows = table(40)
    held = rows.take(range(30, 40))
    (tmp_path / "more.txt").write_text("\n".join([*held.column("text"), "zebra zebra zebra"]))
    learner = encoder_scratch.Pretraining(plan_of(rows, options={"texts": str(tmp_path / "more.txt")}))
    found = learner._texts(rows.take(range(30)))
    assert set(held.column("text")).isdisjoint(line for text in found for line in text.split("\n"))
    assert found[-1] == "zebra zebra zebra"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder, told = tmp_path_factory.mktemp("finished"), []
    rows = table(120)
    plan = plan_of(rows)
    learner = encoder_scratch.build(plan)
    actual = learner.fit(rows.take(range(90)), rows.take(range(90, 120)), watch(folder, told=told))
    learner.save(folder / "model")
    return SimpleNamespace(plan=plan, learner=learner, actual=actual, told=told, folder=folder, rows=rows)


def test_it_learns_and_answers_the_same_after_loading(finished):
    new = table(60, seed=1)
    found = finished.learner.predict(new.without_target())
    assert np.mean(found.values == new.target()) > 0.9
    again = encoder_scratch.load(finished.plan, finished.folder / "model").predict(new.without_target())
    assert np.array_equal(found.scores, again.scores)


def test_both_phases_are_told_apart_and_their_steps_counted_on(finished):
    steps = [event for event in finished.told if event["kind"] == "eval"]
    first = [event["step"] for event in steps if event.get("phase") == "pretrain"]
    second = [event["step"] for event in steps if "phase" not in event]
    assert first
    assert min(second) > max(first)
    assert finished.actual["num_steps"] == max(second)
    assert finished.actual["pretrain"]["num_steps"] == max(first)


def test_the_pretrained_encoder_is_a_folder_that_encoder_classify_begins_from(finished):
    spec = str(finished.folder / "model" / "pretrain")
    config = encoders.read_config(spec)
    loaded = encoders.load_encoder(spec, config, 0.0)
    tokenizer = encoders.load_tokenizer(spec, config)
    text = ["The FILM was lovely"]
    ours = finished.learner.second.task.tokenizer.encode(text, 64).numbers[0]
    assert tokenizer.encode(text, 64).numbers[0].tolist() == ours.tolist()
    assert sum(each.numel() for each in loaded.parameters()) == encoders.num_parameters(config)
    assert encoder.Options(weights=spec)


def test_stopped_in_either_phase_and_resumed_the_weights_are_bit_identical(finished, tmp_path):
    rows, whole = finished.rows, finished.learner.second.task.model.state_dict()
    for number, after in enumerate((5, 30)):
        asked = iter([None] * after + ["signal"])
        stopping = watch(tmp_path / str(number), should_stop=asked.__next__)
        with pytest.raises(StoppedError):
            encoder_scratch.build(finished.plan).fit(rows.take(range(90)), rows.take(range(90, 120)), stopping)
        learner = encoder_scratch.build(finished.plan)
        again = watch(tmp_path / str(number))
        actual = learner.fit(rows.take(range(90)), rows.take(range(90, 120)), again)
        for name, value in learner.second.task.model.state_dict().items():
            assert torch.equal(value, whole[name]), name
        assert actual["num_steps"] == finished.actual["num_steps"]


def test_a_time_budget_is_shared_and_epochs_are_those_of_the_second():
    settings = Phases(seconds=100.0, pretrain_share=0.7)
    assert settings.phase("pretrain").seconds == pytest.approx(70)
    assert settings.phase("tune").seconds == pytest.approx(30)
    assert settings.phase("tune").epochs is None
    paths = Phases.flags["epochs"](3)
    assert paths["tune.epochs"] == 3
    assert not any(path.startswith("pretrain") for path in paths)


def test_sizes_grow_with_the_texts_and_options_have_the_last_word():
    facts = labelled.describe(table(), "classification", Request())
    few = encoder_scratch.config_of(facts, encoder_scratch.Options())
    many = {**facts.sizes, "total_characters": 10**9}
    large = encoder_scratch.config_of(json_facts(facts, many), encoder_scratch.Options())
    assert (few["num_hidden_layers"], few["vocab_size"]) == (4, 4096)
    assert large["num_hidden_layers"] > 6
    chosen = encoder_scratch.config_of(facts, encoder_scratch.Options(layers=3, width=48, vocabulary=500))
    assert (chosen["num_hidden_layers"], chosen["hidden_size"], chosen["vocab_size"]) == (3, 48, 500)
    for width in (16, 128, 208, 256):
        heads = encoder_scratch.config_of(facts, encoder_scratch.Options(width=width))["num_attention_heads"]
        assert width % heads == 0


def json_facts(facts, sizes):
    return type(facts).from_json(json.loads(json.dumps({**facts.as_json(), "sizes": sizes})))
