"""What holds for every input that hypothesis thinks of: readers keep the rows or say why not, splits keep groups whole,
scores are scikit-learn's."""

import csv
import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from domains.contract import Facts, Keys, Request
from domains.metrics import classification_metrics, point
from domains.proteins import data as proteins
from domains.shared.fasta import read_fasta
from domains.shared.frames import read_frame
from domains.splits import make_split
from trainers.contract import Predictions
from trainers.errors import DataError

quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=12)
NAMES = st.lists(st.from_regex(r"[a-z]{1,6}", fullmatch=True), min_size=2, max_size=4, unique=True)
LETTERS = st.text("ACDEFGHIKLMNPQRSTVWYXBZUOJ*-.acde 7é?", max_size=30)


def result_or_message(work):
    """What `work` returns and "", or None and what the user is told; any other error is a crash."""
    try:
        return work(), ""
    except DataError as error:
        return None, str(error)


@quick
@given(names=NAMES, data=st.data())
def test_a_table_that_was_written_as_csv_keeps_its_rows_and_its_texts(names, data, tmp_path):
    rows = data.draw(st.lists(st.lists(CELLS, min_size=len(names), max_size=len(names)), min_size=1, max_size=6))
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([names, *rows])
    path = tmp_path / "t.csv"
    path.write_bytes(text.getvalue().encode())
    frame = read_frame(path, text_columns=names).frame
    assert frame[names].to_numpy().tolist() == rows
    assert len(read_frame(path).frame) == len(rows)


@quick
@given(
    raw=st.one_of(st.binary(max_size=200), st.text(max_size=100).map(str.encode)),
    suffix=st.sampled_from(["csv", "jsonl"]),
)
def test_any_bytes_are_a_table_or_refused_with_a_message(raw, suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    path.write_bytes(raw)
    reading, message = result_or_message(lambda: read_frame(path))
    assert path.name in message or len(reading.places) == len(reading.frame)


@quick
@given(
    records=st.lists(st.tuples(st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True), st.text("ACDEFGHIKL", max_size=40))),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    width=st.integers(1, 50),
    last=st.booleans(),
)
def test_fasta_reads_the_same_whatever_its_line_ends_and_widths(records, end, width, last, tmp_path):
    assume(records)
    lines = []
    for name, text in records:
        lines += [f">{name} about it", *(text[at : at + width] for at in range(0, len(text), width)), ""]
    path = tmp_path / "s.fasta"
    path.write_bytes((end.join(lines) + end * last).encode())
    assert [(record.name, record.text) for record in read_fasta(path)] == records


@quick
@given(raw=st.binary(max_size=120))
def test_any_bytes_are_fasta_or_refused_with_a_message(raw, tmp_path):
    path = tmp_path / "s.fasta"
    path.write_bytes(raw)
    records, message = result_or_message(lambda: read_fasta(path))
    assert path.name in message or records


@quick
@given(sequences=st.lists(LETTERS, min_size=1, max_size=8))
def test_predicting_keeps_every_protein_in_its_place(sequences):
    facts = Facts("proteins", "regression", "y", 3, (), {}, {"sequence": "sequence", "id_column": None})
    reading = proteins.read(pd.DataFrame({"sequence": sequences}), Request(facts=facts))
    assert list(reading.table.ids) == [str(i) for i in range(len(sequences))]
    bad = {row.position for row in reading.bad}
    assert all(text or i in bad for i, text in enumerate(reading.table.column("sequence")))


@quick
@given(smiles=st.lists(st.text("CNOPSFIclnos[]()=#@+-123%/\\.* ", max_size=12), min_size=1, max_size=5))
def test_predicting_keeps_every_molecule_in_its_place(smiles):
    pytest.importorskip("rdkit")
    from domains.molecules import data as molecules

    schema = {"smiles": "smiles", "id_column": None, "targets": ["y"], "oddities": []}
    facts = Facts("molecules", "regression", "y", 3, (), {}, schema)
    reading = molecules.read(pd.DataFrame({"smiles": smiles}), Request(facts=facts))
    assert len(reading.table) == len(smiles)
    bad = {row.position: row.reason for row in reading.bad}
    for i, text in enumerate(reading.table.column("smiles")):
        assert bad.get(i) if not text else i not in bad


@quick
@given(
    group=st.lists(st.integers(0, 8), min_size=6, max_size=60),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_no_group_is_in_two_parts_and_no_row_is_twice(group, seed, data):
    num = len(group)
    stratum = data.draw(st.none() | st.lists(st.sampled_from("ab"), min_size=num, max_size=num))
    given_parts = data.draw(st.none() | st.lists(st.sampled_from(["train", "test", ""]), min_size=num, max_size=num))
    keys = Keys("grouped", "they were drawn", group=np.array(group), stratum=stratum)
    if given_parts is not None:  # parts of the user may share groups; what is carved from them may not
        keys = replace(keys, rule="given", given=given_parts)
    split, message = result_or_message(lambda: make_split(keys, num, seed=seed, named=True))
    assume("no rows for" not in message)
    parts = {"train": split.train, "valid": split.valid, "test": split.test}
    assert len(np.concatenate(list(parts.values()))) == len(set(np.concatenate(list(parts.values())).tolist()))
    owned = {name: {group[i] for i in rows} for name, rows in parts.items()}
    assert not owned["train"] & owned["valid"]
    if given_parts is None:
        assert not owned["test"] & (owned["train"] | owned["valid"])


@quick
@given(num=st.integers(1, 30), classes=st.integers(2, 4), seed=st.integers(0, 2**31), coarse=st.booleans())
def test_scores_of_classes_are_those_of_scikit_learn(num, classes, seed, coarse):
    rng = np.random.default_rng(seed)
    names = tuple("abcd"[:classes])
    chances = rng.dirichlet(np.ones(classes), num)
    if coarse:  # ties
        chances = (np.round(chances, 1) + 0.01) / (np.round(chances, 1) + 0.01).sum(axis=1, keepdims=True)
    truth = rng.integers(classes, size=num)
    found = Predictions.of_labels(chances, names)
    answers = np.array(names)[chances.argmax(axis=1)]
    labels = np.array(names)[truth]
    scores = {metric.name: point(metric, labels.astype(object), found) for metric in classification_metrics(names)}
    assert scores["accuracy"] == pytest.approx(reference.accuracy_score(labels, answers))
    assert scores["macro_f1"] == pytest.approx(reference.f1_score(labels, answers, average="macro"))
    assert scores["log_loss"] == pytest.approx(reference.log_loss(labels, chances, labels=list(names)))
    if classes == 2 and len(set(truth)) == 2:
        assert scores["auc"] == pytest.approx(reference.roc_auc_score(truth, chances[:, 1]))
    elif classes == 2:
        assert scores["auc"] is None
