"""Gaussian processes on few labelled molecules: descriptors at several length scales and shared fragments, of which the
training rows decide what matters (`trainers.kernel`)."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from domains.contract import Facts
from domains.molecules.molecule_kernels import MoleculeKernels
from trainers.contract import JSON, Machine, Plan
from trainers.errors import UsageError
from trainers.kernel import KernelLearner
from trainers.settings import KernelSettings

MOST_KERNELS = 10
"""Each in float32 and float64 while the weights are found, on the rows that decide them."""
TINY: JSON = {"options": {}, "train": {"tune_rows": 60, "steps": 10}}


class Options(BaseModel):
    """The `options:` block of molecules/kernel: there are none, the training rows decide."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def plan(facts: Facts, options: Options, settings: KernelSettings, machine: Machine) -> JSON:
    """Memory from the number of rows. Raises UsageError where it would be too much."""
    if facts.num_rows > settings.max_rows:
        raise UsageError(
            f"{facts.num_rows:,} training rows are more than train.max_rows ({settings.max_rows:,}): a kernel's memory "
            "grows with the square. Take molecules/fingerprint-trees."
        )
    tuning = 12 * MOST_KERNELS * settings.tune_samples * min(facts.num_rows, settings.tune_rows) ** 2
    # The matrix, its factor and its inverse in float64, distances and one kernel in float32 with its parts.
    return {
        "num_parameters": facts.num_rows * facts.num_outputs,
        "num_steps": settings.steps,
        "memory_bytes": 48 * facts.num_rows**2 + tuning,
        "notes": ["the training molecules become part of the saved model: share it only where you may share them"],
    }


def build(plan: Plan) -> KernelLearner:
    """A fresh learner."""
    return KernelLearner(plan, MoleculeKernels.of, "smiles")


def load(plan: Plan, folder: Path) -> KernelLearner:
    """The learner that `save` wrote into `folder`."""
    return KernelLearner(plan, MoleculeKernels.of, "smiles").load(folder, lambda values: MoleculeKernels(**values))
