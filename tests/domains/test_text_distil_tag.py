"""text/distil-tag: a student that tags words learns from a finished run of text/encoder-ner, on small random encoders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from contract import tiny

from domains.contract import Request
from domains.text import distil, distil_tag, encoder_ner, tagged
from domains.text.teacher import Teacher
from trainers.contract import Machine
from trainers.errors import UsageError
from zoo import run
from zoo.job import prepare
from zoo.plan import Wishes

SHORT = 9
"""Tokens of a student that has to cut sentences into windows."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.tagged_texts(tmp_path_factory.mktemp("tags"), "ner")[0]


@pytest.fixture(scope="module")
def teacher(data):
    sets = dict(tiny.paths_of(encoder_ner.TINY)) | {"train.epochs": 3}
    return run.train(
        "text/encoder-ner", data, target="tags", task="ner", set=sets, fast=True, out=data.parent / "teacher"
    )


def student(data, teacher, **sets):
    """A learner that is not trained, and its task as training would begin with it."""
    wishes = Wishes({"options.teacher": str(teacher.folder), **dict(tiny.paths_of(distil_tag.TINY)), **sets})
    job = prepare("text/distil-tag", data, request=Request(target="tags", task="ner"), wishes=wishes, fast=True)
    train = job.part("train")
    return distil_tag._task(job.plan, distil_tag._statistics(job.plan, train), True), train


def logs_of(teacher, rows):
    return distil_tag.word_logs(Teacher.of(str(teacher.folder), distil_tag.TASKS), rows, Machine())


def test_what_the_teacher_says_of_each_word_gives_its_own_answers_in_the_order_of_rows(data, teacher):
    rows = tagged.read(data, Request(target="tags", task="ner")).table
    logs, counts = logs_of(teacher, rows), [len(words) for words in rows.column("words")]
    assert logs.shape == (sum(counts), 3)
    assert np.allclose(np.exp(logs).sum(axis=1), 1)
    tags = teacher.predict(data)["prediction"]
    learner = Teacher.of(str(teacher.folder), distil_tag.TASKS).learner(Machine())
    for row in (0, 7, 50):
        alone = logs_of(teacher, rows.take([row]))
        assert np.allclose(alone, logs[sum(counts[:row]) : sum(counts[: row + 1])], atol=1e-4)
    assert len(tags) == len(rows)
    assert learner.task.tags == ("O", "B-person", "I-person")


@pytest.mark.parametrize("max_tokens", [64, SHORT])
def test_a_student_of_all_layers_starts_where_its_teacher_is(data, teacher, tmp_path, max_tokens):
    task, train = student(data, teacher, **{"options.layers": 2, "options.max_tokens": max_tokens})
    examples = task.examples(train, tmp_path)
    assert sum(len(tags) for _, tags, _ in examples) == sum(len(words) for words in train.column("words"))
    assert (len(examples) > len(train)) == (max_tokens == SHORT)
    task.model.eval()
    batch = task.draw(examples, [np.random.default_rng(0)] * len(examples))
    with torch.no_grad():
        totals = task.loss(task.model, batch.inputs)
    per_word = float(totals["teacher"]) / batch.counts["teacher"]
    if max_tokens == SHORT:
        assert per_word > 0  # it reads less around a word
    else:
        assert per_word == pytest.approx(0, abs=1e-5)


def test_the_losses_are_those_of_the_definitions(data, teacher, tmp_path):
    task, train = student(
        data, teacher, **{"options.layers": 1, "options.soft_share": 0.75, "options.temperature": 3.0}
    )
    examples = task.examples(train, tmp_path)[:20]
    task.model.eval()
    batch = task.draw(examples, [np.random.default_rng(0)] * len(examples))
    with torch.no_grad():
        totals = task.loss(task.model, batch.inputs)
        told = hard = 0.0
        for window, tags, soft in examples:
            numbers = torch.from_numpy(window.numbers.astype(np.int64))[None]
            scores = task.model(numbers, torch.ones_like(numbers, dtype=torch.bool))[0, window.first].double().numpy()
            for score, tag, theirs in zip(scores, tags, soft.astype(np.float64), strict=True):
                ours, target = np.exp(score / 3), np.exp(theirs / 3)
                ours, target = ours / ours.sum(), target / target.sum()
                told += 9 * float(np.sum(target * np.log(target / ours)))
                hard += float(np.log(np.exp(score).sum()) - score[tag])
    assert float(totals["teacher"]) == pytest.approx(0.75 * told, rel=1e-4)
    assert float(totals["cross_entropy"]) == pytest.approx(0.25 * hard, rel=1e-4)


def test_teachers_of_the_other_kind_are_refused(data, teacher):
    with pytest.raises(UsageError, match="trained for classification or regression"):
        Teacher.of(str(teacher.folder))
    with pytest.raises(UsageError, match=r"options\.teacher=RUN.*encoder-ner"):
        distil.follows(distil_tag.Options())
