"""Texts without labels that belong to a table of labelled ones: a second file to pretrain on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from domains.contract import Request
from domains.text import corpus
from domains.text.copies import folded
from trainers.errors import MissingError


def check(path: str) -> None:
    """Raise MissingError where there is no such file or folder."""
    if not Path(path).exists():
        raise MissingError(f"options.texts: {path}: no such file or folder. Name a file of texts without labels.")


def texts_of(path: str, known: Sequence[str]) -> tuple[list[str], int]:
    """The texts of a file or folder (text, CSV, JSON lines, Parquet) that are not among `known`, and how many were left
    out: whole texts, and lines of longer ones.

    known: all texts of the labelled file. Those that train are read there already, and the others are held out. Copies
    are found whatever their case and white space; a held-out text inside a longer line is not.
    """
    table = corpus.whole_table(path, Request(task=corpus.TASK), [])
    held = {folded(text) for text in known}
    found, num_out = [], 0
    for row in range(len(table)):
        for document in table.documents(row):
            kept = [line for line in _lines(document) if folded(line) not in held]
            num_out += sum(1 for _ in _lines(document)) - len(kept)
            text = "\n".join(kept)
            if text.strip() and folded(text) not in held:
                found.append(text)
            elif text.strip():
                num_out += 1
    return found, num_out


def _lines(document: str) -> Iterator[str]:
    return (line for line in document.splitlines() if line.strip())
