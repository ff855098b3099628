"""Prompts with their answers, and chats, as data of text generation. See `domains.contract.Domain`.

A row is a prompt and the answer that belongs behind it; of a chat the last answer is the one that is measured. In the
table they are the columns "prompt" (of chats: the messages before the answer, as JSON) and "answer"; the target is the
number of bytes of the answer, and what a model predicts for it is bits: what the answer costs. Rows that are to be
answered have no "answer".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow, Baseline, Facts, Keys, Metric, Reading, Request
from domains.shared.frames import FrameReading, FrameTable, choose_column, read_frame
from domains.shared.roles import found_group, id_texts, keep_split_columns, one_a_row
from domains.text.answer_bytes import byte_rivals
from domains.text.chats import as_text, bad_chat, last_answer, one_question, parsed
from domains.text.copies import copy_keys
from trainers.contract import Predictions
from trainers.errors import DataError

PROMPT_NAMES = ("prompt", "instruction", "question", "source", "input", "query")
ANSWER_NAMES = ("completion", "response", "output", "answer", "target", "reply")
CHAT_NAMES = ("messages", "conversations", "conversation", "chat")
MORE_NAME = "input"
"""Beside "instruction": what the instruction is about (the Alpaca layout); it goes below it where it is filled."""
ID_NAMES = ("id", "uid", "uuid", "name")
BYTES = "answer_bytes"


@dataclass(frozen=True)
class Columns:
    """Names in the file. Either chat, or prompt with answer (None where rows are to be answered).   more: see MORE_NAME."""

    chat: str | None = None
    prompt: str | None = None
    answer: str | None = None
    more: str | None = None
    id: str | None = None

    @property
    def texts(self) -> list[str]:
        """Those that hold texts to be kept as they are."""
        return [name for name in (self.chat, self.prompt, self.answer, self.more) if name is not None]


def looks_like_pairs(names: Sequence[str]) -> bool:
    """Whether columns of these names are prompts with answers, or chats."""
    known = {str(name).strip().lower() for name in names}
    return bool(known & set(CHAT_NAMES)) or bool(known & set(PROMPT_NAMES) and known & set(ANSWER_NAMES))


def read(data: Any, request: Request) -> Reading:
    """Read CSV, TSV, JSON lines, Parquet or a DataFrame, every row in order.

    Columns are found by name (PROMPT_NAMES, ANSWER_NAMES, CHAT_NAMES), or named: --column prompt=NAME, answer=NAME,
    messages=NAME. With `request.facts` answers are read only if `request.target` is named (evaluating).
    Raises DataError where there are no such columns.
    """
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(Path(data))
    reading, columns = _read(data, request, where)
    if not len(reading.frame):
        raise DataError(f"{where}: there is a header but no row.")
    wants_answers = request.facts is None or request.target is not None
    prompts, answers, reasons = _rows(reading.frame, columns, wants_answers)
    if request.facts is not None and request.facts.schema["is_chat"] and columns.chat is None:
        prompts = [one_question(prompt) for prompt in prompts]
    found = [*reading.ragged, *((i, reason) for i, reason in enumerate(reasons) if reason)]
    bad = one_a_row([BadRow(i, reading.places[i], reason) for i, reason in found])
    kept: dict[str, Any] = {"prompt": np.array(prompts, dtype=object)}
    if wants_answers:
        kept["answer"] = np.array(answers, dtype=object)
        kept[BYTES] = np.array([num_bytes(answer) for answer in answers], dtype=np.float64)
    groups = keep_split_columns(kept, reading.frame, request, where=where, target=None)
    ids = [str(i) for i in range(len(prompts))] if columns.id is None else reading.frame[columns.id].astype(str)
    schema = {"shape": "pairs", "is_chat": columns.chat is not None, "columns": vars(columns)}
    table = FrameTable(pd.DataFrame(kept), np.array(ids, dtype=object), BYTES if wants_answers else None, schema)
    target = columns.chat or columns.answer
    task = request.facts.task if request.facts else "generation"
    notices = (*reading.notices, _told(columns), *groups)
    group = found_group(reading.frame, request)
    return Reading(table, task, target if wants_answers else None, tuple(bad), notices, group=group)


def num_bytes(answer: str) -> int:
    """Bytes of an answer, its end counted as one: a model must know where to stop."""
    return len(answer.encode("utf-8", "replace")) + 1


def keys(table: FrameTable, task: str, request: Request, *, fast: bool) -> Keys:
    """Copies and near copies of prompts stay together.

    A column named with --group, one with --order, or one called "split", is used instead.
    """
    return copy_keys(table, request, "prompt", fast=fast, what="prompts", of=" of prompts")


def describe(train: FrameTable, task: str, request: Request) -> Facts:
    """Lengths of the training rows. sizes: characters of prompt and answer, and of answers alone."""
    answers = train.column("answer").str.len().to_numpy()
    whole = train.column("prompt").str.len().to_numpy() + answers
    sizes = {
        "longest_characters": int(whole.max()),
        "median_characters": float(np.median(whole)),
        "total_characters": int(whole.sum()),
        "answer_characters": int(answers.sum()),
    }
    columns = train.context["columns"]
    return Facts("text", task, columns["chat"] or columns["answer"], len(train), (), sizes, dict(train.context))


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Bits per byte of the answers decides: it does not depend on a tokenizer. Then bits an answer."""
    per_byte = Metric("bits_per_byte", "bits", False, _bits, lambda stats: _over(stats, stats[:, 0]))
    per_answer = Metric("bits_per_answer", "bits", False, _bits, lambda stats: _over(stats, np.ones(len(stats))))
    return per_byte, per_answer


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """Frequencies of bytes, then of bytes after the five before them."""
    return byte_rivals(lambda rows: zip(rows.column("prompt"), rows.column("answer"), strict=True))


def _over(stats: np.ndarray, counts: np.ndarray) -> float:
    """Bits of all answers over their counts; answers that could not be read whole are left out."""
    known = np.isfinite(stats[:, 1])
    return float(stats[known, 1].sum() / counts[known].sum()) if known.any() else float("nan")


def _bits(truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    return np.column_stack([truth.astype(np.float64), predictions.values.astype(np.float64)])


def _read(data: Any, request: Request, where: str) -> tuple[FrameReading, Columns]:
    """What is in the file, its texts kept letter for letter, and which columns those are."""
    guesses = {*PROMPT_NAMES, *ANSWER_NAMES, *CHAT_NAMES, *request.columns.values()} | {request.target or ""}
    ids = id_texts(request, ID_NAMES)
    reading = read_frame(data, text_columns=sorted(guesses | ids), encoding=request.encoding)
    columns = _columns(reading.frame, request, where)
    if set(columns.texts) - guesses:
        reading = read_frame(data, text_columns=[*columns.texts, *ids], encoding=request.encoding)
    return reading, columns


def _columns(frame: pd.DataFrame, request: Request, where: str) -> Columns:
    """Which columns hold what: as named by the user, as in training, else by their usual names."""
    said, known = request.columns, dict(request.facts.schema["columns"]) if request.facts else {}
    names = {str(name).strip().lower(): str(name) for name in reversed(list(frame.columns))}

    def found(purpose: str, own: str, usual: Sequence[str]) -> str | None:
        if purpose in said:
            return choose_column(frame, said[purpose], where, f"--column {purpose}=NAME")
        if known.get(own) in frame.columns:
            return str(known[own])
        return next((names[name] for name in usual if name in names), None)

    if request.target is not None:
        choose_column(frame, request.target, where, "--target")
    identity = request.id_column if request.id_column in frame.columns else found("id", "id", ID_NAMES)
    identity = identity if identity is not None and frame[identity].is_unique else None
    chat = None if "prompt" in said else found("messages", "chat", CHAT_NAMES)
    if chat is not None:
        return Columns(chat=chat, id=identity)
    prompt = found("prompt", "prompt", [name for name in PROMPT_NAMES if names.get(name) != request.target])
    answer = request.target or found("answer", "answer", ANSWER_NAMES)
    answer = None if answer == prompt else answer
    if prompt is None or (answer is None and request.facts is None):
        raise DataError(
            f"{where}: no prompts with answers here. Columns: {', '.join(map(str, frame.columns))}. Name them with "
            "--column prompt=NAME --column answer=NAME, or --column messages=NAME for chats."
        )
    more = names.get(MORE_NAME) if prompt.strip().lower() == "instruction" else None
    return Columns(None, prompt, answer, None if more == answer else more, identity)


def _rows(frame: pd.DataFrame, columns: Columns, wants_answers: bool) -> tuple[list[str], list[str], list[str]]:
    """Of each row the prompt, the answer ("" where none is wanted), and why it cannot be used."""
    if columns.chat is not None:
        return _chats(frame[columns.chat].tolist(), wants_answers)
    prompts = [str(text) for text in frame[columns.prompt]]
    if columns.more is not None:
        more = frame[columns.more].tolist()
        prompts = [f"{a}\n\n{b}" if str(b).strip() else a for a, b in zip(prompts, more, strict=True)]
    answers = frame[columns.answer].tolist() if wants_answers and columns.answer else [""] * len(prompts)
    reasons = []
    for prompt, answer in zip(prompts, answers, strict=True):
        empty = [columns.prompt] if not prompt.strip() else []
        empty += [columns.answer] if wants_answers and not answer.strip() else []
        reasons.append("; ".join(f"nothing in column {name!r}" for name in empty))
    return prompts, answers, reasons


def _chats(cells: Sequence[str], wants_answers: bool) -> tuple[list[str], list[str], list[str]]:
    prompts, answers, reasons = [], [], []
    for cell in cells:
        messages = parsed(cell)
        reason = bad_chat(messages, wants_answers)
        before, answer = ([], "") if reason else last_answer(messages or [])
        prompts.append(as_text(before))
        answers.append(answer)
        reasons.append(reason)
    return prompts, answers, reasons


def _told(columns: Columns) -> str:
    if columns.chat is not None:
        return f"chats are read from column {columns.chat!r}; the last answer of each is measured"
    more = f" and {columns.more!r}" if columns.more else ""
    answers = f", answers from {columns.answer!r}" if columns.answer else ""
    return f"prompts are read from column {columns.prompt!r}{more}{answers}"
