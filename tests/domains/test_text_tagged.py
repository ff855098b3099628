"""Reading sentences with a tag a word: notations of tags, CoNLL files and tables, scores of entities, splits, rivals."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.scheme import IOB2
from seqeval.scheme import Entities as SeqevalEntities

from domains.contract import Request
from domains.metrics import point
from domains.splits import make_split
from domains.text import conll, data, tagged, tags
from trainers.contract import Predictions
from trainers.errors import DataError

NER = Request(task="ner")
CLASSES = ("O", "B-loc", "I-loc", "B-per", "I-per")


def random_tags(num, seed):
    rng = np.random.default_rng(seed)
    weights = [0.6, 0.1, 0.1, 0.1, 0.1]
    return [tuple(rng.choice(CLASSES, rng.integers(1, 15), p=weights).tolist()) for _ in range(num)]


def objects(values):
    found = np.empty(len(values), dtype=object)
    found[:] = list(values)
    return found


def write(path, *sentences, between="\n"):
    path.write_text(between.join("".join(line + "\n" for line in sentence) for sentence in sentences), encoding="utf-8")
    return path


# --- notations ---------------------------------------------------------------------------------------------------------


def test_entities_of_tags_in_any_order_are_those_of_seqeval():
    for sentence in random_tags(300, seed=1):
        repaired = tags.settled([sentence]).tags[0]
        theirs = SeqevalEntities([list(repaired)], scheme=IOB2).entities[0]
        assert tags.entities(repaired) == [(each.tag, each.start, each.end - 1) for each in theirs]


def test_tags_of_entities_of_tags_are_the_tags():
    for sentence in tags.settled(random_tags(100, seed=2)).tags:
        assert tags.as_tags(tags.entities(sentence), len(sentence)) == sentence


@pytest.mark.parametrize(
    ("written", "read", "said"),
    [
        (["O", "I-per", "I-per", "B-per"], ("O", "B-per", "I-per", "B-per"), "1 entities begin with I-TYPE"),
        (["B-per", "I-loc"], ("B-per", "B-loc"), "1 entities begin"),
        (["S-per", "B-loc", "I-loc", "E-loc", "O"], ("B-per", "B-loc", "I-loc", "I-loc", "O"), "IOBES"),
        (["U-per", "B-loc", "L-loc", "U-loc"], ("B-per", "B-loc", "I-loc", "B-loc"), "BILOU"),
        (["S-per", "I-per"], ("B-per", "B-per"), "begin with I-TYPE"),
        (["O", "per", "per", "loc"], ("O", "B-per", "I-per", "B-loc"), "without B- and I-"),
    ],
)
def test_other_notations_are_read_as_bio_and_said(written, read, said):
    found = tags.settled([written])
    assert found.tags == [read]
    assert said in " ".join(found.notices)


def test_well_formed_tags_stay_as_they_are_in_silence():
    assert tags.settled([["O", "B-creative-work", "I-creative-work"], ["O"]]).notices == ()
    assert tags.settled([["O", "B-creative-work", "I-creative-work"]]).tags == [
        ("O", "B-creative-work", "I-creative-work")
    ]


def test_what_is_no_tag_makes_its_sentence_unusable_with_the_word():
    found = tags.settled([["O", "B-per"], ["O", "Bper"], ["O", ""], ["b-per"]])
    assert [row is None for row in found.tags] == [False, True, True, True]
    assert "'Bper' of word 2" in found.reasons[1]
    assert "word 2 has no tag" in found.reasons[2]


# --- scores ------------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_seqeval():
    truth = tags.settled(random_tags(200, seed=3)).tags
    answers = [
        a if i % 3 else t
        for i, (t, a) in enumerate(zip(truth, tags.settled(random_tags(200, seed=4)).tags, strict=True))
    ]
    answers = [(a * 20)[: len(t)] for t, a in zip(truth, answers, strict=True)]
    answers = tags.settled(answers).tags
    found = {
        m.name: point(m, objects(truth), Predictions.of_tags(answers, CLASSES)) for m in tags.entity_metrics(CLASSES)
    }
    lists = [[list(row) for row in rows] for rows in (truth, answers)]
    assert found["entity_f1"] == pytest.approx(f1_score(*lists))
    assert found["precision"] == pytest.approx(precision_score(*lists))
    assert found["recall"] == pytest.approx(recall_score(*lists))
    assert found["macro_f1"] == pytest.approx(f1_score(*lists, average="macro"))
    assert 0 < found["entity_f1"] < 1


def test_stats_of_parts_add_up_and_an_unknown_type_counts_as_missed():
    metric = tags.entity_metrics(("O", "B-per", "I-per"))[0]
    truth = objects([("B-per", "O"), ("B-loc", "O"), ("B-per", "I-per")])
    answers = Predictions.of_tags([("B-per", "O"), ("O", "O"), ("B-per", "O")], CLASSES)
    whole = metric.stats(truth, answers)
    parts = [metric.stats(truth[[i]], answers.take([i])) for i in range(3)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert metric.value(whole) == pytest.approx(2 * 1 / (2 + 3))


def test_no_entity_anywhere_is_undefined_and_none_found_is_zero():
    for metric in tags.entity_metrics(CLASSES):
        nothing = Predictions.of_tags([("O",)], CLASSES)
        assert point(metric, objects([("O",)]), nothing) is None
        assert point(metric, objects([("B-per",)]), nothing) == 0


def test_the_best_tags_are_the_best_of_all_well_formed_ones():
    from itertools import product

    rng = np.random.default_rng(0)
    for _ in range(5):
        scores = np.log(rng.dirichlet(np.ones(5), size=4))
        formed = [path for path in product(range(5), repeat=4) if is_well_formed([CLASSES[k] for k in path])]
        best = max(formed, key=lambda path: sum(scores[at, k] for at, k in enumerate(path)))
        assert tags.best_tags(scores, CLASSES) == [CLASSES[k] for k in best]


def is_well_formed(row):
    return tags.settled([row]).tags[0] == tuple(row)


# --- CoNLL files -------------------------------------------------------------------------------------------------------


def test_a_conll_file_is_read_with_tabs_between_sentences_documents_and_strange_words(tmp_path):
    path = tmp_path / "x.conll"
    path.write_bytes(
        "-DOCSTART- -X- O O\n\nEU NNP I-NP B-org\nrejects VBZ I-VP O\n \t\n#tag NN x O\n\n\n-DOCSTART- -X- O O\n"
        "a\u2028b NN x O\r\n\r\nlast NN x I-loc".encode()
    )
    reading = tagged.read(path, NER)
    assert list(reading.table.column("words")) == [("EU", "rejects"), ("#tag",), ("a\u2028b",), ("last",)]
    assert reading.table.target().tolist() == [("B-org", "O"), ("O",), ("O",), ("B-loc",)]
    assert reading.table.column("document").tolist() == [1, 1, 2, 2]
    assert any("begin with I-TYPE" in notice for notice in reading.notices)
    assert not reading.bad


def test_lines_without_a_tag_are_named(tmp_path):
    path = write(tmp_path / "x.conll", ["a\tO", "b\tO"], ["c\tO", "d"], ["e\tO", "f\t"], ["g\tB-per"])
    reading = tagged.read(path, NER)
    assert [(row.position, row.place) for row in reading.bad] == [(1, "x.conll line 4"), (2, "x.conll line 7")]
    assert "line 5 has 1 columns" in reading.bad[0].reason
    assert "line 8 has no tag" in reading.bad[1].reason


def test_a_folder_of_three_files_is_a_given_split(tmp_path):
    for name, num in (("train", 30), ("dev", 5), ("test", 6)):
        write(tmp_path / f"{name}.conll", *[[f"{name}{i}\tB-per", "runs\tO"] for i in range(num)])
    reading = data.read(tmp_path, NER)
    split = make_split(data.keys(reading.table, "ner", NER, fast=True), len(reading.table), seed=0)
    assert (len(split.train), len(split.valid), len(split.test)) == (30, 5, 6)
    assert all(words[0].startswith("test") for words in reading.table.take(split.test).column("words"))


def test_without_a_test_file_the_dev_file_is_the_test_and_validation_is_cut_from_training(tmp_path):
    for name, num in (("train", 60), ("dev", 20)):
        write(tmp_path / f"{name}.conll", *[[f"{name}{i}\tB-per", "runs\tO"] for i in range(num)])
    reading = data.read(tmp_path, NER)
    split = make_split(data.keys(reading.table, "ner", NER, fast=True), len(reading.table), seed=0)
    assert all(words[0].startswith("dev") for words in reading.table.take(split.test).column("words"))
    assert all(words[0].startswith("train") for words in reading.table.take(split.valid).column("words"))
    assert len(split.test) == 20
    assert len(split.valid) > 0
    assert any("dev.conll is the test" in notice for notice in reading.notices)


def test_files_of_words_alone_are_for_predicting_only(tmp_path):
    path = write(tmp_path / "x.conll", ["Anna", "runs"], ["Bob"])
    with pytest.raises(DataError, match="needs a tag"):
        tagged.read(path, NER)
    facts = tagged.describe(tagged.read(write(tmp_path / "y.conll", ["A\tB-per"], ["b\tO"]), NER).table, "ner", NER)
    reading = tagged.read(path, Request(task="ner", facts=facts))
    assert reading.table.column("words").tolist() == [("Anna", "runs"), ("Bob",)]
    assert reading.target is None


def test_two_files_for_one_part_and_no_training_file_are_refused(tmp_path):
    write(tmp_path / "dev.conll", ["a\tO"])
    with pytest.raises(DataError, match="no train file"):
        tagged.read(tmp_path, NER)
    write(tmp_path / "train.conll", ["a\tO"])
    write(tmp_path / "valid.conll", ["a\tO"])
    with pytest.raises(DataError, match="look like the valid part"):
        tagged.read(tmp_path, NER)


def test_an_ordinary_table_or_text_is_no_conll_file(tmp_path):
    (tmp_path / "a.tsv").write_text("text\ty\nhello\tO\nmore\tO\n")
    (tmp_path / "b.txt").write_text("A long line of a story that goes on and on for more than ten words.\n\nOO\n")
    assert not conll.is_conll(tmp_path / "a.tsv")
    assert not conll.is_conll(tmp_path / "b.txt")
    assert conll.is_conll(write(tmp_path / "c.txt", ["a O", "b B-per"], ["c O"]))


def test_latin_1_and_a_byte_order_mark_are_read(tmp_path):
    path = tmp_path / "x.conll"
    path.write_bytes("\ufeffGenève\tB-loc\n".encode() + b"\n")
    assert tagged.read(path, NER).table.column("words").tolist() == [("Genève",)]
    path.write_bytes("Genève\tB-loc\n".encode("latin-1"))
    reading = tagged.read(path, replace(NER, encoding="cp1252"))
    assert reading.table.column("words").tolist() == [("Genève",)]
    assert any("cp1252" in notice for notice in reading.notices)


# --- tables ------------------------------------------------------------------------------------------------------------


def test_json_lines_with_tokens_and_tags_are_read_and_faults_are_named(tmp_path):
    rows = [
        {"id": "a", "tokens": ["Anna", "runs"], "tags": ["B-per", "O"]},
        {"id": "b", "tokens": ["Anna"], "tags": ["B-per", "O"]},
        {"id": "c", "tokens": "Anna", "tags": ["O"]},
        {"id": "d", "tokens": [], "tags": []},
        {"id": "e", "tokens": ["x"], "tags": [3]},
        {"id": "f", "tokens": ["x"], "tags": ["O"]},
    ]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reading = data.read(path, NER)
    reasons = {row.position: row.reason for row in reading.bad}
    assert sorted(reasons) == [1, 2, 3, 4]
    assert reasons[1] == "1 words, but 2 tags"
    assert "no JSON list" in reasons[2]
    assert "numbers instead of the names" in reasons[4]
    assert list(reading.table.ids) == list("abcdef")
    assert reading.table.target()[0] == ("B-per", "O")


def test_plain_texts_are_cut_at_white_space_when_predicting(tmp_path):
    facts = tagged.describe(tagged.read(write(tmp_path / "y.conll", ["A\tB-per"], ["b\tO"]), NER).table, "ner", NER)
    reading = data.read(pd.DataFrame({"text": ["Anna runs .", "  "]}), Request(facts=facts))
    assert reading.table.column("words").tolist() == [("Anna", "runs", "."), ()]
    assert [row.position for row in reading.bad] == [1]


def test_evaluating_names_tags_that_training_did_not_know(tmp_path):
    facts = tagged.describe(tagged.read(write(tmp_path / "y.conll", ["A\tB-per"], ["b\tO"]), NER).table, "ner", NER)
    path = write(tmp_path / "z.conll", ["A\tB-prs"], ["b\tO"])
    reading = tagged.read(path, Request(facts=facts, target="tags"))
    assert "'B-prs' was not in the training data" in reading.bad[0].reason


def test_data_without_an_entity_and_an_unknown_target_are_refused(tmp_path):
    table = tagged.read(write(tmp_path / "y.conll", ["A\tO"], ["b\tO"]), NER).table
    with pytest.raises(DataError, match="no training sentence holds an entity"):
        tagged.describe(table, "ner", NER)
    with pytest.raises(DataError, match="nonsense"):
        tagged.read(tmp_path / "y.conll", Request(task="ner", target="nonsense"))


# --- splits and rivals -------------------------------------------------------------------------------------------------


def sentences(num, seed=0):
    rng = np.random.default_rng(seed)
    names, others = ["Anna", "Bob", "Carla", "Dimitri"], ["runs", "to", "the", "old", "house", "and", "sings"]
    rows = []
    for _ in range(num):
        words = rng.choice(others, rng.integers(3, 9)).tolist()
        words.insert(int(rng.integers(len(words))), str(rng.choice(names)))
        rows.append((words, ["B-per" if word in names else "O" for word in words]))
    return pd.DataFrame({"tokens": [json.dumps(w) for w, _ in rows], "tags": [json.dumps(t) for _, t in rows]})


def test_copies_of_a_sentence_and_sentences_of_a_document_stay_together(tmp_path):
    frame = pd.concat([sentences(40), sentences(40)], ignore_index=True)
    table = tagged.read(frame, NER).table
    split = make_split(tagged.keys(table, "ner", NER, fast=False), len(table), seed=0)
    texts = table.column("text")
    parts = [set(texts.iloc[getattr(split, name)]) for name in ("train", "valid", "test")]
    assert not (parts[0] & parts[1])
    assert not (parts[0] & parts[2])
    assert not (parts[1] & parts[2])
    lines = [line for k in range(30) for line in ("-DOCSTART- O", "", f"Anna{k} B-per", "", f"runs{k} O", "")]
    (tmp_path / "x.conll").write_text("\n".join(lines))
    table = tagged.read(tmp_path / "x.conll", NER).table
    split = make_split(tagged.keys(table, "ner", NER, fast=False), len(table), seed=0)
    documents = [set(table.column("document").iloc[getattr(split, name)]) for name in ("train", "valid", "test")]
    assert sum(map(len, documents)) == 30


def test_the_rivals_answer_every_word_and_the_linear_one_learns():
    table, new = tagged.read(sentences(200), NER).table, tagged.read(sentences(50, seed=1), NER).table
    facts = tagged.describe(table, "ner", NER)
    metric = tagged.metrics(facts)[0]
    scores = []
    for baseline in tagged.baselines(facts):
        answer = baseline.fit(table)
        found = answer(new.without_target())
        assert [len(row) for row in found.values] == [len(words) for words in new.column("words")]
        assert len(answer(new.take([]).without_target())) == 0
        scores.append(point(metric, new.target(), found))
    assert scores[0] == 0
    assert scores[1] > 0.9
