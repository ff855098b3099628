"""A case as the network sees it: axes of the plan, spacing of the plan, standardised; and logits back in the source's grid.

Letters: C channels, K classes, D H W voxels in the order of the plan's axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.ndimage import zoom

from domains.medical.configure import Configuration
from domains.medical.volumes import Geometry, MaskFile, read_image
from trainers.contract import JSON

_SMALLEST_DEVIATION = 1e-6
SPLINE = 3
"""Order of the interpolation of images; masks take the nearest voxel."""


class Prepared(NamedTuple):
    """image: (C, D, H, W) float32.   geometry: of the source."""

    image: np.ndarray
    geometry: Geometry


def intensities(samples: Sequence[np.ndarray], plan: Configuration) -> list[JSON]:
    """What is fitted of each channel: percentiles, mean and deviation of the foreground of the training cases.

    samples: (C, n) foreground values of each case.
    """
    found = []
    for channel in range(len(plan.normalisation)):
        values = np.concatenate([each[channel] for each in samples] or [np.zeros(1)]).astype(np.float64)
        values = values if len(values) else np.zeros(1)
        low, high = np.percentile(values, [0.5, 99.5])  # nnU-Net's clip for CT
        found.append({"low": low, "high": high, "mean": float(values.mean()), "deviation": float(values.std())})
    return found


def prepare(paths: Sequence[str], plan: Configuration, fitted: Sequence[Mapping[str, float]]) -> Prepared:
    """The image of one case, ready for the network."""
    volume = read_image([Path(path) for path in paths])
    turned = np.transpose(volume.array, (0, *(1 + axis for axis in plan.axes)))
    scaled = [
        resampled(standardised(channel, how, each), _factors(volume.geometry, plan), order=SPLINE)
        for channel, how, each in zip(turned, plan.normalisation, fitted, strict=True)
    ]
    return Prepared(np.stack(scaled), volume.geometry)


def prepare_mask(mask: MaskFile, geometry: Geometry, plan: Configuration) -> np.ndarray:
    """(D, H, W) uint8 classes on the grid of `prepare`."""
    turned = np.transpose(geometry.to_ras(mask.array()), plan.axes)
    return resampled(turned, _factors(geometry, plan), order=0)


def standardised(values: np.ndarray, how: str, fitted: Mapping[str, float]) -> np.ndarray:
    """One channel by the plan's rule; see `Configuration.normalisation`."""
    if how == "none":
        return values
    if how == "ct":
        clipped = np.clip(values, fitted["low"], fitted["high"])
        return np.asarray((clipped - fitted["mean"]) / max(fitted["deviation"], _SMALLEST_DEVIATION))
    return np.asarray((values - values.mean()) / max(float(values.std()), _SMALLEST_DEVIATION))


def resampled(values: np.ndarray, factors: Sequence[float], *, order: int) -> np.ndarray:
    """(D, H, W) scaled by `factors`; voxels are boxes, so edges of the volume stay where they are."""
    shape = [max(1, round(size * factor)) for size, factor in zip(values.shape, factors, strict=True)]
    if shape == list(values.shape):
        return np.ascontiguousarray(values)
    exact = [new / old for new, old in zip(shape, values.shape, strict=True)]
    return np.asarray(zoom(values, exact, order=order, grid_mode=True, mode="nearest"))


def restored(probabilities_KDHW: torch.Tensor, geometry: Geometry, plan: Configuration) -> np.ndarray:
    """(x, y, z) uint8: the most probable class of each voxel of the source, in the order of its file."""
    classes = _on_grid(probabilities_KDHW, geometry, plan).argmax(dim=0).to(torch.uint8).cpu().numpy()
    return geometry.from_ras(np.transpose(classes, np.argsort(plan.axes)))


def restored_probabilities(probabilities_KDHW: torch.Tensor, geometry: Geometry, plan: Configuration) -> np.ndarray:
    """(K, x, y, z) float32: the probabilities in each voxel of the source, in the order of its file."""
    found = _on_grid(probabilities_KDHW, geometry, plan).detach().float().cpu().numpy()
    return np.stack([geometry.from_ras(np.transpose(each, np.argsort(plan.axes))) for each in found])


def _on_grid(probabilities_KDHW: torch.Tensor, geometry: Geometry, plan: Configuration) -> torch.Tensor:
    """Resampled to the voxels of the source, axes as the plan has them."""
    shape = [_ras_shape(geometry)[axis] for axis in plan.axes]
    if list(probabilities_KDHW.shape[1:]) != shape:
        probabilities_KDHW = torch.nn.functional.interpolate(
            probabilities_KDHW[None].float(), size=shape, mode="trilinear", align_corners=False
        )[0]
    return probabilities_KDHW


def _factors(geometry: Geometry, plan: Configuration) -> list[float]:
    own = [geometry.spacing[axis] for axis in plan.axes]
    wanted = list(plan.spacing)
    if plan.dimensions == 2:
        wanted[0] = own[0]  # slices stay as they are
    return [mm / target for mm, target in zip(own, wanted, strict=True)]


def _ras_shape(geometry: Geometry) -> tuple[Any, ...]:
    return geometry.to_ras(np.broadcast_to(np.zeros(1, bool), geometry.shape)).shape
