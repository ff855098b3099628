"""Proteins as a data type. What a row is depends on the task, and each kind of row has a module of its own:

labelled        a sequence with a class or a number
unlabelled      a sequence alone, to pretrain a language model on (masked-lm)
label_sets      a sequence with any number of labels (multilabel)
residue_labels  a sequence with a label for each of its residues (residue-labels)
contact_pairs   a sequence with the pairs of its residues that touch (contacts)
variants        a mutant, whose effect is asked for without training (variant-effect)

See `domains.contract.Domain` for what the functions do.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from domains.contract import Baseline, Facts, Keys, Likeness, Metric, Profile, Reading, Request

COLUMNS = ("sequence", "mutant", "wild_type")
MODULES = {
    "contacts": "contact_pairs",
    "masked-lm": "unlabelled",
    "multilabel": "label_sets",
    "residue-labels": "residue_labels",
    "variant-effect": "variants",
}
"""By task; others are of labelled sequences."""


def read(data: Any, request: Request) -> Reading:
    """Read the rows of the task, as in training where that is known, every row in order."""
    task = request.facts.task if request.facts else request.task
    reading: Reading = _module(task).read(data, request)
    return reading


def keys(table: Any, task: str, request: Request, *, fast: bool) -> Keys:
    """What the split needs."""
    found: Keys = _module(task).keys(table, task, request, fast=fast)
    return found


def profile(table: Any, task: str, request: Request) -> Profile:
    """Lengths and identical sequences."""
    found: Profile = _module(None).profile(table, task, request)
    return found


def likeness(table: Any, these: np.ndarray, those: np.ndarray, request: Request) -> Likeness:
    """Identity along the alignment, by MMseqs2. Raises MissingError without it."""
    found: Likeness = _module(None).likeness(table, these, those, request)
    return found


def describe(train: Any, task: str, request: Request) -> Facts:
    """Lengths and labels of the training rows."""
    found: Facts = _module(task).describe(train, task, request)
    return found


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """The first decides."""
    found: tuple[Metric, ...] = _module(facts.task).metrics(facts)
    return found


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """A trivial rival first, then a strong cheap one."""
    found: tuple[Baseline, ...] = _module(facts.task).baselines(facts)
    return found


def _module(task: str | None) -> Any:
    return importlib.import_module(f"domains.proteins.{MODULES.get(task or '', 'labelled')}")
