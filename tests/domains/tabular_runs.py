"""Small tables and a run through the contract without the pipeline, for the tests of tabular recipes."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import Facts, Reading, Request
from domains.splits import make_split
from domains.tabular import data
from trainers.contract import Learner, Machine, Plan, Predictions
from trainers.settings import Trees

FAMILIES = ("xgboost", "lightgbm")


class Silence:
    """A watch that keeps the events and never stops, unless `reason` says so."""

    folder = cache = Path()
    metric, higher_is_better, rank, world = "accuracy", True, 0, 1

    def __init__(self, reason: str | None = None) -> None:
        self.reason, self.events = reason, []

    def score(self, rows: Any, predictions: Predictions) -> None: ...

    def log(self, **event: Any) -> None:
        self.events.append(event)

    def should_stop(self) -> str | None:
        return self.reason


@dataclass(frozen=True)
class Trained:
    """What a test asks of a trained recipe."""

    reading: Reading
    facts: Facts
    plan: Plan
    learner: Learner
    test: Any
    family: Any
    notes: list[str]

    def again(self, source: Any, target: str | None = None) -> tuple[Reading, Predictions]:
        """Read a new file as `zoo predict` does, and predict it."""
        reading = data.read(source, Request(target=target, facts=Facts.from_json(self.plan.facts)))
        return reading, self.learner.predict(reading.table.without_target())


def trained(source: Any, family: str = "xgboost", *, train: dict[str, Any] | None = None, **request: Any) -> Trained:
    """Read, split, describe, plan and fit with the family's TINY settings."""
    module, asked = importlib.import_module(f"domains.tabular.{family}_trees"), Request(**request)
    reading = data.read(source, asked)
    assert not reading.bad
    keys = data.keys(reading.table, reading.task, asked, fast=False)
    split = make_split(keys, len(reading.table), seed=0)
    train_rows, valid, test = (reading.table.take(part) for part in (split.train, split.valid, split.test))
    facts = data.describe(train_rows, reading.task, asked)
    options = module.Options(**module.TINY["options"])
    settings = Trees(**{**module.TINY["train"], **(train or {})})
    notes = module.plan(facts, options, settings, Machine())["notes"]
    plan = Plan(
        f"tabular/{family}",
        "tabular",
        reading.task,
        module.__name__,
        options.model_dump(),
        settings.model_dump(),
        facts.as_json(),
    )
    learner = module.build(plan)
    learner.fit(train_rows, valid, Silence())
    return Trained(reading, facts, plan, learner, test, module, notes)


def coloured(num_rows: int = 160, seed: int = 0) -> pd.DataFrame:
    """Two numbers and a colour that decide `y`; red is yes, blue is no, green follows x1."""
    rng = np.random.default_rng(seed)
    colour = rng.choice(["red", "green", "blue"], num_rows)
    x1, x2 = rng.normal(size=(2, num_rows)).round(4)
    yes = (colour == "red") | ((colour == "green") & (x1 > 0))
    return pd.DataFrame({"x1": x1, "x2": x2, "colour": colour, "y": np.where(yes, "yes", "no")})
