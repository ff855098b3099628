"""Running text: shards, the split by position, bits per byte, rivals, prompts, and what hostile files do."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

import zoo
from domains.contract import Facts, Request
from domains.splits import make_split
from domains.text import byte_models, corpus, shards
from trainers.contract import Predictions
from trainers.errors import DataError, UsageError

GENERATION = Request(task="generation")
PARAGRAPHS = [f"Paragraph number {i}.\nIt has two lines, the second of them longer.\n" for i in range(800)]
TEXT = "\n".join(PARAGRAPHS)


@pytest.fixture
def book(tmp_path):
    (tmp_path / "book.txt").write_text(TEXT)
    return tmp_path / "book.txt"


def read(source, request=GENERATION):
    return corpus.read(source, request).table


def parts_of(table):
    return make_split(corpus.keys(table, "generation", GENERATION, fast=False), len(table), seed=0)


def whole_text(table):
    return "".join(text for row in range(len(table)) for text in table.documents(row))


def test_the_shards_of_a_file_are_the_file_cut_at_blank_lines(book):
    table = read(book)
    assert whole_text(table) == TEXT
    assert len(table) > 5
    assert table.target().sum() == len(TEXT.encode())
    assert all(table[row]["text"].endswith("\n\n") for row in range(len(table) - 1))
    assert table.ids[:2].tolist() == ["book.txt:0", "book.txt:1"]


@pytest.mark.parametrize(
    "block", [b"abc\n\ndef", b"a long line without an end " * 9, "né".encode() * 9, "日本語".encode()]
)
def test_a_cut_never_divides_a_character(block):
    at = shards.cut_of(block)
    assert 0 < at <= len(block)
    block[:at].decode()
    block[at:].decode()


def test_the_text_before_a_shard_goes_with_it_but_not_across_documents(tmp_path, book):
    table = read(book)
    assert table.before(0) == ""
    assert table.before(3) == "".join(table[row]["text"] for row in range(3))[-shards.BEFORE_BYTES :]
    lines = [json.dumps({"text": text}) for text in PARAGRAPHS]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert not any(read(tmp_path / "a.jsonl").before(row) for row in range(3))


def test_json_lines_parquet_csv_and_frames_hold_the_same_documents(tmp_path):
    texts = [*PARAGRAPHS, "👩‍👩‍👧‍👦🏽 \u2028 é", '"quoted", twice']
    frame = pd.DataFrame({"id": range(len(texts)), "text": texts})
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=100)
    frame.to_csv(tmp_path / "a.csv", index=False)
    for source in (tmp_path / "a.jsonl", tmp_path / "a.parquet", tmp_path / "a.csv", frame):
        table = read(source)
        assert len(table) > 5
        found = [text for row in range(len(table)) for text in table.documents(row)]
        assert found == texts
        assert table.target().sum() == sum(len(text.encode()) for text in texts)


def test_small_files_share_a_shard_and_stay_documents(tmp_path):
    for number, text in enumerate(PARAGRAPHS[:400]):
        (tmp_path / f"{number:04}.txt").write_text(text)
    table = read(tmp_path)
    assert 3 < len(table) < 20
    assert [text for row in range(len(table)) for text in table.documents(row)] == PARAGRAPHS[:400]
    assert not any(table.continues(row) for row in range(len(table)))


def test_the_last_tenth_is_the_test_and_pieces_all_over_the_rest_are_the_validation(tmp_path):
    text = "".join(f"Line {number} of a long book, as dull as any.\n\n" for number in range(30_000))
    (tmp_path / "book.txt").write_text(text)
    table = read(tmp_path / "book.txt")
    split = parts_of(table)
    shares = [table.take(part).target().sum() / len(text) for part in (split.train, split.valid, split.test)]
    assert shares == pytest.approx([0.88, 0.02, 0.1], abs=0.006)
    assert split.test.tolist() == list(range(len(table) - len(split.test), len(table)))
    # Training reaches up to the test part, and no two validation pieces are neighbours.
    assert split.train.max() == split.test.min() - 1
    assert len(split.valid) >= 4
    assert np.diff(split.valid).min() > len(table) / 8
    assert "last 10%" in split.evidence["because"]


@pytest.mark.parametrize("sizes", [[5], [5, 5], [1, 100], [100, 1], [3] * 40])
def test_a_validation_of_some_shards_is_always_found_and_never_all_of_them(sizes):
    found = corpus._spread(np.array(sizes), 0.02, np.inf)
    assert 1 <= len(found) <= max(1, len(sizes) // 2)
    assert set(found) <= set(range(len(sizes)))


def test_files_that_are_called_train_and_test_are_respected(tmp_path):
    (tmp_path / "train.txt").write_text(TEXT)
    (tmp_path / "test.txt").write_text(TEXT[: len(TEXT) // 2])
    table = read(tmp_path)
    split = parts_of(table)
    assert {name.split(":")[0] for name in table.ids[split.test]} == {"test.txt"}
    assert {name.split(":")[0] for name in table.ids[split.train]} == {"train.txt"}


def test_files_called_train_and_valid_without_a_test_are_said_to_be_one_corpus(tmp_path):
    for name in ("train.txt", "valid.txt"):
        (tmp_path / name).write_text(TEXT)
    (notice,) = corpus.read(tmp_path, GENERATION).notices
    assert "called train and valid" in notice
    assert "split as one corpus" in notice
    (tmp_path / "test.txt").write_text(TEXT)
    assert not corpus.read(tmp_path, GENERATION).notices


def test_bits_per_byte_is_the_sum_of_bits_over_the_sum_of_bytes(book):
    table = read(book)
    facts = corpus.describe(table, "generation", GENERATION)
    (metric,) = corpus.metrics(facts)
    bits = 3.0 * table.target() + 1
    stats = metric.stats(table.target(), Predictions.of_numbers(bits))
    assert metric.value(stats) == pytest.approx(bits.sum() / len(TEXT))
    assert not metric.higher_is_better
    with pytest.raises(DataError):
        table.without_target().target()


def test_the_unigram_rival_needs_the_entropy_of_its_own_bytes(book):
    table = read(book)
    bits = byte_models.unigram().fit(table)(table.without_target()).values
    shares = np.bincount(np.frombuffer(TEXT.encode(), np.uint8), minlength=256) / len(TEXT)
    entropy = -sum(share * math.log2(share) for share in shares if share)
    assert bits.sum() / len(TEXT) == pytest.approx(entropy, rel=0.01)


def test_the_ngram_rival_is_a_distribution_over_the_next_byte_and_beats_unigrams(book):
    table = read(book)
    train, test = table.take(range(len(table) - 3)), table.take(range(len(table) - 3, len(table)))
    runs, counts = np.empty(0, np.uint64), np.empty(0, np.int64)
    for row in range(len(train)):
        runs, counts = byte_models._merged(runs, counts, byte_models._runs(*byte_models._bytes_of(train, row)))
    levels = byte_models._levels(runs, counts)
    for context in (b"Parag", b"zzzzz", b"\0\0\0\0\0", b"lines"):
        every = np.array([int.from_bytes(context + bytes([byte])) for byte in range(256)], np.uint64)
        assert byte_models._probability(levels, every).sum() == pytest.approx(1)
    ngram, unigram = (each.fit(train)(test).values.sum() for each in (byte_models.ngram(), byte_models.unigram()))
    assert ngram < 0.5 * unigram


def test_prompts_are_lines_of_a_file_or_rows_of_a_table(tmp_path):
    facts = Facts("text", "generation", "bytes", 5, schema={"shape": "corpus", "text": "text", "id_column": None})
    request = Request(task="generation", facts=facts)
    (tmp_path / "p.txt").write_text("Once\n\nTwice, \n")
    frame = pd.DataFrame({"name": ["x", "y"], "prompt": ["Once", "Twice, "]})
    lines, rows = corpus.read(tmp_path / "p.txt", request), corpus.read(frame, request)
    assert lines.table.column("text").tolist() == ["Once", "", "Twice, "]
    assert [(row.position, row.reason) for row in lines.bad] == [(1, "no prompt")]
    assert rows.table.column("text").tolist() == ["Once", "Twice, "]
    assert list(rows.table.ids) == ["x", "y"]
    assert rows.table.context["prompts"]


def test_with_the_target_named_a_new_corpus_is_read_to_be_scored(book):
    facts = Facts("text", "generation", "bytes", 5, schema={"shape": "corpus", "text": "text", "id_column": None})
    table = read(book, Request(task="generation", target="bytes", facts=facts))
    assert table.target().sum() == len(TEXT.encode())


def test_latin_1_and_a_byte_order_mark_are_read_and_told(tmp_path):
    (tmp_path / "latin.txt").write_bytes("Café crème\n".encode("latin-1") * 3000)
    (tmp_path / "mark.txt").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    found = corpus.read(tmp_path / "latin.txt", GENERATION)
    assert whole_text(found.table) == "Café crème\n" * 3000
    assert found.table.target().sum() == len(("Café crème\n" * 3000).encode())
    assert "Latin-1" in found.notices[0]
    assert whole_text(read(tmp_path / "mark.txt")) == TEXT


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "no text"),
        ("zeros.txt", b"\0" * 9000, "are zero"),
        ("wide.txt", "text".encode("utf-16"), "UTF-16"),
        ("a.jsonl", b'{"text": "x"}\nnonsense\n', "line 2"),
        ("b.jsonl", b'{"n": 1}\n', "no column holds text"),
        ("a.txt.gz", b"\x1f\x8b", "Unpack"),
    ],
)
def test_what_holds_no_text_is_refused_with_its_name(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read(tmp_path / name)
    assert name in str(error.value)


def test_a_target_or_a_group_means_nothing_here(book):
    with pytest.raises(UsageError, match="nonsense"):
        read(book, Request(task="generation", target="nonsense"))
    with pytest.raises(UsageError, match="--group"):
        read(book, Request(task="generation", group="x"))


def test_too_little_text_says_how_much_is_enough(tmp_path):
    (tmp_path / "small.txt").write_text("One line.\n")
    with pytest.raises(DataError, match=r"1 usable rows of 1 are too few .* bring 12,288 bytes or more"):
        zoo.train("text/gpt-pretrain", tmp_path / "small.txt", out=tmp_path / "run")


def test_a_run_of_text_files_is_scored_on_a_table_by_the_column_that_training_would_take(book, tmp_path):
    facts = corpus.describe(read(book), "generation", GENERATION)
    pd.DataFrame({"body": PARAGRAPHS, "label": "good"}).to_csv(tmp_path / "t.csv", index=False)
    request = Request(corpus.TARGET, "generation", facts=facts)
    assert whole_text(read(tmp_path / "t.csv", request)) == whole_text(read(tmp_path / "t.csv"))


def test_a_row_that_does_not_fit_its_table_is_neither_trained_on_nor_answered(book, tmp_path):
    (tmp_path / "t.csv").write_text("text,label\na film,good\nonly\na book,bad\n")
    with pytest.raises(DataError, match=r"t\.csv line 3: 1 cells, but the header has 2"):
        read(tmp_path / "t.csv")
    facts = corpus.describe(read(book), "generation", GENERATION)
    found = corpus.read(tmp_path / "t.csv", Request(task="generation", facts=facts))
    assert len(found.table) == 3
    assert [(row.position, row.reason) for row in found.bad] == [(1, "1 cells, but the header has 2")]
