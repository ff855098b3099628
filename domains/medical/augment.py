"""Training patches: where they are cut, and how they are changed, by nnU-Net's list with its probabilities.

Source: Isensee et al. 2021, supplementary note 4 (rotation, scaling, noise, blur, brightness, contrast, low resolution, gamma,
mirroring). Arrays are (C, D, H, W) images and (D, H, W) masks; all chance comes from `rng`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.ndimage import affine_transform, gaussian_filter, zoom

from domains.medical.configure import Configuration
from domains.medical.shelf import StoredCase

FOREGROUND_SHARE = 1 / 3
"""Of the patches that must hold a voxel of a random class of the case."""
_P_ROTATE = _P_SCALE = 0.2
_P_NOISE, _P_BLUR, _P_BRIGHT, _P_CONTRAST, _P_COARSE, _P_GAMMA = 0.1, 0.2, 0.15, 0.15, 0.25, 0.3
_MOST_DEGREES, _MOST_DEGREES_FLAT = 30.0, 180.0
_SCALES = (0.7, 1.4)


def training_patch(
    case: StoredCase, plan: Configuration, strength: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A patch of the plan's size, (C, D, H, W) float32 and (D, H, W) uint8, changed at random.

    strength: 1 is nnU-Net's, 0 cuts and mirrors only; in between, changes are as much rarer.
    """
    centre = patch_centre(case, plan.patch, rng)
    image, mask = moved_patch(case, centre, plan, random_matrix(plan, strength, rng))
    if strength > 0:
        image = changed_intensities(image, strength, rng)
    for axis, name in enumerate("xyz"):
        if name in plan.mirror and rng.random() < 0.5:
            at = plan.axes.index(axis)
            image, mask = np.flip(image, 1 + at), np.flip(mask, at)
    return np.ascontiguousarray(image, np.float32), np.ascontiguousarray(mask)


def patch_centre(case: StoredCase, patch: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """(3,) the voxel in the middle of a patch: any place where it lies within the case, or around a voxel of a class."""
    shape, size = np.array(case.mask.shape), np.array(patch)
    low = np.minimum(size // 2, shape // 2)
    high = np.maximum(low, shape - (size - size // 2))
    if case.places and rng.random() < FOREGROUND_SHARE:
        places = case.places[rng.integers(len(case.places))]
        return np.asarray(np.clip(places[rng.integers(len(places))], low, high))
    return np.asarray(rng.integers(low, high + 1))


def random_matrix(plan: Configuration, strength: float, rng: np.random.Generator) -> np.ndarray | None:
    """(3, 3) rotation and scaling of a patch's coordinates; None leaves them."""
    matrix, is_changed = np.eye(3), False
    if rng.random() < _P_ROTATE * strength:
        is_changed = True
        if plan.dimensions == 2:
            matrix = _rotation(0, rng.uniform(-_MOST_DEGREES_FLAT, _MOST_DEGREES_FLAT))
        else:
            for axis in range(3):
                matrix = matrix @ _rotation(axis, rng.uniform(-_MOST_DEGREES, _MOST_DEGREES))
    if rng.random() < _P_SCALE * strength:
        is_changed = True
        scales = np.full(3, rng.uniform(*_SCALES))
        scales[0] = 1.0 if plan.dimensions == 2 else scales[0]
        matrix = matrix @ np.diag(scales)
    if not is_changed:
        return None
    mm = np.array(plan.spacing)  # rotate in mm, not in voxels
    return np.diag(1 / mm) @ matrix @ np.diag(mm)


def moved_patch(
    case: StoredCase, centre: np.ndarray, plan: Configuration, matrix: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """The patch around `centre` under `matrix`; what lies outside the case is 0, its mean, and background."""
    if matrix is None:
        return cut(case.image, centre, plan.patch).astype(np.float32), cut(case.mask, centre, plan.patch)
    offset = centre - matrix @ (np.array(plan.patch) // 2)
    how = {"output_shape": plan.patch, "mode": "constant", "cval": 0.0}
    image = [affine_transform(c.astype(np.float32), matrix, offset, order=1, **how) for c in case.image]
    return np.stack(image), affine_transform(case.mask, matrix, offset, order=0, **how)


def cut(array: np.ndarray, centre: np.ndarray, patch: Sequence[int]) -> np.ndarray:
    """The last three axes cut to `patch` around `centre`, filled with 0 beyond the edges."""
    found = np.zeros((*array.shape[:-3], *patch), array.dtype)
    source, target = [], []
    for middle, size, length in zip(centre.tolist(), patch, array.shape[-3:], strict=True):
        start = middle - size // 2
        first, last = max(0, start), min(length, start + size)
        source.append(slice(first, last))
        target.append(slice(first - start, last - start))
    d, h, w = target
    i, j, k = source
    found[..., d, h, w] = array[..., i, j, k]
    return found


def changed_intensities(image: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    """Noise, blur, brightness, contrast, low resolution and gamma, each with its probability."""
    if rng.random() < _P_NOISE * strength:
        image = image + rng.normal(0, np.sqrt(rng.uniform(0, 0.1)), image.shape).astype(np.float32)
    if rng.random() < _P_BLUR * strength:
        image = np.stack([gaussian_filter(channel, rng.uniform(0.5, 1.0), truncate=3.0) for channel in image])
    if rng.random() < _P_BRIGHT * strength:
        image = image * rng.uniform(0.75, 1.25)
    if rng.random() < _P_CONTRAST * strength:
        image = np.stack([_contrast(channel, rng.uniform(0.75, 1.25)) for channel in image])
    if rng.random() < _P_COARSE * strength:
        image = np.stack([_coarse(channel, rng.uniform(0.5, 1.0)) for channel in image])
    for probability, sign in ((_P_GAMMA / 3, -1.0), (_P_GAMMA, 1.0)):  # nnU-Net inverts the image for a third of them
        if rng.random() < probability * strength:
            image = np.stack([sign * _gamma(sign * channel, rng.uniform(0.7, 1.5)) for channel in image])
    return image


def _rotation(axis: int, degrees: float) -> np.ndarray:
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    matrix = np.eye(3)
    first, second = [other for other in range(3) if other != axis]
    matrix[first, first] = matrix[second, second] = cos
    matrix[first, second], matrix[second, first] = -sin, sin
    return matrix


def _contrast(channel: np.ndarray, factor: float) -> np.ndarray:
    mean = channel.mean()
    return np.asarray(np.clip((channel - mean) * factor + mean, channel.min(), channel.max()))


def _coarse(channel: np.ndarray, factor: float) -> np.ndarray:
    small = [max(1, round(size * factor)) / size for size in channel.shape]
    low = zoom(channel, small, order=0, grid_mode=True, mode="nearest")
    back = [size / other for size, other in zip(channel.shape, low.shape, strict=True)]
    return np.asarray(zoom(low, back, order=1, grid_mode=True, mode="nearest"))


def _gamma(channel: np.ndarray, gamma: float) -> np.ndarray:
    """A power of the intensities, with mean and deviation as they were."""
    low, width = channel.min(), max(float(np.ptp(channel)), 1e-7)
    mean, deviation = channel.mean(), channel.std()
    bent = ((channel - low) / width) ** gamma * width + low
    return np.asarray((bent - bent.mean()) / max(float(bent.std()), 1e-8) * deviation + mean)
