"""Training views of pictures, all chance from the generator that is passed in; and the untouched view for predicting.

timm's own training transforms draw from the global generators of Python and torch, so a resumed run would see other
views; its evaluation transform draws nothing and is used as it is.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as views

_TRIES = 10


class Box(NamedTuple):
    """A part of a picture, in pixels."""

    top: int
    left: int
    height: int
    width: int


def random_box(
    height: int, width: int, *, scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator
) -> Box:
    """A box with a random share of the area and a random shape, anywhere inside; the largest central one that keeps to
    `ratio` if ten tries do not fit.

    scale: share of the area, from and to.   ratio: width / height, drawn evenly on a log scale.
    Source: Szegedy et al. 2015, arXiv 1409.4842, section 6; as in torchvision's RandomResizedCrop.
    """
    for _ in range(_TRIES):
        area = height * width * rng.uniform(*scale)
        shape = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        box_width, box_height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < box_width <= width and 0 < box_height <= height:
            top, left = rng.integers(height - box_height + 1), rng.integers(width - box_width + 1)
            return Box(int(top), int(left), box_height, box_width)
    box_width = min(width, max(1, round(height * ratio[1])))
    box_height = min(height, max(1, round(width / ratio[0])))
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)


def training_view(
    picture_HWC: np.ndarray,
    side: int,
    *,
    scale: float,
    flip: bool,
    interpolation: str,
    rng: np.random.Generator,
) -> torch.Tensor:
    """A random box of the picture, resized to (3, side, side) uint8, mirrored half of the time if `flip`.

    scale: smallest share of the area that a box may have; 1 takes the whole picture, its shape kept by no crop.
    """
    picture = torch.from_numpy(np.array(picture_HWC)).permute(2, 0, 1)
    if scale < 1:
        box = random_box(*picture.shape[1:], scale=(scale, 1.0), ratio=(3 / 4, 4 / 3), rng=rng)
        picture = views.crop(picture, *box)
    view: torch.Tensor = views.resize(picture, [side, side], interpolation=_mode(interpolation), antialias=True)
    return view.flip(-1) if flip and rng.random() < 0.5 else view


def _mode(name: str) -> InterpolationMode:
    # "random" is a choice of timm's for training alone; bicubic is what nearly all its weights are judged with.
    return InterpolationMode(name if name in ("bilinear", "bicubic", "nearest") else "bicubic")
