"""Files and frames of biological sequences as a frame with a sequence column: FASTA, CSV, TSV, Parquet, DataFrame.

What the letters mean is decided by the data type, which says with a `Kind` how to recognise a column of its sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Doubt, Facts, Request
from domains.shared.cells import MISSING
from domains.shared.fasta import Record, header_values, is_fasta, read_fasta, short_ids
from domains.shared.frames import choose_column, read_frame, refuse_missing_header
from trainers.errors import DataError

_MOSTLY, _SAMPLED_ROWS, _LONGEST_WORD = 0.9, 200, 12


@dataclass
class Cleaned:
    """sequences: one a row, as a model takes it, "" where unusable.   reasons: why, by position.   notices: changes."""

    sequences: list[str]
    reasons: dict[int, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """How a data type names and recognises its sequences.

    what: "protein".   names, id_names: usual column names in lower case.   looks_right: whether a cell may be one.
    values_in_headers: whether ">s1 label=1" in FASTA gives a column `label`.
    readers: further formats, as (whether a path is one, its reader), and the name of the format.
    """

    what: str
    names: tuple[str, ...]
    id_names: tuple[str, ...]
    looks_right: Callable[[str], bool]
    values_in_headers: bool = False
    readers: tuple[tuple[Callable[[Path], bool], Callable[[Path], list[Record]], str], ...] = ()


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


def read_raw(data: Any, request: Request, kind: Kind, *, as_text: Sequence[str] = ()) -> Raw:
    """Read FASTA (with labels joined where asked), CSV, TSV, Parquet or a DataFrame.

    as_text: columns that are kept letter for letter, whatever they look like.
    Raises DataError where there is no sequence column, or several candidates.
    """
    for is_one, reader, name in ((is_fasta, read_fasta, "FASTA"), *kind.readers):
        if isinstance(data, str | Path) and is_one(Path(data)):
            return _from_records(Path(data), reader(Path(data)), name, request, kind, as_text)
    if request.labels is not None:
        raise DataError(
            f"--labels {request.labels}: only for files of sequences (FASTA). Put the labels into a column of {data}."
        )
    return _from_table(data, request, kind, as_text)


def _from_table(data: Any, request: Request, kind: Kind, as_text: Sequence[str]) -> Raw:
    wanted = request.columns.get("sequence") or (request.facts.schema["sequence"] if request.facts else None)
    texts = [
        *as_text,
        *([wanted] if wanted else []),
        *kind.names,
        *kind.id_names,
        *([request.id_column] if request.id_column else []),
    ]
    reading = read_frame(data, text_columns=_in_any_case(texts), encoding=request.encoding)
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(data)
    sequence = sequence_column(reading.frame, wanted, request, where, kind)
    if sequence not in _in_any_case(texts):  # found by its letters: read again, so that "NA" stays two residues
        reading = read_frame(data, text_columns=[*_in_any_case(texts), sequence], encoding=request.encoding)
    bad = [BadRow(i, reading.places[i], reason) for i, reason in reading.ragged]
    ids = _id_column(reading.frame, request, sequence, where, kind.id_names)
    notices = [*reading.notices, *_marks(reading.frame[sequence], reading.places)]
    return Raw(reading.frame, sequence, ids, reading.places, bad, notices, reading.comma)


def _marks(sequences: pd.Series, places: Sequence[str]) -> list[Doubt]:
    """What to say of cells such as "NA" and "null", whose letters are residues or bases too."""
    found = np.flatnonzero(sequences.isin([mark for mark in MISSING if mark.isalpha()]))
    if not len(found):
        return []
    first = f"the first is {sequences.iloc[found[0]]!r} in {places[int(found[0])]}"
    return [
        Doubt(f"{len(found):,} sequences look like marks of a missing value and are read by their letters; {first}")
    ]


def _in_any_case(names: Sequence[str]) -> list[str]:
    return [case for name in names for case in dict.fromkeys((name, name.capitalize(), name.upper()))]


def sequence_column(frame: pd.DataFrame, wanted: str | None, request: Request, where: str, kind: Kind) -> str:
    """The column of sequences: the one that is `wanted`, one with a usual name, or the only one that holds any.

    Raises DataError where there is none, or several candidates.
    """
    if wanted is not None and (wanted in frame.columns or "sequence" in request.columns):
        return choose_column(frame, wanted, where, "columns={'sequence': NAME}")
    by_name = {str(name).lower(): str(name) for name in reversed(list(frame.columns)) if name != request.target}
    named = [by_name[name] for name in kind.names if name in by_name]
    found = [name for name in named if _holds_sequences(frame[name], kind)] or named
    found = found or [
        str(name) for name in frame.columns if name != request.target and _holds_sequences(frame[name], kind)
    ]
    if not found:
        known = ", ".join(map(str, frame.columns))
        raise DataError(f"{where}: no column holds {kind.what} sequences. Columns: {known}. Call one 'sequence'.")
    if len(found) > 1 and found[0] not in named:
        raise DataError(
            f"{where}: columns {', '.join(found)} all hold {kind.what} sequences. Call the right one 'sequence'."
        )
    name = found[0]
    # A word in capitals may spell a short peptide.
    if name not in named and len(name) >= _LONGEST_WORD and name.isupper() and kind.looks_right(name):
        refuse_missing_header(where, name, "sequence")
    return name


def _holds_sequences(values: pd.Series, kind: Kind) -> bool:
    if pd.api.types.is_numeric_dtype(values.dtype) or pd.api.types.is_datetime64_any_dtype(values.dtype):
        return False
    cells = [str(cell) for cell in values.dropna().head(_SAMPLED_ROWS)]
    return bool(cells) and sum(map(kind.looks_right, cells)) >= _MOSTLY * len(cells)


def _id_column(frame: pd.DataFrame, request: Request, sequence: str, where: str, id_names: Sequence[str]) -> str | None:
    if request.id_column and (request.facts is None or request.id_column in frame.columns):
        return choose_column(frame, request.id_column, where, "--id-column")
    by_name = {str(name).lower(): str(name) for name in reversed(list(frame.columns))}
    found = next((by_name[name] for name in id_names if name in by_name), None)
    if found is None or found in (sequence, request.target, request.group) or not _is_id(frame[found]):
        return None
    return found


def _is_id(values: pd.Series) -> bool:
    return bool(values.is_unique and values.notna().all() and (values.astype(str).str.strip() != "").all())


def _from_records(
    path: Path, records: Sequence[Record], form: str, request: Request, kind: Kind, as_text: Sequence[str]
) -> Raw:
    full = [record.name for record in records]
    frame = pd.DataFrame({"id": short_ids(full), "sequence": [record.text for record in records]})
    values = header_values(records) if kind.values_in_headers and request.labels is None else {}
    for name, column in values.items():
        if name not in frame:
            frame[name] = pd.to_numeric(pd.Series(column)) if _are_numbers(column) else column
    places = [f"{path.name} line {record.line} ({record.name or 'no name'})" for record in records]
    raw = Raw(frame, "sequence", "id", places)
    if request.labels is not None:
        _join_labels(raw, full, request, kind, as_text)
    elif request.target is not None and request.target not in frame:
        where = " (nor 'NAME=VALUE' in every header)" if kind.values_in_headers else ""
        raise DataError(
            f"{path}: {form} carries no labels{where}, so there is no column {request.target!r}. Name a table with a "
            "column of ids and the target: --labels FILE."
        )
    return raw


def _are_numbers(cells: Sequence[str]) -> bool:
    return bool(pd.to_numeric(pd.Series(cells), errors="coerce").notna().all())


def _join_labels(raw: Raw, full: Sequence[str], request: Request, kind: Kind, as_text: Sequence[str]) -> None:
    """Add the columns of the file of labels to the frame. full: the ids of the records before they were shortened."""
    path, named = Path(str(request.labels)), [request.id_column] if request.id_column else []
    reading = read_frame(path, text_columns=_in_any_case([*kind.id_names, *named, *as_text]), encoding=request.encoding)
    labels, where = reading.frame, str(path)
    key = _label_key(labels, request, where, kind.id_names)
    names = labels[key].astype(str).str.strip()
    twice = names[names.duplicated()]
    if len(twice):
        raise DataError(
            f"{where}: id {twice.iloc[0]!r} has more than one label ({len(twice)} ids repeat). Keep one each."
        )
    rows = _matched(raw.frame["id"].tolist(), full, names.tolist())
    if all(row is None for row in rows):
        first = ", ".join(map(repr, raw.frame["id"].head(3)))
        raise DataError(f"{where}: no id in column {key!r} is one of the FASTA file's ({first}, ...).{_faults(raw)}")
    chosen = labels.drop(columns=[key, *(name for name in ("sequence",) if name in labels.columns)])
    joined = chosen.reindex([-1 if row is None else row for row in rows]).reset_index(drop=True)
    raw.frame = pd.concat([raw.frame, joined], axis=1)
    raw.comma, spare = reading.comma, len(labels) - len({row for row in rows if row is not None})
    raw.notices += [
        *reading.notices,
        *([Doubt(f"{path.name}: {spare:,} labels belong to no sequence")] if spare else []),
    ]
    for i, row in enumerate(rows):
        if row is None:
            raw.bad.append(BadRow(i, raw.places[i], f"no label for id {raw.frame['id'].iloc[i]!r} in {path.name}"))


def _matched(short: list[str], full: Sequence[str], names: list[str]) -> list[int | None]:
    """The place of each record's id among `names`. Ids may be shortened in either file ("sp|P12345|NAME" or "P12345"), so
    that way of reading both is taken by which most records have a label."""
    found = []
    for ids, known in ((short, names), (full, names), (short, short_ids(names))):
        position = {name: i for i, name in enumerate(known)}
        found.append([position.get(name) for name in ids])
    return min(found, key=lambda rows: rows.count(None))


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


def _label_key(labels: pd.DataFrame, request: Request, where: str, id_names: Sequence[str]) -> str:
    if request.id_column:
        return choose_column(labels, request.id_column, where, "--id-column")
    by_name = {str(name).lower(): str(name) for name in labels.columns}
    found = next((by_name[name] for name in id_names if name in by_name), None)
    return found or next(str(name) for name in labels.columns if name != request.target)


def row_ids(raw: Raw) -> np.ndarray:
    """(rows,) the id of each row, or its number."""
    if raw.id_column is None:
        return np.array([str(i) for i in range(len(raw.frame))], dtype=object)
    return raw.frame[raw.id_column].astype(str).to_numpy(object)


def repeated_ids(raw: Raw) -> list[BadRow]:
    """Rows whose id occurs before."""
    if raw.id_column is None:
        return []
    first: dict[str, int] = {}
    bad = []
    for i, name in enumerate(raw.frame[raw.id_column].astype(str)):
        if name in first:
            bad.append(BadRow(i, raw.places[i], f"id {name!r} occurs before, at {raw.places[first[name]]}"))
        first.setdefault(name, i)
    return bad


def settle_repeats(
    columns: dict[str, Any], target: str | None, task: str, same: Sequence[str], noun: str = "sequence"
) -> list[str]:
    """Give rows of one sequence one number, the mean of theirs; count those whose classes differ.

    same: (rows,) equal for rows of one sequence, "" where there is none.   columns[target] may be changed.
    noun: what such rows have in common.
    """
    if target is None:
        return []
    rows = pd.DataFrame({"sequence": np.asarray(same, object), "y": columns[target]})
    rows = rows[(rows["sequence"] != "") & rows["y"].notna()]
    groups = rows.groupby("sequence", sort=False)["y"]
    differ = groups.transform("nunique") > 1
    if not differ.any():
        return []
    num_rows, num_sequences = int(differ.sum()), rows.loc[differ, "sequence"].nunique()
    what = f"{num_rows:,} rows hold {counted(num_sequences, noun)} with differing values of {target!r}"
    if task == "classification":
        return [Doubt(f"{what}: they stay together in one part, and cannot all be predicted right")]
    columns[target][differ[differ].index] = groups.transform("mean")[differ]
    return [Doubt(f"{what}: each carries the mean of its {noun}")]


def counted(count: int, noun: str) -> str:
    """A number with its noun: "1 sequence", "1,200 sequences"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def cropped_notes(facts: Facts, most: int, limit: str, fate: str, option: str) -> list[str]:
    """What a plan says of training sequences longer than `most` letters, if there are any.

    limit: `most` in words ("1022 residues").   fate: what becomes of them ("are cropped").   option: what raises it.
    """
    longest = facts.sizes["longest"]
    if longest <= most:
        return []
    known = facts.sizes.get(f"longer_than_{most}")
    count = f"{known:,.0f}" if known is not None else "some"
    return [
        f"{count} of {facts.num_rows:,} training sequences are longer than {limit} and {fate}; the longest has "
        f"{longest:,.0f} ({option})"
    ]
