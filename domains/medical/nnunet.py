"""Segmentation that configures itself (nnU-Net): fingerprint, plan, patches, U-Net, sliding windows, stray pieces.

`zoo plan medical/nnunet --data FOLDER --json` shows the plan under plan.estimates.configuration; edited, it goes back in with
`--set options.plan=FILE`.

Measured on the hippocampus of the Decathlon (195 cases, split by patient, seed 0), `--budget 1200` on two cores: test
Dice .8885 (anterior .897, posterior .880), 95 % Hausdorff distance 1.37 mm, beside .693 and 2.96 mm of the average
mask. After 240 s on one core validation stood at .852, here at .885. The settings in registry.yaml are first guesses:
no others were tried.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from domains.contract import Facts
from domains.medical.components import classes_that_gain, filtered
from domains.medical.configure import Configuration, configured, memory_bytes
from domains.medical.network import Unet
from domains.medical.prepare import intensities
from domains.medical.task import MaskTask
from trainers.checkpoint import write_json
from trainers.contract import JSON, Machine, Plan, Predictions, Watch
from trainers.gradient import GradientLearner
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"base_features": 8, "patch": [16, 16, 16], "augment": 0.2},
    "train": {"epochs": 4, "batch_size": 8, "lr": 3e-3, "precision": "fp32", "compile": "off", "ema": None},
}
_PIECES = "components.json"


class Options(BaseModel):
    """The `options:` block of medical/nnunet. What is None follows from the data by nnU-Net's rules."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    plan: str | None = Field(None, description="JSON file with any part of the configuration, or a run's plan.json")
    dimensions: Literal[2, 3] | None = Field(None, description="2: slice by slice; None: 3 unless the stack is thin")
    patch: tuple[int, int, int] | None = Field(None, description="voxels in the order of the plan's axes")
    spacing: tuple[float, float, float] | None = Field(None, description="mm, in the order of the plan's axes")
    mirror: tuple[Literal["x", "y", "z"], ...] | None = Field(None, description="axes that may be flipped; None: x")
    base_features: int | None = Field(None, ge=4, le=128, description="channels at full resolution; None: by device")
    augment: float = Field(1.0, ge=0, le=2, description="how often patches are changed; 1: as often as nnU-Net does")
    test_mirror: bool = Field(True, description="predict the mean over the flips of `mirror`")
    tversky_beta: float = Field(0.5, gt=0, lt=1, description=".5: Dice; more punishes what is missed (small lesions)")
    focal_gamma: float = Field(0.0, ge=0, le=5, description="0: cross entropy; 2: focal")
    keep_largest: Literal["auto", "always", "never"] = Field(
        "auto", description="only the largest piece of a class; auto: where validation gains"
    )


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
    return MaskLearner(plan)


def load(plan: Plan, folder: Path) -> MaskLearner:
    """The learner that `save` wrote into `folder`."""
    learner = MaskLearner(plan)
    learner.inner = GradientLearner.load(plan, folder, lambda fitted, _: make_task(plan, fitted))
    learner.pieces = json.loads((folder / _PIECES).read_text())
    return learner


def statistics(plan: Plan, train: Any) -> JSON:
    """Intensities of the foreground of the training cases."""
    samples = [train.context["looks"][name].samples for name in train.ids]
    return {"intensities": intensities(samples, _configuration(plan))}


def make_task(plan: Plan, fitted: JSON, cache: Path | None = None) -> MaskTask:
    """The network with its losses. cache: where prepared cases are kept for other runs."""
    schema, found = plan.facts["schema"], _configuration(plan)
    network = Unet(found, len(schema["channels"]), len(schema["names"]))
    return MaskTask(network, Options.model_validate(plan.options), found, fitted, cache)


class MaskLearner:
    """A gradient learner, and after it the choice whether stray pieces of a class go. Meets `contract.Learner`.

    pieces: {"classes": class numbers of which only the largest piece is kept, "gains": Dice on the validation cases}.
    """

    resumable = True

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.cache: Path | None = None
        self.num_classes = len(plan.facts["schema"]["names"]) - 1
        self.keep = Options.model_validate(plan.options).keep_largest
        self.pieces: JSON = {"classes": [], "gains": []}
        self.inner = GradientLearner(
            plan, lambda train: statistics(plan, train), lambda fitted, _: make_task(plan, fitted, self.cache)
        )

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Train in the one loop, then look at the pieces of the validation masks."""
        self.cache = watch.cache / "medical"
        actual = self.inner.fit(train, valid, watch)
        if self.keep == "always":
            self.pieces = {"classes": list(range(1, self.num_classes + 1)), "gains": []}
        elif self.keep == "auto" and valid is not None and len(valid):
            answers = self.inner.predict(valid.without_target())
            classes, gains = classes_that_gain(valid.target(), answers, self.num_classes)
            self.pieces = {"classes": classes, "gains": gains}
        return {**actual, "largest_piece_only": self.pieces}

    def predict(self, rows: Any) -> Predictions:
        """The mask of every case."""
        return filtered(self.inner.predict(rows), self.pieces["classes"])

    def save(self, folder: Path) -> None:
        """Weights, statistics, and which classes keep one piece."""
        self.inner.save(folder)
        write_json(folder / _PIECES, self.pieces)


def _configuration(plan: Plan) -> Configuration:
    return Configuration.model_validate(plan.estimates["configuration"])


def _median(facts: Facts) -> str:
    return " x ".join(f"{facts.sizes[f'median_{name}_voxels']:g}" for name in "xyz")
