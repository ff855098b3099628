"""Labelled sequences: reading, keys for splits, facts, metrics and rivals. See `domains.contract.Domain`.

The column is always called "sequence" in the table, whatever the file calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.baselines import trivial
from domains.contract import BadRow, Baseline, Doubt, Facts, Keys, Likeness, Metric, Profile, Reading, Request
from domains.metrics import classification_metrics, regression_metrics
from domains.proteins import mutants
from domains.proteins.baselines import composition
from domains.shared.frames import FrameTable
from domains.shared.groupings import equal_rows
from domains.shared.proteins import similarity
from domains.shared.proteins.residues import cleaned, look_like_dna, looks_like_protein, num_like_dna
from domains.shared.roles import (
    IMBALANCED_SHARE,
    keep_split_columns,
    largest_share,
    named_keys,
    named_or_only_target,
    one_a_row,
    refuse_target_called,
    task_of_target,
)
from domains.shared.sequences import Kind, Raw, counted, read_raw, repeated_ids, row_ids, settle_repeats
from domains.shared.targets import bad_targets, class_names, target_values
from trainers.errors import DataError

USUAL_LIMIT = 1022
"""Residues that ESM-2 was trained on at most (1,024 tokens with start and end); Lin et al. 2023, methods."""
LENGTH_MARKS = (62, 126, 254, 510, USUAL_LIMIT, 2046)
SLOW_SECONDS = 20.0
_AS_LONG = 0.9
KIND = Kind(
    "protein",
    (
        *("sequence", "seq", "protein_sequence", "aa_sequence", "aa_seq", "amino_acid_sequence", "mutated_sequence"),
        *("protein", "aa", "peptide", "primary", "sequences", "residues"),
    ),
    ("id", "name", "accession", "protein_id", "identifier", "entry", "mutant"),
    looks_like_protein,
)


def read(data: Any, request: Request) -> Reading:
    """Read FASTA (`request.labels` names the table of labels), CSV, TSV, Parquet or a DataFrame, every row in order.

    With `request.facts` the target may be absent; it is checked only if `request.target` is named (evaluating).
    Raises DataError for what holds no protein sequences, or no such target.
    """
    raw = read_raw(data, request, KIND)
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(Path(data))
    if not len(raw.frame):
        raise DataError(f"{where}: there is a header but no row.")
    target, said = _target(raw, request, where)
    if target is not None and request.facts is None:
        _refuse_residue_labels(raw.frame[target], raw.frame[raw.sequence], where)
    task, notice = task_of_target(raw.frame, target, request, comma=raw.comma)
    clean = cleaned(raw.frame[raw.sequence].tolist())
    notices = [*raw.notices, *said, *([notice] if notice else []), *clean.notices, *_long_notice(clean.sequences)]
    check_dna(clean.sequences, where, notices, training=request.facts is None)
    bad = [*raw.bad, *(BadRow(i, raw.places[i], reason) for i, reason in clean.reasons.items())]
    refuse_target_called("sequence", target, where)
    columns: dict[str, Any] = {"sequence": clean.sequences}
    if target is not None:
        classes = request.facts.classes if request.facts else ()
        bad += bad_targets(raw.frame[target], task, raw.places, comma=raw.comma, classes=classes)
        columns[target] = target_values(raw.frame[target], task, comma=raw.comma)
    if request.facts is None:
        bad += repeated_ids(raw)
        notices += settle_repeats(columns, target, task, clean.sequences)
        notices += time_notice(clean.sequences)
    notices += keep_split_columns(columns, raw.frame, request, where=where, target=target, uses_found=False)
    context = {"sequence": raw.sequence, "id_column": raw.id_column, "is_training": request.facts is None}
    table = FrameTable(pd.DataFrame(columns), row_ids(raw), target, context)
    return Reading(table, task, target, tuple(one_a_row(bad)), tuple(notices))


def keys(table: FrameTable, task: str, request: Request, *, fast: bool) -> Keys:
    """Identical sequences stay together, then relatives by MMseqs2, or variants of one protein by position.

    A column named with --group or --order, or one called "split", is used instead. Raises MissingError without MMseqs2.
    """
    stratum = table.target().astype(str) if task == "classification" else None
    sequences = table.column("sequence").tolist()
    distinct, code = np.unique(np.asarray(sequences, object), return_inverse=True)
    if (named := named_keys(table, request, stratum)) is not None:
        return named
    if "split" in table.frame.columns and request.target != "split":
        given = table.column("split").tolist()
        return Keys("given", "the column 'split' says which row goes where", given=given, group=code, stratum=stratum)
    variants = mutants.aligned_mutants(sequences)
    if variants is not None:
        group, because = mutants.position_groups(variants)
        evidence = {"positions_mutated": int(variants.differs.any(axis=0).sum())}
        return Keys("grouped", because, group=group, stratum=stratum, evidence=evidence)
    if fast:
        because = (
            "identical sequences stay together; similar ones were not looked for (--fast): scores may be optimistic"
        )
        return Keys("grouped", because, group=code, stratum=stratum, evidence={"similarity": "skipped"})
    found = similarity.families(distinct.tolist())
    if found.group is None:  # identical rows must stay together all the same
        return Keys("grouped", found.because, group=code, stratum=stratum, evidence=found.evidence)
    return Keys(
        *("grouped", found.because),
        group=found.group[code],
        stratum=stratum,
        links=similarity.of_rows(found.links, code),
        near=similarity.IDENTITY,
        evidence=found.evidence,
    )


def profile(table: FrameTable, task: str, request: Request) -> Profile:
    """Lengths (none of mutants by name alone) and identical sequences."""
    residues = table.column("sequence").str.len().to_numpy()
    lengths = {"residues": residues} if residues.any() else {}
    whole = [
        name for name in ("sequence", "wild_type", "mutant") if name in table.frame.columns
    ]  # of variants all three
    num_copies = int(table.frame[whole].duplicated().sum())
    return Profile(num_copies, lengths=lengths, marks=dict.fromkeys(lengths, (USUAL_LIMIT,)))


def likeness(table: FrameTable, these: np.ndarray, those: np.ndarray, request: Request) -> Likeness:
    """Identity along the alignment, by MMseqs2. Raises MissingError without it."""
    sequences = table.column("sequence").to_numpy(object)
    highest, position = equal_rows(sequences, these, those)
    if len(these) and len(those):
        hits = similarity.search(sequences[these].tolist(), sequences[those].tolist())
        for query, target, identity in zip(hits.query, hits.target, hits.identity, strict=True):
            if identity > highest[query]:
                highest[query], position[query] = identity, target
    measure = (
        f"share of equal residues, aligned by MMseqs2 over {similarity.COVERAGE:.0%} of the shorter chain; less than "
        f"{similarity.IDENTITY:.0%} is not looked for and counts as 0"
    )
    return Likeness(measure, similarity.IDENTITY, highest, position)


def describe(train: FrameTable, task: str, request: Request) -> Facts:
    """Lengths and classes of the training rows."""
    lengths = train.column("sequence").str.len().to_numpy()
    target = train.target()
    classes = class_names(target, f"target {train.target_name!r}") if task == "classification" else ()
    sizes = length_sizes(lengths)
    if classes:
        sizes["largest_share"] = largest_share(target)
    schema = {"sequence": train.context["sequence"], "id_column": train.context["id_column"]}
    return Facts("proteins", task, train.target_name, len(train), classes, sizes, schema)


def length_sizes(lengths: np.ndarray) -> dict[str, float]:
    """What plans ask of the lengths of sequences."""
    return {
        "longest": int(lengths.max()),
        "median_residues": float(np.median(lengths)),
        "total_residues": int(lengths.sum()),
        **{f"longer_than_{mark}": int((lengths > mark).sum()) for mark in LENGTH_MARKS},
    }


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Classes: accuracy decides (macro-F1 where one class has over 80 % of the rows). Numbers: Spearman's rank
    correlation, as measurements of function are ranked (Notin et al. 2023, ProteinGym)."""
    if facts.task == "classification":
        return classification_metrics(facts.classes, imbalanced=facts.sizes["largest_share"] > IMBALANCED_SHARE)
    return regression_metrics(first="spearman")


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """Majority or mean; then composition, k-mers and positions with a kernel."""
    return trivial(facts.task), composition(facts.task)


def _target(raw: Raw, request: Request, where: str) -> tuple[str | None, list[str]]:
    taken = {raw.sequence, raw.id_column, request.group, request.order, "split", None}
    left = [str(name) for name in raw.frame.columns if name not in taken]
    where = (request.labels or where) if request.target is not None else where
    advice = " FASTA: name a table with --labels FILE. To learn from sequences alone: --task masked-lm (proteins/protein-lm)."
    return named_or_only_target(raw.frame, request, left, where=where, what="sequences", advice=advice)


def _refuse_residue_labels(target: pd.Series, sequences: pd.Series, where: str) -> None:
    """Raise DataError where nearly every target is a text as long as its sequence: no class has such a name."""
    if pd.api.types.is_numeric_dtype(target.dtype):
        return
    pairs = list(zip(target.fillna("").astype(str), sequences.fillna("").astype(str), strict=True))
    if sum(len(labels) == len(sequence) > 1 for labels, sequence in pairs) > _AS_LONG * len(pairs):
        raise DataError(
            f"{where}: target {target.name!r} has a letter for each residue. Such labels are learned with --task "
            "residue-labels (proteins/esm2-residue)."
        )


def _long_notice(sequences: Sequence[str]) -> list[str]:
    num_long = sum(len(sequence) > USUAL_LIMIT for sequence in sequences)
    if not num_long:
        return []
    said = f"{num_long:,} of {len(sequences):,} sequences are longer than {USUAL_LIMIT} residues and are cropped there "
    return [Doubt(f"{said}(options.max_residues): what follows is not seen")]


def time_notice(sequences: Sequence[str]) -> list[str]:
    """How long the search for relatives will take, where that is long."""
    distinct = set(sequences)
    num_residues = sum(map(len, distinct))
    seconds = similarity.seconds_estimate(len(distinct), num_residues, similarity.num_cores())
    if seconds < SLOW_SECONDS or mutants.aligned_mutants(sequences) is not None:
        return []
    return [
        f"comparing {len(distinct):,} sequences for the split takes about {seconds / 60:.1f} minutes; --fast skips it"
    ]


def check_dna(sequences: Sequence[str], where: str, notices: list[str], *, training: bool) -> None:
    """Say where the letters are those of DNA; raise DataError in training where nearly all are."""
    if not look_like_dna(sequences):
        if count := num_like_dna(sequences):
            notices.append(f"{counted(count, 'sequence')} may be DNA or RNA: no letters but A, C, G, T, U and N")
        return
    text = f"{where}: these look like DNA or RNA, not proteins: nearly all have no letters but A, C, G, T, U and N."
    if training:
        raise DataError(f"{text} Translate them first, or choose another column or data type.")
    notices.append(text)
