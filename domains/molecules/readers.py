"""Files and frames of molecules as a frame with a column of SMILES; what they mean is decided in `chemistry`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rdkit import Chem, rdBase

from domains.contract import BadRow, Request
from domains.molecules import structures
from domains.molecules.chemistry import MOST_ATOMS, Parsed, described, parsed
from domains.molecules.generated import TASK as GENERATION
from domains.shared.cells import Distinct
from domains.shared.delimited import as_utf8
from domains.shared.frames import FrameReading, choose_column, file_bytes, read_frame, refuse_missing_header
from domains.shared.roles import id_texts
from trainers.errors import DataError

SMILES_NAMES = ("smiles", "canonical_smiles", "isomeric_smiles", "smi", "mol", "molecule", "structure", "drug")
ID_NAMES = ("id", "name", "mol_id", "molecule_id", "compound_id", "compound id", "chembl_id", "cas")
_MOSTLY, _SAMPLED_ROWS, _SHORTEST_MEAN = 0.9, 100, 4
_MOST_LINES = 10 * MOST_ATOMS  # of a structure: a line an atom, hydrogens too, and a line a bond
_PROPERTY = re.compile(r"^>.*?<([^>]*)>.*$")
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
_ATOMS_FROM, _COORDINATE_WIDTH = 4, 10
"""Of V2000: the line of the first atom, and letters of each of its three coordinates."""


@dataclass
class Raw:
    """frame: rows in file order.   molecules: what each row holds.   smiles, id_column: columns of the frame (None in
    an SDF, and where rows are counted).   places: where each row stands.   comma: decimal commas."""

    frame: pd.DataFrame
    molecules: Sequence[Parsed]
    smiles: str | None
    id_column: str | None
    places: Sequence[str]
    bad: list[BadRow] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    comma: bool = False


def read_raw(data: Any, request: Request) -> Raw:
    """Read SDF (also packed, .sdf.gz), .smi, CSV, TSV, JSON lines, Parquet or a DataFrame.

    Raises DataError where there is no column of SMILES, or several candidates.
    """
    if request.labels is not None:
        raise DataError(f"--labels {request.labels}: only for FASTA files. Put the labels into a column of {data}.")
    wanted = request.columns.get("smiles") or (request.facts.schema["smiles"] if request.facts else None)
    if isinstance(data, str | Path):
        kind = Path(str(data).lower().removesuffix(".gz")).suffix
        if kind in (".sdf", ".sd", ".mol"):
            return _from_sdf(Path(data), request)
        if kind in (".smi", ".ism"):
            return _from_smi(Path(data), wanted or SMILES_NAMES[0], request.encoding)
    texts = [*_in_any_case([*([wanted] if wanted else []), *SMILES_NAMES]), *id_texts(request, ID_NAMES)]
    reading = read_frame(data, text_columns=texts, encoding=request.encoding)
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(data)
    if request.facts is not None and request.facts.task == GENERATION:
        reading = _with_places_to_write(reading, wanted)
    smiles = _smiles_column(reading.frame, wanted, request, where)
    if smiles not in texts:  # found by its content: read again byte for byte
        reading = read_frame(data, text_columns=[*texts, smiles], encoding=request.encoding)
    bad = [BadRow(i, reading.places[i], reason) for i, reason in reading.ragged]
    ids = id_column(reading.frame, request, smiles)
    # Each distinct text is parsed once: screens repeat molecules.
    texts_of_rows = reading.frame[smiles].fillna("").astype(str).tolist()
    known = {text: parsed(text) for text in dict.fromkeys(texts_of_rows)}
    if request.facts is not None and request.facts.task == GENERATION:
        known[""] = Parsed("")  # nothing to be found likely, and a place for what is written
    molecules = [known[text] for text in texts_of_rows]
    return Raw(reading.frame, molecules, smiles, ids, reading.places, bad, list(reading.notices), reading.comma)


def _with_places_to_write(reading: FrameReading, wanted: str | None) -> FrameReading:
    """Rows without a column of SMILES are places for molecules that are to be written."""
    name = wanted or SMILES_NAMES[0]
    if name in reading.frame.columns:
        return reading
    return reading._replace(frame=reading.frame.assign(**{name: ""}))


def _in_any_case(names: Sequence[str]) -> list[str]:
    return [case for name in names for case in dict.fromkeys((name, name.capitalize(), name.upper()))]


def _smiles_column(frame: pd.DataFrame, wanted: str | None, request: Request, where: str) -> str:
    if wanted is not None and (wanted in frame.columns or "smiles" in request.columns):
        return choose_column(frame, wanted, where, "--column smiles=NAME")
    targets = set((request.target or "").split(",")) | {request.target, request.id_column, request.group}
    by_name = {str(name).strip().lower(): str(name) for name in reversed(list(frame.columns)) if name not in targets}
    named = [by_name[name] for name in SMILES_NAMES if name in by_name]
    found = [name for name in named if _holds_smiles(frame[name])] or named
    found = found or [str(name) for name in frame.columns if name not in targets and _holds_smiles(frame[name])]
    if not found:
        known = ", ".join(map(str, frame.columns))
        raise DataError(
            f"{where}: no column holds SMILES. Columns: {known}. Call one 'smiles', or say --column smiles=NAME."
        )
    if len(found) > 1 and found[0] not in named:
        raise DataError(f"{where}: columns {', '.join(found)} all hold SMILES. Choose one with --column smiles=NAME.")
    if found[0] not in named and not parsed(found[0]).reason:
        refuse_missing_header(where, found[0], "smiles")
    return found[0]


def _holds_smiles(values: pd.Series) -> bool:
    if pd.api.types.is_numeric_dtype(values.dtype) or pd.api.types.is_datetime64_any_dtype(values.dtype):
        return False
    cells = [str(cell).strip() for cell in values.dropna().unique()[:_SAMPLED_ROWS] if str(cell).strip()]
    # "C", "N" and "CC" are molecules and names of classes alike.
    if not cells or sum(map(len, cells)) < _SHORTEST_MEAN * len(cells):
        return False
    return sum(not parsed(cell).reason for cell in cells) >= _MOSTLY * len(cells)


def id_column(frame: pd.DataFrame, request: Request, smiles: str | None) -> str | None:
    """The column that was named, or one with a usual name whose values are all there and distinct."""
    if request.id_column and (request.facts is None or request.id_column in frame.columns):
        return choose_column(frame, request.id_column, "", "--id-column")
    by_name = {str(name).strip().lower(): str(name) for name in reversed(list(frame.columns))}
    for name in (by_name[name] for name in ID_NAMES if name in by_name):
        values = frame[name]
        is_target = name in (request.target or "").split(",") or name == request.target
        if name not in (smiles, request.group) and not is_target and values.is_unique and _all_there(values):
            return name
    return None


def row_ids(raw: Raw) -> np.ndarray:
    """(rows,) the id of each row, or its number where it has none."""
    numbers = np.array([str(i) for i in range(len(raw.frame))], dtype=object)
    if raw.id_column is None:
        return numbers
    names = raw.frame[raw.id_column]
    has_one = (names.notna() & (names.astype(str).str.strip() != "")).to_numpy()
    return np.where(has_one, names.astype(str).to_numpy(object), numbers)


def _all_there(values: pd.Series) -> bool:
    return bool(values.notna().all() and (values.astype(str).str.strip() != "").all())


def _from_sdf(path: Path, request: Request) -> Raw:
    """Records of an SDF in order; properties are columns, as numbers where all are, and the first line is the name."""
    if not path.is_file():
        raise DataError(f"{path}: no such file.")
    utf8, notices = as_utf8(file_bytes(path), path.name, request.encoding)
    found = _records(utf8.decode().splitlines())
    if not found:
        raise DataError(f"{path}: there is no molecule in it.")
    molecules = [Parsed("", fault) if (fault := _fault(block, rest)) else _molecule(block) for _, block, rest in found]
    records = [(line, block, _properties(rest)[0]) for line, block, rest in found]
    names = list(dict.fromkeys(name for _, _, properties in records for name in properties))
    columns: dict[str, Any] = {"name": [block[0].strip() or None if block else None for _, block, _ in records]}
    import pyarrow as pa

    for name in names:
        cells = [properties.get(name) for _, _, properties in records]
        columns[name], _ = Distinct.of(pa.array(cells, pa.string())).column(False)
    frame = pd.DataFrame(columns)
    places = [f"{path.name} line {line} (molecule {i + 1})" for i, (line, _, _) in enumerate(records)]
    return Raw(frame, molecules, None, id_column(frame, request, None), places, notices=notices)


def _from_smi(path: Path, smiles: str, encoding: str | None) -> Raw:
    """Daylight's list of SMILES: a line a molecule, its name after a space; a header such as `smiles id` is no molecule."""
    if not path.is_file():
        raise DataError(f"{path}: no such file.")
    utf8, notices = as_utf8(file_bytes(path), path.name, encoding)
    lines = [(number, line.split(maxsplit=1)) for number, line in enumerate(utf8.decode().rstrip().splitlines(), 1)]
    if lines and lines[0][1] and lines[0][1][0].lower() in SMILES_NAMES and parsed(lines[0][1][0]).reason:
        lines = lines[1:]
    if not lines:
        raise DataError(f"{path}: there is no molecule in it.")
    texts = [words[0] if words else "" for _, words in lines]
    names = [words[1].strip() if len(words) > 1 else None for _, words in lines]
    frame = pd.DataFrame({smiles: texts, "name": pd.Series(names, dtype=object)})
    places = [f"{path.name} line {number}" for number, _ in lines]
    named = frame["name"].dropna()
    ids = "name" if len(named) and named.is_unique else None
    return Raw(frame, [parsed(text) for text in texts], smiles, ids, places, notices=notices)


def _records(lines: Sequence[str]) -> list[tuple[int, list[str], list[str]]]:
    """(first line, lines of the structure, lines of the properties) of each record."""
    found, start = [], 0
    for at, line in enumerate([*lines, "$$$$"]):
        if line.startswith("$$$$"):
            record = list(lines[start:at])
            if at < len(lines) or any(each.strip() for each in record):  # an empty record is a row, too
                end = next((i + 1 for i, line in enumerate(record) if line.startswith("M  END")), len(record))
                found.append((start + 1, record[:end], record[end:]))
            start = at + 1
    return found


def _properties(lines: Sequence[str]) -> tuple[dict[str, str], str]:
    """Values by name, and a name that comes twice with another value ("" where none does)."""
    properties: dict[str, str] = {}
    values: list[tuple[str, list[str]]] = []
    name: str | None = None
    for line in lines:
        heading = _PROPERTY.match(line)
        if heading:
            name = heading.group(1)
            values.append((name, []))
        elif name is not None and line.strip():
            values[-1][1].append(line)
        elif not line.strip():
            name = None
    twice = ""
    for name, parts in values:
        value = "\n".join(parts).strip()
        twice = name if properties.get(name, value) != value else twice
        properties[name] = value
    return properties, twice


def _fault(block: Sequence[str], rest: Sequence[str]) -> str:
    """What RDKit would read in silence: two molecules as one, a value of two, a coordinate that is no number as 0."""
    if not any(line.strip() for line in block):
        return "an empty record"
    if any(line.startswith("M  END") for line in rest):
        return "two molecules in one record: the line '$$$$' between them is missing"
    if twice := _properties(rest)[1]:
        return f"two values of the property {twice!r}"
    for number, fields in enumerate(_coordinates(block), 1):
        if wrong := next((field for field in fields if not _NUMBER.fullmatch(field)), None):
            return f"atom {number}: the coordinate {wrong.strip()!r} is no decimal number"
    return ""


def _coordinates(block: Sequence[str]) -> Iterator[Sequence[str]]:
    """The three texts of each atom; of a block of another form none, which RDKit judges."""
    counts = block[_ATOMS_FROM - 1] if len(block) >= _ATOMS_FROM else ""
    if "V3000" in counts:
        inside = False
        for before, line in pairwise(block):
            inside = (inside or before.startswith("M  V30 BEGIN ATOM")) and not line.startswith("M  V30 END ATOM")
            fields = line.split()
            if inside and len(fields) >= 7 and not before.endswith("-"):  # no line that goes on
                yield fields[4:7]
    elif counts[:3].strip().isdigit():
        width = _COORDINATE_WIDTH
        for line in block[_ATOMS_FROM : _ATOMS_FROM + int(counts[:3])]:
            yield [line[at : at + width] for at in (0, width, 2 * width)]


def _molecule(block: list[str]) -> Parsed:
    """RDKit takes stereo from the positions where they are three-dimensional, else from the wedges."""
    text = "\n".join(block)
    if len(block) > _MOST_LINES:
        return Parsed("", f"a structure of {len(block):,} lines, more than {_MOST_LINES:,}: no small molecule")
    with rdBase.BlockLogs():
        mol = Chem.MolFromMolBlock(text)
    if mol is None:
        return Parsed("", "a structure that RDKit does not accept")
    try:
        return replace(described(mol), structure=structures.of_block(text))
    except ValueError as error:
        return Parsed("", str(error))
