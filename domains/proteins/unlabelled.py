"""Sequences without labels, to pretrain a language model of proteins on. See `domains.contract.Domain`.

What is predicted of a row is how many nats a masked residue costs the model; its target is its number of residues, by which
rows are weighed in the score.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Baseline, Facts, Keys, Metric, Reading, Request
from domains.proteins import labelled
from domains.shared.frames import FrameTable
from domains.shared.proteins.residues import cleaned
from domains.shared.roles import keep_split_columns, one_a_row
from domains.shared.sequences import read_raw, repeated_ids, row_ids
from trainers.contract import Predictions
from trainers.errors import UsageError

TASK, TARGET = "masked-lm", "residues"


def read(data: Any, request: Request) -> Reading:
    """Read FASTA, CSV, TSV, Parquet or a DataFrame, every row in order; columns of labels are not looked at.

    Raises UsageError for a target: there is none to name.
    """
    if request.target not in (None, TARGET) or request.labels is not None:
        raise UsageError(
            f"--target {request.target or request.labels}: a language model learns from the sequences alone. Leave it out, "
            "or leave --task out to learn the labels."
        )
    raw = read_raw(data, replace(request, target=None), labelled.KIND)
    clean = cleaned(raw.frame[raw.sequence].tolist())
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(data)
    notices = [*raw.notices, *clean.notices]
    labelled.check_dna(clean.sequences, where, notices, training=request.facts is None)
    bad = [*raw.bad, *(BadRow(i, raw.places[i], reason) for i, reason in clean.reasons.items())]
    columns: dict[str, Any] = {"sequence": clean.sequences}
    if request.facts is None or request.target is not None:
        columns[TARGET] = np.array([float(len(sequence)) for sequence in clean.sequences])
    if request.facts is None:
        bad += repeated_ids(raw)
        notices += labelled.time_notice(clean.sequences)
    notices += keep_split_columns(columns, raw.frame, request, where=where, target=None, uses_found=False)
    context = {"sequence": raw.sequence, "id_column": raw.id_column, "is_training": request.facts is None}
    target = TARGET if TARGET in columns else None
    table = FrameTable(pd.DataFrame(columns), row_ids(raw), target, context)
    return Reading(table, TASK, target, tuple(one_a_row(bad)), tuple(notices))


def keys(table: FrameTable, task: str, request: Request, *, fast: bool) -> Keys:
    """As of labelled sequences: relatives stay together, so that a held-out protein is a new one."""
    return labelled.keys(table, task, request, fast=fast)


def describe(train: FrameTable, task: str, request: Request) -> Facts:
    """Lengths of the training rows."""
    sizes = labelled.length_sizes(train.column("sequence").str.len().to_numpy())
    schema = {"sequence": train.context["sequence"], "id_column": train.context["id_column"]}
    return Facts("proteins", TASK, TARGET, len(train), (), sizes, schema)


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Perplexity of masked residues (it decides; 20 says nothing, 1 all), and the same in bits a residue."""
    return (
        Metric("perplexity", "", False, _nats_and_residues, lambda stats: math.exp(_mean_nats(stats))),
        Metric("bits_per_residue", "bits", False, _nats_and_residues, lambda stats: _mean_nats(stats) / math.log(2)),
    )


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """None here: rivals must be asked of the same masked residues, which the recipe knows."""
    return ()


def _nats_and_residues(truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    return np.column_stack([predictions.values.astype(np.float64), truth.astype(np.float64)])


def _mean_nats(stats: np.ndarray) -> float:
    """Rows of many residues have as many more masks."""
    return float((stats[:, 0] * stats[:, 1]).sum() / stats[:, 1].sum())
