"""text/distil: a student learns from a finished run on that run's split, on small random encoders."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

from domains.contract import Request
from domains.text import distil, encoder
from domains.text.teacher import Teacher, chosen_layers, log_of, thinned
from trainers.errors import DataError, MissingError, UsageError
from zoo import run
from zoo.job import prepare
from zoo.plan import Wishes

WORDS = ["the", "a", "film", "meal", "trip", "was", "and", "we", "had", "it", "there", "again", "of", "town"]
SETS = {f"options.{name}": value for name, value in encoder.TINY["options"].items()}
SETS |= {f"train.{name}": value for name, value in encoder.TINY["train"].items()}


def frame(seed=0):
    rng = np.random.default_rng(seed)
    good = rng.random(120) < 0.5
    rows = [[*rng.choice(WORDS, rng.integers(4, 20)), "lovely" if g else "awful"] for g in good]
    texts = [" ".join(rng.permutation(row)) for row in rows]
    return pd.DataFrame({"text": texts, "y": np.where(good, "pos", "neg"), "number": good * 3.0 + rng.normal(size=120)})


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("distil") / "texts.csv"
    frame().to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def teacher(table):
    """A finished run of two random layers, split by another seed than the default."""
    sets = {**SETS, "train.epochs": 3}
    return run.train(
        "text/encoder-classify", table, target="y", set=sets, seed=7, fast=True, out=table.parent / "teacher"
    )


def request(target="y"):
    return Request(target=target, task="classification" if target == "y" else "regression")


def prepared(table, teacher, **more):
    wishes = Wishes({"options.teacher": str(teacher.folder), "train.epochs": 2, **more.pop("sets", {})})
    return prepare("text/distil", table, **{"request": request(), "wishes": wishes, "fast": True, **more})


def test_the_student_has_the_teachers_split_whatever_the_seed(table, teacher):
    ids = json.loads((teacher.folder / "split.json").read_text())["ids"]
    job = prepared(table, teacher)
    for part in ("train", "valid", "test"):
        assert set(job.part(part).ids) == set(ids[part])
    assert str(teacher.folder) in job.split.evidence["because"]


def test_other_data_another_split_or_another_target_are_refused(table, teacher, tmp_path):
    frame(seed=1).to_csv(tmp_path / "other.csv", index=False)
    with pytest.raises(DataError, match="not the data that"):
        prepared(tmp_path / "other.csv", teacher)
    with pytest.raises(UsageError, match="--split random"):
        prepared(table, teacher, split="random")
    with pytest.raises(UsageError, match="was trained for task"):
        prepared(table, teacher, request=request("number"))


def test_no_teacher_none_there_and_one_of_another_kind_are_named(table, teacher, tmp_path):
    with pytest.raises(UsageError, match=r"options\.teacher=RUN"):
        prepare("text/distil", table, request=request())
    with pytest.raises(MissingError, match="no finished run"):
        Teacher.of(str(tmp_path))
    plan = json.loads((teacher.folder / "plan.json").read_text())
    (tmp_path / "model").mkdir()
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "module": "domains.text.causal", "recipe": "text/lora"}))
    with pytest.raises(UsageError, match="text/lora"):
        Teacher.of(str(tmp_path))


def test_the_student_is_judged_beside_its_teacher_and_needs_it_no_more(table, teacher, tmp_path):
    sets = {f"train.{name}": value for name, value in encoder.TINY["train"].items()}
    sets |= {"options.teacher": str(teacher.folder), "train.epochs": 2}
    done = run.train("text/distil", table, target="y", set=sets, fast=True, out=tmp_path / "student")
    assert done.metrics["reference"]["teacher"] == teacher.metrics["test"]
    assert "teacher, test" in (done.folder / "README.md").read_text()
    actual = json.loads((done.folder / "actual.json").read_text())
    assert actual["student"]["num_parameters"] < actual["teacher"]["num_parameters"]
    assert "rows/s" in (done.folder / "README.md").read_text()
    told = done.predict(table)
    moved = teacher.folder.rename(tmp_path / "gone")
    try:
        again = distil.load(done.plan, done.folder / "model").predict(prepare_rows(table))
    finally:
        moved.rename(teacher.folder)
    assert again.values.tolist() == told["prediction"].tolist()


def prepare_rows(table):
    from domains.text import labelled

    return labelled.read(table, Request(target="y")).table.without_target()


def test_six_of_twelve_layers_are_those_of_distilbert():
    # Sanh et al. 2019 with their published script: layers 0, 2, 4, 7, 9 and 11.
    assert chosen_layers(12, 6) == [0, 2, 4, 7, 9, 11]
    assert chosen_layers(6, 3) == [0, 2, 5]
    assert chosen_layers(2, 1) == [0]


def test_a_student_of_all_layers_answers_as_its_teacher(teacher):
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50}
    deep = BertModel(BertConfig(num_hidden_layers=4, **sizes), add_pooling_layer=False).eval()
    config = {**deep.config.to_dict(), "model_type": "bert", "num_hidden_layers": 4}
    small, weights = thinned(config, dict(deep.state_dict()), [0, 3])
    assert small["num_hidden_layers"] == 2
    shallow = BertModel(BertConfig(num_hidden_layers=2, **sizes), add_pooling_layer=False).eval()
    shallow.load_state_dict(weights)
    # The reference: the teacher itself with the layers between taken out.
    deep.encoder.layer = torch.nn.ModuleList([deep.encoder.layer[0], deep.encoder.layer[3]])
    numbers = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(shallow(numbers).last_hidden_state, deep(numbers).last_hidden_state)


def test_the_softened_loss_is_that_of_float64_and_nothing_where_student_equals_teacher():
    rng = np.random.default_rng(0)
    logits, theirs = rng.normal(size=(2, 5, 3)) * 3

    def softened(values, temperature):
        powers = np.exp(values / temperature)
        return powers / powers.sum(axis=1, keepdims=True)

    p, q = softened(theirs, 2.5), softened(logits, 2.5)
    wanted = 2.5**2 * (p * np.log(p / q)).sum()
    probabilities = softened(theirs, 1.0)  # all that a teacher tells: the logits are gone but for a constant
    found = distil.softened_loss(torch.tensor(logits), torch.tensor(log_of(probabilities)), 2.5)
    assert np.isclose(float(found), wanted)
    assert abs(float(distil.softened_loss(torch.tensor(theirs), torch.tensor(log_of(probabilities)), 2.5))) < 1e-9
