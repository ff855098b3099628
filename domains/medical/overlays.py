"""What a person wants to see of masks: pictures of the worst, the median and the best case, and a table of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image
from scipy.ndimage import binary_dilation, binary_erosion

from domains.medical.scores import dice, hausdorff95
from domains.medical.volumes import read_image
from domains.shared.ranked import worst_median_best
from trainers.contract import Predictions

TRUTH, ANSWER = (70, 220, 90), (240, 70, 60)
_LEAST_SIDE = 384
"""Pixels of a picture's longer side, by whole enlargements of a voxel."""


def overlays(rows: Any, predictions: Predictions, num_classes: int, folder: Path) -> Mapping[str, str]:
    """Write worst.png, median.png and best.png, by mean foreground Dice, into `folder`; returns {file: caption}.

    rows: with their masks, in the order of `predictions`. Each picture is the slice across z with most foreground: truth in
    green, prediction in red, the first channel between its 1st and 99th percentile.
    """
    truth = rows.target()
    means = {}
    for row, answer in enumerate(predictions.values):
        values = dice(truth[row].array(), answer.array(), num_classes) if answer is not None else np.array([np.nan])
        if np.isfinite(values).any():
            means[row] = float(np.nanmean(values))
    shown = worst_median_best(means)
    if not shown:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, row in shown.items():
        picture, place = _picture(rows.column("images").iloc[row], truth[row].array(), predictions.values[row].array())
        picture.save(folder / f"{name}.png")
        found[f"{name}.png"] = f"{name}: {rows.ids[row]}, Dice {means[row]:.3f}; {place}; truth green, prediction red"
    return found


def case_table(rows: Any, predictions: Predictions, names: Sequence[str], folder: Path) -> Mapping[str, str]:
    """Write cases.csv into `folder`: Dice, 95 % Hausdorff distance and both volumes of every class in every case.

    names: of the foreground classes.   Cells are empty where a score is undefined or there is no answer.
    """
    lines = []
    for name, true, answer in zip(rows.ids, rows.target(), predictions.values, strict=True):
        if answer is None:
            continue
        masks, matrix = (true.array(), answer.array()), answer.geometry.matrix[:3, :3]
        spacing, millilitres = np.linalg.norm(matrix, axis=0), abs(float(np.linalg.det(matrix))) / 1000
        for k, value in enumerate(dice(*masks, len(names)).tolist()):
            these, those = (mask == k + 1 for mask in masks)
            volumes = [round(float(each.sum()) * millilitres, 4) for each in (these, those)]
            lines.append((name, names[k], value, hausdorff95(these, those, spacing), *volumes))
    folder.mkdir(parents=True, exist_ok=True)
    columns = ["case", "class", "dice", "hd95_mm", "true_ml", "predicted_ml"]
    pd.DataFrame(lines, columns=columns).to_csv(folder / "cases.csv", index=False, float_format="%.6g")
    return {"cases.csv": "every test case: Dice, 95 % Hausdorff distance in mm, true and predicted volume in ml"}


def _picture(paths: Any, truth: np.ndarray, answer: np.ndarray) -> tuple[Image.Image, str]:
    """The picture, and which slice it is."""
    volume = read_image([Path(path) for path in paths])
    image, masks = volume.array[0], [volume.geometry.to_ras(mask) for mask in (truth, answer)]
    at = int(((masks[0] > 0) | (masks[1] > 0)).sum(axis=(0, 1)).argmax())
    low, high = np.percentile(image, [1, 99])
    grey = np.clip((image[:, :, at] - low) / max(float(high - low), 1e-6), 0, 1) * 255
    scale = max(1, _LEAST_SIDE // max(grey.shape))
    pixels = np.repeat(_enlarged(grey, scale)[..., None], 3, axis=2).astype(np.uint8)
    for mask, colour in zip(masks, (TRUTH, ANSWER), strict=True):
        pixels[_outline(_enlarged(mask[:, :, at], scale))] = colour
    place = f"axial slice {at + 1} of {image.shape[2]} from below, anterior up, the patient's left at the left"
    return Image.fromarray(pixels.transpose(1, 0, 2)[::-1]), place


def _enlarged(values: np.ndarray, scale: int) -> np.ndarray:
    return np.repeat(np.repeat(values, scale, axis=0), scale, axis=1)


def _outline(classes: np.ndarray) -> np.ndarray:
    """(x, y) bool: inner edges of every class."""
    edges = np.zeros(classes.shape, bool)
    for value in np.unique(classes[classes > 0]):
        edges |= (classes == value) & ~binary_erosion(classes == value, border_value=1)
    return np.asarray(edges | (binary_dilation(edges) & (classes > 0)))
