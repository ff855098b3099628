"""Gaussian processes on few labelled proteins, without any language model or GPU.

Variants of one protein get kernels between substitutions, other sets kernels between compositions; which of them matter, the
training rows decide (`trainers.kernel`).
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from domains.contract import Facts
from domains.proteins.composition_kernels import CompositionKernels
from domains.proteins.mutants import aligned_mutants
from domains.proteins.substitutions import SubstitutionKernels
from trainers.contract import JSON, Machine, Plan
from trainers.errors import UsageError
from trainers.kernel import KernelLearner, Kernels
from trainers.settings import KernelSettings

MOST_KERNELS = 20
"""Each in float32 and float64 while the weights are found, on the rows that decide them."""
TINY: JSON = {"options": {}, "train": {"tune_rows": 60, "steps": 10}}


class Options(BaseModel):
    """The `options:` block of proteins/kernel: there are none, the training rows decide."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def plan(facts: Facts, options: Options, settings: KernelSettings, machine: Machine) -> JSON:
    """Memory from the number of rows. Raises UsageError where it would be too much."""
    if facts.num_rows > settings.max_rows:
        raise UsageError(
            f"{facts.num_rows:,} training rows are more than train.max_rows ({settings.max_rows:,}): a kernel's memory "
            "grows with the square. Take proteins/esm2-embed-head."
        )
    tuning = 12 * MOST_KERNELS * settings.tune_samples * min(facts.num_rows, settings.tune_rows) ** 2
    # The matrix, its factor and its inverse in float64, and one kernel in float32 with its parts.
    return {
        "num_parameters": facts.num_rows * facts.num_outputs,
        "num_steps": settings.steps,
        "memory_bytes": 40 * facts.num_rows**2 + tuning,
        "notes": ["the training sequences become part of the saved model: share it only where you may share them"],
    }


def build(plan: Plan) -> KernelLearner:
    """A fresh learner."""
    return KernelLearner(plan, _kernels_for, "sequence")


def load(plan: Plan, folder: Path) -> KernelLearner:
    """The learner that `save` wrote into `folder`."""
    return KernelLearner(plan, _kernels_for, "sequence").load(folder, _kernels_again)


def _kernels_for(sequences: list[str], cache: Path | None) -> Kernels:
    variants = aligned_mutants(sequences)
    return SubstitutionKernels(variants.consensus) if variants else CompositionKernels.of(sequences)


def _kernels_again(values: JSON) -> Kernels:
    return SubstitutionKernels(**values) if "consensus" in values else CompositionKernels(**values)
