"""Tagged sentences from files with one word a line, and from tables whose cells hold JSON lists of words and of tags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Facts, Reading, Request
from domains.shared.frames import FrameTable, choose_column, read_frame
from domains.shared.roles import found_group, id_texts, keep_split_columns
from domains.text import conll
from domains.text.tags import settled
from trainers.contract import as_objects
from trainers.errors import DataError, did_you_mean

WORDS_NAMES, TAGS_NAMES = ("tokens", "words"), ("tags", "ner_tags", "labels", "entities", "ner")
FILE_TARGET = "tags"
"""What the last column of a file without a header is called."""
_FLAG = "--column words=NAME"


# --- files with one word a line ----------------------------------------------------------------------------------------


def read_files(path: Path, request: Request) -> Reading:
    """Read a file, or a folder with files called train, dev and test. Raises DataError for what holds no tagged words."""
    parts = conll.files_of(path) if path.is_dir() else {"": path}
    if request.facts is None and request.target not in (None, FILE_TARGET):
        raise DataError(
            f"{path}: no column {request.target!r}. Files with one word a line have no names for columns: the last one is "
            f"the tag and is called {FILE_TARGET!r}. Leave --target out."
        )
    if not parts:
        raise DataError(f"{path}: no file here is called train, dev or test and ends in {', '.join(conll.SUFFIXES)}.")
    if path.is_dir() and "train" not in parts and request.facts is None:
        raise DataError(f"{path}: no train file here, only {', '.join(file.name for file in parts.values())}.")
    files = {part: conll.read_file(file, request.encoding) for part, file in parts.items()}
    found = [(part, file.name, sentence) for part, file in files.items() for sentence in file.sentences]
    sentences = [sentence for _, _, sentence in found]
    frame = pd.DataFrame({"words": as_objects([each.words for each in sentences])})
    notices = [notice for file in files.values() for notice in file.notices]
    said = ""
    if path.is_dir() and len(parts) > 1:
        frame["split"], said = _given_parts([part for part, _, _ in found], {p: f.name for p, f in parts.items()})
        notices.append(said)
    if not path.is_dir() and max(file.num_documents for file in files.values()) > 1:
        frame["document"] = [each.document for each in sentences]
    places = [f"{name} line {sentence.line}" for _, name, sentence in found]
    bad = {i: each.problem for i, each in enumerate(sentences) if each.problem}
    tags = None if all(each.tags is None for each in sentences) else [each.tags for each in sentences]
    context = {"words": "", "tags": FILE_TARGET, "id_column": None, "parts": said}
    return _reading(frame, tags, FILE_TARGET, request, places=places, bad=bad, notices=notices, context=context)


def _given_parts(parts: list[str], names: dict[str, str]) -> tuple[list[str], str]:
    """The part of each row. With no test file, the validation file is what scores are reported on, and validation rows
    are taken from training: choosing by the rows that are reported would flatter."""
    if "test" in names or "valid" not in names:
        return parts, f"the files name the parts: {', '.join(names.values())}"
    said = f"the files name the parts: {names['train']} trains, {names['valid']} is the test as there is no other"
    return ["test" if part == "valid" else part for part in parts], said


# --- tables with lists in their cells ----------------------------------------------------------------------------------


def read_table(data: Any, request: Request) -> Reading:
    """Read a table whose cells hold JSON lists of words and of tags. Raises DataError without such columns."""
    reading = read_frame(data, text_columns=("text", *id_texts(request, ("id",))), encoding=request.encoding)
    frame, where = reading.frame, "DataFrame" if isinstance(data, pd.DataFrame) else str(Path(data))
    if not len(frame):
        raise DataError(f"{where}: there is a header but no row.")
    bad = dict(reading.ragged)
    notices = list(reading.notices)
    words_name, words = _words_of(frame, request, where, bad, notices)
    target = _target(frame, request, where)
    tags = (
        None
        if target is None
        else [_listed(cell, i, f"column {target!r}", bad) for i, cell in enumerate(frame[target])]
    )
    columns: dict[str, Any] = {"words": as_objects(words)}
    notices += keep_split_columns(columns, frame, request, where=where, target=target)
    said = "the column 'split' says which row goes where"
    id_column = request.id_column or ("id" if "id" in frame.columns and frame["id"].is_unique else None)
    context = {"words": words_name, "tags": target or "", "id_column": id_column, "parts": said}
    ids = None if id_column not in frame.columns else frame[id_column].astype(str).tolist()
    found = _reading(
        pd.DataFrame(columns), tags, target, request,
        places=reading.places, bad=bad, notices=notices, context=context, ids=ids,
    )  # fmt: skip
    return replace(found, group=found_group(frame, request, besides=(target,)))


def _words_of(
    frame: pd.DataFrame, request: Request, where: str, bad: dict[int, str], notices: list[str]
) -> tuple[str, list[Any]]:
    """The column of words, and the words of each row; () where there are none."""
    wanted = request.columns.get("words") or (request.facts.schema["words"] if request.facts else None)
    name = wanted or next((each for each in WORDS_NAMES if each in frame.columns), None)
    if request.facts is not None and (name is None or name not in frame.columns) and "text" in frame.columns:
        notices.append("words are read from column 'text', cut at white space")
        return "text", [tuple(str(text).split()) for text in frame["text"]]
    if name is None:
        raise DataError(
            f"{where}: no column of words ({' or '.join(WORDS_NAMES)}). Columns: {', '.join(map(str, frame.columns))}. "
            f"Its cells are JSON lists of words; name another one with {_FLAG}."
        )
    column = frame[choose_column(frame, name, where, _FLAG)]
    return name, [_listed(cell, i, f"column {name!r}", bad) or () for i, cell in enumerate(column)]


def _target(frame: pd.DataFrame, request: Request, where: str) -> str | None:
    if request.target is not None:
        return choose_column(frame, request.target, where, "--target")
    if request.facts is not None:
        return None
    found = next((name for name in TAGS_NAMES if name in frame.columns), None)
    if found is None:
        raise DataError(
            f"{where}: which column holds the tags? Name it with --target. Columns: {', '.join(map(str, frame.columns))}."
        )
    return found


def _listed(cell: Any, at: int, name: str, bad: dict[int, str]) -> tuple[str, ...] | None:
    """The JSON list of texts in a cell; None where there is none, and why goes to `bad`."""
    try:
        found = json.loads(cell) if isinstance(cell, str) else None
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        return tuple(found)
    if isinstance(found, list) and found and all(isinstance(each, int) for each in found):
        reason = f"{name} holds numbers instead of the names of tags"
    else:
        reason = f"no JSON list of texts in {name}"
    bad[at] = f"{bad[at]}; {reason}" if at in bad else reason
    return None


# --- both --------------------------------------------------------------------------------------------------------------


def _reading(
    frame: pd.DataFrame,
    tags: Sequence[tuple[str, ...] | None] | None,
    target: str | None,
    request: Request,
    *,
    places: Sequence[str],
    bad: dict[int, str],
    notices: list[str],
    context: dict[str, Any],
    ids: list[str] | None = None,
) -> Reading:
    words = frame["words"].tolist()
    frame.insert(0, "text", as_objects([" ".join(each) for each in words]))
    for i, each in enumerate(words):
        if i not in bad and not frame["text"][i].strip():
            bad[i] = "no words" if not each else "the words are blank"
    if request.facts is None and tags is None:
        raise DataError(f"{places[0].split(' ')[0]}: words without tags; training needs a tag behind each word.")
    if request.facts is not None and request.target is None:
        tags = None
    if tags is not None:
        assert target is not None
        frame[target] = as_objects(_checked(tags, words, bad, request.facts, notices))
    used = target if tags is not None else None
    names = [str(i) for i in range(len(frame))] if ids is None else ids
    table = FrameTable(
        frame, np.array(names, dtype=object), used, {"shape": "tagged", "every_text": frame["text"], **context}
    )
    rows = tuple(BadRow(i, places[i], bad[i]) for i in sorted(bad))
    return Reading(table, "ner", used, rows, tuple(notices))


def _checked(
    tags: Sequence[tuple[str, ...] | None],
    words: Sequence[tuple[str, ...]],
    bad: dict[int, str],
    facts: Facts | None,
    notices: list[str],
) -> list[tuple[str, ...] | None]:
    """Tags in BIO, None in bad rows; why a row is bad goes to `bad`, what was changed to `notices`."""
    for i, (row, of_words) in enumerate(zip(tags, words, strict=True)):
        if i not in bad and (row is None or len(row) != len(of_words)):
            bad[i] = "no tags" if row is None else f"{len(of_words):,} words, but {len(row):,} tags"
    found = settled([None if i in bad else row for i, row in enumerate(tags)])
    bad.update(found.reasons)
    notices += found.notices
    for i, row in enumerate(found.tags):
        unknown = next((tag for tag in row or () if facts and tag not in facts.classes), None)
        if unknown is not None:
            assert facts is not None
            bad[i] = f"tag {unknown!r} was not in the training data.{did_you_mean(unknown, facts.classes)}"
    return found.tags
