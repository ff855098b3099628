"""Segmentation from boxes that a person draws: the Segment Anything Model, with MedSAM's weights or others, fine-tuned.

A scan is seen slice by slice along its coarsest axis. On every slice that a box crosses, the box is the prompt and the answer
is the outline of what is in it; the network never learns which class that is, so it also outlines what it was not trained on,
under the name of any class. Settings are those of MedSAM (Ma et al. 2024, methods: AdamW at 1e-4, decay .01, Dice with cross
entropy, prompt encoder held) where it gives one; none was tuned here.

Random weights learn which intensities are structures first and where the box is after that: on made-up scans with a dark and a
bright structure 200 steps found only the dark one; either alone took 50, both 400.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch.nn import functional as F

from domains.contract import Facts
from domains.medical import sam
from domains.medical.boxes import REACH, Box, loosely, on_grid, slices_of
from domains.medical.configure import Configuration, configured
from domains.medical.masked import IMAGES
from domains.medical.prepare import Prepared, intensities, prepare, restored
from domains.medical.prompted import BOXES
from domains.medical.shelf import Shelf, StoredCase, shelve
from domains.medical.volumes import Mask
from domains.shared.forward_cost import forward_cost
from domains.shared.mask_losses import class_overlaps, pixel_losses
from domains.shared.weights import random_notes
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.gradient import GradientLearner
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"weights": "random:1x32"},
    "train": {
        "epochs": 64,
        "batch_size": 14,
        "micro_batch_size": 14,
        "lr": 3e-3,
        "precision": "fp32",
        "compile": "off",
        "ema": None,
        "evaluations": 4,
    },
}
_PIXELS_AT_ONCE = 1 << 20
"""Of the slices that are predicted together: one of 1,024 x 1,024."""
_DARKEST, _BRIGHTEST = 0.005, 0.995
"""Quantiles of a slice that become black and white; MedSAM's authors take these of a scan."""


class Options(BaseModel):
    """The `options:` block of medical/medsam."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field("wanglab/medsam-vit-base", description="hub id or folder of a SAM, or random:LAYERSxWIDTH")
    freeze_encoder: bool = Field(False, description="only the mask decoder learns; MedSAM trains the encoder too")
    reach: float = Field(REACH, ge=0, le=0.5, description="training boxes grow by this share of a side at most")
    flip: bool = Field(True, description="mirror training slices along their last axis half of the time")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Grid of the slices, and estimates. Raises MissingError or DataError where weights are not to be had."""
    config = sam.config_of(options.weights)
    cost = forward_cost(lambda: sam.empty(config), sam.side_of(config))
    grid, steps = _grid(facts, machine), settings.planned_steps(facts.num_rows)
    rows = settings.micro_batch_size or settings.batch_size
    backward = 1 if options.freeze_encoder else 3
    return {
        "grid": grid.model_dump(mode="json", include={"axes", "spacing", "normalisation"}),
        "configuration": grid.model_dump(mode="json"),
        "num_parameters": cost.num_parameters,
        "memory_bytes": 16 * cost.num_parameters + 4 * cost.num_activations * rows,
        "flops_per_example": backward * cost.flops,
        **({"num_steps": steps} if steps else {}),
        "notes": [
            f"slices across {'xyz'[grid.axes[0]]}, each as {sam.side_of(config)} x {sam.side_of(config)} pixels",
            *random_notes(options.weights),
        ],
    }


def _grid(facts: Facts, machine: Machine) -> Configuration:
    """nnU-Net's order of axes, spacing within slices and normalisation; patch and levels are nobody's."""
    nothing = {"plan": None, "patch": None, "spacing": None, "mirror": None, "base_features": None}
    return configured(facts, SimpleNamespace(dimensions=2, **nothing), machine, batch_size=1)


def build(plan: Plan) -> GradientLearner:
    """The learner of this plan."""
    return GradientLearner(plan, lambda train: statistics(plan, train), lambda s, p: make_task(plan, s, p))


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote into `folder`; needs no hub."""
    return GradientLearner.load(plan, folder, lambda s, p: make_task(plan, s, p))


def statistics(plan: Plan, train: Any) -> JSON:
    """Intensities of the foreground of the training cases, and the architecture."""
    spec = plan.options["weights"]
    samples = [train.context["looks"][name].samples for name in train.ids]
    grid = Configuration.model_validate(plan.estimates["configuration"])
    return {
        "intensities": intensities(samples, grid),
        "config": sam.config_of(spec),
        "pictures": sam.pictures_of(spec),
    }


def make_task(plan: Plan, fitted: JSON, pretrained: bool) -> BoxTask:
    """The network with its losses. pretrained: load the weights that the options name."""
    options = Options.model_validate(plan.options)
    model = sam.pretrained(options.weights, fitted["config"]) if pretrained else sam.empty(fitted["config"])
    grid = Configuration.model_validate(plan.estimates["configuration"])
    return BoxTask(model, options, grid, fitted, num_classes=len(plan.facts["schema"]["names"]))


class Boxed(NamedTuple):
    """A prepared case and its boxes, on the same grid."""

    case: Any
    boxes: list[Box]


class BoxShelf(Sequence[Boxed]):
    """The cases of `Shelf` with their boxes."""

    def __init__(self, shelf: Shelf, boxes: Sequence[list[Box]]) -> None:
        self.shelf, self.boxes = shelf, boxes

    def __len__(self) -> int:
        return len(self.shelf)

    def __getitem__(self, position: Any) -> Any:
        return Boxed(self.shelf[position], self.boxes[position])


class BoxTask:
    """Meets `trainers.contract.Task`. One example is one case; each time it is drawn, one of its boxes is seen on one slice.

    num_classes: with the background.
    """

    couples_rows = False
    min_rows = 1

    def __init__(
        self, model: sam.Sam, options: Options, grid: Configuration, fitted: JSON, *, num_classes: int
    ) -> None:
        self.model: torch.nn.Module = model
        self.options, self.grid, self.num_classes = options, grid, num_classes
        self.intensities, self.pictures = fitted["intensities"], fitted["pictures"]
        self.side = sam.side_of(fitted["config"])

    def roles(self) -> Mapping[str, Role]:
        """See `sam.roles_of`."""
        return sam.roles_of(self.model, freeze_encoder=self.options.freeze_encoder)

    def examples(self, train: Any, folder: Path) -> BoxShelf:
        """Cases prepared once into `folder`."""
        shelf = shelve(train, self.grid, self.intensities, folder)
        looks = [train.context["looks"][name] for name in train.ids]
        pairs = zip(train.column(BOXES), looks, shelf, strict=True)
        return BoxShelf(
            shelf, [on_grid(boxes, look.geometry, self.grid, case.mask.shape) for boxes, look, case in pairs]
        )

    def sizes(self, examples: Sequence[Any]) -> None:
        """All slices cost the same."""

    def draw(self, examples: Sequence[Any], rngs: Sequence[np.random.Generator]) -> Batch:
        """Slices (B, 3, S, S) float32, boxes (B, 1, 4) and masks (B, S, S) uint8. Dice counts slices that hold any of it."""
        found = [self._prompt(example.case, example.boxes, rngs[i]) for i, example in enumerate(examples)]
        slices, boxes, masks = (torch.stack(each) for each in zip(*found, strict=True))
        held = float(masks.flatten(1).any(dim=1).sum())
        return Batch((slices, boxes[:, None], masks), {"dice": held, "cross_entropy": float(len(masks))})

    def _prompt(
        self, case: StoredCase, boxes: Sequence[Box], rng: np.random.Generator
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        (box,) = loosely([boxes[int(rng.integers(len(boxes)))]], case.mask.shape, rng, self.options.reach)
        at = int(rng.choice(slices_of(box, len(case.mask))))
        values, mask = np.array(case.image[:, at], np.float32), np.array(case.mask[at] == box.position, np.uint8)
        if self.options.flip and rng.random() < 0.5:
            width = mask.shape[1]
            values, mask = values[:, :, ::-1].copy(), mask[:, ::-1].copy()
            low, high = (*box.low[:2], width - box.high[2]), (*box.high[:2], width - box.low[2])
            box = Box(box.position, low, high)
        picture, inner = as_picture(values, self.side, self.pictures)
        whole = torch.zeros(self.side, self.side, dtype=torch.uint8)
        shrunk = F.interpolate(torch.from_numpy(mask)[None, None].float(), size=inner, mode="nearest-exact")
        whole[: inner[0], : inner[1]] = shrunk[0, 0].to(torch.uint8)
        return picture, torch.tensor(pixels_of(box, mask.shape, inner)), whole

    def loss(self, model: torch.nn.Module, inputs: Any) -> Mapping[str, torch.Tensor]:
        """Dice and cross entropy of what a box is around against the rest, summed over slices."""
        slices, boxes, masks = inputs
        logits, labels = model(slices, boxes), masks.long()
        with torch.autocast(slices.device.type, enabled=False):
            logits = logits.float()
            both = torch.cat([torch.zeros_like(logits), logits], dim=1)  # the softmax of (0, x) is the sigmoid of x
            missing = 1 - class_overlaps(both, labels)[:, 0]
            held = labels.flatten(1).any(dim=1)
            return {"dice": (missing * held).sum(), "cross_entropy": pixel_losses(both, labels).sum()}

    def row_sizes(self, rows: Any) -> Sequence[int]:
        """Voxels of each case."""
        return [int(np.prod(rows.context["looks"][name].geometry.shape)) for name in rows.ids]

    def collate(self, rows: Any) -> list[Boxed]:
        """Every case by itself: their shapes differ."""
        found = []
        for paths, boxes in zip(rows.column(IMAGES), rows.column(BOXES), strict=True):
            case = prepare(paths, self.grid, self.intensities)
            found.append(Boxed(case, on_grid(boxes, case.geometry, self.grid, case.image.shape[1:])))
        return found

    def predict(self, model: torch.nn.Module, inputs: Sequence[Boxed]) -> Predictions:
        """A mask for every case, in the geometry of its file."""
        return Predictions.of_files([self._mask(model, *each) for each in inputs])

    def _mask(self, model: torch.nn.Module, case: Prepared, boxes: Sequence[Box]) -> Mask | None:
        found = self._probabilities(model, case.image, boxes)
        if not bool(torch.isfinite(found).all()):
            return None
        return Mask.of(restored(found, case.geometry, self.grid), case.geometry)

    def _probabilities(self, model: torch.nn.Module, image_CDHW: np.ndarray, boxes: Sequence[Box]) -> torch.Tensor:
        """(K, D, H, W) of each class by itself; the background has 1/2, so that it wins where no class is likelier."""
        device = next(model.parameters()).device
        found = torch.zeros(self.num_classes, *image_CDHW.shape[1:])
        found[0] = 0.5
        on_slice: dict[int, list[Box]] = {}
        for box in boxes:
            for at in slices_of(box, image_CDHW.shape[1]):
                on_slice.setdefault(at, []).append(box)
        chosen, num = sorted(on_slice), max(1, _PIXELS_AT_ONCE // self.side**2)
        for start in range(0, len(chosen), num):
            some = chosen[start : start + num]
            pictures = [as_picture(np.ascontiguousarray(image_CDHW[:, at]), self.side, self.pictures) for at in some]
            inner = pictures[0][1]
            prompts = [[pixels_of(box, image_CDHW.shape[2:], inner) for box in on_slice[at]] for at in some]
            most = max(map(len, prompts))  # slices with fewer boxes repeat their last one
            padded = torch.tensor([[*each, *[each[-1]] * (most - len(each))] for each in prompts])
            logits = model(torch.stack([each[0] for each in pictures]).to(device), padded.to(device)).float().cpu()
            whole = F.interpolate(logits[:, :, : inner[0], : inner[1]], size=image_CDHW.shape[2:], mode="bilinear")
            for row, at in enumerate(some):
                for n, box in enumerate(on_slice[at]):
                    found[box.position, at] = torch.maximum(found[box.position, at], whole[row, n].sigmoid())
        return found


def as_picture(values_CHW: np.ndarray, side: int, pictures: Mapping[str, Sequence[float]]) -> tuple[torch.Tensor, Any]:
    """(3, side, side) of a slice, its longer side scaled and the rest padded with 0 at bottom and right; (height, width) of
    what is no padding. One channel becomes all three colours, of several the first three, the last repeated."""
    low, high = np.quantile(values_CHW, [_DARKEST, _BRIGHTEST], axis=(1, 2))[..., None, None].astype(np.float32)
    grey = torch.from_numpy(np.clip((values_CHW - low) / np.maximum(high - low, 1e-6), 0, 1))
    colours = grey[[min(at, len(grey) - 1) for at in range(3)]]
    scale = side / max(grey.shape[1:])
    inner = tuple(max(1, round(n * scale)) for n in grey.shape[1:])
    scaled = F.interpolate(colours[None], size=inner, mode="bilinear", align_corners=False, antialias=True)[0]
    mean, std = (torch.tensor(pictures[name])[:, None, None] for name in ("mean", "std"))
    whole = torch.zeros(3, side, side)
    whole[:, : inner[0], : inner[1]] = (scaled - mean) / std
    return whole, inner


def pixels_of(box: Box, shape: Sequence[int], inner: Sequence[int]) -> list[float]:
    """x0, y0, x1, y1: first and last pixel of the scaled slice in the box. shape: (height, width) before scaling."""
    down, right = (new / old for new, old in zip(inner, shape, strict=True))
    return [box.low[2] * right, box.low[1] * down, box.high[2] * right - 1, box.high[1] * down - 1]
