"""Files and frames of proteins as a frame with a sequence column; what the letters mean is decided in `residues`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Request
from domains.proteins.fasta import is_fasta, read_fasta, short_ids
from domains.proteins.residues import looks_like_protein
from domains.shared.frames import choose_column, read_frame
from trainers.errors import DataError

SEQUENCE_NAMES = (
    *("sequence", "seq", "protein_sequence", "aa_sequence", "aa_seq", "amino_acid_sequence", "mutated_sequence"),
    *("protein", "aa", "peptide", "primary", "sequences", "residues"),
)
ID_NAMES = ("id", "name", "accession", "protein_id", "identifier", "entry", "mutant")
_MOSTLY, _SAMPLED_ROWS = 0.9, 200


@dataclass
class Raw:
    """frame: rows in file order.   sequence, id_column: columns of it (id_column None: rows are counted).
    places: where each row stands.   comma: decimal commas."""

    frame: pd.DataFrame
    sequence: str
    id_column: str | None
    places: Sequence[str]
    bad: list[BadRow] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    comma: bool = False


def read_raw(data: Any, request: Request) -> Raw:
    """Read FASTA (with labels joined where asked), CSV, TSV, Parquet or a DataFrame.

    Raises DataError where there is no sequence column, or several candidates.
    """
    if isinstance(data, str | Path) and is_fasta(Path(data)):
        return _from_fasta(Path(data), request)
    if request.labels is not None:
        raise DataError(f"--labels {request.labels}: only for FASTA files. Put the labels into a column of {data}.")
    return _from_table(data, request)


def _from_table(data: Any, request: Request) -> Raw:
    wanted = request.columns.get("sequence") or (request.facts.schema["sequence"] if request.facts else None)
    texts = [
        *([wanted] if wanted else []),
        *SEQUENCE_NAMES,
        *ID_NAMES,
        *([request.id_column] if request.id_column else []),
    ]
    reading = read_frame(data, text_columns=_in_any_case(texts), encoding=request.encoding)
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(data)
    sequence = _sequence_column(reading.frame, wanted, request, where)
    if sequence not in _in_any_case(texts):  # found by its letters: read again, so that "NA" stays two residues
        reading = read_frame(data, text_columns=[*_in_any_case(texts), sequence], encoding=request.encoding)
    bad = [BadRow(i, reading.places[i], reason) for i, reason in reading.ragged]
    ids = _id_column(reading.frame, request, sequence, where)
    return Raw(reading.frame, sequence, ids, reading.places, bad, list(reading.notices), reading.comma)


def _in_any_case(names: Sequence[str]) -> list[str]:
    return [case for name in names for case in dict.fromkeys((name, name.capitalize(), name.upper()))]


def _sequence_column(frame: pd.DataFrame, wanted: str | None, request: Request, where: str) -> str:
    if wanted is not None and (wanted in frame.columns or "sequence" in request.columns):
        return choose_column(frame, wanted, where, "columns={'sequence': NAME}")
    by_name = {str(name).lower(): str(name) for name in reversed(list(frame.columns)) if name != request.target}
    named = [by_name[name] for name in SEQUENCE_NAMES if name in by_name]
    found = [name for name in named if _holds_proteins(frame[name])] or named
    found = found or [str(name) for name in frame.columns if name != request.target and _holds_proteins(frame[name])]
    if not found:
        known = ", ".join(map(str, frame.columns))
        raise DataError(f"{where}: no column holds protein sequences. Columns: {known}. Call one 'sequence'.")
    if len(found) > 1 and found[0] not in named:
        raise DataError(
            f"{where}: columns {', '.join(found)} all hold protein sequences. Call the right one 'sequence'."
        )
    return found[0]


def _holds_proteins(values: pd.Series) -> bool:
    if pd.api.types.is_numeric_dtype(values.dtype) or pd.api.types.is_datetime64_any_dtype(values.dtype):
        return False
    cells = [str(cell) for cell in values.dropna().head(_SAMPLED_ROWS)]
    return bool(cells) and sum(map(looks_like_protein, cells)) >= _MOSTLY * len(cells)


def _id_column(frame: pd.DataFrame, request: Request, sequence: str, where: str) -> str | None:
    if request.id_column and (request.facts is None or request.id_column in frame.columns):
        return choose_column(frame, request.id_column, where, "--id-column")
    by_name = {str(name).lower(): str(name) for name in reversed(list(frame.columns))}
    found = next((by_name[name] for name in ID_NAMES if name in by_name), None)
    if found is None or found in (sequence, request.target, request.group) or not _is_id(frame[found]):
        return None
    return found


def _is_id(values: pd.Series) -> bool:
    return bool(values.is_unique and values.notna().all() and (values.astype(str).str.strip() != "").all())


def _from_fasta(path: Path, request: Request) -> Raw:
    records = read_fasta(path)
    frame = pd.DataFrame({"id": short_ids([record.name for record in records]), "sequence": [r.text for r in records]})
    places = [f"{path.name} line {record.line} ({record.name or 'no name'})" for record in records]
    raw = Raw(frame, "sequence", "id", places)
    if request.labels is not None:
        _join_labels(raw, Path(request.labels), request)
    elif request.target is not None:
        raise DataError(
            f"{path}: FASTA carries no labels, so there is no column {request.target!r}. Name a table with a column of "
            "ids and the target: --labels FILE."
        )
    return raw


def _join_labels(raw: Raw, path: Path, request: Request) -> None:
    reading = read_frame(
        path,
        text_columns=_in_any_case([*ID_NAMES, *([request.id_column] if request.id_column else [])]),
        encoding=request.encoding,
    )
    labels, where = reading.frame, str(path)
    key = _label_key(labels, request, where)
    names = labels[key].astype(str).str.strip()
    twice = names[names.duplicated()]
    if len(twice):
        raise DataError(
            f"{where}: id {twice.iloc[0]!r} has more than one label ({len(twice)} ids repeat). Keep one each."
        )
    position = {name: i for i, name in enumerate(names)}
    rows = [position.get(name) for name in raw.frame["id"]]
    if all(row is None for row in rows):
        first = ", ".join(map(repr, raw.frame["id"].head(3)))
        raise DataError(f"{where}: no id in column {key!r} is one of the FASTA file's ({first}, ...).{_faults(raw)}")
    chosen = labels.drop(columns=[key, *(name for name in ("sequence",) if name in labels.columns)])
    joined = chosen.reindex([-1 if row is None else row for row in rows]).reset_index(drop=True)
    raw.frame = pd.concat([raw.frame, joined], axis=1)
    raw.comma, spare = reading.comma, len(labels) - len({row for row in rows if row is not None})
    raw.notices += [*reading.notices, *([f"{path.name}: {spare:,} labels belong to no sequence"] if spare else [])]
    for i, row in enumerate(rows):
        if row is None:
            raw.bad.append(BadRow(i, raw.places[i], f"no label for id {raw.frame['id'].iloc[i]!r} in {path.name}"))


def _faults(raw: Raw) -> str:
    """What else is wrong with the records, in words."""
    twice = raw.frame["id"].duplicated()
    found = [
        f"{place}: id {name!r} occurs before"
        for name, place in zip(raw.frame["id"][twice], np.array(raw.places)[twice], strict=True)
    ]
    found += [
        f"{place}: no sequence" for text, place in zip(raw.frame["sequence"], raw.places, strict=True) if not text
    ]
    return f" Also {'; '.join(found)}." if found else ""


def _label_key(labels: pd.DataFrame, request: Request, where: str) -> str:
    if request.id_column:
        return choose_column(labels, request.id_column, where, "--id-column")
    by_name = {str(name).lower(): str(name) for name in labels.columns}
    found = next((by_name[name] for name in ID_NAMES if name in by_name), None)
    return found or next(str(name) for name in labels.columns if name != request.target)
