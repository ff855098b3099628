"""Gaussian processes on few labelled molecules: descriptors at several length scales and shared fragments, of which the
training rows decide what matters (`trainers.kernel`)."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from domains.contract import Facts
from domains.molecules.molecule_kernels import MoleculeKernels
from domains.shared.kernel_plan import kernel_plan
from trainers.contract import JSON, Machine, Plan
from trainers.kernel import KernelLearner
from trainers.settings import KernelSettings

MOST_KERNELS = 10
TINY: JSON = {"options": {}, "train": {"tune_rows": 60, "steps": 10}}


class Options(BaseModel):
    """The `options:` block of molecules/kernel: there are none, the training rows decide."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def plan(facts: Facts, options: Options, settings: KernelSettings, machine: Machine) -> JSON:
    """Memory from the number of rows. Raises UsageError where it would be too much."""
    # The matrix, its factor and its inverse in float64, distances and one kernel in float32 with its parts.
    return kernel_plan(
        facts,
        settings,
        most_kernels=MOST_KERNELS,
        bytes_a_pair=48,
        rows="molecules",
        instead="molecules/fingerprint-trees",
    )


def build(plan: Plan) -> KernelLearner:
    """A fresh learner."""
    return KernelLearner(plan, MoleculeKernels.of, "smiles")


def load(plan: Plan, folder: Path) -> KernelLearner:
    """The learner that `save` wrote into `folder`."""
    return KernelLearner(plan, MoleculeKernels.of, "smiles").load(folder, lambda values: MoleculeKernels(**values))
