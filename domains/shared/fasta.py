"""FASTA files in the dialects people have: any line ends, wrapped or blank lines, comments, gzip, no final newline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from domains.shared.frames import unpacked
from trainers.errors import DataError, did_you_mean

SUFFIXES = (".fasta", ".fa", ".faa", ".fas", ".fsa", ".fna", ".ffn", ".mpfa", ".pep")
# NCBI's codes of databases (BLAST handbook, "FASTA defline format"): here the id proper follows the first bar.
_DATABASES = {"sp", "tr", "ref", "gb", "emb", "dbj", "gi", "pir", "prf", "lcl", "gnl", "pdb"}

_VALUE = re.compile(r"(\w+)=(\S+)")


@dataclass(frozen=True)
class Record:
    """line: of the header, counted from 1.   name: the first word of the header.   text: letters as in the file.
    about: the rest of the header."""

    name: str
    text: str
    line: int
    about: str = ""


def is_fasta(path: Path) -> bool:
    """Whether the name says FASTA."""
    names = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return names.suffix.lower() in SUFFIXES


def read_fasta(path: Path) -> list[Record]:
    """Every record in the order of the file, also empty ones.

    Raises DataError for a missing or empty file, one that is no text, and letters before the first header.
    """
    records: list[tuple[str, list[str], int]] = []
    for number, line in enumerate(plain_lines(path), start=1):
        words = line.strip()
        if not words or words.startswith(";"):
            continue
        if words.startswith(">"):
            records.append((words[1:].strip(), [], number))
        elif records:
            records[-1][1].append(words)
        else:
            raise DataError(f"{path} line {number}: {words[:30]!r} stands before the first header (a line with '>').")
    if not records:
        raise DataError(f"{path}: the file holds no record. Each needs a header line that starts with '>'.")
    return [_record(header, "".join(parts), line) for header, parts, line in records]


def header_values(records: Sequence[Record]) -> dict[str, list[str]]:
    """Columns from headers like ">s1 label=1 score=0.5": by name those values that every record has, in order."""
    found = [dict(_VALUE.findall(record.about)) for record in records]
    names = [name for name in (found[0] if found else ()) if all(name in values for values in found)]
    return {name: [values[name] for values in found] for name in names}


def short_ids(names: list[str]) -> list[str]:
    """ "s3|x=1" as "s3" and "sp|P12345|NAME" as "P12345"; all as they are where that would make two alike."""
    short = [_short(name) for name in names]
    return short if len(set(short)) == len(set(names)) else names


def _short(name: str) -> str:
    parts = name.split("|")
    if parts[0] in _DATABASES and len(parts) > 1 and parts[1]:
        return parts[1]
    return parts[0] or name


def _record(header: str, text: str, line: int) -> Record:
    name, _, about = header.partition(" ")
    return Record(name, text, line, about.strip())


def plain_lines(path: Path) -> list[str]:
    """The lines of a text file with any line ends, unpacked where it is gzip.

    Raises DataError for a missing file, one that is no text, and one that is no UTF-8: a guess could put wrong letters
    into names that answers are found by.
    """
    if not path.is_file():
        siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"{path}: no such file.{did_you_mean(path.name, siblings)}")
    raw = path.read_bytes()
    if raw.startswith(b"\x1f\x8b"):
        raw = unpacked(raw, path)
    text = _decoded(raw, path)
    if "\0" in text:
        raise DataError(f"{path}: this is no text file. Sequences are plain text, or packed with gzip.")
    return re.sub(r"\r\n?", "\n", text).splitlines()


def _decoded(raw: bytes, path: Path) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        if b"\0" in raw:
            raise DataError(f"{path}: this is no text file. Sequences are plain text, or packed with gzip.") from None
        raise DataError(
            f"{path} line {line}: byte {raw[error.start]:#04x} is not UTF-8. Convert the file: iconv -f CP1252 -t UTF-8 "
            f"{path.name} (CP1252 is what Western programs write most often)."
        ) from None
