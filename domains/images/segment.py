"""Masks for pictures: a U-Net with a network of timm, pretrained or from nothing, as its way down.

A picture goes in whole, its longer side scaled to `image_size`; the answer is enlarged to the size of its file. The settings
are first guesses after images/cnn-finetune.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from domains.contract import Facts
from domains.images.labelled import FILE
from domains.images.mask_files import IGNORED, MaskPicture
from domains.images.mask_views import PairShelf, Whole, shelved, training_pair, whole
from domains.images.soft_masks import SoftPicture, on_picture
from domains.images.unet import Unet
from domains.shared import timm_backbone as nets
from domains.shared.convolutions import batch_norms, hold_statistics, keep_depthwise_in_float32
from domains.shared.forward_cost import forward_cost
from domains.shared.mask_losses import class_overlaps, pixel_losses
from domains.shared.pictures import in_threads
from domains.shared.timm_checks import stored_side
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.gradient import GradientLearner
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"network": "test_efficientnet", "weights": nets.SCRATCH, "image_size": 32, "width": 8},
    "train": {"epochs": 6, "batch_size": 16, "lr": 3e-3, "head_lr": 3e-3, "precision": "fp32", "compile": "off"},
}
STEP = 32
"""Sides are multiples of the largest stride of usual networks."""
LARGEST_SIDE = 512
_STORED_MARGIN = 1.25


class Options(BaseModel):
    """The `options:` block of images/segment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: str | None = Field(None, description="timm's name of the way down; None: the weights say it")
    weights: str | None = Field(None, description='hub id, folder, file, run, "none", "demo"; None: timm\'s')
    image_size: int | None = Field(None, ge=32, le=4096, description="longer side in pixels; None: from the data")
    width: int = Field(32, ge=8, le=256, multiple_of=8, description="channels at the finest level of the way up")
    scale: float = Field(0.4, gt=0, le=1, description="smallest share of the area of a training view; 1: the whole")
    flip: bool = Field(True, description="mirror left and right; false where classes are sides")
    colour: float = Field(0.2, ge=0, lt=1, description="change of brightness and contrast, at most")
    dice: bool = Field(True, description="Dice of the classes that a view holds, beside cross entropy")
    focal_gamma: float = Field(0.0, ge=0, le=5, description="0: cross entropy; 2: focal")
    freeze_bn: bool = Field(True, description="keep the pretrained statistics of batch norm; never from scratch")
    freeze_layers: int = Field(0, ge=0, description="layer groups, from the input, that do not learn")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from shapes. Raises MissingError where weights are not to be had, UsageError for unknown names."""
    found, side = nets.find_backbone(options.network, options.weights), input_side(facts, options)
    cost = forward_cost(lambda: _network(found.as_json(), facts, options, None), side)
    steps = settings.planned_steps(facts.num_rows)
    unlearned = facts.schema.get("unlearned", [])
    told = [f"in no mask to train on, so never learned: {', '.join(unlearned)}"] if unlearned else []
    notes = [*told, f"pictures go in whole, at {side} x {side} pixels; masks come out at the size of the file"]
    return {
        "num_parameters": cost.num_parameters,
        "memory_bytes": 16 * cost.num_parameters
        + 8 * cost.num_activations * (settings.micro_batch_size or settings.batch_size),
        "flops_per_example": 3 * cost.flops,
        **({"num_steps": steps} if steps else {}),
        "image_size": side,
        "notes": [*notes, *(["random weights: no pretraining"] if found.weights is None else [])],
    }


def build(plan: Plan) -> GradientLearner:
    """The learner of this plan."""
    return GradientLearner(plan, lambda train: statistics(plan), lambda s, p: make_task(plan, s, p))


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote into `folder`; needs neither hub nor weights file."""
    return GradientLearner.load(plan, folder, lambda s, p: make_task(plan, s, p))


def input_side(facts: Facts, options: Options) -> int:
    """Of the square that the network sees: the median longer side, 512 at most."""
    side = options.image_size or min(LARGEST_SIDE, round(facts.sizes["median_long_side"]))
    return max(STEP, math.ceil(side / STEP) * STEP)


def statistics(plan: Plan) -> JSON:
    """The network, and what its pictures look like. Nothing is fitted."""
    options, facts = Options.model_validate(plan.options), Facts.from_json(plan.facts)
    found = nets.find_backbone(options.network, options.weights)
    pictures = nets.picture_config(found, side=input_side(facts, options), crop_pct=1.0)
    return {"backbone": found.as_json(), "pictures": pictures}


def make_task(plan: Plan, fitted: JSON, pretrained: bool) -> SegmentTask:
    """The network with its losses. pretrained: load the weights that the options name."""
    options, facts = Options.model_validate(plan.options), Facts.from_json(plan.facts)
    weights = nets.find_backbone(options.network, options.weights).weights if pretrained else None
    model = _network(fitted["backbone"], facts, options, weights)
    if torch.device(plan.machine.device).type == "cpu":
        keep_depthwise_in_float32(model)
    return SegmentTask(model, options, facts, fitted)


def _network(backbone: JSON, facts: Facts, options: Options, weights: Any) -> Unet:
    how = {"width": options.width, "most": 8 * options.width, "weights": weights}
    return Unet(backbone, len(facts.schema["names"]), **how)


class SegmentTask:
    """Meets `trainers.contract.Task`. Pictures travel as uint8 and are normalised on the model's device."""

    couples_rows = False

    def __init__(self, model: Unet, options: Options, facts: Facts, fitted: JSON) -> None:
        self.model: torch.nn.Module = model
        self.options, self.config, self.values = options, fitted["pictures"], tuple(facts.schema["values"])
        self.is_soft = False
        self.side, self.megapixels = stored_side(self.config), facts.sizes["megapixels"]
        self.freezes_bn = options.freeze_bn and fitted["backbone"]["weights"] is not None
        self.min_rows = 2 if batch_norms(model) and not self.freezes_bn else 1

    def roles(self) -> Mapping[str, Role]:
        """Depth of the way down from timm's own grouping; the way up is fresh, and learns at the rate of a head."""
        encoder: Any = self.model.encoder
        depths = nets.layer_depths(encoder)
        deepest = 1 + max(depths.values())
        roles = {}
        for name, parameter in self.model.named_parameters():
            below = name.removeprefix(nets.PART)
            if not name.startswith(nets.PART):
                roles[name] = Role("head" if parameter.ndim > 1 or name.startswith("last.") else "scalar", deepest)
            elif depths[below] >= self.options.freeze_layers:
                roles[name] = Role("matrix" if parameter.ndim > 1 else "scalar", depths[below])
        return roles

    def examples(self, train: Any, folder: Path) -> PairShelf:
        """Pictures and masks decoded once into `folder`."""
        paths = [Path(train.context["root"]) / file for file in train.column(FILE)]
        side, num_bytes = round(self.side * _STORED_MARGIN), int(4e6 * self.megapixels)
        return shelved(paths, list(train.target()), side, folder / "masked", num_bytes)

    def sizes(self, examples: Sequence[Any]) -> None:
        """All pictures cost the same."""

    def draw(self, examples: Sequence[Any], rngs: Sequence[np.random.Generator]) -> Batch:
        """Views (B, 3, side, side) and masks (B, side, side), uint8. Dice counts views with any foreground."""
        how: JSON = {"scale": self.options.scale, "flip": self.options.flip, "colour": self.options.colour}
        pairs = [training_pair(x, mask, self.side, rng=rngs[i], **how) for i, (x, mask) in enumerate(examples)]
        views, masks = (np.stack(each) for each in zip(*pairs, strict=True))
        labelled = (masks != IGNORED).any(axis=(1, 2)).sum()
        held = ((masks > 0) & (masks != IGNORED)).any(axis=(1, 2)).sum()
        counts = {"cross_entropy": float(labelled), **({"dice": float(held)} if self.options.dice else {})}
        pictures = torch.from_numpy(views).permute(0, 3, 1, 2)
        return Batch((pictures, torch.from_numpy(masks)), counts)

    def loss(self, model: torch.nn.Module, inputs: Any) -> Mapping[str, torch.Tensor]:
        """Cross entropy of every view, and one minus the mean Dice of the classes that it holds, summed over views."""
        if self.freezes_bn:
            hold_statistics(model)
        pictures, masks = inputs
        logits, labels = model(nets.normalised(pictures, self.config)), masks.long()
        with torch.autocast(pictures.device.type, enabled=False):
            logits = logits.float()
            entropy = pixel_losses(logits, labels, gamma=self.options.focal_gamma, ignored=IGNORED).sum()
            if not self.options.dice:
                return {"cross_entropy": entropy}
            classes = torch.arange(1, logits.shape[1], device=labels.device)
            held = (labels.flatten(1).unsqueeze(2) == classes).any(dim=1)  # (B, K - 1)
            missing = (1 - class_overlaps(logits, labels, ignored=IGNORED)) * held
            return {"cross_entropy": entropy, "dice": (missing.sum(dim=1) / held.sum(dim=1).clamp(min=1)).sum()}

    def row_sizes(self, rows: Any) -> None:
        """All pictures cost the same."""

    def collate(self, rows: Any) -> tuple[torch.Tensor, list[Whole]]:
        """(rows, 3, side, side) uint8, and how each lies in its square."""
        paths = [Path(rows.context["root"]) / file for file in rows.column(FILE)]
        found = in_threads(lambda path: whole(path, self.side), paths)
        return torch.from_numpy(np.stack([each.pixels for each in found])), [
            each._replace(pixels=None) for each in found
        ]

    def predict(self, model: torch.nn.Module, inputs: Any) -> Predictions:
        """A mask for every picture, at the size of its file."""
        pictures, places = inputs
        logits = model(nets.normalised(pictures, self.config)).float()
        return Predictions.of_files([self._mask(logits[i], place) for i, place in enumerate(places)])

    def _mask(self, logits_KHW: torch.Tensor, place: Whole) -> MaskPicture | SoftPicture | None:
        inner = logits_KHW[:, : place.inner[0], : place.inner[1]]
        if not bool(torch.isfinite(inner).all()):
            return None
        if self.is_soft:
            return SoftPicture.of(inner.softmax(dim=0), place.source, self.values)
        return on_picture(inner, place.source, self.values)
