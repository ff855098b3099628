"""JSON lines as columns: one object a line; what a cell means is decided in `domains.shared.frames`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pandas as pd

from domains.shared.delimited import as_utf8
from trainers.errors import DataError


@dataclass(frozen=True)
class JsonLines:
    """frame: a row for each line that is not blank, in order.   lines: where each stands in the file, from 1.
    bad: (position, reason) of lines that hold no object, empty rows in the frame."""

    frame: pd.DataFrame
    lines: tuple[int, ...]
    bad: tuple[tuple[int, str], ...]
    notices: tuple[str, ...]


def read_json_lines(raw: bytes, name: str, encoding: str | None = None) -> JsonLines:
    """Parse the bytes of a file called `name`. Lists and objects in a cell become their JSON text.

    Raises DataError if it is empty, is no text, or if most lines are no JSON objects.
    """
    utf8, notices = as_utf8(raw, name, encoding)
    # Not splitlines(): texts hold other characters that count as line ends there.
    kept = [(number, line) for number, line in enumerate(utf8.decode().split("\n"), start=1) if line.strip()]
    if not kept:
        raise DataError(f"{name}: the file is empty. It needs one JSON object a line.")
    rows: list[dict[str, Any]] = []
    bad: list[tuple[int, str]] = []
    for position, (_, line) in enumerate(kept):
        found, reason = _object(line)
        rows.append(found)
        bad += [(position, reason)] if reason else []
    if len(bad) > len(kept) / 2:
        raise DataError(
            f"{name} line {kept[bad[0][0]][0]}: {bad[0][1]}, like {len(bad):,} of {len(kept):,} lines. "
            'Write one object a line: {"text": "...", "label": "..."}'
        )
    names = list(dict.fromkeys(key for row in rows for key in row))
    if not names:
        raise DataError(f"{name}: the objects have no keys.")
    columns = {key: pd.Series([_cell(row.get(key)) for row in rows]) for key in names}
    return JsonLines(pd.DataFrame(columns), tuple(number for number, _ in kept), tuple(bad), tuple(notices))


def _object(line: str) -> tuple[dict[str, Any], str]:
    try:
        found = json.loads(line)
    except ValueError as error:
        return {}, f"not JSON ({error})"
    except RecursionError:
        return {}, "not JSON that can be read (nested too deeply)"
    return (found, "") if isinstance(found, dict) else ({}, f"holds a {type(found).__name__}, not an object")


def _cell(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
    if isinstance(text, str) and not text.isascii():
        # Half a character ("\\ud83d" from a cut emoji) is legal in JSON and in no encoding.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
