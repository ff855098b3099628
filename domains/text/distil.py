"""Train a small student on what a finished run answers: its soft targets, and the labels.

Hinton et al. 2015, arXiv 1503.02531, section 2: the teacher's probabilities at a raised temperature, and the labels with a
lower weight. The student takes every second layer of its teacher (Sanh et al. 2019, arXiv 1910.01108, section 3) unless
options.weights names another encoder. Of numbers, the teacher's take the place of its probabilities.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional

from domains.contract import Baseline, Facts
from domains.shared.pooled import PooledEncoder
from domains.shared.tokens import TextTokenizer, of_words
from domains.shared.weights import random_shape
from domains.text import encoder
from domains.text import encoder_weights as encoders
from domains.text.estimates import Sized, cropping_notes, encoder_estimates, network_estimates
from domains.text.teacher import Teacher, chosen_layers, soft_targets, thinned
from trainers.checkpoint import load_weights
from trainers.contract import JSON, Batch, Learner, Machine, Plan, Watch
from trainers.errors import UsageError
from trainers.gradient import CHECKPOINTS, GradientLearner
from trainers.outcome import Outcome, fit_outcome
from trainers.settings import Gradient

TINY: JSON = {"options": {"dropout": 0.0}, "train": {**encoder.TINY["train"]}}
SOFT = "soft.safetensors"
TIMED_ROWS = 256
"""Validation rows on which the speeds are compared."""


class StudentOptions(BaseModel):
    """What the `options:` blocks of students share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    teacher: str = Field("", description="run folder of the teacher")
    weights: str = Field(
        "", description="another student: hub id, folder, demo, or random:2x64; none: teacher's layers"
    )
    layers: int | None = Field(None, ge=1, description="of the teacher's, for the student; None: half of them")
    temperature: float = Field(2.0, gt=0, description="at which probabilities are softened")
    soft_share: float = Field(0.9, ge=0, le=1, description="of the loss: the teacher's answers; the rest: the labels")
    max_tokens: int | None = Field(None, ge=8, description="None: as the teacher reads")
    dropout: float = Field(0.1, ge=0, lt=1, description="of the states, before the head")
    encoder_dropout: float = Field(0.0, ge=0, lt=1, description="inside the encoder, except on attention")


class Options(StudentOptions):
    """The `options:` block of text/distil; teachers are runs of text/encoder-classify or text/encoder-scratch."""

    pooling: Literal["mean", "first"] | None = Field(None, description="None: as the teacher pools")


def follows(options: StudentOptions) -> str:
    """The run whose split is taken. Raises UsageError where none is named."""
    if not options.teacher:
        raise UsageError(
            "a student learns from a finished run: --set options.teacher=RUN, with the data of that run. A teacher is "
            "trained by: zoo train text/encoder-classify (or text/encoder-ner) --data FILE --target NAME"
        )
    return options.teacher


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from lengths and architecture. Raises MissingError where there is no such run or weights, UsageError for
    a teacher of another question and for more layers than it has."""
    teacher = Teacher.of(options.teacher)
    return student_estimates(facts, options, _student(options, teacher), settings, teacher)


def student_estimates(
    facts: Facts, options: StudentOptions, student: Sized, settings: Gradient, teacher: Teacher
) -> JSON:
    """What `plan` gives, of a student with these options as an encoder."""
    teacher.check(facts)
    if options.weights:
        estimates = encoder_estimates(facts, student, settings, facts.num_outputs)
    else:
        config = student_config(options, teacher)
        estimates = network_estimates(facts, config, student.max_tokens, settings, facts.num_outputs)
    ratio = estimates["num_parameters"] / teacher.num_parameters
    note = (
        f"teacher {options.teacher} ({teacher.plan.recipe}) with {teacher.num_parameters / 1e6:.3g}M parameters; the "
        f"student has {estimates['num_parameters'] / 1e6:.3g}M ({ratio:.0%})"
    )
    return {**estimates, "notes": [note, *cropping_notes(facts, options.weights, student.max_tokens)]}


def references(plan: Plan) -> tuple[Baseline, ...]:
    """The teacher, on the same rows."""
    teacher = Teacher.of(plan.options["teacher"], (plan.task,))
    about = f"the run {teacher.folder}, {teacher.num_parameters / 1e6:.3g}M parameters"
    return (Baseline("teacher", about, lambda train: teacher.learner(plan.machine).predict),)


def _student(options: Options, teacher: Teacher) -> encoder.Options:
    """The options of the student as an encoder with a head."""
    theirs = teacher.fitted().get("student", teacher.plan.options)  # a student may teach, too
    return encoder.Options(
        weights=options.weights or "teacher",
        max_tokens=options.max_tokens or theirs["max_tokens"],
        pooling=options.pooling or theirs["pooling"],
        dropout=options.dropout,
        encoder_dropout=options.encoder_dropout,
    )


def kept_layers(options: StudentOptions, config: JSON) -> list[int]:
    """Which of the teacher's layers a student takes. Raises UsageError for more than there are."""
    depth = config["num_hidden_layers"]
    wanted = options.layers or max(1, depth // 2)
    if wanted > depth:
        raise UsageError(f"options.layers is {wanted}, but the teacher has {depth}. A student takes fewer.")
    return chosen_layers(depth, wanted)


def student_config(options: StudentOptions, teacher: Teacher) -> JSON:
    """The architecture of a student that takes its teacher's layers."""
    config = teacher.fitted()["config"]
    return thinned(config, {}, kept_layers(options, config))[0]


def build(plan: Plan) -> Distilling:
    """A fresh learner; the teacher is asked when training starts."""
    learner = GradientLearner(
        plan,
        lambda train: _statistics(plan, train),
        lambda fitted, pretrained: _task(
            plan, fitted, pretrained, lambda text: learner.batch.say(kind="warning", text=text)
        ),
    )
    return Distilling(plan, learner)


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The student that `save` wrote; it needs its teacher no more."""
    return GradientLearner.load(
        plan, folder, lambda fitted, pretrained: _task(plan, fitted, pretrained, lambda text: None)
    )


class Distilling:
    """A `GradientLearner` that also tells how large and how fast student and teacher are."""

    resumable = True

    def __init__(self, plan: Plan, inner: GradientLearner) -> None:
        self.plan, self.inner = plan, inner
        self.predict, self.save = inner.predict, inner.save

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Train; see `trainers.loop`. Then both answer some validation rows against the clock."""
        actual = self.inner.fit(train, valid, watch)
        teacher = Teacher.of(self.plan.options["teacher"], (self.plan.task,))
        some = (valid if valid is not None and len(valid) else train).without_target()
        rows = some.take(range(min(TIMED_ROWS, len(some))))
        speeds = {
            "teacher": (teacher.num_parameters, rows_per_second(teacher.learner(self.plan.machine), rows)),
            "student": (actual["num_parameters"], rows_per_second(self.inner, rows)),
        }
        note = "; ".join(
            f"{who} {size / 1e6:.3g}M parameters, {speed:,.0f} rows/s" for who, (size, speed) in speeds.items()
        )
        figures = {who: {"num_parameters": size, "rows_per_second": speed} for who, (size, speed) in speeds.items()}
        return {**actual, **figures, "notes": [f"{note} ({len(rows)} validation rows, one after the other)"]}


def rows_per_second(learner: Learner, rows: Any) -> float:
    """How many of these rows are answered in a second, once the first have been."""
    learner.predict(rows.take(range(min(8, len(rows)))))
    began = time.perf_counter()
    learner.predict(rows)
    return len(rows) / (time.perf_counter() - began)


def _statistics(plan: Plan, train: Any) -> JSON:
    """Everything fitted or read: outcome, architecture, tokenizer, and what the plan left to the teacher."""
    options = Options.model_validate(plan.options)
    teacher = Teacher.of(options.teacher)
    outcome = fit_outcome(train.target(), plan.facts["classes"]).as_json()
    student = _student(options, teacher).model_dump(mode="json")
    return {"outcome": outcome, "student": student, **config_and_words(options, teacher, train)}


def config_and_words(options: StudentOptions, teacher: Teacher, train: Any) -> JSON:
    """Architecture and tokenizer of the student: its own, or the teacher's."""
    if not options.weights:
        fitted = teacher.fitted()
        return {"config": student_config(options, teacher), **{name: fitted[name] for name in ("tokenizer", "pad")}}
    config = encoders.read_config(options.weights)
    is_random = random_shape(options.weights) is not None
    words = of_words(list(train.column("text"))) if is_random else encoders.load_tokenizer(options.weights, config)
    return {"config": config, **words.as_json()}


def _task(plan: Plan, fitted: JSON, pretrained: bool, say: Callable[[str], None]) -> DistilTask:
    options, student = Options.model_validate(plan.options), encoder.Options.model_validate(fitted["student"])
    config, outcome = fitted["config"], Outcome.from_json(fitted["outcome"])
    network = student_encoder(options, config, pretrained=pretrained)
    model = PooledEncoder(network, config["hidden_size"], outcome.width, student)
    if pretrained and not options.weights:
        take_layers(model, options, Teacher.of(options.teacher))
    inner = encoder.TextTask(model, outcome, TextTokenizer.from_json(fitted), student.max_tokens, say)
    return DistilTask(
        inner,
        lambda rows, folder: soft_targets(Teacher.of(options.teacher), rows, plan.machine, folder / CHECKPOINTS / SOFT),
        temperature=options.temperature,
        share=options.soft_share,
    )


def student_encoder(options: StudentOptions, config: JSON, *, pretrained: bool) -> nn.Module:
    """The encoder that options.weights names, pretrained; else one that is to be filled."""
    if pretrained and options.weights:
        return encoders.load_encoder(options.weights, config, options.encoder_dropout)
    return encoders.empty_encoder(config, options.encoder_dropout)


def take_layers(model: nn.Module, options: StudentOptions, teacher: Teacher) -> None:
    """Fill a student with its teacher's head and the layers that it keeps."""
    config = teacher.fitted()["config"]
    load_weights(model, thinned(config, teacher.weights(), kept_layers(options, config))[1])


class Taught:
    """What tasks share whose examples also hold what the teacher answered; the model is asked as that of `inner`.

    soft: of training rows, log probabilities or numbers.   share: of the loss, for these.
    """

    couples_rows = False
    min_rows = 1

    def __init__(
        self, inner: Any, soft: Callable[[Any, Path], np.ndarray], *, temperature: float, share: float
    ) -> None:
        self.model: nn.Module = inner.model
        self.inner, self.soft, self.temperature, self.share = inner, soft, temperature, share
        self.roles, self.row_sizes, self.collate, self.predict = (
            inner.roles,
            inner.row_sizes,
            inner.collate,
            inner.predict,
        )


class DistilTask(Taught):
    """Meets `contract.Task` around a `TextTask`. soft: (rows, outputs)."""

    def examples(self, train: Any, folder: Path) -> Sequence[tuple[Any, ...]]:
        soft, outcome = self.soft(train, folder), self.inner.outcome
        if not outcome.classes:
            soft = (soft - outcome.mean) / outcome.std
        pairs = zip(self.inner.examples(train, folder), soft.astype(np.float32), strict=True)
        return [(*example, row) for example, row in pairs]

    def sizes(self, examples: Sequence[tuple[Any, ...]]) -> Sequence[int]:
        return [len(numbers) for numbers, *_ in examples]

    def draw(self, examples: Sequence[tuple[Any, ...]], rngs: Sequence[np.random.Generator]) -> Batch:
        batch = self.inner.draw([(numbers, target) for numbers, target, _ in examples], rngs)
        soft = torch.from_numpy(np.stack([soft for *_, soft in examples]))
        return Batch((*batch.inputs, soft), {**batch.counts, "teacher": float(len(examples))})

    def loss(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> Mapping[str, Tensor]:
        numbers, is_token, encoded, soft = inputs
        outputs = model(numbers, is_token).float()
        hard = self.inner.outcome.totals(outputs, encoded)
        told = softened_loss(outputs, soft, self.temperature) if self.inner.outcome.classes else squares(outputs, soft)
        return {**{name: total * (1 - self.share) for name, total in hard.items()}, "teacher": told * self.share}


def softened_loss(outputs: Tensor, soft: Tensor, temperature: float) -> Tensor:
    """Divergence of the student's probabilities from the teacher's, both at `temperature`, summed over rows and times its
    square, so that gradients do not shrink with it (Hinton et al. 2015, section 2.1).   soft: log probabilities."""
    ours = (outputs / temperature).log_softmax(dim=1)
    theirs = (soft / temperature).log_softmax(dim=1)
    return functional.kl_div(ours, theirs, reduction="sum", log_target=True) * temperature**2


def squares(outputs: Tensor, soft: Tensor) -> Tensor:
    """Squared differences of student and teacher, in units of the target's deviation."""
    return (outputs - soft).square().sum()
