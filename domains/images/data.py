"""Pictures as a data type. What a row is depends on the task, and each kind has a module of its own:

labelled    a picture with a class, several labels or a number
masked      a picture with a mask of class numbers
unlabelled  a picture alone
generated   a picture to draw others like it from

See `domains.contract.Domain` for what the functions do.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import Baseline, Facts, Keys, Likeness, Metric, Profile, Reading, Request
from domains.images.copies import MAX_MEAN_STEP, nearest
from domains.images.labelled import FILE
from trainers.contract import Predictions

COLUMNS = ("path",)
KIND_OF_TASK = {"segmentation": "masked", "representation": "unlabelled", "generation": "generated"}


def read(data: Any, request: Request) -> Reading:
    """Read what the kind of the data is (`kind_of`), every row in order."""
    reading: Reading = _module(kind_of(data, request)).read(data, request)
    return reading


def keys(table: Any, task: str, request: Request, *, fast: bool) -> Keys:
    """What the split needs."""
    found: Keys = _module(table.context["kind"]).keys(table, task, request, fast=fast)
    return found


def profile(table: Any, task: str, request: Request) -> Profile:
    """Sides in pixels, and pictures with the same pixels."""
    prints = _prints(table)
    lengths = {
        "pixels of the shorter side": np.array([min(p.width, p.height) for p in prints]),
        "pixels of the longer side": np.array([max(p.width, p.height) for p in prints]),
    }
    return Profile(len(prints) - len({found.pixels for found in prints}), lengths=lengths)


def likeness(table: Any, these: np.ndarray, those: np.ndarray, request: Request) -> Likeness:
    """How little the mean colours of 8 x 8 tiles differ."""
    highest, position = nearest(_prints(table), these, those)
    measure = (
        "1 less the mean step between the colours of 8 x 8 tiles, of 255; plain pictures are alike without being copies"
    )
    return Likeness(measure, 1 - MAX_MEAN_STEP / 255, highest, position)


def describe(train: Any, task: str, request: Request) -> Facts:
    """Sizes and classes of the training pictures; `schema["kind"]` remembers the kind."""
    found: Facts = _module(train.context["kind"]).describe(train, task, request)
    assert found.schema["kind"] == train.context["kind"]
    return found


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """The first decides."""
    found: tuple[Metric, ...] = _module(_known(facts)).metrics(facts)
    return found


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """A trivial rival first."""
    found: tuple[Baseline, ...] = _module(_known(facts)).baselines(facts)
    return found


def plots(test: Any, predictions: Predictions, facts: Facts, folder: Path) -> Mapping[str, str]:
    """Masks over the worst, the median and the best test picture; nothing for labels."""
    from domains.images.masked import KIND, plots

    return plots(test, predictions, facts, folder) if _known(facts) == KIND else {}


def kind_of(data: Any, request: Request) -> str:
    """The kind: as in training where that is known, else by the task, else masks where there are folders of them."""
    if request.facts is not None:
        return _known(request.facts)
    if request.task is not None:
        return KIND_OF_TASK.get(request.task, "labelled")
    from domains.images.masked import KIND, has_masks

    is_folder = not isinstance(data, pd.DataFrame) and Path(data).is_dir()
    return KIND if is_folder and has_masks(Path(data)) else "labelled"


def _known(facts: Facts) -> str:
    return str(facts.schema.get("kind", "labelled"))  # runs of earlier versions had labels only


def _prints(table: Any) -> list[Any]:
    known = table.context["prints"]
    return [known[file] for file in table.column(FILE)]


def _module(kind: str) -> Any:
    return importlib.import_module(f"domains.images.{kind}")
