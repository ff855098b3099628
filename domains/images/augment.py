"""Training views of pictures, all chance from the generator that is passed in.

timm's own training transforms draw from the global generators of Python and torch, so a resumed run would see other
views; its evaluation transform draws nothing and is used as it is.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from PIL import Image

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
) -> np.ndarray:
    """A random box of the picture, resized to (side, side, 3) uint8, mirrored half of the time if `flip`.

    scale: smallest share of the area that a box may have; 1 takes the whole picture.
    Pillow resizes, as for the judged view, and not torch: views are made in a thread beside training, and a second team
    of torch's threads on the same cores slows both.
    """
    picture = Image.fromarray(np.asarray(picture_HWC))
    box = Box(0, 0, picture.height, picture.width)
    if scale < 1:
        box = random_box(picture.height, picture.width, scale=(scale, 1.0), ratio=(3 / 4, 4 / 3), rng=rng)
    corners = (box.left, box.top, box.left + box.width, box.top + box.height)
    view = np.asarray(picture.resize((side, side), _filter(interpolation), box=corners))
    return view[:, ::-1] if flip and rng.random() < 0.5 else view


def _filter(name: str) -> Image.Resampling:
    # "random" is a choice of timm's for training alone; bicubic is what nearly all its weights are judged with.
    known = {"bilinear": Image.Resampling.BILINEAR, "nearest": Image.Resampling.NEAREST}
    return known.get(name, Image.Resampling.BICUBIC)
