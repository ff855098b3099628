"""FASTQ files: reads with a quality for each base, four lines a record, any line ends, gzip. Cock et al. 2010, NAR 38:1767."""

from __future__ import annotations

from pathlib import Path

from domains.shared.fasta import Record, plain_lines
from trainers.errors import DataError

SUFFIXES = (".fastq", ".fq")


def is_fastq(path: Path) -> bool:
    """Whether the name says FASTQ."""
    names = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return names.suffix.lower() in SUFFIXES


def read_fastq(path: Path) -> list[Record]:
    """Every read in the order of the file; qualities are checked for their number and then forgotten.

    Raises DataError naming the record that is broken, for a missing file and for one without records.
    """
    lines = [line.strip() for line in plain_lines(path)]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise DataError(f"{path}: the file holds no read. Each is four lines: @name, bases, +, qualities.")
    return [_record(path, lines[at : at + 4], at + 1) for at in range(0, len(lines), 4)]


def _record(path: Path, lines: list[str], number: int) -> Record:
    where = f"{path} line {number} (read {lines[0].removeprefix('@').split(' ')[0]!r})"
    if len(lines) < 4 or not lines[0].startswith("@") or not lines[2].startswith("+"):
        raise DataError(f"{where}: not the four lines of a read (@name, bases, +, qualities). Fetch the file again.")
    if len(lines[1]) != len(lines[3]):
        raise DataError(f"{where}: {len(lines[1])} bases but {len(lines[3])} qualities. Fetch the file again.")
    name, _, about = lines[0][1:].partition(" ")
    return Record(name, lines[1], number, about.strip())
