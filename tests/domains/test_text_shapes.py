"""Which shape a file of texts has: labelled, tagged, pairs or a corpus."""

import json

import pandas as pd
import pytest

from domains.contract import Facts, Request
from domains.text.data import shape_of


@pytest.mark.parametrize(
    ("task", "shape"),
    [
        (None, "labelled"),
        ("classification", "labelled"),
        ("regression", "labelled"),
        ("ner", "tagged"),
        ("seq2seq", "parallel"),
    ],
)
def test_most_tasks_have_one_shape(task, shape):
    assert shape_of("never-opened.csv", Request(task=task)) == shape


def test_to_generate_columns_of_prompts_or_chats_are_pairs(tmp_path):
    chats, plain = tmp_path / "chats.jsonl", tmp_path / "plain.jsonl"
    chats.write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}) + "\n")
    plain.write_text(json.dumps({"text": "Once upon a time"}) + "\n")
    request = Request(task="generation")
    assert shape_of(chats, request) == "pairs"
    assert shape_of(pd.DataFrame({"Prompt": ["a"], "Completion": ["b"]}), request) == "pairs"
    assert shape_of(plain, request) == "corpus"


def test_to_generate_running_text_is_a_corpus(tmp_path):
    (tmp_path / "book.txt").write_text("prompt,completion\nnot a table\n")
    request = Request(task="generation")
    assert shape_of(tmp_path, request) == "corpus"
    assert shape_of(tmp_path / "book.txt", request) == "corpus"


def test_a_target_makes_pairs_whatever_the_columns_are_called():
    frame = pd.DataFrame({"question": ["a"], "reply": ["b"]})
    assert shape_of(frame, Request(task="generation", target="reply")) == "pairs"


def test_new_files_are_read_as_the_training_file_was():
    facts = Facts("text", "generation", None, 5, schema={"shape": "corpus"})
    assert shape_of(pd.DataFrame({"prompt": ["a"]}), Request(task="generation", facts=facts)) == "corpus"


def test_of_a_corpus_no_more_is_held_than_a_line_to_know_its_shape(tmp_path, monkeypatch):
    monkeypatch.setattr("domains.text.data.read_frame", lambda *given: pytest.fail("read as a whole"))
    request, frame = Request(task="generation"), pd.DataFrame({"text": ["Once"], "source": ["upon"]})
    (tmp_path / "plain.jsonl").write_text('{"text": "a"}\nnot json\n{"text": "b"}\n')
    (tmp_path / "late.jsonl").write_text('{"text": "a"}\n{"Prompt": "b", "text": "c"}\n')
    frame[["text"]].to_parquet(tmp_path / "plain.parquet")
    frame.to_parquet(tmp_path / "pairs.parquet")
    assert [shape_of(tmp_path / f"plain.{kind}", request) for kind in ("jsonl", "parquet")] == ["corpus"] * 2
    assert [shape_of(tmp_path / name, request) for name in ("late.jsonl", "pairs.parquet")] == ["pairs"] * 2
