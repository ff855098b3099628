"""text/few-shot-prompt on small random models: likelihoods against transformers' own scores, choices, calibration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from domains.contract import Request
from domains.text import causal_weights as languages
from domains.text import data, few_shot, span_prompts
from domains.text.prompted import Entities, Prompted, format_of
from trainers import prompt
from trainers.contract import Machine, Plan
from trainers.errors import UsageError
from trainers.prompt import Choices, PromptLearner, Shown
from trainers.settings import Prompt

TEMPLATE = "Text: {question}\nLabel: {answer}"
SHOWN = [Shown("it is blue", "good"), Shown("tell me", "bad"), Shown("me", "good")]
KINDS = {
    "llama": {},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


def tokenizer():
    texts = ["Text: it is blue\nLabel: good\n\n", "Text: tell me\nLabel: bad\n\n"]
    return languages.tokenizer_of(languages.made_tokenizer(texts * 10 + [" good", " bad"] * 20))


def asked(kind="llama", template=TEMPLATE, max_new=8):
    made = tokenizer()
    torch.manual_seed(0)
    own = {} if kind == "gpt2" else {**SIZES, "num_key_value_heads": 1}
    config = AutoConfig.for_model(
        kind, vocab_size=len(made), initializer_range=0.3, pad_token_id=0, bos_token_id=None, eos_token_id=1,
        **own, **KINDS[kind],
    )  # fmt: skip
    language = AutoModelForCausalLM.from_config(config).eval()
    return Prompted(language, made, format_of(template, "", ["good", "bad"], 100), state={}, max_new=max_new)


def whole(model, question, answer):
    """(log-likelihood of `answer`, by transformers' scores of the whole prompt at once)."""
    before = [*model.tokenizer(model.form.told(SHOWN))["input_ids"], *model._numbers(model.form.asked(question))]
    numbers = [*before, *model._numbers(answer)]
    with torch.no_grad():
        scores = model.language(input_ids=torch.tensor([numbers])).logits[0].float().log_softmax(-1)
    return sum(float(scores[at - 1, numbers[at]]) for at in range(len(before), len(numbers)))


@pytest.mark.parametrize("kind", KINDS)
def test_likelihoods_from_a_kept_cache_are_those_of_the_whole_prompt_at_once(kind):
    model, names = asked(kind), ["good", "bad", "something else"]
    for question in ("is it blue", "me", "is it blue"):
        found = model.likelihoods(SHOWN, question, names)
        assert np.allclose(found, [whole(model, question, f" {name}") for name in names], atol=1e-3)
    to_end = model.likelihoods(SHOWN, "me", ["bad"], to_end=True)
    assert to_end == pytest.approx([whole(model, "me", " bad\n\n")], abs=1e-3)


def test_what_is_written_is_what_transformers_writes_up_to_a_blank_line():
    model = asked(max_new=12)
    numbers = [*model.tokenizer(model.form.told(SHOWN))["input_ids"], *model._numbers(model.form.asked("me"))]
    written = model.language.generate(torch.tensor([numbers]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    expected = model.tokenizer.decode(written[0, len(numbers) :], skip_special_tokens=True).strip().split("\n\n")[0]
    assert model.written(SHOWN, "me") == expected.strip()


def test_a_template_is_cut_so_that_the_gap_before_an_answer_goes_with_the_answer():
    form = format_of("Q: {question}\nA: {answer}.", "One of {labels}.", ["x", "y"], 5)
    assert form.told([Shown("abcdefgh", "x")]) == "One of x, y.\n\nQ: abcde\nA: x.\n\n"
    assert form.asked("abc") == "Q: abc\nA:"
    for bad in ("{question}", "{answer} {question}", "{question} {question} {answer}"):
        with pytest.raises(ValueError, match="question"):
            few_shot.Options(template=bad)


def test_balanced_examples_hold_of_every_class_as_many_as_can_be():
    kinds = np.array([0] * 50 + [1] * 3 + [2] * 20)
    chosen = prompt.balanced(kinds, 12, np.random.default_rng(0))
    assert np.bincount(kinds[chosen]).tolist() == [5, 3, 4] or np.bincount(kinds[chosen]).tolist() == [4, 3, 5]
    assert len(set(chosen.tolist())) == 12
    assert np.array_equal(chosen, prompt.balanced(kinds, 12, np.random.default_rng(0)))
    assert len(prompt.balanced(kinds, 500, np.random.default_rng(0))) == len(kinds)


def test_the_nearest_examples_share_words_come_last_and_never_are_the_question_itself():
    pool = ["red cars", "blue skies above", "the blue sky", "fast red cars here"]
    places = asked().nearest(pool, ["blue skies", "red cars"], 2)
    assert places[0, -1] == 1
    assert places[1].tolist()[-1] == 3
    assert 0 not in places[1]


class Parrot:
    """Finds every name as likely as its settings say, plus what the question adds."""

    num_parameters, empty = 0, ("N/A",)
    state: ClassVar = {"weights": "none"}

    def __init__(self, prior):
        self.prior = np.array(prior)

    def questions(self, rows):
        return [str(text) for text in rows.column("text")]

    def known_answers(self, rows):
        return None

    def kinds(self, rows):
        return np.zeros(len(rows), np.int64)

    def likelihoods(self, shown, question, answers, *, to_end=False):
        return self.prior + np.array([1.0 if answer in question else 0.0 for answer in answers])


def table(num=40, target="class"):
    rng = np.random.default_rng(0)
    good = rng.random(num) < 0.5
    texts = [f"row {i} is {'good' if each else 'bad'}" for i, each in enumerate(good)]
    y = np.where(good, "good", "bad") if target == "class" else np.where(good, 10.0, 0.0) + rng.normal(size=num)
    return data.read(pd.DataFrame({"text": texts, "y": y}), Request(target="y")).table


def plan_of(rows, *, options=None, train=None):
    task = "classification" if isinstance(rows.target()[0], str) else "regression"
    chosen = few_shot.Options(**{**few_shot.TINY["options"], **(options or {})})
    settings = Prompt.model_validate({**few_shot.TINY["train"], **(train or {})})
    facts = data.describe(rows, task, Request())
    estimates = few_shot.plan(facts, chosen, settings, Machine())
    return Plan(
        *("text/x", "text", task, few_shot.__name__, chosen.model_dump(), settings.model_dump()),
        *(facts.as_json(), Machine(), 0, estimates),
    )


def accuracy(rows, found):
    return float(np.mean(rows.target() == found.values))


def quiet_watch(told=None):
    return SimpleNamespace(
        metric="accuracy", higher_is_better=True, score=accuracy,
        log=lambda **event: told is not None and told.append(event),
    )  # fmt: skip


@pytest.mark.parametrize(("prior", "expected"), [([0.0, 3.0], "contextual"), ([0.0, 0.0], "none")])
def test_calibration_divides_by_the_answers_to_an_empty_question_where_that_validates_better(prior, expected):
    rows, told = table(), []
    plan = plan_of(rows, train={"selection": "balanced", "calibration": "auto"})
    learner = PromptLearner(plan, lambda state, train: Parrot(prior))
    actual = learner.fit(rows.take(range(20)), rows.take(range(20, 40)), quiet_watch(told))
    assert (actual["calibration"], learner.calibration) == (expected, expected)
    assert accuracy(rows, learner.predict(rows.without_target())) == 1.0
    assert "calibration on 20 validation rows" in told[0]["text"]


def test_numbers_are_the_mean_of_levels_weighed_by_their_likelihoods():
    rows = table(target="number")
    choices = prompt.choices_of(rows.target(), plan_of(rows), {})
    assert choices.names == prompt.LEVELS
    assert np.array_equal(choices.values, np.quantile(rows.target(), [0.1, 0.3, 0.5, 0.7, 0.9]))
    probabilities = np.array([[0.0, 0.0, 0.0, 0.5, 0.5]])
    assert choices.answers(probabilities).values[0] == pytest.approx(np.mean(choices.values[3:]))
    assert prompt.named(np.array(choices.values), choices).tolist() == [0, 1, 2, 3, 4]


def test_shares_sum_to_one_and_do_not_overflow():
    found = prompt.shares(np.array([[1000.0, 1000.0], [-2000.0, 0.0]]))
    assert np.allclose(found, [[0.5, 0.5], [0.0, 1.0]])
    assert Choices(classes=("a", "b"), names=("a", "b")).answers(found).values.tolist() == ["a", "b"]


def test_a_model_that_copies_its_context_answers_with_the_commonest_label_of_the_nearest(tmp_path):
    rows, new = table(), table(60)
    learner = few_shot.build(plan_of(rows))
    learner.fit(rows, None, quiet_watch())
    found = learner.predict(new.take(range(40, 60)).without_target())
    assert accuracy(new.take(range(40, 60)), found) > 0.8
    learner.save(tmp_path)
    again = few_shot.load(plan_of(rows), tmp_path).predict(new.take(range(40, 60)).without_target())
    assert np.allclose(again.scores, found.scores, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["prompt.json"]


def test_the_copying_weights_score_tokens_by_their_counts_so_far():
    language = languages.load_language("random:1x512", languages.read_config("random:1x512"))
    numbers = torch.tensor([[5, 7, 7, 9, 7, 5]])
    with torch.no_grad():
        found = language(input_ids=numbers).logits[0, -1]
    counts = torch.bincount(numbers[0], minlength=400).float()
    assert torch.allclose(found, languages.COPYING * counts / counts.norm(), atol=0.05 * languages.COPYING)


def test_the_rival_learns_from_the_very_examples_that_are_shown(monkeypatch):
    rows, seen = table(), []
    plan = plan_of(rows, train={"selection": "balanced", "examples": 6})
    (rival,) = few_shot.baselines(plan)
    monkeypatch.setattr(few_shot, "words", lambda task: SimpleNamespace(about="", fit=seen.append))
    (rival,) = few_shot.baselines(plan)
    rival.fit(rows)
    learner = few_shot.build(plan)
    learner.fit(rows, None, quiet_watch())
    assert sorted(each.question for each in learner.pool) == sorted(seen[0].column("text"))
    assert len(learner.pool) == 6


def test_names_of_unknown_classes_and_prompts_longer_than_the_model_are_refused():
    with pytest.raises(UsageError, match="no class 'god'"):
        plan_of(table(), options={"names": {"god": "x"}})
    with pytest.raises(UsageError, match=r"train.examples=2000: a prompt would have about"):
        plan_of(table(), train={"examples": 2000})


WORDS = ["The", "new", "york", "office", "of", "Anna", "Meier", "and", "Anna"]
TAGS = ["O", "B-place", "I-place", "O", "O", "B-person", "I-person", "O", "B-person"]


def test_entities_come_back_from_the_lines_that_examples_show():
    names = {"place": "location"}
    lines = span_prompts.as_lines(WORDS, TAGS, names)
    assert lines == "location: new york\nperson: Anna Meier\nperson: Anna"
    assert span_prompts.tags_of(lines, WORDS, ["person", "place"], names) == tuple(TAGS)
    assert span_prompts.as_lines(["no", "one"], ["O", "O"], {}) == span_prompts.NONE
    assert set(span_prompts.tags_of(span_prompts.NONE, WORDS, ["person"], {})) == {"O"}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("place: New York", {1: "B-place", 2: "I-place"}),
        ("PERSON:  Anna ", {5: "B-person"}),
        ("person: Anna\nperson: Anna\nperson: Anna", {5: "B-person", 8: "B-person"}),
        ("animal: Anna\nperson: Bob\nperson\nperson:\n: Anna\nplace: york office of Anna Meier and Anna x", {}),
        ("place: new york\nplace: york office", {1: "B-place", 2: "I-place"}),
    ],
)
def test_lines_that_name_no_type_or_stand_nowhere_in_the_sentence_are_left_out(answer, expected):
    found = span_prompts.tags_of(answer, WORDS, ["person", "place"], {})
    assert {at: tag for at, tag in enumerate(found) if tag != "O"} == expected


def test_examples_to_tag_are_of_every_type_and_of_none():
    tags = [["O"]] * 20 + [["B-rare"]] * 2 + [["B-usual"]] * 10
    kinds = Prompted.kinds(SimpleNamespace(entities=Entities((), {})), SimpleNamespace(target=lambda: tags))
    chosen = prompt.balanced(kinds, 6, np.random.default_rng(0))
    assert sorted(kinds[chosen]) == [0, 0, 1, 1, 2, 2]
