"""Training views of labelled scans, changed only as anatomy and scanners allow: small turns, shifts and scalings, brightness
and contrast. Nothing is mirrored unless asked for: the heart is on the left. All slices of a scan change alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image


class Changes(NamedTuple):
    """degrees: turned by so much at most, either way.   scale, shift: shares of the side, likewise.   intensity: of contrast
    and gamma, likewise.   flip: axes that are mirrored half of the time, "x" left and right, "y" front and back."""

    degrees: float = 10.0
    scale: float = 0.1
    shift: float = 0.05
    intensity: float = 0.15
    flip: tuple[str, ...] = ()


def slice_view(slices_SHWC: np.ndarray, changes: Changes, rng: np.random.Generator) -> np.ndarray:
    """(S, H, W, 3) uint8, changed at random."""
    matrix = _matrix(slices_SHWC.shape[1], changes, rng)
    table = _intensities(changes.intensity, rng)
    flips = tuple(axis for axis, name in ((2, "x"), (1, "y")) if name in changes.flip and rng.random() < 0.5)
    moved = np.stack([_moved(each, matrix) for each in slices_SHWC])
    return np.ascontiguousarray(np.flip(table[moved], flips))


def _matrix(side: int, changes: Changes, rng: np.random.Generator) -> Sequence[float]:
    """The six numbers of Pillow's affine transform: where a pixel of the view lies in the scan."""
    angle = math.radians(rng.uniform(-changes.degrees, changes.degrees))
    scale = 1 + rng.uniform(-changes.scale, changes.scale)
    right, down = rng.uniform(-changes.shift, changes.shift, 2) * side
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    middle = (side - 1) / 2
    return (
        *(cos, sin, middle - cos * (middle + right) - sin * (middle + down)),
        *(-sin, cos, middle + sin * (middle + right) - cos * (middle + down)),
    )


def _moved(slice_HWC: np.ndarray, matrix: Sequence[float]) -> np.ndarray:
    picture = Image.fromarray(slice_HWC)
    how = (Image.Transform.AFFINE, tuple(matrix), Image.Resampling.BILINEAR)
    return np.asarray(picture.transform(picture.size, *how))


def _intensities(strength: float, rng: np.random.Generator) -> np.ndarray:
    """(256,) uint8: gamma and contrast around the middle as one table; 0, the padding, stays 0."""
    contrast, gamma = 1 + rng.uniform(-strength, strength, 2)
    level = (np.arange(256) / 255) ** gamma
    found: np.ndarray = np.rint(np.clip((level - 0.5) * contrast + 0.5, 0, 1) * 255).astype(np.uint8)
    found[0] = 0
    return found
