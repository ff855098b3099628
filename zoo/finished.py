"""A finished run: scores, and answers on new data."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from domains import metrics as scoring
from domains.contract import Doubt, Facts, Request
from trainers.contract import JSON, Learner, Plan, Predictions
from trainers.errors import UsageError
from zoo import hardware, report, saved
from zoo.config_yaml import read_config
from zoo.data_in import accepted, demo_of, usable_rows
from zoo.data_print import fingerprint
from zoo.job import Say, tell, warn
from zoo.plan import domain_of, parts_of, with_settings
from zoo.registry import load_registry

UNTRAINED = "zero-shot"
"""The trainer whose models learn from no row."""


@dataclass(frozen=True)
class Run:
    """A finished run folder: scores, and predictions on new data."""

    folder: Path
    plan: Plan
    metrics: JSON
    _learner: Learner

    @property
    def answers_with_files(self) -> bool:
        """Whether an answer is a file (a mask), as those on the test rows were."""
        return (self.folder / report.FILES).is_dir()

    def predict(self, data: Any, *, encoding: str | None = None) -> Any:
        """Answers for every row of a file, folder or DataFrame, in order, as a DataFrame with the columns of
        predictions.csv (and the index of a DataFrame that was given). Rows that cannot be used say why in `problem`."""
        ids, predictions = self.answers(data, encoding=encoding, say=warn)
        return report.prediction_frame(ids, predictions, like=data)

    def evaluate(
        self,
        data: Any,
        *,
        target: str | None = None,
        labels: str | None = None,
        encoding: str | None = None,
        skip_bad: bool = False,
        say: Say = None,
    ) -> JSON:
        """{metric: {value, low, high}} on labelled data. Raises DataError when rows cannot be used or lack the target."""
        domain = domain_of(load_registry().get(self.plan.recipe))
        table, groups = self.labelled(data, target=target, labels=labels, encoding=encoding, skip_bad=skip_bad, say=say)
        answers = self.answer(table)
        say_unanswered(answers, say)
        return scoring.scores(domain.metrics(Facts.from_json(self.plan.facts)), table.target(), answers, groups)

    def labelled(
        self,
        data: Any,
        *,
        target: str | None = None,
        labels: str | None = None,
        encoding: str | None = None,
        skip_bad: bool = False,
        say: Say = None,
        learned: Collection[str] | None = None,
    ) -> tuple[Any, np.ndarray]:
        """Labelled rows as this run reads them, and the group of each. learned: ids of the rows that the answers come from;
        None: those that this run was trained on."""
        domain = domain_of(load_registry().get(self.plan.recipe))
        request = self._request(target or Facts.from_json(self.plan.facts).target, labels, encoding)
        usable = usable_rows(domain.read(accepted(data), request), data, skip_bad=skip_bad, fewest=1)
        tell([*usable.notices, *self._own_rows(data, request, usable.table.ids, learned)], say)
        group = domain.keys(usable.table, self.plan.task, request, fast=True).group
        return usable.table, np.arange(len(usable.table)) if group is None else np.asarray(group)

    def _own_rows(
        self, data: Any, request: Request, ids: Sequence[str], learned: Collection[str] | None
    ) -> Iterator[str]:
        """What to say of a score on the very data of this run, if it learned from any, or on rows with their names."""
        if self.plan.settings["trainer"] == UNTRAINED:
            return
        known = saved.read_json(self.folder / "split.json")["ids"]
        learned = set(map(str, known["train"] if learned is None else learned))
        if fingerprint(accepted(data), request)["data"] == saved.read_json(self.folder / "data.json")[
            "fingerprint"
        ].get("data"):
            num = sum(map(len, known.values()))
            yield (
                f"these are the data of the run itself, which was trained on {len(learned):,} of {num:,} "
                "rows: the score flatters. That of rows it never saw is in its README.md."
            )
            return
        # Numbers of rows are the same in every table and say nothing.
        same = [name for name in map(str, ids) if name in learned and not name.isdigit()]
        if same:
            yield Doubt(
                f"{len(same):,} of {len(ids):,} rows are called like rows that the run was trained on ({same[0]!r} for one): "
                "if they are the same, the score flatters"
            )

    def answer(self, table: Any, *, soft: bool = False) -> Predictions:
        """The answers to rows that were read, without a look at their target. soft: such as have a mean with those of other
        runs, where the learner can give them."""
        ask = getattr(self._learner, "predict_soft", self._learner.predict) if soft else self._learner.predict
        answers: Predictions = ask(table.without_target())
        return answers

    def _request(self, target: str | None, labels: str | None = None, encoding: str | None = None) -> Request:
        """As the training file was read; an encoding that is named holds instead of its."""
        named = Request(**self._config()["request"])
        facts, encoding = Facts.from_json(self.plan.facts), encoding or named.encoding
        return replace(named, target=target, labels=labels, encoding=encoding, facts=facts)

    def _config(self) -> JSON:
        return read_config(self.folder / "config.yaml")

    def answers(
        self, data: Any, *, encoding: str | None = None, say: Say = None, soft: bool = False
    ) -> tuple[Any, Predictions]:
        """The ids and the answers of every row, in order; data None is the recipe's demo. soft: as of `answer`."""
        recipe = load_registry().get(self.plan.recipe)
        domain = domain_of(recipe)
        if data is None and not self._config()["demo"]:
            raise UsageError("Which rows? Give a file or folder; only a run of the recipe's demo can predict without.")
        if data is None:
            data, _, _ = demo_of(recipe, say or (lambda line: None))
        reading = domain.read(accepted(data), self._request(None, encoding=encoding))
        tell(reading.notices, say)
        reasons = {row.position: row.reason for row in reading.bad}
        good = np.array([i for i in range(len(reading.table)) if i not in reasons], dtype=np.int64)
        found = self.answer(reading.table.take(good), soft=soft) if len(good) else None
        facts = Facts.from_json(self.plan.facts)
        return reading.table.ids, report.spread(found, good, len(reading.table), reasons, facts.classes)


def say_unanswered(answers: Predictions, say: Say) -> None:
    """Say how many rows no score counts."""
    if say and (num := sum(map(bool, answers.problems))):
        why = next(filter(None, answers.problems))
        say(f"warning: {num:,} of {len(answers):,} rows got no answer, and no score counts them ({why})")


def load(folder: str | Path, *, device: str = "auto", sets: Mapping[str, Any] | None = None) -> Run:
    """A finished run, verified file by file. Raises DataError when a file changed, UsageError when it is no run.

    sets: settings of prediction to change, {"train.eval_batch_size": 1}.
    """
    folder = Path(folder)
    saved.verify(folder)
    plan = replace(Plan.from_json(saved.read_json(folder / "plan.json")), machine=hardware.detect(device))
    plan = with_settings(plan, sets or {})
    _, family = parts_of(load_registry().get(plan.recipe))
    return Run(folder, plan, saved.read_json(folder / "metrics.json"), family.load(plan, folder / "model"))
