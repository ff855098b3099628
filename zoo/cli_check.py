"""What `zoo check --data` and `zoo check --leakage` print. Heavy modules are imported when one of them runs."""

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainers.errors import DataError, UsageError


def show_data(
    data: str,
    type: str | None,
    about: Mapping[str, Any],
    columns: Sequence[str] | None,
    *,
    skip_bad: bool,
    fast: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Print the report on data; raises DataError (exit 2) where rows are bad, and with `strict` where there are warnings.

    about: fields of `domains.contract.Request` by name.
    """
    from domains.contract import Request
    from zoo.cli_runs import columns_of
    from zoo.data_report import check_data, refuse_doubts, report_lines

    request = Request(**about, columns=columns_of(columns))
    type, domain = domain_of(type, data)
    found = check_data(domain, data, request, skip_bad=skip_bad, fast=fast)
    if as_json:
        print(json.dumps(found, ensure_ascii=False, allow_nan=False))
    else:
        rows = [f"bad row: {row['place']}: {row['reason']}" for row in found["bad_rows"]]
        said = [f"warning: {line}" for line in found["warnings"]]
        notices = [f"note: {line}" for line in found["notices"] if line not in found["warnings"]]
        print("\n".join([*report_lines(found), *_size_of_groups(type, found), *notices, *said, *rows]))
    sys.stdout.flush()
    if not found["ok"]:
        raise DataError(
            f"{data}: {len(found['bad_rows'])} rows cannot be used. Mend them, or drop them with --skip-bad."
        )
    if strict:
        refuse_doubts(found)


def _size_of_groups(type: str, report: Mapping[str, Any]) -> list[str]:
    """How to ask for the recipe by what the rows are worth, where they hang together."""
    groups = report["groups"]
    if groups is None or groups["largest"] == 1:
        return []
    sizes = f"--n {report['num_rows_used']} --groups {groups['num']} --task {report['task']}"
    return [f"so many groups, not rows, choose a recipe: zoo recommend --type {type} {sizes}"]


def show_leakage(run: Path, *, as_json: bool) -> None:
    """Print how like the rows on the sides of a run's split are."""
    from zoo import saved
    from zoo.leakage import leakage, leakage_lines

    if not (run / "plan.json").exists() and not saved.is_parent(run):
        raise UsageError(
            f"--leakage {run}: not a run folder (no plan.json). Give the folder that zoo train printed last."
        )
    found = leakage(run)
    print(json.dumps(found, ensure_ascii=False, allow_nan=False) if as_json else "\n".join(leakage_lines(found)))


def domain_of(type: str | None, data: str) -> tuple[str, Any]:
    """A data type and its module; the type is told from the file where nobody says it. Raises UsageError for a type without a
    ready recipe: its data is not read yet."""
    from domains.sniff import sniff
    from zoo.registry import load_registry

    registry = load_registry()
    if type is None:
        seen = sniff(Path(data))
        print(f"{data}: {seen.type} ({seen.because})", file=sys.stderr)
        type = seen.type
    registry.type_of(type)
    ready = {recipe.type for recipe in registry.recipes.values() if recipe.status == "ready"}
    if type not in ready:
        raise UsageError(f"--type {type}: data of this type is not read yet. Ready: {', '.join(sorted(ready))}.")
    return type, importlib.import_module(f"domains.{type}.data")
