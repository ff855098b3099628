"""Genomics as a data type: reading, keys for splits, facts, metrics and rivals. See `domains.contract.Domain`.

A row is a labelled stretch of DNA or RNA; its column is always called "sequence" in the table, whatever the file calls it.
BED intervals are cut out of the genome that `request.reference` names.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.baselines import trivial
from domains.contract import BadRow, Baseline, Facts, Keys, Likeness, Metric, Profile, Reading, Request
from domains.genomics import bed, similarity
from domains.genomics.baselines import gapped_kmers
from domains.genomics.bases import cleaned, looks_like_dna, one_strand
from domains.genomics.fastq import is_fastq, read_fastq
from domains.metrics import classification_metrics, regression_metrics
from domains.shared.frames import FrameTable
from domains.shared.groupings import equal_rows, highest_of, joined
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
from trainers.errors import DataError, UsageError

COLUMNS = ("sequence",)
READS_REFERENCE = True
KIND = Kind(
    "DNA or RNA",
    ("sequence", "seq", "dna", "dna_sequence", "rna", "rna_sequence", "nucleotides", "sequences", "bases"),
    ("id", "name", "accession", "identifier", "locus", "region"),
    looks_like_dna,
    values_in_headers=True,
    readers=((is_fastq, read_fastq, "FASTQ"),),
)
USUAL_LIMIT = 6000
"""Bases in 1,000 tokens of six, the most that the Nucleotide Transformer was trained on (Dalla-Torre et al. 2024, methods)."""
LENGTH_MARKS = (512, 1024, 2048, 6000, 12_000)


def read(data: Any, request: Request) -> Reading:
    """Read FASTA or FASTQ (`request.labels` names the table of labels), BED (`request.reference` names the genome), CSV,
    TSV, Parquet or a DataFrame, every row in order.

    With `request.facts` the target may be absent; it is checked only if `request.target` is named (evaluating).
    Raises DataError for what holds no DNA or RNA, or no such target.
    """
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(Path(data))
    is_bed = not isinstance(data, pd.DataFrame) and bed.is_bed(Path(data))
    if request.reference is not None and request.facts is None and not is_bed:
        raise DataError(f"{where}: --reference {request.reference}: only for BED, which holds places. Leave it out.")
    raw = bed.read_bed(Path(data), request.reference) if is_bed else read_raw(data, request, KIND)
    if not len(raw.frame):
        raise DataError(f"{where}: there is a header but no row.")
    target, said = _target(raw, request, where)
    task, notice = task_of_target(raw.frame, target, request, comma=raw.comma)
    clean = cleaned(raw.frame[raw.sequence].tolist())
    notices = [*raw.notices, *said, *([notice] if notice else []), *clean.notices]
    bad = [*raw.bad, *(BadRow(i, raw.places[i], reason) for i, reason in clean.reasons.items())]
    refuse_target_called("sequence", target, where)
    columns: dict[str, Any] = {"sequence": clean.sequences}
    if bed.CLUSTER in raw.frame:
        columns[bed.CLUSTER] = raw.frame[bed.CLUSTER].tolist()
    if target is not None:
        classes = request.facts.classes if request.facts else ()
        bad += bad_targets(raw.frame[target], task, raw.places, comma=raw.comma, classes=classes)
        columns[target] = target_values(raw.frame[target], task, comma=raw.comma)
    if request.facts is None:
        bad += repeated_ids(raw)
        strands = [one_strand(sequence) for sequence in clean.sequences]
        notices += [*_copies_notice(clean.sequences, strands), *settle_repeats(columns, target, task, strands)]
    notices += keep_split_columns(columns, raw.frame, request, where=where, target=target, uses_found=False)
    context = {"sequence": raw.sequence, "id_column": raw.id_column, "is_training": request.facts is None}
    table = FrameTable(pd.DataFrame(columns), row_ids(raw), target, context)
    return Reading(table, task, target, tuple(one_a_row(bad)), tuple(notices))


def keys(table: FrameTable, task: str, request: Request, *, fast: bool) -> Keys:
    """A sequence, its copies and its other strand stay together, then what shares many k-mers with them.

    A column named with --group or --order, or one called "split", is used instead.
    """
    stratum = table.target().astype(str) if task == "classification" else None
    named = named_keys(table, request, stratum)
    if named is not None:
        return named
    strands = np.array([one_strand(sequence) for sequence in table.column("sequence")], object)
    distinct, code = np.unique(strands, return_inverse=True)
    found = _by_sequence(table, distinct, code, stratum, request, fast=fast)
    return _with_overlaps(found, table.column(bed.CLUSTER).to_numpy()) if bed.CLUSTER in table.frame.columns else found


def _by_sequence(
    table: FrameTable, distinct: np.ndarray, code: np.ndarray, stratum: Any, request: Request, *, fast: bool
) -> Keys:
    evidence = {
        "distinct_sequences": len(distinct),
        "other_strands": _num_other_strands(table.column("sequence").tolist()),
    }
    if "split" in table.frame.columns and request.target != "split":
        given = table.column("split").tolist()
        because = "the column 'split' says which row goes where"
        return Keys("given", because, given=given, group=code, stratum=stratum, evidence=evidence)
    num_bases = sum(map(len, distinct))
    if fast or num_bases > similarity.MOST_BASES:
        reason = "--fast" if fast else f"{num_bases:,} bases are too many"
        because = (
            "copies and reverse complements stay together; similar sequences were not looked for "
            f"({reason}): scores may be optimistic. --group COLUMN keeps chromosomes together"
        )
        return Keys("grouped", because, group=code, stratum=stratum, evidence={**evidence, "similarity": "skipped"})
    return _by_similarity(distinct.tolist(), code, stratum, evidence)


def _with_overlaps(keys: Keys, cluster: np.ndarray) -> Keys:
    """The keys with overlapping intervals of a genome in one group."""
    if keys.group is None:
        return keys
    because = f"{keys.because}; so do overlapping intervals (whole chromosomes: --group chrom)"
    return replace(keys, group=joined([keys.group, cluster]), because=because)


def profile(table: FrameTable, task: str, request: Request) -> Profile:
    """Lengths, and sequences that repeat on either strand."""
    sequences = table.column("sequence")
    strands = {one_strand(sequence) for sequence in sequences}
    lengths = {"bases": sequences.str.len().to_numpy()}
    return Profile(len(sequences) - len(strands), lengths=lengths, marks={"bases": (USUAL_LIMIT,)})


def likeness(table: FrameTable, these: np.ndarray, those: np.ndarray, request: Request) -> Likeness:
    """Shared k-mers on either strand. Raises UsageError for more bases than can be compared."""
    strands = np.array([one_strand(sequence) for sequence in table.column("sequence")], object)
    distinct, code = np.unique(strands, return_inverse=True)
    if (num_bases := sum(map(len, distinct))) > similarity.MOST_BASES:
        raise UsageError(f"{num_bases:,} bases are too many to compare; {similarity.MOST_BASES:,} are the most.")
    highest, position = highest_of(similarity.nearness(distinct.tolist())[code][:, code], these, those)
    same, place = equal_rows(code, these, those)
    measure = (
        f"share of the shorter one's {similarity.K}-mers that both have, on either strand; less than "
        f"{similarity.NEAR:.0%} counts as 0"
    )
    return Likeness(measure, similarity.NEAR, np.maximum(highest, same), np.where(same > 0, place, position))


def describe(train: FrameTable, task: str, request: Request) -> Facts:
    """Lengths and classes of the training rows."""
    lengths = train.column("sequence").str.len().to_numpy()
    target = train.target()
    classes = class_names(target, f"target {train.target_name!r}") if task == "classification" else ()
    sizes: dict[str, float] = {
        "longest": int(lengths.max()),
        "median_bases": float(np.median(lengths)),
        "total_bases": int(lengths.sum()),
        **{f"longer_than_{mark}": int((lengths > mark).sum()) for mark in LENGTH_MARKS},
    }
    if classes:
        sizes["largest_share"] = largest_share(target)
    schema = {"sequence": train.context["sequence"], "id_column": train.context["id_column"]}
    return Facts("genomics", task, train.target_name, len(train), classes, sizes, schema)


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Classes: ROC-AUC decides where there are two, as the field compares them; else accuracy, or macro-F1 where one class
    has over 80 % of the rows. Numbers: Spearman's rank correlation."""
    if facts.task != "classification":
        return regression_metrics(first="spearman")
    found = classification_metrics(facts.classes, imbalanced=facts.sizes["largest_share"] > IMBALANCED_SHARE)
    first = "auc" if len(facts.classes) == 2 else found[0].name
    return tuple(sorted(found, key=lambda metric: metric.name != first))


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """Majority or mean; then gapped k-mers of both strands with a kernel."""
    return trivial(facts.task), gapped_kmers(facts.task)


def _target(raw: Raw, request: Request, where: str) -> tuple[str | None, list[str]]:
    taken = {raw.sequence, raw.id_column, request.group, request.order, "split", None}
    if bed.CLUSTER in raw.frame:
        taken |= {*bed.STANDARD, bed.CLUSTER, "region"}
    left = [str(name) for name in raw.frame.columns if name not in taken]
    where = (request.labels or where) if request.target is not None else where
    advice = " FASTA: name a table with --labels FILE, or write '>id label=VALUE'."
    return named_or_only_target(raw.frame, request, left, where=where, what="sequences", advice=advice)


def _by_similarity(distinct: list[str], code: np.ndarray, stratum: np.ndarray | None, evidence: dict[str, Any]) -> Keys:
    near = similarity.nearness(distinct)
    group = similarity.groups(near)
    largest = int(np.bincount(group[code]).max())
    evidence |= {
        "k": similarity.K,
        "shared": similarity.NEAR,
        "families": len(np.unique(group)),
        "largest_group": largest,
    }
    if largest > len(code) / 2:
        because = (
            "copies and reverse complements stay together; most sequences are variants of one, so similarity cannot "
            "divide them"
        )
        return Keys("grouped", because, group=code, stratum=stratum, evidence=evidence)
    because = (
        f"copies, reverse complements and sequences that share {similarity.NEAR:.0%} of their {similarity.K}-mers on either "
        "strand stay together"
    )
    nearest = similarity.links(near)

    def links(these: np.ndarray, those: np.ndarray) -> np.ndarray:
        mine, back = np.unique(code[these], return_inverse=True)
        yours = np.unique(code[those])
        return np.where(np.isin(mine, yours), 1.0, nearest(mine, yours))[back]

    return Keys(
        *("grouped", because),
        group=group[code],
        stratum=stratum,
        links=links,
        near=similarity.NEAR,
        evidence=evidence,
    )


def _copies_notice(sequences: list[str], strands: list[str]) -> list[str]:
    usable = [sequence for sequence in sequences if sequence]
    num_copies, num_pairs = len(usable) - len(set(usable)), _num_other_strands(usable)
    said = [
        *([f"{counted(num_copies, 'row')} repeat an earlier sequence"] if num_copies else []),
        *([f"{counted(num_pairs, 'pair')} of a sequence and its reverse complement"] if num_pairs else []),
    ]
    return [f"{' and '.join(said)}: copies stay on one side of the split"] if said else []


def _num_other_strands(sequences: list[str]) -> int:
    """Distinct pairs of a sequence and its reverse complement (palindromes are their own, and no pair)."""
    distinct = {sequence for sequence in sequences if sequence}
    return len(distinct) - len({one_strand(sequence) for sequence in distinct})
