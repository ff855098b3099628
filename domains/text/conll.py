"""Files with one word a line: word first, tag last, a blank line between sentences (CoNLL-2003 and its many heirs)."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from domains.shared.delimited import as_utf8
from domains.shared.roles import PARTS
from trainers.errors import DataError

SUFFIXES = (".conll", ".conll2003", ".iob", ".iob2", ".bio", ".bioes", ".txt", ".tsv", ".tags")
"""In the order in which a folder is searched for them."""
NAMES = {**PARTS, "testa": "valid", "testb": "test", "eval": "test"}
"""Part by the name of a file."""
DOCUMENT = "-DOCSTART-"
_HEAD_LINES, _MOST_COLUMNS = 200, 10
_LONGEST_LINE = 10_000
"""Characters: a packed file without a line end may be of any length."""


@dataclass(frozen=True)
class Sentence:
    """words and tags (None: the file has words only) in order.   line: of the first word, from 1.
    document: number of the document, where the file marks them.   problem: why it cannot be used, or ""."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    line: int
    document: int
    problem: str = ""


@dataclass(frozen=True)
class File:
    """sentences in order.   name: of the file.   notices: what was changed to read it.   num_documents: marked ones."""

    name: str
    sentences: list[Sentence]
    notices: tuple[str, ...]
    num_documents: int


def is_conll(path: Path) -> bool:
    """Whether a file or folder should be read as one word a line: by its name, a .txt or .tsv by its first lines."""
    if path.is_dir():
        return bool(files_of(path))
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    if not suffixes or suffixes[-1] not in SUFFIXES:
        return False
    return suffixes[-1] not in (".txt", ".tsv") or _looks_tagged(path)


def files_of(folder: Path) -> dict[str, Path]:
    """Files of a folder by part ("train", "valid", "test"). Raises DataError where two claim the same part."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        name = path.name.lower().split(".")[0]
        suffix = next((s.lower() for s in reversed(path.suffixes) if s.lower() != ".gz"), "")
        part = NAMES.get(name) or NAMES.get(name.replace("-", "_").split("_")[-1])
        if part is None or suffix not in SUFFIXES or not path.is_file():
            continue
        if part in found:
            raise DataError(
                f"{folder}: both {found[part].name} and {path.name} look like the {part} part. Move one away."
            )
        found[part] = path
    return found


def read_file(path: Path, encoding: str | None = None) -> File:
    """The sentences of a file. Raises DataError where it is missing, empty or no text."""
    if not path.is_file():
        raise DataError(f"{path}: no such file.")
    raw = path.read_bytes()
    if raw.startswith(b"\x1f\x8b"):
        from domains.shared.frames import unpacked

        raw = unpacked(raw, path)
    utf8, notices = as_utf8(raw, path.name, encoding)
    # Not splitlines(): words hold other characters that count as line ends there.
    lines = utf8.decode().split("\n")
    separator, num_columns = _layout(lines)
    if not num_columns:
        raise DataError(
            f"{path}: no words here. It needs one word a line with its tag, a blank line between sentences."
        )
    sentences, num_documents = _sentences(lines, separator, num_columns)
    return File(path.name, sentences, tuple(notices), num_documents)


def _looks_tagged(path: Path) -> bool:
    """Whether the first lines are few words each, in sentences between blank lines, and some of them outside entities."""
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding="utf-8", errors="replace") as file:
        head = islice(iter(lambda: file.readline(_LONGEST_LINE), ""), _HEAD_LINES)
        lines = [line.split() for line in head]
    filled = [cells for cells in lines if cells]
    return [] in lines and max(map(len, filled), default=0) <= _MOST_COLUMNS and any(c[-1] == "O" for c in filled)


def _layout(lines: Sequence[str]) -> tuple[str | None, int]:
    """The separator (a tab, or None for white space) and how many columns most lines have; 0 without any word."""
    filled = [line for line in lines if not _is_blank(line) and not _is_remark(line)]
    separator = "\t" if sum("\t" in line.strip() for line in filled) * 2 > len(filled) else None
    counts = Counter(len(_cells(line, separator)) for line in filled)
    return separator, counts.most_common(1)[0][0] if counts else 0


def _is_blank(line: str) -> bool:
    """Files that were edited by hand hold tabs and spaces between sentences."""
    return not line.strip()


def _is_remark(line: str) -> bool:
    """Whether a line is "# text = ...", as in CoNLL-U. A word may begin with # too, but its tag is behind a tab."""
    return line.startswith("# ") and "\t" not in line and " = " in line


def _cells(line: str, separator: str | None) -> list[str]:
    # Words may hold other white space, which split() would cut at.
    return re.split(r"[ \t]+", line.strip(" \t\r")) if separator is None else [c.strip() for c in line.split(separator)]


def _sentences(lines: Sequence[str], separator: str | None, num_columns: int) -> tuple[list[Sentence], int]:
    found: list[Sentence] = []
    rows: list[list[str]] = []
    start = document = 0

    def end() -> None:
        if rows:
            found.append(_sentence(rows, start, document, num_columns))
            rows.clear()

    for number, line in enumerate(lines, start=1):
        if _is_remark(line):
            continue
        if _is_blank(line) or line.startswith(DOCUMENT):
            end()
            document += line.startswith(DOCUMENT)
            continue
        start = start if rows else number
        rows.append(_cells(line, separator))
    end()
    return found, document


def _sentence(rows: list[list[str]], line: int, document: int, num_columns: int) -> Sentence:
    words = tuple(row[0] for row in rows)
    if num_columns == 1:
        return Sentence(words, None, line, document)
    wrong = next((at for at, row in enumerate(rows) if len(row) != num_columns or not row[0] or not row[-1]), None)
    tags = tuple(row[-1] if len(row) > 1 else "" for row in rows)
    if wrong is None:
        return Sentence(words, tags, line, document)
    problem = f"line {line + wrong} has {len(rows[wrong])} columns, the other lines {num_columns}"
    if len(rows[wrong]) == num_columns:
        problem = f"line {line + wrong} has no {'word' if not rows[wrong][0] else 'tag'}"
    return Sentence(words, tags, line, document, problem)
