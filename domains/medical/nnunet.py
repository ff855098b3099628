"""Segmentation that configures itself (nnU-Net): fingerprint, plan, patches, U-Net, sliding windows, stray pieces.

`zoo plan medical/nnunet --data FOLDER --json` shows the plan under plan.estimates.configuration; edited, it goes back in with
`--set options.plan=FILE`.

Measured on the hippocampus of the Decathlon (195 cases, split by patient, seed 0), `--budget 1200` on two cores: test
Dice .8885 (anterior .897, posterior .880), 95 % Hausdorff distance 1.37 mm, beside .693 and 2.96 mm of the average
mask. After 240 s on one core validation stood at .852, here at .885. The settings in registry.yaml are first guesses:
no others were tried.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from domains.contract import Facts
from domains.medical.configure import configured, memory_bytes
from domains.medical.learner import MaskLearner, MaskOptions, configuration_of
from domains.medical.network import Unet
from domains.medical.task import MaskTask
from trainers.contract import JSON, Machine, Plan
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"base_features": 8, "patch": [16, 16, 16], "augment": 0.2},
    "train": {"epochs": 4, "batch_size": 8, "lr": 3e-3, "precision": "fp32", "compile": "off", "ema": None},
}


class Options(MaskOptions):
    """The `options:` block of medical/nnunet."""

    plan: str | None = Field(None, description="JSON file with any part of the configuration, or a run's plan.json")
    dimensions: Literal[2, 3] | None = Field(None, description="2: slice by slice; None: 3 unless the stack is thin")
    base_features: int | None = Field(None, ge=4, le=128, description="channels at full resolution; None: by device")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """The configuration, and estimates from it. Raises UsageError where a plan file or options do not fit."""
    found = configured(facts, options, machine, batch_size=settings.batch_size)
    network = Unet(found, len(facts.schema["channels"]), len(facts.schema["names"]))
    steps = settings.planned_steps(facts.num_rows)
    rule = "given" if options.dimensions else f"median case {_median(facts)} voxels"
    return {
        "configuration": found.model_dump(mode="json"),
        "num_parameters": sum(parameter.numel() for parameter in network.parameters()),
        "memory_bytes": memory_bytes(found, settings.micro_batch_size or settings.batch_size),
        **({"num_steps": steps} if steps else {}),
        "notes": [
            f"{found.dimensions}-D ({rule}); patches of {' x '.join(map(str, found.patch))} voxels of "
            f"{' x '.join(f'{mm:g}' for mm in found.spacing)} mm; {len(found.features)} levels"
        ],
    }


def build(plan: Plan) -> MaskLearner:
    """The learner of this plan."""
    return MaskLearner(plan, make_task)


def load(plan: Plan, folder: Path) -> MaskLearner:
    """The learner that `save` wrote into `folder`."""
    return MaskLearner.load(plan, folder, make_task)


def make_task(plan: Plan, fitted: JSON, cache: Path | None, pretrained: bool) -> MaskTask:
    """See `domains.medical.learner.MakeTask`; there is nothing pretrained."""
    schema, found = plan.facts["schema"], configuration_of(plan)
    network = Unet(found, len(schema["channels"]), len(schema["names"]))
    return MaskTask(network, Options.model_validate(plan.options), found, fitted, cache)


def _median(facts: Facts) -> str:
    return " x ".join(f"{facts.sizes[f'median_{name}_voxels']:g}" for name in "xyz")
