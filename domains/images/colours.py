"""The rivals of a segmentation network that see no shapes: one class everywhere, and the colour of each pixel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from domains.contract import Baseline
from domains.images.labelled import FILE
from domains.images.mask_files import IGNORED, MaskPicture
from domains.shared.pictures import open_checked
from trainers.contract import Predictions

_PIXELS_A_PICTURE, _MOST_PIXELS = 400, 40_000
_BLUR = 4
_LONGEST = 512
"""Larger pictures are answered at this size: neighbouring pixels have nearly the same colour."""


def majority_pixels(values: Sequence[int]) -> Baseline:
    """The most frequent class of all training pixels, everywhere."""

    def fit(train: Any) -> Callable[[Any], Predictions]:
        total = sum(np.bincount(mask.array().ravel(), minlength=256)[: len(values)] for mask in train.target())
        return _answers(
            values, lambda picture: np.full((picture.height, picture.width), int(np.argmax(total)), np.uint8)
        )

    return Baseline("majority", "the most frequent class of all pixels, everywhere", fit)


def pixel_colours(values: Sequence[int]) -> Baseline:
    """A logistic regression on the colour of a pixel, its square, the blurred colour around it, and its place."""

    def fit(train: Any) -> Callable[[Any], Predictions]:
        model = _fitted(train)

        def mask_of(picture: Image.Image) -> np.ndarray:
            small = picture.copy()
            small.thumbnail((_LONGEST, _LONGEST))
            classes = model(_features(small)).reshape(small.height, small.width).astype(np.uint8)
            return np.asarray(Image.fromarray(classes).resize(picture.size, Image.Resampling.NEAREST))

        return _answers(values, mask_of)

    return Baseline(
        "pixel colours", "a linear model on the colour of a pixel, the blurred one around it, and its place", fit
    )


def _fitted(train: Any) -> Callable[[np.ndarray], np.ndarray]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    num = max(1, min(_PIXELS_A_PICTURE, _MOST_PIXELS // len(train)))
    features, labels = [], []
    for file, mask in zip(train.column(FILE), train.target(), strict=True):
        classes = mask.array().ravel()
        known = np.flatnonzero(classes != IGNORED)
        chosen = rng.choice(known, min(num, len(known)), replace=False)
        features.append(_features(open_checked(Path(train.context["root"]) / file))[chosen])
        labels.append(classes[chosen])
    matrix, wanted = np.concatenate(features), np.concatenate(labels)
    if len(np.unique(wanted)) < 2:
        return lambda new: np.full(len(new), wanted[0] if len(wanted) else 0)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)).fit(matrix, wanted)
    return lambda new: np.asarray(model.predict(new))


def _features(picture: Image.Image) -> np.ndarray:
    """(pixels, 15)"""
    height, width = picture.height, picture.width
    own = np.asarray(picture, np.float32).reshape(-1, 3) / 255
    around = np.asarray(picture.filter(ImageFilter.BoxBlur(_BLUR)), np.float32).reshape(-1, 3) / 255
    rows, columns = np.mgrid[:height, :width].reshape(2, -1).astype(np.float32)
    place = np.stack([rows / height - 0.5, columns / width - 0.5], axis=1)
    mixed = own[:, [0, 0, 1]] * own[:, [1, 2, 2]]
    return np.concatenate([own, own**2, mixed, around, place, (place**2).sum(axis=1, keepdims=True)], axis=1)


def _answers(values: Sequence[int], mask_of: Callable[[Image.Image], np.ndarray]) -> Callable[[Any], Predictions]:
    def predict(rows: Any) -> Predictions:
        pictures = (open_checked(Path(rows.context["root"]) / file) for file in rows.column(FILE))
        return Predictions.of_files([MaskPicture.of(mask_of(picture), values) for picture in pictures])

    return predict
