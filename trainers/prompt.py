"""Ask a language model, with examples in front of the question. Nothing is trained: `fit` chooses examples and, on
validation rows, whether to calibrate; `predict` asks.

Classes are answered by how likely the model finds each class's name (Brown et al. 2020, arXiv 2005.14165, section 2.4);
numbers by the likelihoods of a few levels of the target, whose mean is weighed by them; else a text is written, which the
model's side may read as something else (tags of words).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainers.checkpoint import write_json
from trainers.contract import JSON, Plan, Predictions, Watch
from trainers.errors import DataError
from trainers.settings import Prompt

FILE = "prompt.json"
LEVELS = ("lowest", "low", "middle", "high", "highest")
"""What numbers are called: fifths of the training targets. Models know the order of these words, not of figures."""


@dataclass(frozen=True)
class Shown:
    """An example in a prompt."""

    question: str
    answer: str


class Asked(Protocol):
    """A language model with a way of writing prompts.

    state: plain values by which a finished run finds it again.   empty: questions without content, to calibrate with.
    """

    num_parameters: int
    empty: Sequence[str]

    @property
    def state(self) -> JSON: ...

    def questions(self, rows: Any) -> list[str]:
        """What is asked of each row."""

    def known_answers(self, rows: Any) -> list[str] | None:
        """The texts that are to be measured; None where answers are to be written."""

    def shown_answers(self, rows: Any) -> list[str]:
        """What examples made of these training rows show where there are no names to choose from."""

    def kinds(self, rows: Any) -> np.ndarray:
        """(rows,) numbers of kinds, of each of which as many examples are shown, where there are no names."""

    def read_back(self, rows: Any, written: Sequence[str]) -> Predictions:
        """The answers to `rows` in what was written about them."""

    def likelihoods(
        self, shown: Sequence[Shown], question: str, answers: Sequence[str], *, to_end: bool = False
    ) -> np.ndarray:
        """(answers,) log-likelihood in nats of each answer behind the question. to_end: and of its ending there."""

    def written(self, shown: Sequence[Shown], question: str) -> str:
        """The answer that the model gives."""

    def nearest(self, pool: Sequence[str], questions: Sequence[str], num: int) -> np.ndarray:
        """(questions, num) positions in `pool` of what is most like each question, the most like last."""


@dataclass(frozen=True)
class Choices:
    """The answers there are. names: as asked; none where texts are written.   values: numbers they stand for.
    classes: what they mean."""

    names: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    classes: tuple[str, ...] = ()

    def answers(self, probabilities: np.ndarray) -> Predictions:
        """From (rows, names) probabilities."""
        if self.classes:
            return Predictions.of_labels(probabilities, self.classes)
        return Predictions.of_numbers(probabilities @ np.asarray(self.values))


def choices_of(target: np.ndarray | None, plan: Plan, names: Mapping[str, str]) -> Choices:
    """The answers to choose from, by task. names: what to call a class in prompts, where its own name says little."""
    if plan.task == "classification":
        classes = tuple(plan.facts["classes"])
        return Choices(tuple(names.get(name, name) for name in classes), (), classes)
    if plan.task == "regression":
        assert target is not None
        middles = np.quantile(np.asarray(target, np.float64), (np.arange(len(LEVELS)) + 0.5) / len(LEVELS))
        return Choices(LEVELS, tuple(middles.tolist()))
    return Choices()


def named(target: np.ndarray, choices: Choices) -> np.ndarray:
    """(rows,) position in `choices.names` of each target: its class, or the nearest level."""
    if choices.classes:
        place = {name: position for position, name in enumerate(choices.classes)}
        return np.array([place[str(name)] for name in target], np.int64)
    distance = np.abs(np.asarray(target, np.float64)[:, None] - np.asarray(choices.values))
    return np.asarray(distance.argmin(axis=1))


def balanced(kinds: np.ndarray, num: int, rng: np.random.Generator) -> np.ndarray:
    """(num,) positions, of each kind as many as can be, in random order; fewer where there are not so many rows."""
    order = rng.permutation(len(kinds))
    seen: dict[int, int] = {}
    turn = np.empty(len(kinds), np.int64)
    for position in order:
        kind = int(kinds[position])
        turn[position] = seen[kind] = seen.get(kind, -1) + 1
    chosen = order[np.argsort(turn[order], kind="stable")][:num]
    return np.asarray(rng.permutation(chosen))


def chosen_examples(
    train: Any, plan: Plan, choices: Choices, kinds: Callable[[Any], np.ndarray] | None = None
) -> np.ndarray:
    """Positions of the training rows that are shown, or that the nearest are looked for among.   kinds: of rows, where there
    are no names."""
    settings, rng = Prompt.model_validate(plan.settings), np.random.default_rng(plan.seed)
    if settings.selection == "nearest":
        return np.arange(len(train))
    if choices.names:
        return balanced(named(train.target(), choices), settings.examples, rng)
    return balanced(np.zeros(len(train), np.int64) if kinds is None else kinds(train), settings.examples, rng)


class PromptLearner:
    """Meets `contract.Learner`. open_asked(state or None): the model; None where a run begins.

    names: what to call classes in prompts.
    """

    resumable = False

    def __init__(
        self, plan: Plan, open_asked: Callable[[JSON | None, Any], Asked], names: Mapping[str, str] | None = None
    ) -> None:
        self.plan, self.open_asked, self.names = plan, open_asked, dict(names or {})
        self.settings = Prompt.model_validate(plan.settings)
        self.asked: Asked | None = None
        self.pool: list[Shown] = []
        self.choices = Choices()
        self.calibration = "none"

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Choose the examples, then decide on validation rows what the settings leave open."""
        started = time.monotonic()
        asked = self.asked = self.open_asked(None, train)
        self.choices = choices_of(train.target(), self.plan, self.names)
        rows = train.take(chosen_examples(train, self.plan, self.choices, asked.kinds).tolist())
        self.pool = [Shown(*pair) for pair in zip(asked.questions(rows), self._answers_of(rows), strict=True)]
        decided = self._decide(valid, watch)
        return {
            "num_steps": 0,
            "num_parameters": asked.num_parameters,
            "num_examples": min(self.settings.examples, len(self.pool)),
            "calibration": self.calibration,
            "validated": decided,
            "seconds_train": time.monotonic() - started,
        }

    def _answers_of(self, rows: Any) -> list[str]:
        if not self.choices.names:
            assert self.asked is not None
            return self.asked.shown_answers(rows)
        return [self.choices.names[position] for position in named(rows.target(), self.choices)]

    def _decide(self, valid: Any, watch: Watch) -> JSON:
        """Set the calibration; the scores that decided, {} where nothing was open."""
        self.calibration = "none" if not self.choices.names else self.settings.calibration
        if self.calibration != "auto":
            return {}
        self.calibration = "none"
        if valid is None or not len(valid):
            return {}
        some = np.random.default_rng(self.plan.seed).permutation(len(valid))[: self.settings.decide_rows]
        rows = valid.take(np.sort(some).tolist())
        raw, empty = self._likelihoods(rows.without_target())
        scores = {
            "none": watch.score(rows, self.choices.answers(shares(raw))),
            "contextual": watch.score(rows, self.choices.answers(shares(raw - empty))),
        }
        known = {name: score for name, score in scores.items() if score is not None}
        if known:
            self.calibration = (max if watch.higher_is_better else min)(known, key=lambda name: known[name])
        shown = ", ".join(f"{name} {score:.4g}" for name, score in known.items())
        watch.log(
            kind="notice",
            text=f"calibration on {len(rows)} validation rows, {watch.metric}: {shown}: {self.calibration}",
        )
        return dict(scores)

    def predict(self, rows: Any) -> Predictions:
        """The answer to every row, in order. Texts that are known are measured in bits."""
        if self.asked is None:
            raise RuntimeError("predict() before fit() or load(): there is no model yet.")
        if self.choices.names:
            raw, empty = self._likelihoods(rows, calibrated=self.calibration == "contextual")
            return self.choices.answers(shares(raw - empty))
        questions, answers, shown = self.asked.questions(rows), self.asked.known_answers(rows), self._shown(rows)
        if answers is None:
            written = [self.asked.written(*pair) for pair in zip(shown, questions, strict=True)]
            return self.asked.read_back(rows, written)
        nats = [
            self.asked.likelihoods(each, question, [answer], to_end=True)[0]
            for each, question, answer in zip(shown, questions, answers, strict=True)
        ]
        return Predictions.of_numbers(-np.array(nats, np.float64) / math.log(2))

    def _likelihoods(self, rows: Any, *, calibrated: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """(rows, names) log-likelihoods, and those behind questions without content (zeros if not `calibrated`).

        Source: Zhao et al. 2021, arXiv 2102.09690, section 4: probabilities of names are divided by their mean over
        several questions without content.
        """
        assert self.asked is not None
        asked, names = self.asked, self.choices.names
        pairs = list(zip(self._shown(rows), asked.questions(rows), strict=True))
        raw = np.array([asked.likelihoods(*pair, names) for pair in pairs]).reshape(len(pairs), len(names))
        empty = np.zeros_like(raw)
        kept: dict[int, np.ndarray] = {}
        for i, (shown, _) in enumerate(pairs if calibrated else ()):
            if id(shown) not in kept:
                each = shares(np.array([asked.likelihoods(shown, text, names) for text in asked.empty]))
                kept[id(shown)] = np.log(each.mean(axis=0))
            empty[i] = kept[id(shown)]
        return raw, empty

    def _shown(self, rows: Any) -> list[list[Shown]]:
        """The examples for each row: the same list for all of them, or for each its nearest."""
        assert self.asked is not None
        if self.settings.selection == "balanced" or not len(rows):
            return [self.pool] * len(rows)
        pool = [each.question for each in self.pool]
        places = self.asked.nearest(pool, self.asked.questions(rows), min(self.settings.examples, len(pool)))
        return [[self.pool[place] for place in row] for row in places]

    def save(self, folder: Path) -> None:
        """Write prompt.json: examples, answers, calibration, and the reference of the model, which is not copied."""
        if self.asked is None:
            raise RuntimeError("save() before fit() or load(): there is no model yet.")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(
            folder / FILE,
            {
                "shown": [asdict(each) for each in self.pool],
                "choices": asdict(self.choices),
                "calibration": self.calibration,
                "model": self.asked.state,
            },
        )

    @classmethod
    def load(cls, plan: Plan, folder: Path, open_asked: Callable[[JSON | None, Any], Asked]) -> PromptLearner:
        """The learner that `save` wrote into `folder`."""
        values = json.loads((folder / FILE).read_text())
        learner = cls(plan, open_asked)
        learner.pool = [Shown(**each) for each in values["shown"]]
        learner.choices = Choices(**{name: tuple(each) for name, each in values["choices"].items()})
        learner.calibration = values["calibration"]
        learner.asked = open_asked(values["model"], None)
        return learner


def shares(likelihoods: np.ndarray) -> np.ndarray:
    """(rows, names) probabilities that sum to 1, of log-likelihoods."""
    if not np.isfinite(likelihoods).all():
        raise DataError("the language model's likelihoods are not finite; try --precision fp32.")
    shifted = np.exp(likelihoods - likelihoods.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
