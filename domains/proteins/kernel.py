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
from domains.shared.kernel_plan import kernel_plan
from trainers.contract import JSON, Machine, Plan
from trainers.kernel import KernelLearner, Kernels
from trainers.settings import KernelSettings

MOST_KERNELS = 20
TINY: JSON = {"options": {}, "train": {"tune_rows": 60, "steps": 10}}


class Options(BaseModel):
    """The `options:` block of proteins/kernel: there are none, the training rows decide."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def plan(facts: Facts, options: Options, settings: KernelSettings, machine: Machine) -> JSON:
    """Memory from the number of rows. Raises UsageError where it would be too much."""
    # The matrix, its factor and its inverse in float64, and one kernel in float32 with its parts.
    return kernel_plan(
        facts,
        settings,
        most_kernels=MOST_KERNELS,
        bytes_a_pair=40,
        rows="sequences",
        instead="proteins/esm2-embed-head",
    )


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
