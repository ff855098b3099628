"""Prompts with answers, and chats: reading, splitting, measuring, and the byte models they are compared with."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from domains.contract import Facts, Request
from domains.text import data, pairs
from domains.text.answer_bytes import END, ByteModel
from trainers.contract import Predictions
from trainers.errors import DataError

ASK = Request(task="generation")
ROWS = [("what is red?", "a rose"), ("what is blue?", "the sky"), ("what is green?", "grass, often")]


def frame(prompt="prompt", answer="completion"):
    return pd.DataFrame(ROWS, columns=[prompt, answer])


def chat(*turns):
    return json.dumps([{"role": role, "content": content} for role, content in turns])


CHATS = [
    chat(("user", "hi"), ("assistant", "hello")),
    chat(("system", "be brief"), ("user", "a?"), ("assistant", "b"), ("user", "c?"), ("assistant", "d")),
]


@pytest.mark.parametrize("names", [("prompt", "completion"), ("instruction", "response"), ("source", "target")])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "frame"])
def test_prompts_and_answers_are_found_by_their_usual_names_in_every_kind_of_file(names, kind, tmp_path):
    table = frame(*names)
    path = tmp_path / f"x.{kind}"
    write = {"csv": table.to_csv, "parquet": table.to_parquet}
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in table.to_dict("records")))
    elif kind != "frame":
        write[kind](path, index=False)
    reading = data.read(table if kind == "frame" else path, ASK)
    assert list(zip(reading.table.column("prompt"), reading.table.column("answer"), strict=True)) == ROWS
    assert (reading.task, reading.target, reading.bad) == ("generation", names[1], ())
    assert reading.table.target().tolist() == [len(answer) + 1 for _, answer in ROWS]


def test_the_answer_stays_with_rows_that_are_measured_and_its_length_does_not():
    rows = pairs.read(frame(), ASK).table.without_target()
    assert list(rows.frame.columns) == ["prompt", "answer"]


def test_a_file_with_prompts_only_is_read_for_answering_and_one_with_answers_is_not_looked_at():
    facts = pairs.describe(pairs.read(frame(), ASK).table, "generation", ASK)
    for new in (frame()[["prompt"]], frame()):
        reading = data.read(new, Request(facts=facts))
        assert list(reading.table.frame.columns) == ["prompt"]
        assert reading.bad == ()
    again = data.read(frame(), Request(facts=facts, target="completion"))
    assert "answer" in again.table.frame.columns


def test_an_instruction_with_its_input_makes_one_prompt():
    table = pd.DataFrame({"instruction": ["Sum up.", "Say hi."], "input": ["Long text", ""], "output": ["Short", "hi"]})
    prompts = pairs.read(table, ASK).table.column("prompt").tolist()
    assert prompts == ["Sum up.\n\nLong text", "Say hi."]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_the_last_answer_of_a_chat_is_measured_and_what_was_said_before_is_its_prompt(kind, tmp_path):
    path = tmp_path / f"x.{kind}"
    if kind == "csv":
        pd.DataFrame({"messages": CHATS}).to_csv(path, index=False)
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps({"messages": json.loads(each)}) for each in CHATS))
    else:
        parquet.write_table(pa.table({"messages": [json.loads(each) for each in CHATS]}), path)
    reading = data.read(path, ASK)
    assert reading.table.column("answer").tolist() == ["hello", "d"]
    assert [len(json.loads(prompt)) for prompt in reading.table.column("prompt")] == [1, 4]
    assert reading.bad == ()


def test_shared_chats_with_from_and_value_are_read_too():
    cell = json.dumps([{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}])
    table = pairs.read(pd.DataFrame({"conversations": [cell]}), ASK).table
    assert json.loads(table.column("prompt")[0]) == [{"role": "user", "content": "hi"}]
    assert table.column("answer")[0] == "hello"


def test_rows_without_prompt_or_answer_and_broken_chats_are_named_with_their_line(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('prompt,completion\nwhat?,this\n  ,that\nwhy?,\n"a ""None""?",None\n')
    reading = data.read(path, ASK)
    assert [(row.place, row.reason) for row in reading.bad] == [
        ("x.csv line 3", "nothing in column 'prompt'"),
        ("x.csv line 4", "nothing in column 'completion'"),
    ]
    assert reading.table.column("answer")[3] == "None"
    broken = [
        "[1, 2]",
        "hello",
        chat(("user", "x")),
        chat(("judge", "x"), ("assistant", "y")),
        chat(("assistant", "y")),
    ]
    reasons = [row.reason for row in pairs.read(pd.DataFrame({"messages": broken}), ASK).bad]
    assert len(reasons) == len(broken)
    assert "the last message is no answer" in reasons[2]
    assert "unknown role 'judge'" in reasons[3]


def test_columns_that_are_not_there_are_named_with_what_is():
    with pytest.raises(DataError, match=r"Columns: a, b. Name them with --column prompt=NAME"):
        pairs.read(pd.DataFrame({"a": ["x"], "b": ["y"]}), ASK)
    with pytest.raises(DataError, match="no column 'completion2'"):
        pairs.read(frame(), Request(task="generation", target="completion2"))
    named = Request(task="generation", columns={"prompt": "a"}, target="b")
    assert pairs.read(pd.DataFrame({"a": ["x"], "b": ["y"]}), named).table.column("answer")[0] == "y"


def test_copies_of_a_prompt_stay_together_whatever_their_answers():
    table = pairs.read(pd.concat([frame(), frame().assign(completion="other")]), ASK).table
    keys = pairs.keys(table, "generation", ASK, fast=True)
    assert keys.rule == "grouped"
    assert keys.group[:3].tolist() == keys.group[3:].tolist()


def test_bits_per_byte_are_all_bits_over_all_bytes_and_unread_answers_are_left_out():
    facts = Facts("text", "generation", "completion", 3, (), {}, {"shape": "pairs"})
    per_byte, per_answer = data.metrics(facts)
    stats = per_byte.stats(np.array([10.0, 30.0, 5.0]), Predictions.of_numbers(np.array([20.0, 20.0, np.nan])))
    assert per_byte.value(stats) == 1.0
    assert per_answer.value(stats) == 20.0
    assert not per_byte.higher_is_better


def test_a_byte_model_gives_probabilities_that_sum_to_one_after_any_context():
    model = ByteModel(3)
    model.add(b"", b"abracadabra")
    model.add(b"x", b"abba")
    for context in (b"", b"a", b"bra", b"zzz"):
        assert sum(model.share(context, symbol) for symbol in range(END + 1)) == pytest.approx(1)


def test_a_byte_model_without_context_counts_as_by_hand():
    model = ByteModel(0)
    model.add(b"seen before, not counted", b"aab")
    # a, a, b and the end: four seen of three kinds, mixed with 1/257.
    assert model.share(b"", ord("a")) == pytest.approx((2 + 3 / 257) / 7)
    assert model.bits(b"", b"a") == pytest.approx(-math.log2((2 + 3 / 257) / 7) - math.log2((1 + 3 / 257) / 7))


def test_bytes_after_their_context_cost_less_than_bytes_alone():
    table = pairs.read(pd.DataFrame({"prompt": list("abcdef"), "completion": ["the same answer"] * 6}), ASK).table
    facts = pairs.describe(table, "generation", ASK)
    alone, after = (rival.fit(table)(table.without_target()).values.mean() for rival in data.baselines(facts))
    assert after < 0.5 * alone
