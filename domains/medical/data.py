"""Scans as a data type. What a row is depends on the task, and each kind has a module of its own:

masked    a case: an image of one or more channels with a mask of class numbers
prompted  the same with a box around each structure
labelled  a scan, 2-D or 3-D, with a class or a number

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
from domains.medical.layout import IMAGE_FOLDERS, MASK_FOLDERS
from domains.shared.archives import is_archive, unpacked
from domains.shared.frames import is_table, read_frame
from trainers.contract import Predictions

COLUMNS = ("path",)
KIND_OF_TASK = {
    "segmentation": "masked",
    "prompted-segmentation": "prompted",
    "classification": "labelled",
    "regression": "labelled",
}
_MASK_NAMES = ("mask", "segmentation", "seg")


def read(data: Any, request: Request) -> Reading:
    """Read what the kind of the data is (`kind_of`), every row in order; an archive is unpacked first."""
    if not isinstance(data, pd.DataFrame) and is_archive(Path(data)):
        data = unpacked(Path(data))
    reading: Reading = _module(kind_of(data, request)).read(data, request)
    return reading


def keys(table: Any, task: str, request: Request, *, fast: bool) -> Keys:
    """What the split needs."""
    found: Keys = _module(table.context["kind"]).keys(table, task, request, fast=fast)
    return found


def profile(table: Any, task: str, request: Request) -> Profile:
    """Sizes, and copies."""
    found: Profile = _module(table.context["kind"]).profile(table, task, request)
    return found


def likeness(table: Any, these: np.ndarray, those: np.ndarray, request: Request) -> Likeness:
    """Whether a scan is of the patient of another, or its copy."""
    found: Likeness = _module(table.context["kind"]).likeness(table, these, those, request)
    return found


def describe(train: Any, task: str, request: Request) -> Facts:
    """Sizes and classes of the training rows; `schema["kind"]` remembers the kind."""
    found: Facts = _module(train.context["kind"]).describe(train, task, request)
    assert found.schema["kind"] == train.context["kind"]
    return found


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """The first decides."""
    found: tuple[Metric, ...] = _module(_known(facts)).metrics(facts)
    return found


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """A trivial rival first, then a strong cheap one."""
    found: tuple[Baseline, ...] = _module(_known(facts)).baselines(facts)
    return found


def plots(test: Any, predictions: Predictions, facts: Facts, folder: Path) -> Mapping[str, str]:
    """Outlines of masks on the worst, the median and the best case; nothing for labels."""
    from domains.medical.masked import plots

    return {} if _known(facts) == "labelled" else plots(test, predictions, facts, folder)


def kind_of(data: Any, request: Request) -> str:
    """The kind: as in training where that is known, else by the task, else masks where there are any."""
    if request.facts is not None:
        return _known(request.facts)
    if request.task is not None:
        return KIND_OF_TASK.get(request.task, "masked")
    if is_table(data):
        names = {str(name).lower() for name in read_frame(data, encoding=request.encoding).frame.columns}
        return "masked" if names & set(_MASK_NAMES) else "labelled"
    folders = {path.name for path in Path(data).iterdir() if path.is_dir()} if Path(data).is_dir() else set()
    has_masks = folders & set(IMAGE_FOLDERS) and folders & set(MASK_FOLDERS)
    return "masked" if has_masks or len(folders) < 2 else "labelled"


def _known(facts: Facts) -> str:
    return str(facts.schema.get("kind", "masked"))  # runs of earlier versions had masks only


def _module(kind: str) -> Any:
    return importlib.import_module(f"domains.medical.{kind}")
