"""Source and target texts: reading tables and line-by-line files, splits, scores and rivals."""

import json

import numpy as np
import pandas as pd
import pytest
import sacrebleu

from domains.contract import Request
from domains.text import parallel
from trainers.contract import Predictions
from trainers.errors import DataError

WRITTEN = ["the cat sat on the mat", "", "a dog", "The quick brown fox jumped over the dog .", "ja, ja!"]
WANTED = ["the cat sat on a mat today", "something", "a dog", "The quick brown fox jumps over the lazy dog.", "nein."]


def score(name: str) -> float:
    metric = next(each for each in parallel.metrics(None) if each.name == name)
    return metric.value(metric.stats(np.array(WANTED, dtype=object), Predictions.of_texts(WRITTEN)))


def test_bleu_and_chrf_are_those_of_sacrebleu_over_the_whole_set():
    assert score("bleu") == pytest.approx(sacrebleu.corpus_bleu(WRITTEN, [WANTED]).score, abs=1e-9)
    assert score("chrf") == pytest.approx(sacrebleu.corpus_chrf(WRITTEN, [WANTED]).score, abs=1e-9)


def test_nothing_written_scores_nothing():
    metrics = parallel.metrics(None)
    empty = Predictions.of_texts(["", ""])
    assert [each.value(each.stats(np.array(["a", "b c"], dtype=object), empty)) for each in metrics] == [0.0, 0.0]


def lines(folder, **files):
    for name, rows in files.items():
        stem, _, ending = name.rpartition("_")
        (folder / f"{stem}.{ending}").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def test_files_of_lines_belong_together_and_their_names_say_the_part(tmp_path):
    lines(tmp_path, train_de=["eins", "zwei\u2028drei"], train_en=["one", "two"], val_de=["vier"], val_en=["four"])
    lines(tmp_path, test_2016_de=["fuenf"], test_2016_en=["five"])
    (tmp_path / "README.md").write_text("about")
    found = parallel.read(tmp_path, Request(columns={"source": "de"}, target="en"))
    by_part = {row["split"]: (row["source"], row["target"]) for row in found.table}
    assert len(found.table) == 4
    assert by_part["valid"] == ("vier", "four")
    assert by_part["test"] == ("fuenf", "five")
    assert "zwei\u2028drei" in found.table.column("source").tolist()
    assert parallel.keys(found.table, "seq2seq", Request(), fast=True).rule == "given"


def test_files_of_unlike_length_are_refused_with_their_counts(tmp_path):
    lines(tmp_path, train_de=["eins", "zwei"], train_en=["one"])
    with pytest.raises(DataError, match=r"train\.de has 2 lines.*train\.en has 1 lines"):
        parallel.read(tmp_path, Request(columns={"source": "de"}, target="en"))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_tables_keep_texts_letter_for_letter_and_name_rows_without_one(tmp_path, suffix):
    rows = [{"source": " 007", "target": "NA"}, {"source": "a\nb", "target": "ü"}, {"source": "x", "target": ""}]
    path = tmp_path / f"pairs{suffix}"
    if suffix == ".csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = parallel.read(path, Request())
    assert found.table.column("source").tolist()[:2] == [" 007", "a\nb"]
    assert found.table.target().tolist()[:2] == ["NA", "ü"]
    assert [(row.position, row.reason) for row in found.bad] == [(2, "no text in 'target'")]


def test_a_table_without_known_names_asks_for_both():
    with pytest.raises(DataError, match="--column source=NAME --target NAME"):
        parallel.read(pd.DataFrame({"de": ["a"], "en": ["b"]}), Request(task="seq2seq"))


def test_predicting_needs_no_target_and_evaluating_does():
    frame = pd.DataFrame({"source": ["a b c", "d e f", "a b c"], "target": ["x", "y", "z"]})
    facts = parallel.describe(parallel.read(frame, Request()).table, "seq2seq", Request())
    asked = parallel.read(frame[["source"]], Request(facts=facts)).table
    assert "target" not in asked.frame
    again = parallel.read(frame, Request(facts=facts, target="target")).table
    assert again.target().tolist() == ["x", "y", "z"]


def test_copies_of_a_source_stay_together():
    frame = pd.DataFrame({"source": ["a b c", "d e f", "A  b c"], "target": ["x", "y", "z"]})
    group = parallel.keys(parallel.read(frame, Request()).table, "seq2seq", Request(), fast=True).group
    assert group[0] == group[2] != group[1]


def test_rivals_copy_or_remember():
    train = parallel.read(pd.DataFrame({"source": ["red car", "blue sky"], "target": ["R", "B"]}), Request()).table
    asked = parallel.read(pd.DataFrame({"source": ["the sky is blue"], "target": ["?"]}), Request()).table
    copy, nearest = parallel.baselines(None)
    assert copy.fit(train)(asked.without_target()).values.tolist() == ["the sky is blue"]
    assert nearest.fit(train)(asked.without_target()).values.tolist() == ["B"]
