"""A network of timm on scans with a label each: 2-D pictures, and volumes slice by slice (2.5-D).

Each of a few slices goes through the same pretrained network with its two neighbours as colours; the mean (or the largest)
of what it says of them is what the last layer decides by. So ImageNet weights serve volumes too, and a 2-D picture is a
volume of one slice. The settings are those of images/cnn-finetune, with views that anatomy allows; nothing was tuned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from domains.contract import Facts
from domains.medical.labelled import SCAN
from domains.medical.slice_shelf import SliceReader, SliceShelf, shelved
from domains.medical.slice_views import Changes, slice_view
from domains.shared import timm_backbone as nets
from domains.shared.convolutions import batch_norms, hold_statistics, keep_depthwise_in_float32
from domains.shared.forward_cost import forward_cost
from domains.shared.timm_checks import stored_side
from domains.shared.weights import Weights
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.gradient import GradientLearner
from trainers.outcome import ClassWeights, Outcome, fit_outcome
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"network": "test_efficientnet", "weights": nets.SCRATCH, "image_size": 32, "slices": 2},
    "train": {"epochs": 6, "batch_size": 16, "lr": 3e-3, "precision": "fp32", "compile": "off"},
}
ENLARGE = 2
"""Scans smaller than a network's own input are enlarged at most so much."""
SMALLEST_SIDE, _SIDE_STEP = 64, 32


class Options(BaseModel):
    """The `options:` block of medical/cnn-finetune."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: str | None = Field(None, description="timm's name; None: the weights say it")
    weights: str | None = Field(None, description='hub id, folder, file, run, "none", "demo"; None: timm\'s')
    image_size: int | None = Field(None, ge=16, le=2048, description="side in pixels; None: from network and data")
    slices: int = Field(12, ge=1, le=256, description="seen of a volume, evenly from feet to head, at most")
    window: tuple[float, float] | None = Field(
        None, description="intensities that become black and white (CT of soft tissue: -160, 240); None: percentiles"
    )
    degrees: float = Field(10.0, ge=0, le=180, description="training views are turned by so much at most")
    scale: float = Field(0.1, ge=0, lt=1, description="and enlarged or shrunk by this share at most")
    shift: float = Field(0.05, ge=0, lt=1, description="and shifted by this share of the side at most")
    intensity: float = Field(0.15, ge=0, lt=1, description="change of contrast and gamma, at most")
    flip: tuple[Literal["x", "y"], ...] = Field((), description="axes along which a mirrored patient means the same")
    pool: Literal["mean", "max"] = Field("mean", description="over slices; max where one slice decides")
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    class_weights: ClassWeights = "none"
    freeze_bn: bool = Field(True, description="keep the pretrained statistics of batch norm; never from scratch")
    freeze_layers: int = Field(0, ge=0, description="layer groups, from the input, that do not learn")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from shapes. Raises MissingError where weights are not to be had, UsageError for unknown names."""
    found = _backbone(options, facts)
    side, num = input_side(facts, found, options), num_slices(facts, options)
    cost = forward_cost(lambda: nets.build_network(found.as_json(), facts.num_outputs), side)
    steps = settings.planned_steps(facts.num_rows)
    notes = [f"each scan goes in as {num} slice{'s' * (num > 1)} of {side} x {side} pixels"]
    notes += ["random weights: no pretraining"] if found.weights is None else []
    return {
        "num_parameters": cost.num_parameters,
        "memory_bytes": 16 * cost.num_parameters
        + 4 * cost.num_activations * num * (settings.micro_batch_size or settings.batch_size),
        "flops_per_example": 3 * cost.flops * num,
        **({"num_steps": steps} if steps else {}),
        "notes": notes,
    }


def build(plan: Plan) -> GradientLearner:
    """The learner of this plan."""
    return GradientLearner(plan, lambda train: statistics(plan, train), lambda s, p: make_task(plan, s, p))


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote into `folder`; needs neither hub nor weights file."""
    return GradientLearner.load(plan, folder, lambda s, p: make_task(plan, s, p))


def num_slices(facts: Facts, options: Options) -> int:
    """Of each scan: no more than the median one has."""
    return max(1, min(options.slices, round(facts.sizes["median_slices"])))


def input_side(facts: Facts, found: nets.Backbone, options: Options) -> int:
    """The side in pixels of the square that the network sees."""
    own = int((found.picture_config.get("input_size") or (3, 224, 224))[-1])
    if options.image_size is not None or found.picture_config.get("fixed_input_size"):
        return options.image_size or own
    wanted = math.ceil(ENLARGE * facts.sizes["median_long_side"] / _SIDE_STEP) * _SIDE_STEP
    return min(own, max(SMALLEST_SIDE, wanted))


def statistics(plan: Plan, train: Any) -> JSON:
    """Everything fixed by the training rows and the weights, as plain values."""
    options, facts = Options.model_validate(plan.options), Facts.from_json(plan.facts)
    found = _backbone(options, facts)
    outcome = fit_outcome(train.target(), facts.classes, options.class_weights)
    pictures = nets.picture_config(found, side=input_side(facts, found, options), crop_pct=1.0)
    slices = num_slices(facts, options)
    return {"backbone": found.as_json(), "pictures": pictures, "outcome": outcome.as_json(), "slices": slices}


def make_task(plan: Plan, fitted: JSON, pretrained: bool) -> ScanTask:
    """The network with its losses. pretrained: load the weights that the options name."""
    options, facts = Options.model_validate(plan.options), Facts.from_json(plan.facts)
    weights = _backbone(options, facts).weights if pretrained else None
    model = SliceNetwork(
        fitted["backbone"], facts.num_outputs, num=fitted["slices"], pool=options.pool, weights=weights
    )
    if torch.device(plan.machine.device).type == "cpu":
        keep_depthwise_in_float32(model)
    return ScanTask(model, options, fitted)


def _backbone(options: Options, facts: Facts) -> nets.Backbone:
    found = nets.find_backbone(options.network, options.weights)
    if found.picture_config.get("fixed_input_size") and options.image_size is not None:
        return replace(found, args={**found.args, "img_size": options.image_size})
    return found


class SliceNetwork(torch.nn.Module):
    """x: (B * num, 3, H, W), the slices of B scans one after another -> (B, outputs)."""

    def __init__(self, backbone: JSON, num_outputs: int, *, num: int, pool: str, weights: Weights | None) -> None:
        super().__init__()
        self.num, self.pool = num, pool
        self.encoder = nets.build_network(backbone, 0, weights=weights)
        self.head = torch.nn.Linear(nets.num_features(self.encoder), num_outputs)
        nets.calm(self.head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.encoder(x).unflatten(0, (-1, self.num))
        pooled = features.mean(dim=1) if self.pool == "mean" else features.amax(dim=1)
        with torch.autocast(x.device.type, enabled=False):  # bfloat16 has 8 bits, so that answers would tie
            answers: torch.Tensor = self.head(pooled.float())
        return answers


class ScanTask:
    """Meets `trainers.contract.Task`. Slices travel as uint8 and are normalised on the model's device."""

    couples_rows = False

    def __init__(self, model: SliceNetwork, options: Options, fitted: JSON) -> None:
        self.model: torch.nn.Module = model
        self.options, self.config = options, fitted["pictures"]
        self.outcome = Outcome.from_json(fitted["outcome"])
        side = stored_side(self.config)
        self.reader = SliceReader(num=fitted["slices"], side=side, window=options.window)
        self.changes = Changes(options.degrees, options.scale, options.shift, options.intensity, options.flip)
        self.freezes_bn = options.freeze_bn and fitted["backbone"]["weights"] is not None
        self.min_rows = 2 if batch_norms(model) and not self.freezes_bn else 1

    def roles(self) -> Mapping[str, Role]:
        """Depth from timm's own grouping of layers; frozen groups have no role."""
        encoder: Any = self.model.encoder
        depths = nets.layer_depths(encoder)
        deepest = 1 + max(depths.values())
        roles = {
            f"encoder.{name}": Role("matrix" if p.ndim > 1 else "scalar", depths[name])
            for name, p in encoder.named_parameters()
            if depths[name] >= self.options.freeze_layers
        }
        return {**roles, "head.weight": Role("head", deepest), "head.bias": Role("head", deepest)}

    def examples(self, train: Any, folder: Path) -> SliceShelf:
        """Slices cut once into `folder`, with class positions or standardised numbers."""
        return shelved(self.reader, list(train.column(SCAN)), folder / "scans", self.outcome.encoded(train.target()))

    def sizes(self, examples: Sequence[Any]) -> None:
        """All scans cost the same."""

    def draw(self, examples: Sequence[Any], rngs: Sequence[np.random.Generator]) -> Batch:
        """Views (B * S, 3, H, W) uint8 with their targets (B,)."""
        views = np.concatenate([slice_view(x, self.changes, rngs[i]) for i, (x, _) in enumerate(examples)])
        targets = np.array([target for _, target in examples])
        return Batch((_channels_first(views), torch.from_numpy(targets)), self.outcome.counts(targets))

    def loss(self, model: torch.nn.Module, inputs: Any) -> Mapping[str, torch.Tensor]:
        """Cross entropy, or the squared error of standardised numbers, summed over scans."""
        if self.freezes_bn:
            hold_statistics(model)
        slices, targets = inputs
        answers = model(nets.normalised(slices, self.config))
        return self.outcome.totals(answers, targets, label_smoothing=self.options.label_smoothing)

    def row_sizes(self, rows: Any) -> None:
        """All scans cost the same."""

    def collate(self, rows: Any) -> torch.Tensor:
        """(B * S, 3, H, W) uint8."""
        return _channels_first(np.concatenate(list(self.reader.batch(list(rows.column(SCAN))))))

    def predict(self, model: torch.nn.Module, inputs: torch.Tensor) -> Predictions:
        """Class probabilities, or numbers in the unit of the target."""
        return self.outcome.predictions(model(nets.normalised(inputs, self.config)))


def _channels_first(slices_SHWC: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(slices_SHWC).permute(0, 3, 1, 2)
