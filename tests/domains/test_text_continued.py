"""text/continued-pretrain on small random models, compared with transformers themselves."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from test_text_lora import saved, tokenizer
from torch.nn import functional
from transformers import AutoModelForCausalLM

from domains.contract import Request
from domains.text import causal_weights as languages
from domains.text import continued, corpus
from domains.text.continued import ContinuedTask, KnownWords, Options, positions_in
from domains.text.gpt import IGNORED
from trainers.contract import Machine, Plan
from trainers.settings import Gradient

TEXTS = ["the cat sat", "a mat and a cat slept on the mat", "and", "the mat", "on a cat the mat slept and sat"]


def table_of(texts):
    return corpus.read(pd.DataFrame({"text": texts}), Request(task="generation")).table


def task_of(folder, *, packs=True, **options):
    language = languages.load_language(str(folder), languages.read_config(str(folder))).eval()
    made = languages.load_tokenizer(str(folder), language.config.vocab_size)
    chosen = Options(
        **{"context": 16, "stride": 8, "new_tokens": 5, "dedupe": "off", "weights": str(folder), **options}
    )
    return ContinuedTask(language, made, chosen, packs=packs, seed=0)


@pytest.fixture(scope="module", params=["llama", "gemma3_text"])
def folder(request, tmp_path_factory):
    return saved(tmp_path_factory.mktemp(request.param), request.param)


def nats_of(model, numbers):
    """By transformers' own scores of one document alone."""
    numbers = torch.as_tensor(numbers, dtype=torch.int64)[None]
    scores = model(input_ids=numbers[:, :-1]).logits[0].float()
    return functional.cross_entropy(scores, numbers[0, 1:], reduction="sum")


def test_packed_documents_cost_what_each_costs_alone_and_gradients_agree(folder, tmp_path):
    task = task_of(folder, context=64)
    examples = task.examples(table_of(TEXTS), tmp_path)
    batch = task.draw(examples, [np.random.default_rng(0)] * len(examples))
    assert len(examples) == 1, "all of them share a row"
    ours = task.loss(task.model, batch.inputs)["cross_entropy"]
    ours.backward()

    theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    store, expected = task.store, 0.0
    for number in range(len(store.starts)):
        begin, stop = store.document(number)
        expected = expected + nats_of(theirs, store.tokens[begin : stop + 1].astype(np.int64))
    expected.backward()
    assert torch.allclose(ours, expected, rtol=1e-4)
    for (name, a), (_, b) in zip(task.model.language.named_parameters(), theirs.named_parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-3 * float(b.grad.abs().max())), name
    assert batch.counts["cross_entropy"] == len(store.tokens) - 1


def test_the_bits_of_a_shard_are_those_of_its_documents(folder):
    task = task_of(folder, context=64)
    rows = table_of(TEXTS)
    with torch.no_grad():
        found = task.predict(task.model, task.collate(rows)).values
        theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
        bits = [
            sum(
                float(nats_of(theirs, [task.tokenizer.bos, *task.tokenizer.encode(text)])) / math.log(2)
                for text in rows.documents(row)
            )
            for row in range(len(rows))
        ]
    assert np.allclose(found, bits, rtol=1e-4)


def test_positions_begin_anew_with_each_document_and_with_the_padding():
    documents = torch.tensor([[0, 0, 0, 1, 1, -1, -1], [0, 1, 2, 3, 3, 3, 3]])
    assert positions_in(documents).tolist() == [[0, 1, 2, 0, 1, 0, 1], [0, 0, 0, 0, 1, 2, 3]]


def test_what_looks_like_a_special_token_is_its_characters(folder):
    words = task_of(folder).tokenizer
    text = "the <end> of <pad> a cat"
    numbers = words.encode(text)
    assert not {0, 1} & set(numbers.tolist())
    assert words.decode(numbers) == text


def test_a_tokenizer_without_a_start_begins_documents_with_its_end():
    made = tokenizer()
    assert made.bos_token_id is None
    assert KnownWords(made, 400).bos == made.eos_token_id


def test_a_completion_is_the_same_each_time_and_another_with_another_seed(folder):
    task = task_of(folder, temperature=2.0, new_tokens=12)
    numbers = [1, *task.tokenizer.encode("the cat")]
    once, again, other = (task.speaker.completion(task.model, numbers, seed) for seed in ([0, 5], [0, 5], [1, 5]))
    assert once == again != other
    assert 0 < len(once) <= 12


def test_the_likeliest_completion_follows_transformers(folder):
    task = task_of(folder, temperature=0.0, new_tokens=6)
    numbers = [1, *task.tokenizer.encode("the cat").tolist()]
    found = task.speaker.completion(task.model, numbers, [0])
    with torch.no_grad():
        for number in found:
            logits = task.model.language(input_ids=torch.tensor([numbers])).logits[0, -1]
            assert int(logits.argmax()) == number
            numbers.append(number)


def test_a_resumed_run_that_packs_documents_asks_nothing_of_weights_that_are_yet_to_come():
    rows, asked = table_of(TEXTS * 10), Request(task="generation")
    chosen = Options(**{**continued.TINY["options"], "packing": "documents"})
    settings = Gradient.model_validate(continued.TINY["train"])
    facts = corpus.describe(rows, "generation", asked)
    plan = Plan(
        *("text/x", "text", "generation", continued.__name__, chosen.model_dump(mode="json"), settings.model_dump()),
        *(facts.as_json(), Machine(), 0, continued.plan(facts, chosen, settings, Machine())),
    )
    learner = continued.build(plan).inner
    assert learner._made(learner.compute_statistics(rows), pretrained=False).packs


def test_padding_is_not_learned(folder, tmp_path):
    task = task_of(folder, context=16)
    examples = task.examples(table_of(TEXTS), tmp_path)
    _, targets, documents = task.draw(examples, [np.random.default_rng(0)] * len(examples)).inputs
    assert (documents == -1).any()
    assert (targets[documents == -1] == IGNORED).all()
