"""Variants whose effect is asked for without any training: see `domains.contract.Domain`.

A row is a mutant by name ("A42G:K3R"), by its whole sequence, or both. In the table the columns are always "mutant",
"sequence" and "wild_type", each "" where the file has none; measured effects are the target, NaN where nobody measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Baseline, Facts, Keys, Metric, Reading, Request
from domains.metrics import regression_metrics
from domains.proteins import changes, labelled
from domains.proteins.mutants import aligned_mutants
from domains.shared.fasta import is_fasta, read_fasta, short_ids
from domains.shared.frames import FrameTable, choose_column, read_frame
from domains.shared.proteins.residues import cleaned
from domains.shared.roles import one_a_row
from domains.shared.sequences import Raw, repeated_ids, row_ids
from domains.shared.targets import bad_targets, target_values
from trainers.errors import DataError

TASK, UNMEASURED = "variant-effect", "effect"
NAMES = {
    "mutant": ("mutant", "mutants", "mutation", "mutations", "variant", "variants"),
    "wild_type": ("wild_type", "wildtype", "wt", "wt_sequence", "wild_type_sequence", "target_seq"),
    "sequence": labelled.KIND.names,
}
IDS = ("id", "name", "accession", "identifier")


def read(data: Any, request: Request) -> Reading:
    """Read CSV, TSV, Parquet, a DataFrame or FASTA (whole sequences), every row in order.

    The target may be absent: then nothing is scored. Raises DataError where there is neither a mutant nor a sequence.
    """
    raw, columns, notices = _columns(data, request)
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(data)
    clean = {name: cleaned(columns[name]) if any(columns[name]) else None for name in ("sequence", "wild_type")}
    bad = [*raw.bad, *_bad(columns, clean, raw)]
    table: dict[str, Any] = {"mutant": columns["mutant"]}
    table |= {name: found.sequences if found else columns[name] for name, found in clean.items()}
    target, said = _target(raw, request, where)
    notices += said
    if target is not None:
        bad += bad_targets(raw.frame[target], "regression", raw.places, comma=raw.comma)
        table[target] = target_values(raw.frame[target], "regression", comma=raw.comma)
    elif request.facts is None:
        target = UNMEASURED
        table[target] = np.full(len(raw.frame), np.nan)
    if request.order is not None and request.facts is None:
        raise DataError(f"--order {request.order}: nothing is trained here, so no rows come first. Leave it out.")
    if request.group and request.group in raw.frame:
        table[request.group] = raw.frame[request.group]
    if request.facts is None:
        bad += repeated_ids(raw)
    context = {"id_column": raw.id_column}
    return Reading(
        FrameTable(pd.DataFrame(table), row_ids(raw), target, context),
        TASK,
        target,
        tuple(one_a_row(bad)),
        tuple(notices),
    )


def keys(table: FrameTable, task: str, request: Request, *, fast: bool) -> Keys:
    """Variants of the same position stay together: nothing is trained, but intervals resample what belongs together."""
    if request.group and request.group in table.frame.columns:
        group = table.column(request.group).astype(str).to_numpy()
        return Keys("grouped", f"column {request.group!r} was named with --group", group=group)
    named, sequences = table.column("mutant").tolist(), table.column("sequence").tolist()
    variants = aligned_mutants(sequences) if all(sequences) else None
    if variants is not None:
        first = np.where(variants.differs.any(axis=1), variants.differs.argmax(axis=1), -1)
    elif all(named):
        first = np.array([min((change.at for change in changes.parsed(name)), default=-1) for name in named])
    else:
        first = np.arange(len(table))
    return Keys("grouped", "nothing is trained; variants of the same position stay together", group=first)


def describe(train: FrameTable, task: str, request: Request) -> Facts:
    """How long the proteins are, as far as the rows say."""
    lengths = [int(train.column(name).str.len().max()) for name in ("sequence", "wild_type")]
    named = [change.at + 1 for name in train.column("mutant") if name for change in changes.parsed(name)]
    longest = max(*lengths, *named, 1)
    sizes = {"longest": longest, "total_residues": longest * len(train)}
    return Facts("proteins", TASK, train.target_name, len(train), (), sizes, {"id_column": train.context["id_column"]})


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Spearman's rank correlation: likelihood ratios have no unit in common with measurements."""
    return (regression_metrics(first="spearman")[0],)


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """None here: rivals need the wild type, which the recipe knows."""
    return ()


def _columns(data: Any, request: Request) -> tuple[Raw, dict[str, list[str]], list[str]]:
    """The rows, and for each purpose its texts, "" where there are none."""
    if isinstance(data, str | Path) and is_fasta(Path(data)):
        records = read_fasta(Path(data))
        frame = pd.DataFrame(
            {"id": short_ids([each.name for each in records]), "sequence": [each.text for each in records]}
        )
        raw = Raw(frame, "sequence", "id", [f"{Path(data).name} line {each.line}" for each in records])
        return (
            raw,
            {"mutant": [""] * len(frame), "sequence": frame["sequence"].tolist(), "wild_type": [""] * len(frame)},
            [],
        )
    usual = [name for names in NAMES.values() for name in names]
    texts = [*usual, *map(str.capitalize, usual), *map(str.upper, usual), *request.columns.values()]
    reading = read_frame(data, text_columns=[*texts, *([request.id_column] if request.id_column else [])])
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(data)
    found = {purpose: _named(reading.frame, purpose, request, where) for purpose in NAMES}
    if found["mutant"] is None and found["sequence"] is None:
        known = ", ".join(map(str, reading.frame.columns))
        raise DataError(
            f"{where}: no column of mutants (A42G) nor of whole sequences. Columns: {known}. Name one with "
            "--column mutant=NAME or --column sequence=NAME."
        )
    notices, frame = list(reading.notices), reading.frame
    columns = {
        purpose: [""] * len(frame) if name is None else frame[name].fillna("").astype(str).str.strip().tolist()
        for purpose, name in found.items()
    }
    if found["mutant"] and found["wild_type"] is None and len(frame) > 1 and len(set(columns["sequence"])) == 1:
        if columns["sequence"][0]:
            notices.append(f"column {found['sequence']!r} is the same in all rows and is read as the wild type")
        columns["wild_type"], columns["sequence"] = columns["sequence"], [""] * len(frame)
    ids = request.id_column or next((name for name in frame.columns if str(name).lower() in IDS), None)
    if ids is not None and request.id_column is None and not frame[ids].is_unique:
        ids = None
    bad = [BadRow(i, reading.places[i], reason) for i, reason in reading.ragged]
    return Raw(frame, found["sequence"] or "", ids, reading.places, bad, [], reading.comma), columns, notices


def _named(frame: pd.DataFrame, purpose: str, request: Request, where: str) -> str | None:
    wanted = request.columns.get(purpose)
    if wanted is not None:
        return choose_column(frame, wanted, where, f"--column {purpose}=NAME")
    by_name = {str(name).lower(): str(name) for name in reversed(list(frame.columns)) if name != request.target}
    return next((by_name[name] for name in NAMES[purpose] if name in by_name), None)


def _bad(columns: dict[str, list[str]], clean: dict[str, Any], raw: Raw) -> list[BadRow]:
    bad = []
    for i, (mutant, sequence) in enumerate(zip(columns["mutant"], columns["sequence"], strict=True)):
        reasons = [
            clean[name].reasons[i] for name in clean if clean[name] and columns[name][i] and i in clean[name].reasons
        ]
        if not mutant and not sequence:
            reasons.append("neither a mutant nor a sequence")
        elif mutant and not sequence:
            wild = clean["wild_type"].sequences[i] if clean["wild_type"] else ""
            try:
                found = changes.parsed(mutant)
                if wild:
                    changes.checked(found, wild)
            except ValueError as error:
                reasons.append(str(error))
        bad += [BadRow(i, raw.places[i], reason) for reason in reasons]
    return bad


def _target(raw: Raw, request: Request, where: str) -> tuple[str | None, list[str]]:
    """The column of measured effects, None where there is none."""
    if request.target is not None and not (request.facts is not None and request.target == UNMEASURED):
        return choose_column(raw.frame, request.target, where, "--target"), []
    if request.facts is None:
        return None, ["no --target: effects are predicted, and nothing is scored"]
    return None, []
