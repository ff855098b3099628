"""Finished runs as answerers: one run, or several below one folder (folds, seeds) whose mean answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from domains import metrics as scoring
from domains.contract import Facts
from trainers.contract import JSON, Predictions, as_objects
from trainers.errors import UsageError
from zoo import finished, report, saved
from zoo.finished import Run
from zoo.job import Say, warn
from zoo.plan import domain_of
from zoo.registry import load_registry


@dataclass(frozen=True)
class Ensemble:
    """Several finished runs of one recipe (`zoo train --folds 5`, `--seeds 5`) that answer by their mean.

    The runs are loaded one after the other for every question, so that memory for one of them is enough.
    """

    folder: Path
    metrics: JSON
    device: str = "auto"
    sets: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answers_with_files(self) -> bool:
        """As of its runs."""
        return (saved.members(self.folder)[0] / report.FILES).is_dir()

    def predict(self, data: Any, *, encoding: str | None = None) -> Any:
        """As `Run.predict`: mean probabilities and the class that they name (masks of scans: in each voxel), or mean numbers.

        Raises UsageError where answers have no mean (texts, tags); it names a run to ask instead.
        """
        ids, predictions = self.answers(data, encoding=encoding, say=warn)
        return report.prediction_frame(ids, predictions, like=data)

    def answers(self, data: Any, *, encoding: str | None = None, say: Say = None) -> tuple[Any, Predictions]:
        """The ids and the mean answers of every row, in order."""
        ids, found = None, []
        for run in self._runs():
            ids, predictions = run.answers(data, encoding=encoding, say=say, soft=True)
            say = None  # what is odd in the rows need not be told by every run
            found.append(self._with_mean(predictions))
        return ids, mean_of(found)

    def evaluate(self, data: Any, **how: Any) -> JSON:
        """As `Run.evaluate`, of the mean answers."""
        described = saved.read_json(self.folder / saved.MANY)
        domain = domain_of(load_registry().get(described["recipe"]))
        found, say = [], how.get("say")
        splits = [saved.read_json(each / "split.json")["ids"] for each in saved.members(self.folder)]
        how["learned"] = {str(name) for split in splits for name in split["train"]}
        for run in self._runs():
            table, groups = run.labelled(data, **how)
            how = {**how, "say": None}
            found.append(self._with_mean(run.answer(table, soft=True)))
        answers = mean_of(found)
        finished.say_unanswered(answers, say)
        return scoring.scores(domain.metrics(Facts.from_json(described["facts"])), table.target(), answers, groups)

    def _runs(self) -> Iterator[Run]:
        return (finished.load(each, device=self.device, sets=self.sets) for each in saved.members(self.folder))

    def _with_mean(self, predictions: Predictions) -> Predictions:
        if predictions.kind in _MEANS or _have_mean(predictions):
            return predictions
        one = saved.members(self.folder)[0]
        raise UsageError(
            f"{self.folder}: the answers of its runs ({predictions.kind}) have no mean. Ask one of them: zoo predict {one} "
            "NEW_DATA"
        )


def load(folder: str | Path, *, device: str = "auto", sets: Mapping[str, Any] | None = None) -> Run | Ensemble:
    """A finished run, or the several of a folder of folds or seeds; arguments and errors as for `finished.load`."""
    folder = Path(folder)
    if not saved.is_parent(folder):
        return finished.load(folder, device=device, sets=sets)
    saved.verify(folder)
    return Ensemble(folder, saved.read_json(folder / "metrics.json"), device, sets or {})


def mean_of(found: Sequence[Predictions]) -> Predictions:
    """The mean of several models' answers to the same rows, over those that answered a row; none where none did.

    A class that a model does not know has probability 0 for it. Raises KeyError for kinds that have no mean.
    """
    kind = found[0].kind
    if kind == "file":
        return _mean_files(found)
    names = tuple(sorted({name for each in found for name in each.classes})) if kind == "label" else found[0].classes
    total = np.zeros((len(found[0]), 1 if kind == "number" else len(names)))
    count = np.zeros(len(total))
    for each in found:
        fine = np.flatnonzero([not problem for problem in each.problems])
        total[fine] += _columns(each, names)[fine]
        count[fine] += 1
    with np.errstate(invalid="ignore"):
        mean = _MEANS[kind](total / count[:, None], names)
    problems = tuple("" if n else why for n, why in zip(count, found[0].problems, strict=True))
    return Predictions(mean.kind, mean.values, mean.scores, mean.classes, problems)


def _have_mean(predictions: Predictions) -> bool:
    return predictions.kind == "file" and all(value is None or hasattr(value, "mean") for value in predictions.values)


def _mean_files(found: Sequence[Predictions]) -> Predictions:
    """As `mean_of`, of files of a class with a mean (`contract.Learner.predict_soft`)."""
    values: list[Any] = []
    for each in zip(*(predictions.values for predictions in found), strict=True):
        known = [value for value in each if value is not None]
        values.append(type(known[0]).mean(known) if known else None)
    problems = ["" if value is not None else why for value, why in zip(values, found[0].problems, strict=True)]
    return replace(found[0], values=as_objects(values), problems=tuple(problems))


def _columns(predictions: Predictions, names: tuple[str, ...]) -> np.ndarray:
    """(rows, names): probabilities or numbers in the order of `names`."""
    if predictions.kind == "number":
        return predictions.values.astype(np.float64)[:, None]
    columns, scores = np.zeros((len(predictions), len(names))), np.asarray(predictions.scores)
    for column, name in enumerate(predictions.classes):
        columns[:, names.index(name)] = scores[:, column]
    return columns


_MEANS: Mapping[str, Callable[[np.ndarray, tuple[str, ...]], Predictions]] = {
    "label": Predictions.of_labels,
    "labels": Predictions.of_label_sets,
    "number": lambda numbers, _: Predictions.of_numbers(numbers),
    "numbers": Predictions.of_number_rows,
}
