"""What recipes of masks share: options of patches and answers, and the learner that looks at stray pieces after training."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from domains.medical.components import classes_that_gain, filtered
from domains.medical.configure import Configuration
from domains.medical.prepare import intensities
from domains.medical.task import MaskTask
from trainers.checkpoint import write_json
from trainers.contract import JSON, Plan, Predictions, Watch, as_objects
from trainers.gradient import GradientLearner

_PIECES = "components.json"

MakeTask = Callable[[Plan, JSON, Path | None, bool], MaskTask]
"""(plan, statistics, cache, pretrained): the network with its losses. cache: where prepared cases are kept for other runs.
pretrained: read the weights that the options name."""


class MaskOptions(BaseModel):
    """Options of every recipe that learns masks patch by patch. What is None follows from the data by nnU-Net's rules."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    patch: tuple[int, int, int] | None = Field(None, description="voxels in the order of the plan's axes")
    spacing: tuple[float, float, float] | None = Field(None, description="mm, in the order of the plan's axes")
    mirror: tuple[Literal["x", "y", "z"], ...] | None = Field(None, description="axes that may be flipped; None: x")
    augment: float = Field(1.0, ge=0, le=2, description="how often patches are changed; 1: as often as nnU-Net does")
    test_mirror: bool = Field(True, description="predict the mean over the flips of `mirror`")
    tversky_beta: float = Field(0.5, gt=0, lt=1, description=".5: Dice; more punishes what is missed (small lesions)")
    focal_gamma: float = Field(0.0, ge=0, le=5, description="0: cross entropy; 2: focal")
    keep_largest: Literal["auto", "always", "never"] = Field(
        "auto", description="only the largest piece of a class; auto: where validation gains"
    )


class MaskLearner:
    """A gradient learner, and after it the choice whether stray pieces of a class go. Meets `contract.Learner`.

    pieces: {"classes": class numbers of which only the largest piece is kept, "gains": Dice on the validation cases}.
    """

    resumable = True

    def __init__(self, plan: Plan, make_task: MakeTask) -> None:
        self.plan, self.make_task = plan, make_task
        self.cache: Path | None = None
        self.num_classes = len(plan.facts["schema"]["names"]) - 1
        self.keep = plan.options["keep_largest"]
        self.pieces: JSON = {"classes": [], "gains": []}
        self.inner = GradientLearner(
            plan,
            lambda train: statistics(plan, train),
            lambda fitted, pretrained: make_task(plan, fitted, self.cache, pretrained),
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

    def predict_soft(self, rows: Any) -> Predictions:
        """The probabilities of every case, which have a mean with those of other networks."""
        found = self.inner.predict_soft(rows)
        pieces = tuple(self.pieces["classes"])
        return replace(found, values=as_objects([each and replace(each, pieces=pieces) for each in found.values]))

    def save(self, folder: Path) -> None:
        """Weights, statistics, and which classes keep one piece."""
        self.inner.save(folder)
        write_json(folder / _PIECES, self.pieces)

    @classmethod
    def load(cls, plan: Plan, folder: Path, make_task: MakeTask) -> MaskLearner:
        """The learner that `save` wrote into `folder`."""
        learner = cls(plan, make_task)
        learner.inner = GradientLearner.load(plan, folder, lambda fitted, _: make_task(plan, fitted, None, False))
        learner.pieces = json.loads((folder / _PIECES).read_text())
        return learner


def statistics(plan: Plan, train: Any) -> JSON:
    """Intensities of the foreground of the training cases."""
    samples = [train.context["looks"][name].samples for name in train.ids]
    return {"intensities": intensities(samples, configuration_of(plan))}


def configuration_of(plan: Plan) -> Configuration:
    """The configuration that was planned."""
    return Configuration.model_validate(plan.estimates["configuration"])
