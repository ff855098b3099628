"""Chats as messages: [{"role": "user", "content": "..."}, {"role": "assistant", ...}], and as JSON text in a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Message = dict[str, str]
ANSWERING = "assistant"
ROLES = ("system", "user", ANSWERING)
_OTHER_NAMES = {"human": "user", "gpt": ANSWERING, "model": ANSWERING, "bot": ANSWERING}


def parsed(cell: Any) -> list[Message] | None:
    """The messages of a cell with JSON, keys "from" and "value" (ShareGPT) included; None for anything else."""
    try:
        found = json.loads(cell)
        messages = [(each.get("role", each.get("from")), each.get("content", each.get("value"))) for each in found]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    if not all(isinstance(role, str) and isinstance(content, str) for role, content in messages):
        return None
    return [{"role": _OTHER_NAMES.get(role.lower(), role.lower()), "content": content} for role, content in messages]


def bad_chat(messages: Sequence[Message] | None, wants_answer: bool) -> str:
    """Why this chat cannot be used; an empty text if it can."""
    if messages is None:
        return 'no chat: write a list of {"role": ..., "content": ...}'
    unknown = [each["role"] for each in messages if each["role"] not in ROLES]
    if unknown:
        return f"unknown role {unknown[0]!r}. Known: {', '.join(ROLES)}"
    if not any(each["role"] == "user" and each["content"].strip() for each in messages):
        return "no message of a user with text in it"
    if wants_answer and (messages[-1]["role"] != ANSWERING or not messages[-1]["content"].strip()):
        return f"the last message is no answer (role {ANSWERING!r}, with text)"
    return ""


def last_answer(messages: Sequence[Message]) -> tuple[list[Message], str]:
    """The messages before the last answer, and that answer; "" where the chat ends with a question."""
    if messages and messages[-1]["role"] == ANSWERING:
        return list(messages[:-1]), messages[-1]["content"]
    return list(messages), ""


def one_question(text: str) -> str:
    """A chat that asks one thing, as text."""
    return as_text([{"role": "user", "content": text}])


def as_text(messages: Sequence[Message]) -> str:
    """The messages as a table keeps them."""
    return json.dumps(list(messages), ensure_ascii=False)


def of_text(prompt: str) -> list[Message]:
    """What `as_text` wrote."""
    found: list[Message] = json.loads(prompt)
    return found
