"""SimCLR: a network of timm learns from pictures alone that two views of one belong together.

`zoo train images/cnn-finetune --set options.weights=RUN` (and vit-finetune) starts from what a run of this learned. Source:
Chen et al. 2020, arXiv 2002.05709: crops, colour distortion and blur (appendix A), a projection of two layers, and the loss of
equation 1; the projection has no batch norm here.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter
from pydantic import BaseModel, ConfigDict, Field
from torch import nn
from torch.nn import functional as F

from domains.contract import Facts
from domains.images.augment import training_view
from domains.images.cnn import input_side
from domains.images.labelled import FILE
from domains.images.shelf import STORED_MARGIN, Shelf, shelve
from domains.images.views import PlainViews
from domains.shared import timm_backbone as nets
from domains.shared.convolutions import keep_depthwise_in_float32
from domains.shared.forward_cost import forward_cost
from domains.shared.pictures import open_checked
from domains.shared.timm_checks import stored_side
from domains.shared.weights import Weights
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.gradient import GradientLearner
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"network": "test_efficientnet", "weights": nets.SCRATCH, "image_size": 32, "dimensions": 16},
    "train": {"epochs": 4, "batch_size": 32, "lr": 1e-3, "precision": "fp32", "compile": "off"},
}
_P_COLOUR, _P_GREY, _P_BLUR = 0.8, 0.2, 0.5


class Options(BaseModel):
    """The `options:` block of images/contrastive."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: str | None = Field(None, description="timm's name; None: the weights say it")
    weights: str | None = Field(None, description='hub id, folder, file, run, "none" (from nothing), "demo"')
    image_size: int | None = Field(None, ge=16, le=2048, description="side in pixels; None: from network and data")
    dimensions: int = Field(64, ge=4, le=512, description="of the space in which views are compared")
    temperature: float = Field(0.2, gt=0, description="of the likeness of two views; lower looks at the nearest alone")
    scale: float = Field(0.2, gt=0, le=1, description="smallest share of the area of a view")
    flip: bool = Field(True, description="mirror left and right")
    colour: float = Field(0.5, ge=0, le=1, description="strength of changes of colour, of greying and of blur")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from shapes. Raises MissingError where weights are not to be had, UsageError for unknown names."""
    found = nets.find_backbone(options.network, options.weights)
    side, why = input_side(facts, found, options)
    cost = forward_cost(lambda: nets.build_network(found.as_json(), 0), side)
    steps = settings.planned_steps(facts.num_rows)
    return {
        "num_parameters": cost.num_parameters,
        "memory_bytes": 16 * cost.num_parameters + 8 * cost.num_activations * settings.batch_size,
        "flops_per_example": 6 * cost.flops,
        **({"num_steps": steps} if steps else {}),
        "notes": [f"two views of {side} x {side} pixels of each picture: {why}"],
    }


def build(plan: Plan) -> GradientLearner:
    """The learner of this plan."""
    return GradientLearner(plan, lambda train: statistics(plan), lambda s, p: make_task(plan, s, p))


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote into `folder`; needs neither hub nor weights file."""
    return GradientLearner.load(plan, folder, lambda s, p: make_task(plan, s, p))


def statistics(plan: Plan) -> JSON:
    """The network, and what its pictures look like, as the fine-tune recipes look for them. Nothing is fitted."""
    options, facts = Options.model_validate(plan.options), Facts.from_json(plan.facts)
    found = nets.find_backbone(options.network, options.weights)
    side, _ = input_side(facts, found, options)
    return {"backbone": found.as_json(), "pictures": nets.picture_config(found, side=side, crop_pct=1.0)}


def make_task(plan: Plan, fitted: JSON, pretrained: bool) -> ContrastiveTask:
    """The network with its projection. pretrained: load the weights that the options name."""
    options, facts = Options.model_validate(plan.options), Facts.from_json(plan.facts)
    weights = nets.find_backbone(options.network, options.weights).weights if pretrained else None
    model = Projected(fitted["backbone"], options.dimensions, weights)
    if torch.device(plan.machine.device).type == "cpu":
        keep_depthwise_in_float32(model)
    return ContrastiveTask(model, options, facts, fitted)


class Projected(nn.Module):
    """x: (B, 3, H, W) -> (B, dimensions). The fine-tune recipes take `encoder` and leave the projection."""

    def __init__(self, backbone: JSON, dimensions: int, weights: Weights | None) -> None:
        super().__init__()
        self.encoder = nets.build_network(backbone, 0, weights=weights)
        width = nets.num_features(self.encoder)
        self.projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dimensions))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.projection(self.encoder(x))
        return found


class ContrastiveTask:
    """Meets `trainers.contract.Task`. Every picture of a step is compared with all others, so steps are not cut."""

    couples_rows = True

    def __init__(self, model: Projected, options: Options, facts: Facts, fitted: JSON) -> None:
        self.model: nn.Module = model
        self.options, self.config = options, fitted["pictures"]
        self.side, self.megapixels = stored_side(self.config), facts.sizes["megapixels"]
        self.views = PlainViews(self.config)
        self.min_rows = 2

    def roles(self) -> Mapping[str, Role]:
        """Depth from timm's own grouping; the projection is deepest."""
        encoder: Any = self.model.encoder
        depths = nets.layer_depths(encoder)
        deepest = 1 + max(depths.values())
        return {
            name: Role(
                "scalar" if p.ndim < 2 else "matrix" if name.startswith(nets.PART) else "head",
                depths.get(name.removeprefix(nets.PART), deepest),
            )
            for name, p in self.model.named_parameters()
        }

    def examples(self, train: Any, folder: Path) -> Shelf:
        """Pictures decoded once into `folder`."""
        paths = [Path(train.context["root"]) / file for file in train.column(FILE)]
        side = round(self.side * STORED_MARGIN)
        return shelve(paths, side, folder / "pictures", num_bytes=int(3e6 * self.megapixels))

    def sizes(self, examples: Sequence[Any]) -> None:
        """All pictures cost the same."""

    def draw(self, examples: Sequence[Any], rngs: Sequence[np.random.Generator]) -> Batch:
        """Views (2 B, 3, side, side) uint8: the first of every picture, then the second of each."""
        views = [self._view(picture, rngs[i]) for _ in range(2) for i, picture in enumerate(examples)]
        return Batch(_channels_first(views), {"nt_xent": float(len(views))})

    def loss(self, model: nn.Module, inputs: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Cross entropy of finding the other view among all others, summed over views."""
        places = model(nets.normalised(inputs, self.config))
        with torch.autocast(places.device.type, enabled=False):
            return {"nt_xent": nt_xent(places.float(), self.options.temperature)}

    def row_sizes(self, rows: Any) -> None:
        """All pictures cost the same."""

    def collate(self, rows: Any) -> torch.Tensor:
        """(2 rows, 3, side, side) uint8: the plain views, then another of each that is always the same."""
        paths = [Path(rows.context["root"]) / file for file in rows.column(FILE)]
        return torch.cat([self.views.batch(paths), _channels_first([self._fixed_view(path) for path in paths])])

    def predict(self, model: nn.Module, inputs: torch.Tensor) -> Predictions:
        """Where the two views of each picture lie."""
        places = F.normalize(model(nets.normalised(inputs, self.config)).float(), dim=1).cpu().double()
        one, other = places.chunk(2)
        names = [f"{name}_{at}" for name in ("view", "other") for at in range(one.shape[1])]
        return Predictions.of_number_rows(torch.cat([one, other], dim=1).numpy(), names)

    def _fixed_view(self, path: Path) -> np.ndarray:
        picture = np.asarray(open_checked(path))
        return self._view(picture, np.random.default_rng(zlib.crc32(np.ascontiguousarray(picture).tobytes())))

    def _view(self, picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        how = {"scale": self.options.scale, "flip": self.options.flip, "interpolation": self.config["interpolation"]}
        view = training_view(picture, self.side, rng=rng, **how)
        return distorted(view, self.options.colour, rng) if self.options.colour else view


def distorted(view_HWC: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    """Brightness, contrast and saturation, grey, blur: each with the probability that SimCLR gives it."""
    picture = Image.fromarray(np.ascontiguousarray(view_HWC))
    if rng.random() < _P_COLOUR:
        for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            picture = enhance(picture).enhance(1 + 0.8 * strength * rng.uniform(-1, 1))
    if rng.random() < _P_GREY:
        picture = picture.convert("L").convert("RGB")
    if rng.random() < _P_BLUR:
        picture = picture.filter(ImageFilter.GaussianBlur(strength * rng.uniform(0.1, 2.0) * picture.width / 224))
    return np.asarray(picture)


def nt_xent(places_2BD: torch.Tensor, temperature: float) -> torch.Tensor:
    """The sum over 2 B views of the cross entropy of finding the other view of the same picture among the 2 B - 1 others.

    places: those of all first views, then of all second ones. Source: Chen et al. 2020, equation 1.
    """
    directions = F.normalize(places_2BD, dim=1)
    likeness = directions @ directions.T / temperature
    likeness = likeness.masked_fill(torch.eye(len(likeness), dtype=torch.bool, device=likeness.device), float("-inf"))
    partner = torch.arange(len(likeness), device=likeness.device).roll(len(likeness) // 2)
    return F.cross_entropy(likeness, partner, reduction="sum")


def _channels_first(views: Sequence[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2)
