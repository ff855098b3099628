"""Train a small student that tags words on what a finished run answers for each word, and on the tags.

As `distil`, with a distribution a word in place of one a text. Sentences longer than the student reads are cut into windows, as
in `encoder_ner`; each word's is the one that owns it.
Shapes: B windows, L tokens, K tags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from domains.contract import Facts
from domains.shared.tokens import TextTokenizer
from domains.text import encoder_ner
from domains.text.distil import (
    SOFT,
    Distilling,
    StudentOptions,
    Taught,
    config_and_words,
    follows,
    references,
    softened_loss,
    student_encoder,
    student_estimates,
    take_layers,
)
from domains.text.encoder_ner import NOT_COUNTED, TaggingEncoder, TaggingTask
from domains.text.pieces import Window, WordPieces
from domains.text.teacher import Teacher, kept_or_told
from trainers.contract import JSON, Batch, Machine, Plan
from trainers.feed import size_order
from trainers.gradient import CHECKPOINTS, GradientLearner
from trainers.precision import autocast
from trainers.settings import Gradient

TASKS = ("ner",)
TINY: JSON = {"options": {"dropout": 0.0}, "train": {**encoder_ner.TINY["train"]}}
Example = tuple[Window, np.ndarray, np.ndarray]
"""A window, the numbers of its words' tags, and (words, K) what the teacher says of them."""

__all__ = ["TINY", "Options", "build", "follows", "load", "plan", "references"]


class Options(StudentOptions):
    """The `options:` block of text/distil-tag; teachers are runs of text/encoder-ner or text/encoder-scratch."""


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from lengths and architecture; errors as in `distil.plan`."""
    teacher = Teacher.of(options.teacher, TASKS)
    return student_estimates(facts, options, _student(options, teacher), settings, teacher)


def build(plan: Plan) -> Distilling:
    """A fresh learner; the teacher is asked when training starts."""
    return Distilling(
        plan, GradientLearner(plan, lambda train: _statistics(plan, train), lambda *made: _task(plan, *made))
    )


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The student that `save` wrote; it needs its teacher no more."""
    return GradientLearner.load(plan, folder, lambda *made: _task(plan, *made))


def _student(options: Options, teacher: Teacher) -> encoder_ner.Options:
    theirs = teacher.fitted().get("student", teacher.plan.options)  # a student may teach, too
    return encoder_ner.Options(
        weights=options.weights or "teacher",
        max_tokens=options.max_tokens or theirs["max_tokens"],
        dropout=options.dropout,
        encoder_dropout=options.encoder_dropout,
    )


def _statistics(plan: Plan, train: Any) -> JSON:
    options = Options.model_validate(plan.options)
    teacher = Teacher.of(options.teacher, TASKS)
    student = _student(options, teacher).model_dump(mode="json")
    return {"tags": list(plan.facts["classes"]), "student": student, **config_and_words(options, teacher, train)}


def _task(plan: Plan, fitted: JSON, pretrained: bool) -> DistilTagTask:
    options, student = Options.model_validate(plan.options), encoder_ner.Options.model_validate(fitted["student"])
    config, tags = fitted["config"], tuple(fitted["tags"])
    network = student_encoder(options, config, pretrained=pretrained)
    model = TaggingEncoder(network, config["hidden_size"], len(tags), student.dropout)
    if pretrained and not options.weights:
        take_layers(model, options, Teacher.of(options.teacher, TASKS))

    def soft(rows: Any, folder: Path) -> np.ndarray:
        teacher = Teacher.of(options.teacher, TASKS)
        return kept_or_told(folder / CHECKPOINTS / SOFT, lambda: word_logs(teacher, rows, plan.machine))

    inner = TaggingTask(model, tags, WordPieces(TextTokenizer.from_json(fitted), student.max_tokens))
    return DistilTagTask(inner, soft, temperature=options.temperature, share=options.soft_share)


def word_logs(teacher: Teacher, rows: Any, machine: Machine) -> np.ndarray:
    """(words of all rows in order, K) float64 log probabilities of the teacher."""
    learner: Any = teacher.learner(machine)
    task, settings = learner.task, Gradient.model_validate(teacher.plan.settings)
    rows = rows.without_target()
    order, found = size_order(task.row_sizes(rows), len(rows)), list[np.ndarray]()
    with torch.no_grad(), autocast(settings.precision, machine):
        for start in range(0, len(order), settings.eval_batch_size):
            inputs = task.collate(rows.take(order[start : start + settings.eval_batch_size].tolist()))
            found += task.word_logs(task.model, tuple(each.to(machine.device) for each in inputs))
    return np.concatenate([found[at] for at in np.argsort(order)])


class DistilTagTask(Taught):
    """Meets `contract.Task` around a `TaggingTask`. soft: (words of all training rows, K)."""

    def examples(self, train: Any, folder: Path) -> Sequence[Example]:
        soft = self.soft(train, folder).astype(np.float32)
        # Windows own their words in order, each word once, so examples take from `soft` what comes next.
        pairs = self.inner.examples(train, folder)
        stops = np.cumsum([len(tags) for _, tags in pairs])
        return [(*pair, each) for pair, each in zip(pairs, np.split(soft, stops[:-1]), strict=True)]

    def sizes(self, examples: Sequence[Example]) -> Sequence[int]:
        return [len(window.numbers) for window, *_ in examples]

    def draw(self, examples: Sequence[Example], rngs: Sequence[np.random.Generator]) -> Batch:
        batch = self.inner.draw([(window, tags) for window, tags, _ in examples], rngs)
        soft_BLK = torch.zeros(*batch.inputs[0].shape, len(self.inner.tags))
        for row, (window, _, soft) in enumerate(examples):
            soft_BLK[row, window.first] = torch.from_numpy(soft)
        return Batch((*batch.inputs, soft_BLK), {**batch.counts, "teacher": batch.counts["cross_entropy"]})

    def loss(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> Mapping[str, Tensor]:
        numbers, is_token, targets, soft = inputs
        is_counted = targets != NOT_COUNTED
        scores_NK = model(numbers, is_token).float()[is_counted]
        hard = functional.cross_entropy(scores_NK, targets[is_counted], reduction="sum")
        told = softened_loss(scores_NK, soft[is_counted], self.temperature)
        return {"cross_entropy": hard * (1 - self.share), "teacher": told * self.share}
