"""Training views of pictures, all chance from the generator that is passed in.

timm's own training transforms draw from the global generators of Python and torch, so a resumed run would see other
views; its evaluation transform draws nothing and is used as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

_TRIES = 10
_MOST_STRENGTH = 10.0
_GREY = (124, 116, 104)
"""What lies outside a picture that is turned or moved: the mean colour of ImageNet."""


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
    randaug: float = 0.0,
) -> np.ndarray:
    """A random box of the picture, resized to (side, side, 3) uint8, mirrored half of the time if `flip`.

    scale: smallest share of the area that a box may have; 1 takes the whole picture.   randaug: see `random_changes`.
    Pillow resizes, as for the judged view, and not torch: views are made in a thread beside training, and a second team
    of torch's threads on the same cores slows both.
    """
    picture = Image.fromarray(np.asarray(picture_HWC))
    box = Box(0, 0, picture.height, picture.width)
    if scale < 1:
        box = random_box(picture.height, picture.width, scale=(scale, 1.0), ratio=(3 / 4, 4 / 3), rng=rng)
    corners = (box.left, box.top, box.left + box.width, box.top + box.height)
    resized = picture.resize((side, side), _filter(interpolation), box=corners)
    view = np.asarray(random_changes(resized, randaug, rng) if randaug else resized)
    return view[:, ::-1] if flip and rng.random() < 0.5 else view


def random_changes(picture: Image.Image, strength: float, rng: np.random.Generator, *, number: int = 2) -> Image.Image:
    """`number` changes in a row, drawn with replacement from `CHANGES`. strength: 0 to 10.

    Source: Cubuk et al. 2020, RandAugment, arXiv 1909.13719, section 3; ranges as in Cubuk et al. 2019, AutoAugment, arXiv
    1805.09501, table 6.
    """
    for _ in range(number):
        sign = 1.0 if rng.random() < 0.5 else -1.0
        picture = CHANGES[rng.integers(len(CHANGES))](picture, strength / _MOST_STRENGTH, sign)
    return picture


def _moved(picture: Image.Image, *matrix: float) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=_GREY)


Change = Callable[[Image.Image, float, float], Image.Image]
"""change(picture, strength from 0 to 1, 1 or -1)."""
CHANGES: tuple[Change, ...] = (
    lambda x, s, sign: x,
    lambda x, s, sign: ImageOps.autocontrast(x),
    lambda x, s, sign: ImageOps.equalize(x),
    lambda x, s, sign: x.rotate(30 * s * sign, Image.Resampling.BILINEAR, fillcolor=_GREY),
    lambda x, s, sign: ImageOps.solarize(x, 256 - round(256 * s)),
    lambda x, s, sign: ImageOps.posterize(x, 8 - round(4 * s)),
    lambda x, s, sign: ImageEnhance.Color(x).enhance(1 + 0.9 * s * sign),
    lambda x, s, sign: ImageEnhance.Contrast(x).enhance(1 + 0.9 * s * sign),
    lambda x, s, sign: ImageEnhance.Brightness(x).enhance(1 + 0.9 * s * sign),
    lambda x, s, sign: ImageEnhance.Sharpness(x).enhance(1 + 0.9 * s * sign),
    lambda x, s, sign: _moved(x, 1, 0.3 * s * sign, 0, 0, 1, 0),
    lambda x, s, sign: _moved(x, 1, 0, 0, 0.3 * s * sign, 1, 0),
    lambda x, s, sign: _moved(x, 1, 0, 0.45 * s * sign * x.width, 0, 1, 0),
    lambda x, s, sign: _moved(x, 1, 0, 0, 0, 1, 0.45 * s * sign * x.height),
)


def mixed(
    pictures_NHWC: np.ndarray, *, mixup: float, cutmix: float, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    """(pictures, share): each picture with the one from the other end of the batch; share is what it keeps of itself.

    mixup, cutmix: parameters of Beta, 0 for never; with both each batch takes one or the other.
    Sources: Zhang et al. 2018, mixup, arXiv 1710.09412, section 2; Yun et al. 2019, CutMix, arXiv 1905.04899, section 3.1.
    """
    is_cut = cutmix > 0 and (mixup == 0 or rng.random() < 0.5)
    alpha = cutmix if is_cut else mixup
    share = float(rng.beta(alpha, alpha))
    others = pictures_NHWC[::-1]
    if not is_cut:
        blended = share * pictures_NHWC.astype(np.float32) + (1 - share) * others
        return np.rint(blended).astype(np.uint8), share
    height, width = pictures_NHWC.shape[1:3]
    half, (row, column) = math.sqrt(1 - share) / 2, (rng.uniform(0, height), rng.uniform(0, width))
    top, bottom = (round(min(max(row + side * half * height, 0), height)) for side in (-1, 1))
    left, right = (round(min(max(column + side * half * width, 0), width)) for side in (-1, 1))
    pasted = pictures_NHWC.copy()
    pasted[:, top:bottom, left:right] = others[:, top:bottom, left:right]
    return pasted, 1 - (bottom - top) * (right - left) / (height * width)


def _filter(name: str) -> Image.Resampling:
    # "random" is a choice of timm's for training alone; bicubic is what nearly all its weights are judged with.
    known = {"bilinear": Image.Resampling.BILINEAR, "nearest": Image.Resampling.NEAREST}
    return known.get(name, Image.Resampling.BICUBIC)
