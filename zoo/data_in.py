"""From what was read to rows that can be used: bad rows refused or dropped out loud, demos."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from domains.contract import Reading, Request
from trainers.contract import JSON
from trainers.errors import DataError, MissingError, UsageError
from zoo.registry import Recipe

_MOST_SHOWN = 50
FEWEST_TO_SPLIT = 3


@dataclass(frozen=True)
class Usable:
    """The rows that will be used, what was dropped and why, and what to tell the user."""

    table: Any
    num_read: int
    dropped: list[JSON]
    notices: tuple[str, ...]


def usable_rows(reading: Reading, data: Any, *, skip_bad: bool, fewest: int = FEWEST_TO_SPLIT) -> Usable:
    """The usable rows of what was read from `data`.

    Raises DataError listing every bad row, unless `skip_bad` drops and counts them; also when fewer than `fewest` rows are
    left or two rows have the same id.
    """
    if reading.bad and not skip_bad:
        raise DataError(f"{named(data)}: {_list_of(reading)}")
    bad = {row.position for row in reading.bad}
    good = np.array([i for i in range(len(reading.table)) if i not in bad], dtype=np.int64)
    if len(good) < fewest:
        few = f" Here {reading.few}." if reading.few else ""
        purpose = "to train, validate and test on" if fewest > 1 else "to be scored"
        count = f"{len(good)} usable rows of {len(reading.table)}"
        bad_rows = f" Of the others {_list_of(reading)}" if reading.bad else ""
        raise DataError(f"{named(data)}: {count} are too few {purpose}.{few}{bad_rows}")
    table = reading.table.take(good) if bad else reading.table
    _check_ids(table.ids)
    dropped = [{"place": row.place, "reason": row.reason} for row in reading.bad]
    skipped = (f"{len(bad)} of {len(reading.table)} rows skipped (--skip-bad)",) if bad else ()
    return Usable(table, len(reading.table), dropped, (*reading.notices, *skipped))


def demo_of(recipe: Recipe, say: Callable[[str], None]) -> tuple[Any, Request, JSON]:
    """Data, request and overrides of a recipe's demo; says first what they are."""
    if recipe.demo is None:
        raise DataError(f"{recipe.name} has no demo. Give data with --data FILE.")
    module = f"domains.{recipe.name.split('/')[0]}.demo"
    try:
        demo = importlib.import_module(module).load(recipe.demo.data)
    except ModuleNotFoundError as error:
        raise MissingError(
            f"The demo needs {error.name!r}. Install it with: pip install 'domain-model-zoo[{recipe.needs.extra},demo]', "
            "or give data with --data FILE."
        ) from None
    say(f"demo: {demo.about}")
    options = {**demo.options, **recipe.demo.options}
    return demo.data, demo.request, {"options": options, "train": dict(recipe.demo.train)}


def refuse_unread(domain: Any, request: Request) -> None:
    """Raise UsageError where a column is named for a purpose that this data type has none for, or a genome for one without."""
    kind = domain.__name__.split(".")[-2]
    if request.reference is not None and not getattr(domain, "READS_REFERENCE", False):
        raise UsageError(f"--reference {request.reference}: means nothing to the type {kind}. Leave it out.")
    for purpose, name in request.columns.items():
        if purpose not in domain.COLUMNS:
            known = (
                f"It reads columns for: {', '.join(domain.COLUMNS)}." if domain.COLUMNS else "It reads every column."
            )
            raise UsageError(f"--column {purpose}={name}: means nothing to the type {kind}. {known}")


def named(data: Any) -> str:
    """What to call the data in a message."""
    return str(data) if isinstance(data, str | Path) else "DataFrame"


def accepted(data: Any) -> Any:
    """A path as it is, a DataFrame with text column names. Raises DataError for anything else, and for cells that hold
    lists, other containers or complex numbers."""
    if isinstance(data, str | Path):
        return data
    if not (hasattr(data, "columns") and hasattr(data, "iloc")):
        raise DataError(f"data is a {type(data).__name__}: give the path of a file or folder, or a pandas DataFrame.")
    for at, name in enumerate(data.columns):  # by position: a name may come twice
        cells = data.iloc[:, at]
        if cells.dtype.kind == "c":
            raise DataError(
                f"DataFrame: column {name!r} holds complex numbers. Give real and imaginary parts as columns."
            )
        if cells.dtype == object and any(isinstance(cell, list | dict | set | tuple | np.ndarray) for cell in cells):
            raise DataError(f"DataFrame: column {name!r} holds lists or other containers. Give one value a cell.")
    return data.rename(columns=str)


def _list_of(reading: Reading) -> str:
    shown = [f"  {row.place}: {row.reason}" for row in reading.bad[:_MOST_SHOWN]]
    more = len(reading.bad) - len(shown)
    lines = [f"{len(reading.bad)} of {len(reading.table)} rows cannot be used:", *shown]
    if more:
        lines.append(f"  ... and {more} more")
    return "\n".join([*lines, "Mend them, or drop them with --skip-bad (in Python: skip_bad=True)."])


def _check_ids(ids: Any) -> None:
    seen: set[str] = set()
    twice = [name for name in ids if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
    if twice:
        raise DataError(
            f"{len(twice)} ids occur more than once, the first is {twice[0]!r}. Choose a column with --id-column."
        )
