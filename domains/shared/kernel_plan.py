"""What every recipe that learns by kernels (`trainers.kernel`) plans: its memory grows with the square of the rows."""

from __future__ import annotations

from domains.contract import Facts
from trainers.contract import JSON
from trainers.errors import UsageError
from trainers.settings import KernelSettings


def kernel_plan(
    facts: Facts, settings: KernelSettings, *, most_kernels: int, bytes_a_pair: int, rows: str, instead: str
) -> JSON:
    """Memory from the number of rows.

    most_kernels: each in float32 and float64 while the weights are found, on the rows that decide them.
    bytes_a_pair: of rows, in the matrices of the solution.
    rows, instead: what the rows are, and the recipe for more of them, in words.
    Raises UsageError where it would be too much.
    """
    if facts.num_rows > settings.max_rows:
        raise UsageError(
            f"{facts.num_rows:,} training rows are more than train.max_rows ({settings.max_rows:,}): a kernel's memory "
            f"grows with the square. Take {instead}."
        )
    tuning = 12 * most_kernels * settings.tune_samples * min(facts.num_rows, settings.tune_rows) ** 2
    return {
        "num_parameters": facts.num_rows * facts.num_outputs,
        "num_steps": settings.steps,
        "memory_bytes": bytes_a_pair * facts.num_rows**2 + tuning,
        "notes": [f"the training {rows} become part of the saved model: share it only where you may share them"],
    }
