"""What the tree families have in common: estimates before training, and the notes on columns that the plan prints."""

from __future__ import annotations

from importlib.util import find_spec

from domains.contract import Facts
from trainers.contract import JSON, Machine
from trainers.errors import MissingError
from trainers.settings import Trees

BYTES_A_CELL = 4
# float32 matrix, its bins, gradients, and the frame itself: measured on adult at about four times the matrix.
MATRIX_COPIES = 4
BASE_BYTES = 200 << 20
SHOWN = 12


def estimates(package: str, facts: Facts, settings: Trees, machine: Machine) -> JSON:
    """Rounds at most, memory, and notes. Raises MissingError if `package` is not installed."""
    if find_spec(package) is None:
        raise MissingError(f"{package} is not installed. Install it with: pip install 'domain-model-zoo[tabular]'")
    num_features = len(facts.schema["columns"])
    return {
        "num_steps": settings.rounds,
        "memory_bytes": BASE_BYTES + facts.num_rows * num_features * BYTES_A_CELL * MATRIX_COPIES,
        "notes": [*column_notes(facts), *device_notes(machine)],
    }


def column_notes(facts: Facts) -> list[str]:
    """Which columns are used as what, which are not and why, and which look like the answer."""
    schema = facts.schema
    kinds: dict[str, list[str]] = {}
    for name, entry in schema["columns"].items():
        kinds.setdefault(entry["kind"], []).append(name)
    notes = [f"{len(names)} {kind} columns: {_listed(names)}" for kind, names in kinds.items()]
    notes += [f"column {name!r} is not used: {reason}" for name, reason in schema["dropped"].items()]
    return notes + [
        f"column {name!r} {reason}: if it is only known afterwards, take it out of the file"
        for name, reason in schema["suspects"].items()
    ]


def device_notes(machine: Machine) -> list[str]:
    """A word on accelerators, which trees do not use here."""
    return [] if machine.device == "cpu" else ["trees train on the CPU cores; the accelerator stays idle"]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
