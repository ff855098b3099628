"""Sequences with any number of labels each, such as the compartments or functions of a protein. See `domains.contract.Domain`.

One column with labels ("Nucleus;Cytoplasm"), or several of 0 and 1 (--target a,b,c) of which empty cells are unknown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from domains.baselines import label_shares
from domains.contract import BadRow, Baseline, Facts, Keys, Metric, Reading, Request
from domains.metrics import label_set_metrics
from domains.proteins import labelled
from domains.proteins.baselines import composition_by_label
from domains.shared.frames import FrameTable
from domains.shared.label_sets import label_names, rarest_labels, read_label_sets, target_columns
from domains.shared.proteins.residues import cleaned
from domains.shared.roles import keep_split_columns, named_or_only_target, one_a_row, refuse_target_called
from domains.shared.sequences import read_raw, repeated_ids, row_ids
from trainers.errors import DataError

TASK = "multilabel"


def read(data: Any, request: Request) -> Reading:
    """Read CSV, TSV, Parquet, a DataFrame, or FASTA with --labels, every row in order.

    Raises DataError for what holds no protein sequences, or no such target.
    """
    raw = read_raw(data, request if request.labels else replace(request, target=None), labelled.KIND)
    where = request.labels or ("DataFrame" if isinstance(data, pd.DataFrame) else str(data))
    if not len(raw.frame):
        raise DataError(f"{where}: there is a header but no row.")
    target, said = request.target, list[str]()
    if target is None and request.facts is None:
        taken = {raw.sequence, raw.id_column, request.group, request.order, "split"}
        left = [str(name) for name in raw.frame.columns if name not in taken]
        target, said = named_or_only_target(raw.frame, request, left, where=where, what="sequences")
    clean = cleaned(raw.frame[raw.sequence].tolist())
    notices = [*raw.notices, *said, *clean.notices]
    bad = [*raw.bad, *(BadRow(i, raw.places[i], reason) for i, reason in clean.reasons.items())]
    refuse_target_called("sequence", target, where)
    columns: dict[str, Any] = {"sequence": clean.sequences}
    if target is not None:
        classes = request.facts.classes if request.facts else ()
        found = read_label_sets(raw.frame, target, classes=classes, where=where)
        bad += [BadRow(i, raw.places[i], reason) for i, reason in found.reasons.items()]
        columns[target], notices = found.values, [*notices, *found.notices]
    if request.facts is None:
        bad += repeated_ids(raw)
        notices += labelled.time_notice(clean.sequences)
    notices += keep_split_columns(columns, raw.frame, request, where=where, target=target, uses_found=False)
    names = target_columns(raw.frame, target) if target else []
    context = {"sequence": raw.sequence, "id_column": raw.id_column, "labels": names}
    table = FrameTable(pd.DataFrame(columns), row_ids(raw), target, context)
    return Reading(table, TASK, target, tuple(one_a_row(bad)), tuple(notices))


def keys(table: FrameTable, task: str, request: Request, *, fast: bool) -> Keys:
    """As of one label: relatives stay together. The stratum is the rarest label of a row."""
    found = labelled.keys(table, task, request, fast=fast)
    return found if table.target_name is None else replace(found, stratum=rarest_labels(table.target()))


def describe(train: FrameTable, task: str, request: Request) -> Facts:
    """Lengths and labels of the training rows."""
    classes = label_names(train.target(), str(train.target_name), train.context["labels"])
    sizes = labelled.length_sizes(train.column("sequence").str.len().to_numpy())
    schema = {"sequence": train.context["sequence"], "id_column": train.context["id_column"]}
    return Facts("proteins", TASK, train.target_name, len(train), classes, sizes, schema)


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """F1 over all labels decides."""
    return label_set_metrics(facts.classes)


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """Shares of the labels; then composition and k-mers."""
    return label_shares(facts.classes), composition_by_label(facts.classes)
