"""A label for every residue: reading, scores, the rival, and a tiny random network that learns. All weights are random."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch.nn import functional

import zoo
from domains.contract import Request
from domains.proteins import data, esm2_residue
from domains.proteins.esm2_residue import NOT_COUNTED, ResidueClassifier, ResidueTask
from domains.shared.proteins.esm2_weights import load_encoder
from trainers.contract import Predictions
from trainers.errors import DataError

RECIPE = "proteins/esm2-residue"
SETS = {"options.weights": "random:2x32", "train.precision": "fp32", "train.compile": "off", "train.layer_decay": 1.0}


def rows(num=60, seed=0):
    """Chains with a helix where a residue is greasy, else coil; a tenth of the labels are unknown."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(num):
        chain = rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), int(rng.integers(10, 40)))
        labels = np.where(np.isin(chain, list("AILMFVW")), "H", "C")
        labels[rng.random(len(chain)) < 0.1] = "?"
        found.append({"sequence": "".join(chain), "ss": "".join(labels)})
    return pd.DataFrame(found)


def task_of(max_residues=16, labels=("C", "H")):
    torch.manual_seed(0)
    return ResidueTask(ResidueClassifier(load_encoder("random:2x32"), 32, len(labels), 0.0), labels, 2, max_residues)


def table_of(frame, **request):
    return data.read(frame, Request(task="residue-labels", target="ss", **request)).table


def test_a_random_network_learns_labels_of_residues_and_answers_each_after_loading(tmp_path):
    sets = {**SETS, "train.lr": 3e-3, "train.head_lr": 1e-2, "train.batch_size": 8}
    run = zoo.train(RECIPE, rows(), target="ss", set=sets, epochs=6, fast=True, out=tmp_path / "run")
    assert run.metrics["test"]["accuracy"]["value"] > run.metrics["baseline"]["majority"]["accuracy"]["value"] + 0.2
    assert run.metrics["baseline"]["neighbours"]["accuracy"]["value"] > 0.9
    frame = rows(5, 1)[["sequence"]]
    before, after = run.predict(frame), zoo.load(run.folder).predict(frame)
    assert before["prediction"].tolist() == after["prediction"].tolist()
    lengths = [len(json.loads(cell)) for cell in after["prediction"]]
    assert lengths == frame["sequence"].str.len().tolist()


def test_scores_are_those_of_scikit_learn_without_the_unknown_residues():
    table = table_of(rows())
    facts = data.describe(table, "residue-labels", Request())
    rng = np.random.default_rng(0)
    answers = [rng.choice(["C", "H"], len(labels)).tolist() for labels in table.target()]
    predictions = Predictions.of_tags(answers, facts.classes)
    truth, given = np.concatenate([np.array(r) for r in table.target()]), np.concatenate(answers)
    known = truth != "?"
    found = {metric.name: metric.value(metric.stats(table.target(), predictions)) for metric in data.metrics(facts)}
    assert found["accuracy"] == pytest.approx(accuracy_score(truth[known], given[known]))
    assert found["macro_f1"] == pytest.approx(f1_score(truth[known], given[known], average="macro"))
    assert facts.classes == ("C", "H")


def test_a_label_that_training_did_not_know_counts_as_wrong():
    table = table_of(rows())
    metric = data.metrics(data.describe(table, "residue-labels", Request()))[0]
    truth = np.empty(1, object)
    truth[0] = ("H", "H", "E", "?")
    stats = metric.stats(truth, Predictions.of_tags([["H", "C", "H", "H"]], ("C", "H")))
    assert metric.value(stats) == pytest.approx(1 / 3)


def test_the_loss_is_that_of_each_known_residue_alone():
    task, table = task_of(), table_of(rows(6))
    examples = task.examples(table, None)
    batch = task.draw(examples, [])
    total = 0.0
    for part, labels in examples:
        alone = task.model(torch.from_numpy(esm2_residue.tokens([part], max_residues=16)[0].numpy()))[0, 1:-1]
        for scores, label in zip(alone, labels, strict=True):
            if label != NOT_COUNTED:
                total += float(functional.cross_entropy(scores[None], torch.tensor([label])))
    assert float(task.loss(task.model, batch.inputs)["cross_entropy"]) == pytest.approx(total, rel=1e-4)
    assert batch.counts["cross_entropy"] == sum((labels != NOT_COUNTED).sum() for _, labels in examples)


def test_long_sequences_are_read_in_parts_and_every_residue_is_answered_once():
    task, table = task_of(max_residues=7), table_of(rows(8)).without_target()
    found = task.predict(task.model.eval(), task.collate(table))
    assert [len(labels) for labels in found.values] == [len(sequence) for sequence in table.column("sequence")]
    part = table.take([0]).column("sequence").iloc[0]
    first = task._bounds(part)[0][1]
    alone = task.model(esm2_residue.tokens([part[:first]], max_residues=7)[0])[0, 1:-1].argmax(dim=1)
    assert list(found.values[0][:first]) == [task.labels[int(number)] for number in alone]


def test_labels_that_do_not_fit_their_sequence_are_listed_by_row():
    frame = rows(10)
    frame.loc[2, "ss"] = "HH"
    frame.loc[5, "ss"] = None
    reading = data.read(frame, Request(task="residue-labels", target="ss"))
    reasons = {bad.position: bad.reason for bad in reading.bad}
    assert set(reasons) == {2, 5}
    assert "2 labels" in reasons[2]
    assert "no value" in reasons[5]
    with pytest.raises(DataError, match="as long as the sequence"):
        data.read(frame.assign(ss="a word"), Request(task="residue-labels", target="ss"))


def test_in_evaluation_a_new_letter_makes_a_bad_row():
    table = table_of(rows())
    facts = data.describe(table, "residue-labels", Request())
    frame = rows(4, 2)
    frame.loc[1, "ss"] = "E" * len(frame["sequence"][1])
    reading = data.read(frame, Request(target="ss", facts=facts))
    assert [bad.position for bad in reading.bad] == [1]
    assert "'E' was not in the training data" in reading.bad[0].reason


@pytest.mark.parametrize("target", ["ss", None])
def test_labels_that_look_like_numbers_are_read_letter_for_letter(target, tmp_path):
    labels = ["1110", "1000", "1100"]
    pd.DataFrame({"sequence": ["ACDE", "MNPQ", "RSTV"], "ss": labels}).to_csv(tmp_path / "x.csv", index=False)
    (tmp_path / "x.fasta").write_text(">a\nACDE\n>b\nMNPQ\n>c\nRSTV\n")
    pd.DataFrame({"id": list("abc"), "ss": labels}).to_csv(tmp_path / "labels.csv", index=False)
    for file, more in (("x.csv", {}), ("x.fasta", {"labels": str(tmp_path / "labels.csv")})):
        reading = data.read(tmp_path / file, Request(task="residue-labels", target=target, **more))
        assert not reading.bad
        assert ["".join(row) for row in reading.table.target()] == labels


def test_blanks_of_dssp_are_labels_at_the_ends_too(tmp_path):
    pd.DataFrame({"sequence": ["ACDE", "MNPQ"], "ss": [" HH ", "H   "]}).to_csv(tmp_path / "x.csv", index=False)
    reading = data.read(tmp_path / "x.csv", Request(task="residue-labels", target="ss"))
    assert not reading.bad
    assert ["".join(row) for row in reading.table.target()] == [" HH ", "H   "]


def test_labels_of_residues_taken_for_classes_name_their_task():
    with pytest.raises(DataError, match="--task residue-labels"):
        data.read(rows(), Request(target="ss"))
