"""text/gpt-pretrain: tokenizer, tokens on disk, packing, bits of a shard, completions, copies, sizes, folder."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional

from domains.contract import Facts, Request
from domains.text import corpus, dedupe, gpt, gpt_folder, gpt_pretrain, packing
from domains.text.bpe import BOS, Tokenizer, blocks
from domains.text.corpus_task import CorpusTask
from domains.text.generation import continued, drawn
from domains.text.gpt_pretrain import Options, OwnSpeaker
from domains.text.scale import num_parameters, size_of
from domains.text.token_store import MARKER, opened
from trainers.contract import Machine
from trainers.errors import DataError, UsageError
from trainers.settings import Gradient

WORDS = ["ship", "sea", "wind", "sails", "harbour", "captain", "storm", "light", "rope", "deck"]


def story(number: int) -> str:
    rng = np.random.default_rng(number)
    return f"Story {number}. " + " ".join(rng.choice(WORDS, int(rng.integers(5, 60)))) + ".\n"


def table_of(texts):
    return corpus.read(pd.DataFrame({"text": texts}), Request(task="generation")).table


def running(tmp_path, num=600):
    (tmp_path / "book.txt").write_text("\n".join(map(story, range(num))))
    return corpus.read(tmp_path / "book.txt", Request(task="generation")).table


@pytest.fixture(scope="module")
def stories():
    return [story(number) for number in range(400)]


@pytest.fixture(scope="module")
def tokenizer(stories):
    return Tokenizer.trained_on(table_of(stories), 400)


def task_of(tokenizer, packs, **options):
    options = Options(**{"context": 48, "stride": 16, **options})
    torch.manual_seed(0)
    config = gpt.GPTConfig(tokenizer.size, 48, depth=2, width=32, num_heads=2, windows="L")
    model = gpt.GPT(config)
    with torch.no_grad():  # a fresh model answers the same to everything
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return CorpusTask(OwnSpeaker(model.eval(), tokenizer.bos, options), tokenizer, options, packs=packs, seed=0)


def test_any_text_comes_back_from_its_tokens(tokenizer):
    odd = ["", "a", " \n\n x", "👩‍👩‍👧‍👦🏽 é日本", "\0\u2028\r\n", f"{BOS} and {BOS}{BOS}", "<|<|bos|>|>", story(7)]
    for text in odd:
        numbers = tokenizer.encode(text)
        assert tokenizer.decode(numbers) == text
        assert tokenizer.bos not in numbers
    long = "line of words\n" * 20_000
    assert len(list(blocks(long))) > 3
    assert "".join(blocks(long)) == long
    assert tokenizer.decode(tokenizer.encode(long)) == long


def test_a_corpus_that_is_all_copies_of_held_out_text_is_told(tmp_path, stories, tokenizer):
    with pytest.raises(DataError, match=r"No text is left to train on.*'copied': 400.*options\.dedupe=off"):
        opened(tmp_path, table_of(stories), tokenizer, lambda text: "copied", "")


def test_the_store_holds_every_document_behind_a_bos(tmp_path, stories, tokenizer):
    store = opened(tmp_path, table_of(stories), tokenizer, None, "")
    assert store.tokens.dtype == np.uint16
    assert [tokenizer.decode(store.tokens[slice(*store.document(n))]) for n in range(len(stories))] == stories
    assert (store.tokens[store.starts] == tokenizer.bos).all()


def test_a_long_text_is_one_document_across_its_shards(tmp_path, tokenizer):
    table = running(tmp_path)
    store = opened(tmp_path / "tokens", table, tokenizer, None, "")
    assert len(table) > 5
    assert store.starts.tolist() == [0]
    assert tokenizer.decode(store.tokens) == (tmp_path / "book.txt").read_text()


def test_what_is_written_is_read_again_and_what_a_killed_writer_left_is_not(tmp_path, stories, tokenizer):
    table = table_of(stories)
    first = opened(tmp_path, table, tokenizer, None, "")
    changed = (tmp_path / "tokens.bin").stat().st_mtime_ns
    opened(tmp_path, table, tokenizer, None, "")
    assert (tmp_path / "tokens.bin").stat().st_mtime_ns == changed
    (tmp_path / MARKER).unlink()
    (tmp_path / "tokens.bin").write_bytes(b"torn")
    assert np.array_equal(opened(tmp_path, table, tokenizer, None, "").tokens, first.tokens)
    assert len(opened(tmp_path, table.take([0, 1]), tokenizer, None, "").starts) < len(stories)


MEMORY = """
import resource, sys
from pathlib import Path
from domains.contract import Request
from domains.text import corpus
from domains.text.bpe import Tokenizer
from domains.text.token_store import opened
table = corpus.read(sys.argv[1], Request(task="generation")).table
opened(Path(sys.argv[2]), table, Tokenizer.trained_on(table, 300), None, "")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_ten_times_the_text_needs_the_same_memory(tmp_path):
    text = "".join(story(number) for number in range(500))
    text *= -(-300_000 // len(text))
    peaks = []
    for times in (1, 10):
        path = tmp_path / f"{times}.txt"
        with path.open("w") as file:
            for _ in range(times):
                file.write(text)
        words = [sys.executable, "-c", MEMORY, str(path), str(tmp_path / f"tokens{times}")]
        peaks.append(int(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
    assert peaks[1] <= 1.1 * peaks[0]


def test_best_fit_leaves_little_room_and_loses_nothing():
    sizes = np.random.default_rng(0).integers(1, 100, 500).tolist()
    rows = packing.best_fit(sizes, 128)
    assert sorted(at for row in rows for at in row) == list(range(500))
    assert all(sum(sizes[at] for at in row) <= 128 for row in rows)
    assert len(rows) <= math.ceil(sum(sizes) / 128) + 5


def test_packed_rows_predict_every_token_once_and_the_bos_that_ends_a_document(tmp_path, stories, tokenizer):
    task = task_of(tokenizer, packs=True)
    examples = task.examples(table_of(stories), tmp_path)
    batch = task.draw(list(examples), [])
    inputs, targets, documents = batch.inputs
    counted = targets != gpt.IGNORED
    assert batch.counts["cross_entropy"] == int(counted.sum()) == len(task.store.tokens) - 1
    found = np.sort(targets[counted].numpy())
    assert np.array_equal(found, np.sort(task.store.tokens[1:]))
    assert (inputs[documents == 0].reshape(-1)[0] == tokenizer.bos).item()
    assert counted.float().mean() > 0.95


def test_a_packed_row_gives_the_losses_of_its_documents_alone(tmp_path, stories, tokenizer):
    task = task_of(tokenizer, packs=True)
    examples = task.examples(table_of(stories), tmp_path)
    row = next(at for at in examples if len(list(task.rows.spans(at))) > 2)
    with torch.no_grad():
        together = float(task.loss(task.model, task.draw([row], []).inputs)["cross_entropy"])
    alone = 0.0
    for begin, size in task.rows.spans(row):
        tokens = torch.from_numpy(task.store.tokens[begin : begin + size + 1].astype(np.int64))
        logits = task.model(tokens[None, :-1])[0].detach()
        alone += float(functional.cross_entropy(logits, tokens[1:], reduction="sum"))
    assert together == pytest.approx(alone, rel=1e-5)


def test_windows_of_running_text_begin_anywhere_and_stay_inside(tmp_path, tokenizer):
    task = task_of(tokenizer, packs=False)
    examples = task.examples(running(tmp_path), tmp_path)
    rngs = [np.random.default_rng(at) for at in examples]
    inputs, targets, documents = task.draw(list(examples), rngs).inputs
    assert documents is None
    assert inputs.shape == (len(examples), 48)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert not torch.equal(inputs[:1], task.draw(list(examples)[:1], [np.random.default_rng(9)]).inputs[0])


@pytest.mark.parametrize("sizes", [(1, 2), (1, 40), (1, 49), (1, 50), (1, 200), (30, 200), (48, 49), (48, 300)])
def test_overlapping_windows_count_every_token_once_from_as_far_back_as_they_can(sizes):
    num_before, num_tokens = sizes
    seen = []
    for begin, end, first in packing.overlapping(num_before, num_tokens, 48, 16):
        assert 0 <= begin <= first < end <= begin + 48
        seen += range(first, end)
        assert begin == 0 or first - begin >= 48 - 16
    assert seen == list(range(num_before - 1, num_tokens - 1))


@pytest.mark.parametrize("packs", [False, True])
def test_the_bits_of_short_documents_are_minus_log2_of_what_the_model_gives_them(tokenizer, packs):
    task = task_of(tokenizer, packs=packs)
    table = table_of([text[:60] for text in map(story, range(30))])
    (bits,) = task.predict(task.model, task.collate(table.take([0]))).values
    start = tokenizer.bos if packs else tokenizer.line
    expected = 0.0
    for text in table.documents(0):
        tokens = torch.tensor([start, *tokenizer.encode(text)])
        logs = functional.log_softmax(task.model(tokens[None, :-1])[0].detach().double(), dim=-1)
        expected -= float(logs.gather(1, tokens[1:, None]).sum()) / math.log(2)
    assert bits == pytest.approx(expected, rel=1e-5)


def test_a_shard_inside_a_text_is_scored_after_the_text_before_it(tmp_path, tokenizer):
    table, task = running(tmp_path), task_of(tokenizer, packs=False)
    ((numbers, num_before),) = task.collate(table.take([2]))[0]
    assert num_before == 48
    assert tokenizer.decode(numbers[num_before:]) == table[2]["text"]
    assert table.before(2).endswith(tokenizer.decode(numbers[:num_before]))


def test_the_same_prompt_gets_the_same_completion_whoever_else_asks(tokenizer):
    task = task_of(tokenizer, packs=True, new_tokens=12)
    first = task.predict(task.model, ["The ship", "A storm"])
    again = task.predict(task.model, ["A storm", "x", "The ship"])
    assert first.kind == "text"
    assert first.values.tolist() == [again.values[2], again.values[0]]


def test_drawing_follows_the_probabilities_of_the_likeliest_tokens():
    logits = torch.tensor([0.0, 2.0, 1.0, -5.0]).double()
    assert drawn(logits, 0, None, 0.99) == 1
    chances = (np.arange(1000) + 0.5) / 1000
    counts = np.bincount([drawn(logits, 1.0, 2, chance) for chance in chances], minlength=4) / 1000
    assert counts[1] == pytest.approx(math.e / (1 + math.e), abs=2e-3)
    assert counts[[0, 3]].tolist() == [0, 0]


def test_a_completion_ends_where_the_document_does():
    class Counting(torch.nn.Module):
        def forward(self, tokens):
            return functional.one_hot((tokens + 1) % 6, 6).float() * 50

    settings = {
        "num_new": 9,
        "length": 4,
        "temperature": 1.0,
        "top_k": None,
        "seed": [0],
        "device": torch.device("cpu"),
    }
    assert continued(Counting(), [0, 1], stop=5, **settings) == [2, 3, 4]
    assert len(continued(Counting(), [0, 1], stop=9, **settings)) == 9


def test_copies_and_documents_of_other_parts_are_left_out(tmp_path, stories, tokenizer):
    texts = [*stories, stories[3], "  " + stories[4].upper()]
    texts[12] = texts[len(texts) - 3]  # the end is held out, and with it the copies of 3 and 4
    table = table_of(texts)
    parts = corpus.part_of_each(table)
    train = table.take(np.flatnonzero(parts == "train"))
    task = task_of(tokenizer, packs=True)
    task.examples(train, tmp_path)
    assert task.left_out == {"copy of a held-out document": 3}
    refusal = dedupe.refusal_of("exact", "off", None)
    reasons = [refusal(text) for text in texts]
    assert reasons[-2:] == ["copy", "copy"]
    assert sum(reason is not None for reason in reasons) == 3


def test_near_copies_are_found_and_different_texts_are_not(monkeypatch):
    monkeypatch.setattr(dedupe, "FILTER_BITS", 1 << 18)
    refusal = dedupe.refusal_of("near", "off", None)
    rng = np.random.default_rng(0)
    vocabulary = [f"word{number}" for number in range(2000)]
    texts = [" ".join(rng.choice(vocabulary, 200)) for _ in range(40)]
    changed = [text.replace(text.split()[100], "other") for text in texts]
    assert [refusal(text) for text in texts] == [None] * 40
    assert sum(refusal(text) == "near copy" for text in changed) >= 38


def test_signatures_estimate_the_jaccard_index():
    words = [f"w{number}" for number in range(400)]
    share = np.mean(dedupe.bands_of(" ".join(words)) == dedupe.bands_of(" ".join(words[:398])))
    assert share > 0.7
    assert not (dedupe.bands_of(" ".join(words)) == dedupe.bands_of(" ".join(reversed(words)))).any()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("too short", "short"),
        ("x " * 80, "long words"),
        ("word #tag " * 80, "symbols"),
        ("1234 5678 word " * 40, "letters"),
        ("some ordinary words that say little " * 10, None),
    ],
)
def test_each_rule_of_quality_finds_its_kind(text, reason):
    assert dedupe.poor(text) == reason


def facts_of(num_bytes):
    return Facts(
        "text",
        "generation",
        "bytes",
        200,
        (),
        {"total_bytes": num_bytes, "mean_document_bytes": 2000.0},
        {"shape": "corpus"},
    )


def test_the_formula_counts_the_parameters_of_the_model():
    grouped = Options(depth=3, width=64, head_size=16, kv_heads=2)
    tied = Options(depth=2, width=32, head_size=8, feed_forward="swiglu", is_tied=True, value_embeddings=False)
    for options in (grouped, tied):
        config = size_of(facts_of(1e6), options).config
        model = gpt.GPT(config)
        assert num_parameters(config) == sum(parameter.numel() for parameter in model.parameters())


def test_larger_corpora_get_larger_models_and_vocabularies():
    sizes = [size_of(facts_of(num_bytes), Options()) for num_bytes in (1e4, 1e6, 1e9, 1e10, 1e13)]
    assert [size.config.depth for size in sizes] == sorted(size.config.depth for size in sizes)
    assert [size.config.vocab_size for size in sizes] == sorted(size.config.vocab_size for size in sizes)
    assert sizes[0].config.depth == 4
    assert sizes[-1].config.depth == 24
    assert "few for its size" in sizes[1].note(4.0)
    assert [size.config.dropout for size in sizes] == [0.2, 0.2, 0.0, 0.0, 0.0]
    assert [size.config.value_embeddings for size in sizes] == [False, False, True, True, True]
    assert size_of(facts_of(1e6), Options(value_embeddings=True)).config.value_embeddings
    assert size_of(facts_of(1e6), Options(dropout=0.0)).config.dropout == 0
    assert size_of(facts_of(1e6), Options(depth=6)).config.width == 384


def test_a_shape_that_cannot_be_is_refused_before_training():
    with pytest.raises(UsageError, match="num_kv_heads 3"):
        gpt_pretrain.plan(facts_of(1e6), Options(kv_heads=3, head_size=64), Gradient(), Machine())


def test_a_plan_says_how_far_from_compute_optimal_it_is():
    found = gpt_pretrain.plan(facts_of(1e6), Options(), Gradient(epochs=4, batch_size=8), Machine())
    assert "the rule is 20" in found["notes"][0]
    assert found["num_steps"] == 4 * 1562 // 8
    seconds = gpt_pretrain.plan(facts_of(1e6), Options(), Gradient(seconds=300), Machine())
    assert seconds["num_steps"] is None


def test_the_folder_of_a_random_model_gives_its_logits_and_its_tokens(tmp_path, tokenizer):
    from safetensors.torch import save_model
    from transformers import AutoTokenizer

    task = task_of(tokenizer, packs=True)
    save_model(task.model, str(tmp_path / "model.safetensors"))
    gpt_folder.describe(tmp_path, {"config": vars(task.model.config), "tokenizer": tokenizer.as_json()})
    tokens = torch.from_numpy(tokenizer.encode(story(3))[None, :40])
    assert torch.allclose(gpt_folder.load(tmp_path)(tokens), task.model(tokens), atol=1e-5)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(story(3))["input_ids"] == tokenizer.encode(story(3)).tolist()
    assert theirs.decode(theirs(story(3))["input_ids"]) == story(3)
    assert theirs.bos_token_id == tokenizer.bos
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "zoo_gpt"


def test_short_documents_are_packed_and_long_texts_are_not():
    assert gpt_pretrain.packs(facts_of(1e6), Options())
    long = Facts("text", "generation", "bytes", 200, (), {"total_bytes": 1e6, "mean_document_bytes": 1e6})
    assert not gpt_pretrain.packs(long, Options())
    assert gpt_pretrain.packs(long, Options(packing="documents"))
