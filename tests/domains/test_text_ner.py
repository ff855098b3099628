"""text/encoder-ner from plan to prediction, on small random weights; words, pieces and windows."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from domains.contract import Request
from domains.metrics import point
from domains.shared.tokens import TextTokenizer
from domains.text import encoder_ner, tagged
from domains.text.pieces import WordPieces, spans
from trainers.contract import Machine, Plan
from trainers.settings import Gradient

NER = Request(task="ner")
NAMES, OTHERS = ["Anna", "Bob", "Carla", "Dimitri"], ["runs", "to", "the", "old", "house", "and", "sings", "."]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "play", "##ing", "##er", "un", "##play", "##able", "the", "."]


def word_pieces():
    """A tokenizer in BERT's own format: "unplayable" is three pieces."""
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return TextTokenizer(tokenizer, 0)


def sentences(num=200, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(num):
        words = rng.choice(OTHERS, rng.integers(3, 9)).tolist()
        at = int(rng.integers(len(words)))
        words[at:at] = rng.choice(NAMES, rng.integers(1, 3)).tolist()
        found = []
        for before, word in zip([None, *words], words, strict=False):
            found.append("O" if word in OTHERS else "I-per" if before in NAMES else "B-per")
        rows.append((words, found))
    frame = pd.DataFrame({"tokens": [json.dumps(w) for w, _ in rows], "tags": [json.dumps(t) for _, t in rows]})
    return tagged.read(frame, NER).table


def plan_of(table, *, options=None, train=None):
    chosen = encoder_ner.Options(**{**encoder_ner.TINY["options"], **(options or {})})
    settings = Gradient.model_validate({**encoder_ner.TINY["train"], **(train or {})})
    facts = tagged.describe(table, "ner", NER)
    estimates = encoder_ner.plan(facts, chosen, settings, Machine())
    return Plan(
        *("text/x", "text", "ner", encoder_ner.__name__, chosen.model_dump(), settings.model_dump()),
        *(facts.as_json(), Machine(), 0, estimates),
    )


def entity_f1(rows, predictions):
    return point(tagged.entity_metrics(("O", "B-per", "I-per"))[0], rows.target(), predictions)


def quiet_watch(folder):
    return SimpleNamespace(
        folder=folder / "run", cache=folder / "cache", metric="entity_f1", higher_is_better=True, rank=0, world=1,
        score=entity_f1, log=lambda **event: None, should_stop=lambda: None,
    )  # fmt: skip


def task_of(table, **more):
    learner = encoder_ner.build(plan_of(table, **more))
    torch.manual_seed(0)
    return learner.make_task(learner.compute_statistics(table), True)


# --- words and pieces --------------------------------------------------------------------------------------------------


def test_the_first_piece_of_a_word_split_in_three_carries_its_tag_and_the_others_none():
    task = task_of(sentences(20))
    task.pieces, task.tags = WordPieces(word_pieces(), 32), ("O", "B-per", "I-per")
    rows = SimpleNamespace(
        column=lambda name: [("the", "unplayable", "playing", ".")],
        target=lambda: [("O", "B-per", "I-per", "O")],
    )
    batch = task.draw(task.examples(rows, None), [])
    numbers, is_token, targets = batch.inputs
    assert [PIECES[k] for k in numbers[0]] == ["[CLS]", "the", "un", "##play", "##able", "play", "##ing", ".", "[SEP]"]
    assert targets[0].tolist() == [-100, 0, 1, -100, -100, 2, -100, 0, -100]
    assert bool(is_token.all())
    assert batch.counts == {"cross_entropy": 4.0}


def test_words_that_the_tokenizer_drops_still_have_a_piece():
    pieces = WordPieces(word_pieces(), 32)
    (found,) = pieces.pieces([["the", "\u200b", "play", "\x07", "\ufffd", "🙂", "a b"]])
    assert [len(each) for each in found] == [1, 1, 1, 1, 1, 1, 2]
    assert found[1] == found[3] == [PIECES.index("[UNK]")]


def test_words_are_cut_as_running_text_by_tokenizers_that_keep_the_space_before_them():
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate(["<s>", "</s>", "<pad>", "<unk>", *bytes_, "Ġthe"])}
    merges = []
    for before, piece in (("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e")):
        vocab.setdefault(before + piece, len(vocab))
        merges.append((before, piece))
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    pieces = WordPieces(TextTokenizer(tokenizer, 2), 32)
    (found,) = pieces.pieces([["the", "the", "é"]])
    assert found[0] == found[1] == [vocab["Ġthe"]]
    assert len(found[2]) == 3
    assert pieces.before == [0]
    assert pieces.after == [1]


@pytest.mark.parametrize("seed", range(20))
def test_windows_own_every_word_once_within_their_room_and_with_context(seed):
    rng = np.random.default_rng(seed)
    room = int(rng.integers(6, 40))
    sizes = rng.integers(1, rng.integers(2, room + 2), size=rng.integers(0, 200)).clip(max=room).tolist()
    windows = spans(sizes, room)
    owned = [word for _, _, begin, end in windows for word in range(begin, end)]
    assert owned == list(range(len(sizes)))
    assert all(start <= begin <= end <= stop for start, stop, begin, end in windows)
    assert all(sum(sizes[start:stop]) <= room for start, stop, _, _ in windows)
    if sizes and max(sizes) == 1 and len(windows) > 1 and room >= 8:
        assert all(begin > start for start, _, begin, _ in windows[1:])


def test_a_word_longer_than_the_model_keeps_what_fits():
    pieces = WordPieces(word_pieces(), 8)
    (windows,) = pieces.windows([["the", "play" + "ing" * 30, "the"]])
    assert all(len(window.numbers) <= 8 for window in windows)
    assert sum(len(window.first) for window in windows) == 3


# --- the recipe --------------------------------------------------------------------------------------------------------


def test_the_recipe_learns_on_random_weights_saves_and_answers_the_same_after_loading(tmp_path):
    table, test = sentences(), sentences(60, seed=1)
    plan = plan_of(table, train={"epochs": 14})
    learner = encoder_ner.build(plan)
    learner.fit(table.take(range(160)), table.take(range(160, 200)), quiet_watch(tmp_path))
    learner.save(tmp_path / "model")
    found = learner.predict(test.without_target())
    again = encoder_ner.load(plan, tmp_path / "model").predict(test.without_target())
    assert found.kind == "tags"
    assert found.values.tolist() == again.values.tolist()
    assert entity_f1(test, found) > 0.9


def test_a_tag_does_not_depend_on_the_batch_or_on_other_sentences():
    table = sentences(30)
    task = task_of(table)
    task.model.eval()
    with torch.no_grad():
        together = task.predict(task.model, task.collate(table))
        alone = [task.predict(task.model, task.collate(table.take([i]))).values[0] for i in range(30)]
    assert together.values.tolist() == alone
    assert [len(row) for row in alone] == [len(words) for words in table.column("words")]


def test_a_sentence_longer_than_the_model_gets_a_tag_for_every_word():
    table = sentences(30)
    task = task_of(table, options={"max_tokens": 16})
    long = [("Anna", "runs", "to", "the", "old", "house") * 20, ("Bob",)]
    rows = SimpleNamespace(column=lambda name: long)
    with torch.no_grad():
        found = task.predict(task.model, task.collate(rows))
    assert [len(row) for row in found.values] == [120, 1]
    assert task.row_sizes(rows)[0] > 120


def test_the_loss_is_that_of_torch_on_first_pieces_alone():
    table = sentences(12)
    task = task_of(table)
    examples = task.examples(table, None)
    task.model.eval()
    batch = task.draw(examples, [])
    total = task.loss(task.model, batch.inputs)["cross_entropy"].item()
    parts = [task.draw([example], []) for example in examples]
    assert total == pytest.approx(sum(task.loss(task.model, b.inputs)["cross_entropy"].item() for b in parts), rel=1e-4)
    assert batch.counts["cross_entropy"] == sum(len(words) for words in table.column("words"))


def test_weights_in_transformers_own_format_are_fine_tuned_random(tmp_path):
    folder = tmp_path / "bert"
    PreTrainedTokenizerFast(tokenizer_object=word_pieces().tokenizer, pad_token="[PAD]").save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(PIECES), max_position_embeddings=40, **sizes)).save_pretrained(folder)
    table = sentences(30)
    task = task_of(table, options={"weights": str(folder), "max_tokens": 40})
    assert set(task.roles()) == {name for name, _ in task.model.named_parameters()}
    with torch.no_grad():
        assert len(task.predict(task.model, task.collate(table.without_target()))) == 30
