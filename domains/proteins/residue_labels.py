"""Sequences with a label for each residue, such as secondary structure. See `domains.contract.Domain`.

In a file the labels of a row are one text as long as the sequence, a letter a residue; in the table a tuple of letters. "?" is
a residue whose label nobody knows: it is neither learned nor scored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Baseline, Facts, Keys, Metric, Reading, Request
from domains.proteins import labelled
from domains.proteins.baselines import letter_codes
from domains.shared.frames import FrameTable, choose_column
from domains.shared.proteins.residues import cleaned
from domains.shared.roles import (
    IMBALANCED_SHARE,
    keep_split_columns,
    named_or_only_target,
    one_a_row,
    refuse_target_called,
)
from domains.shared.sequences import read_raw, repeated_ids, row_ids
from domains.shared.targets import class_names
from trainers.contract import Predictions, as_objects
from trainers.errors import DataError

TASK, UNKNOWN_LABEL = "residue-labels", "?"
NEIGHBOURS = 7
"""Residues to each side that the cheap rival looks at; Garnier et al. 1978, J Mol Biol 120:97, took eight."""
MOST_LABELS = 64


def read(data: Any, request: Request) -> Reading:
    """Read CSV, TSV, Parquet, a DataFrame, or FASTA with --labels, every row in order.

    Raises DataError where there is no such target, or where no row has as many labels as residues.
    """
    target = request.target
    wanted = request if request.labels else replace(request, target=None)
    raw = read_raw(data, wanted, labelled.KIND, as_text=[target] if target else [])
    where = request.labels or ("DataFrame" if isinstance(data, pd.DataFrame) else str(data))
    if target is None and request.facts is None:
        taken = {raw.sequence, raw.id_column, request.group, request.order, "split"}
        left = [str(name) for name in raw.frame.columns if name not in taken]
        target, said = named_or_only_target(raw.frame, request, left, where=where, what="sequences")
        raw = read_raw(data, wanted, labelled.KIND, as_text=[str(target)])  # "0110" is four labels, and no number
    else:
        target, said = (choose_column(raw.frame, target, where, "--target") if target else None), []
    clean = cleaned(raw.frame[raw.sequence].tolist())
    notices = [*raw.notices, *said, *clean.notices]
    bad = [*raw.bad, *(BadRow(i, raw.places[i], reason) for i, reason in clean.reasons.items())]
    refuse_target_called("sequence", target, where)
    columns: dict[str, Any] = {"sequence": clean.sequences}
    if target is not None:
        texts = _label_texts(raw.frame[target], clean.sequences)
        bad += _bad_labels(texts, clean.sequences, raw.places, request, target)
        columns[target] = as_objects([tuple(text) for text in texts])
    if request.facts is None:
        bad += repeated_ids(raw)
        notices += labelled.time_notice(clean.sequences)
    notices += keep_split_columns(columns, raw.frame, request, where=where, target=target, uses_found=False)
    context = {"sequence": raw.sequence, "id_column": raw.id_column}
    table = FrameTable(pd.DataFrame(columns), row_ids(raw), target, context)
    return Reading(table, TASK, target, tuple(one_a_row(bad)), tuple(notices))


def keys(table: FrameTable, task: str, request: Request, *, fast: bool) -> Keys:
    """As of labelled sequences: relatives stay together."""
    return labelled.keys(table, task, request, fast=fast)


def describe(train: FrameTable, task: str, request: Request) -> Facts:
    """Lengths and labels of the training rows."""
    counts = label_counts(train.target())
    classes = class_names(list(counts), f"target {train.target_name!r}")
    if len(classes) > MOST_LABELS:
        raise DataError(
            f"target {train.target_name!r}: {len(classes)} different letters; labels are a letter a residue."
        )
    sizes = labelled.length_sizes(train.column("sequence").str.len().to_numpy())
    sizes["largest_share"] = max(counts.values()) / sum(counts.values())
    schema = {"sequence": train.context["sequence"], "id_column": train.context["id_column"]}
    return Facts("proteins", TASK, train.target_name, len(train), classes, sizes, schema)


def label_counts(target: Sequence[tuple[str, ...]] | np.ndarray) -> dict[str, int]:
    """How many residues have each label, unknown ones apart."""
    letters, counts = np.unique(np.concatenate([np.array(row, dtype="U1") for row in target]), return_counts=True)
    return {str(a): int(n) for a, n in zip(letters, counts, strict=True) if a != UNKNOWN_LABEL}


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Share of residues that are right (it decides, macro-F1 where one label has over 80 %), and the mean F1 of the labels."""
    stats = partial(_confusion, facts.classes)
    found = (Metric("accuracy", "", True, stats, _accuracy), Metric("macro_f1", "", True, stats, _macro_f1))
    return found[::-1] if facts.sizes["largest_share"] > IMBALANCED_SHARE else found


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """The commonest label everywhere; then a linear model of a residue and its neighbours."""
    return _commonest(facts.classes), _neighbours(facts.classes)


def _label_texts(cells: pd.Series, sequences: Sequence[str]) -> list[str]:
    """The labels of each row. A blank is a label (DSSP's coil) where they are as many as residues with it, else trimmed."""
    texts = ["" if pd.isna(cell) else str(cell) for cell in cells]
    return [text if len(text) == len(chain) else text.strip() for text, chain in zip(texts, sequences, strict=True)]


def _bad_labels(
    texts: Sequence[str], sequences: Sequence[str], places: Sequence[str], request: Request, target: str
) -> list[BadRow]:
    bad = []
    known = {*request.facts.classes, UNKNOWN_LABEL} if request.facts else None
    for i, (text, sequence) in enumerate(zip(texts, sequences, strict=True)):
        if not sequence:
            continue
        if not text:
            bad.append(BadRow(i, places[i], f"no value in target column {target!r}"))
        elif len(text) != len(sequence):
            bad.append(BadRow(i, places[i], f"{len(text)} labels in {target!r} for {len(sequence)} residues"))
        elif known is not None and (other := sorted(set(text) - known)):
            bad.append(BadRow(i, places[i], f"label {other[0]!r} was not in the training data"))
    if len(bad) == sum(map(bool, sequences)) > 1:
        raise DataError(
            f"target column {target!r}: no row has a letter for each residue ({bad[0].reason} at {bad[0].place}). Labels are "
            "one text as long as the sequence."
        )
    return bad


def _confusion(classes: tuple[str, ...], truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    """(rows, (K + 1) * K) how many residues of each true label got each answer; the last truth: labels that training did
    not know."""
    place = {name: at for at, name in enumerate(classes)}
    size = len(classes)
    stats = np.zeros((len(truth), size + 1, size))
    for row, (right, answer) in enumerate(zip(truth, predictions.values, strict=True)):
        for true, given in zip(right, answer, strict=True):
            if true != UNKNOWN_LABEL:
                stats[row, place.get(true, size), place[given]] += 1
    return stats.reshape(len(truth), -1)


def _summed(stats: np.ndarray) -> np.ndarray:
    size = int((np.sqrt(1 + 4 * stats.shape[1]) - 1) / 2)
    total: np.ndarray = stats.sum(axis=0).reshape(size + 1, size)
    return total


def _accuracy(stats: np.ndarray) -> float:
    counts = _summed(stats)
    return float(np.trace(counts) / counts.sum()) if counts.sum() else float("nan")


def _macro_f1(stats: np.ndarray) -> float:
    counts = _summed(stats)
    total = counts[:-1].sum(axis=1) + counts.sum(axis=0)
    present = total > 0
    return float(np.mean(2 * np.diag(counts)[present] / total[present])) if present.any() else float("nan")


def _commonest(classes: tuple[str, ...]) -> Baseline:
    def fit(train: Any) -> Callable[[Any], Predictions]:
        counts = label_counts(train.target())
        best = max(sorted(counts), key=lambda name: counts[name])
        return lambda rows: Predictions.of_tags(
            [[best] * len(sequence) for sequence in rows.column("sequence")], classes
        )

    return Baseline("majority", "the commonest label for every residue", fit)


def _neighbours(classes: tuple[str, ...]) -> Baseline:
    def fit(train: Any) -> Callable[[Any], Predictions]:
        from sklearn.linear_model import SGDClassifier

        labels = np.concatenate([np.array(row, dtype="U1") for row in train.target()])
        is_known = labels != UNKNOWN_LABEL
        # Averaged stochastic descent: hundreds of thousands of residues would take a batch solver minutes.
        model = SGDClassifier(loss="log_loss", alpha=1e-5, max_iter=10, average=True, tol=None, random_state=0)
        model.fit(_windows(train.column("sequence"))[is_known], labels[is_known])

        def answer(rows: Any) -> Predictions:
            sequences = list(rows.column("sequence"))
            found = model.predict(_windows(sequences)) if sequences else np.empty(0, "U1")
            ends = np.cumsum([len(sequence) for sequence in sequences])[:-1]
            return Predictions.of_tags([part.tolist() for part in np.split(found, ends)][: len(sequences)], classes)

        return answer

    return Baseline("neighbours", f"logistic regression on a residue and {NEIGHBOURS} to each side", fit)


def _windows(sequences: Sequence[str]) -> Any:
    """(residues, features) sparse: which letter stands at which distance."""
    from scipy.sparse import csr_matrix

    num_letters, width = 22, 2 * NEIGHBOURS + 1
    parts = []
    for sequence in sequences:
        padded = np.pad(letter_codes(sequence), NEIGHBOURS, constant_values=num_letters - 1)
        parts.append(np.lib.stride_tricks.sliding_window_view(padded, width) + num_letters * np.arange(width))
    columns = np.concatenate(parts)
    shape = (len(columns), num_letters * width)
    return csr_matrix(
        (np.ones(columns.size, np.float32), columns.reshape(-1), width * np.arange(len(columns) + 1)), shape
    )
