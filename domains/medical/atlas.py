"""The rivals of a segmentation network that look at no image: background everywhere, and the average mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.ndimage import zoom

from domains.contract import Baseline
from domains.medical.volumes import Geometry, Mask
from trainers.contract import Predictions

_MOST_VOXELS = 128
"""Along an axis of the average mask; finer than that it knows nothing."""


def background() -> Baseline:
    """Every voxel is background."""
    return Baseline(
        "background", "no foreground anywhere", lambda train: _answers(lambda shape: np.zeros(shape, np.uint8))
    )


def atlas(num_classes: int) -> Baseline:
    """The most frequent class of each place among the training masks, scaled to the shape of the new case.

    num_classes: with the background. Strong where scans are cropped to the organ, weak where they are not.
    """

    def fit(train: Any) -> Callable[[Any], Predictions]:
        geometries = [train.context["looks"][name].geometry for name in train.ids]
        masks = [geometry.to_ras(mask.array()) for mask, geometry in zip(train.target(), geometries, strict=True)]
        grid = np.minimum(np.median([mask.shape for mask in masks], axis=0), _MOST_VOXELS).astype(int)
        total = np.zeros((num_classes, *grid), np.float32)
        for mask in masks:
            for k in range(num_classes):
                total[k] += _scaled((mask == k).astype(np.float32), grid)
        return _answers(
            lambda shape: np.stack([_scaled(each, shape) for each in total]).argmax(axis=0).astype(np.uint8)
        )

    return Baseline("atlas", "the average mask of the training cases, scaled to each new one", fit)


def _scaled(values: np.ndarray, shape: Any) -> np.ndarray:
    factors = [new / old for new, old in zip(shape, values.shape, strict=True)]
    return np.asarray(zoom(values, factors, order=1, grid_mode=True, mode="nearest"))


def _answers(mask_of: Callable[[Any], np.ndarray]) -> Callable[[Any], Predictions]:
    def predict(rows: Any) -> Predictions:
        found = []
        for name in rows.ids:
            geometry: Geometry = rows.context["looks"][name].geometry
            shape = geometry.to_ras(np.empty(geometry.shape, bool)).shape
            found.append(Mask.of(geometry.from_ras(mask_of(shape)), geometry))
        return Predictions.of_files(found)

    return predict
