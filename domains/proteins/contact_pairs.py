"""Sequences with the pairs of their residues that touch in the fold. See `domains.contract.Domain`.

In a file the contacts of a row are one text of pairs, counted from 1: "3-17 4-18". What touches is the user's to say; usual is
less than 8 angstroms between the beta carbons (alpha of glycine). Every other pair counts as no contact. Pairs closer than
`LEAST` along the chain are neither learned nor scored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Baseline, Facts, Keys, Metric, Reading, Request
from domains.proteins import labelled
from domains.proteins.baselines import letter_codes
from domains.shared.frames import FrameTable, choose_column
from domains.shared.proteins.residues import cleaned
from domains.shared.roles import keep_split_columns, named_or_only_target, one_a_row, refuse_target_called
from domains.shared.sequences import read_raw, repeated_ids, row_ids
from trainers.contract import Predictions
from trainers.errors import DataError

TASK = "contacts"
LEAST, LONG = 6, 24
"""Residues apart along the chain: neighbours touch anyway; from 24 on contacts are called long-range, as in CASP."""
CUTS = {
    "precision_L": (LEAST, 1),
    "precision_L2": (LEAST, 2),
    "precision_L5": (LEAST, 5),
    "long_precision_L": (LONG, 1),
    "long_precision_L5": (LONG, 5),
}
"""By score: how far apart at least, and the divisor of the length that says how many of the likeliest pairs count."""
_PAIR, _BETWEEN = re.compile(r"(\d+)\s*-\s*(\d+)"), re.compile(r"[\s,;]*")
_FURTHEST = 100
"""From here on the rival that counts by separation sees no difference."""
_NUM_LETTERS = 22


@dataclass(frozen=True)
class ContactMap:
    """Meets `trainers.contract.FileValue`. stored: probabilities as bytes, so that equal maps are equal."""

    length: int
    stored: bytes
    suffix = ".csv"

    @classmethod
    def of(cls, length: int, probability: np.ndarray) -> ContactMap:
        """The map of (pairs,) probabilities, in the order of `pair_places(length)`."""
        return cls(length, probability.astype(np.float32).tobytes())

    @property
    def probability(self) -> np.ndarray:
        """(pairs,) float32, in the order of `pair_places(length)`."""
        return np.frombuffer(self.stored, np.float32)

    def write(self, path: Path) -> None:
        """All pairs with their probability, the likeliest first."""
        i, j = pair_places(self.length)
        probability = self.probability
        order = np.argsort(-probability, kind="stable")
        columns = {"i": i[order] + 1, "j": j[order] + 1, "probability": probability[order].round(5)}
        pd.DataFrame(columns).to_csv(path, index=False)


def pair_places(length: int) -> tuple[np.ndarray, np.ndarray]:
    """(pairs,) the two positions, from 0, of all pairs at least `LEAST` apart, the first before the second."""
    return np.triu_indices(length, LEAST)


def pairs_of(text: str) -> np.ndarray:
    """(contacts, 2) positions from 0 that a cell names. Raises ValueError for anything but pairs."""
    found, at = [], 0
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None:
            raise ValueError(f"{text[at : at + 12]!r} is no pair of positions such as 3-17")
        found.append((int(match[1]) - 1, int(match[2]) - 1))
        at = _BETWEEN.match(text, match.end()).end()  # type: ignore[union-attr]
    return np.array(found, np.int64).reshape(-1, 2)


def is_contact(text: str, length: int) -> np.ndarray:
    """(pairs,) bool, in the order of `pair_places(length)`; contacts beyond the length are left out."""
    touching, pairs = np.zeros((length, length), bool), np.sort(pairs_of(text), axis=1)
    pairs = pairs[pairs[:, 1] < length]
    touching[pairs[:, 0], pairs[:, 1]] = True
    return np.asarray(touching[pair_places(length)])


def read(data: Any, request: Request) -> Reading:
    """Read CSV, TSV, Parquet, a DataFrame, or FASTA with --labels, every row in order.

    Raises DataError where there is no such target.
    """
    target = request.target
    raw = read_raw(data, request if request.labels else replace(request, target=None), labelled.KIND)
    where = request.labels or ("DataFrame" if isinstance(data, pd.DataFrame) else str(data))
    if target is None and request.facts is None:
        taken = {raw.sequence, raw.id_column, request.group, request.order, "split"}
        left = [str(name) for name in raw.frame.columns if name not in taken]
        target, said = named_or_only_target(raw.frame, request, left, where=where, what="sequences")
    else:
        target, said = (choose_column(raw.frame, target, where, "--target") if target else None), []
    clean = cleaned(raw.frame[raw.sequence].tolist())
    notices = [*raw.notices, *said, *clean.notices]
    bad = [*raw.bad, *(BadRow(i, raw.places[i], reason) for i, reason in clean.reasons.items())]
    refuse_target_called("sequence", target, where)
    columns: dict[str, Any] = {"sequence": clean.sequences}
    if target is not None:
        columns[target] = ["" if pd.isna(cell) else str(cell).strip() for cell in raw.frame[target]]
        bad += _bad_contacts(columns[target], clean.sequences, raw.places, target)
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
    """Lengths of the training rows. Raises DataError where no residues touch that are far enough apart."""
    sequences, texts = train.column("sequence"), train.target()
    if not any(is_contact(text, len(sequence)).any() for sequence, text in zip(sequences, texts, strict=True)):
        raise DataError(
            f"target {train.target_name!r}: no contact in the training rows joins residues {LEAST} apart or more."
        )
    sizes = labelled.length_sizes(sequences.str.len().to_numpy())
    schema = {"sequence": train.context["sequence"], "id_column": train.context["id_column"]}
    return Facts("proteins", TASK, train.target_name, len(train), (), sizes, schema)


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Share of the likeliest pairs that touch, as many as the protein has residues (L) or a part; the mean of the proteins."""
    return tuple(_metric(column, name) for column, name in enumerate(CUTS))


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """How far apart; then which residues as well."""
    return (
        Baseline("separation", "how often residues so far apart along the chain touch", _by_separation),
        Baseline("residues", "the same, and how often such a pair of residues touches", _by_residues),
    )


def precision_of(probability: np.ndarray, truth: np.ndarray, num_pairs: int) -> float:
    """Share of contacts among the `num_pairs` likeliest; of equals at the border the expected share. NaN without pairs."""
    num_pairs = min(num_pairs, len(probability))
    if not num_pairs:
        return float("nan")
    border = np.partition(probability, -num_pairs)[-num_pairs]
    above, at = probability > border, probability == border
    return float((truth[above].sum() + (num_pairs - above.sum()) * truth[at].mean()) / num_pairs)


def _metric(column: int, name: str) -> Metric:
    def defined(stats: np.ndarray) -> np.ndarray:
        return np.asarray(stats[~np.isnan(stats[:, column]), column])

    return Metric(
        name,
        "",
        True,
        _precisions,
        value=lambda stats: float(defined(stats).mean()) if len(defined(stats)) else float("nan"),
        num_scored=lambda stats: len(defined(stats)),
        why_undefined=lambda stats: "" if len(defined(stats)) else f"no protein has residues {CUTS[name][0]} apart",
    )


def _precisions(truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    """(rows, scores) precision of each row by each of `CUTS`, NaN where the protein is too short."""
    stats = np.full((len(truth), len(CUTS)), np.nan)
    for row, (text, answer) in enumerate(zip(truth, predictions.values, strict=True)):
        i, j = pair_places(answer.length)
        right, probability = is_contact(text, answer.length), answer.probability
        for column, (least, divisor) in enumerate(CUTS.values()):
            is_far = j - i >= least
            most = max(1, answer.length // divisor)
            stats[row, column] = precision_of(probability[is_far], right[is_far], most)
    return stats


def _bad_contacts(
    texts: Sequence[str], sequences: Sequence[str], places: Sequence[str], target: str
) -> Iterator[BadRow]:
    for row, (text, sequence) in enumerate(zip(texts, sequences, strict=True)):
        if not text:
            yield BadRow(row, places[row], f"no value in target column {target!r}")
            continue
        try:
            pairs = pairs_of(text)
        except ValueError as error:
            yield BadRow(row, places[row], f"{target!r}: {error}")
            continue
        outside = pairs[((pairs < 0) | (pairs >= len(sequence))).any(axis=1)]
        if sequence and len(outside):
            i, j = outside[0] + 1
            yield BadRow(row, places[row], f"{target!r}: {i}-{j} is not within the {len(sequence)} residues")


def _separations(length: int) -> np.ndarray:
    i, j = pair_places(length)
    return np.asarray(np.minimum(j - i, _FURTHEST))


def _kinds(sequence: str) -> np.ndarray:
    """(pairs,) a number for each unordered pair of letters."""
    i, j = pair_places(len(sequence))
    codes = letter_codes(sequence).astype(np.int64)
    a, b = np.minimum(codes[i], codes[j]), np.maximum(codes[i], codes[j])
    return np.asarray(a * _NUM_LETTERS + b)


def _log_odds(train: Any) -> tuple[np.ndarray, np.ndarray]:
    """How likely pairs of each separation touch, and what each pair of letters adds; a little is added to every count."""
    far, letters = np.zeros((2, _FURTHEST + 1)), np.zeros((2, _NUM_LETTERS**2))
    for sequence, text in zip(train.column("sequence"), train.target(), strict=True):
        right = is_contact(text, len(sequence))
        for counts, code in ((far, _separations(len(sequence))), (letters, _kinds(sequence))):
            for touches in (0, 1):
                counts[touches] += np.bincount(code[right == touches], minlength=counts.shape[1])
    shares = (letters + 1) / (letters + 1).sum(axis=1, keepdims=True)
    return np.log((far[1] + 0.5) / (far[0] + 0.5)), np.log(shares[1] / shares[0])


def _by_separation(train: Any) -> Callable[[Any], Predictions]:
    far, _ = _log_odds(train)
    return lambda rows: _maps(rows, lambda sequence: far[_separations(len(sequence))])


def _by_residues(train: Any) -> Callable[[Any], Predictions]:
    far, letters = _log_odds(train)
    return lambda rows: _maps(rows, lambda sequence: far[_separations(len(sequence))] + letters[_kinds(sequence)])


def _maps(rows: Any, log_odds: Callable[[str], np.ndarray]) -> Predictions:
    return Predictions.of_files(
        [contact_map(len(sequence), log_odds(sequence)) for sequence in rows.column("sequence")]
    )


def contact_map(length: int, log_odds: np.ndarray) -> ContactMap | None:
    """The map of (pairs,) log odds; None where one is not finite."""
    if not np.isfinite(log_odds).all():
        return None
    return ContactMap.of(length, 1 / (1 + np.exp(-log_odds.astype(np.float64))))
