"""Pictures of the worst, the median and the best answer: the picture, its true mask, and the predicted one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from domains.images.labelled import FILE
from domains.images.mask_files import colour_map
from domains.images.mask_scores import dice_of
from domains.shared.pictures import open_checked
from domains.shared.ranked import worst_median_best
from trainers.contract import Predictions

_LONGEST = 384


def overlays(rows: Any, predictions: Predictions, num_classes: int, folder: Path) -> Mapping[str, str]:
    """Write worst.png, median.png and best.png, by mean foreground Dice, into `folder`; returns {file: caption}."""
    truth = rows.target()
    answered = [row for row, answer in enumerate(predictions.values) if answer is not None]
    means = {row: dice_of(truth[row].array(), predictions.values[row].array(), num_classes) for row in answered}
    shown = worst_median_best({row: mean for row, mean in means.items() if np.isfinite(mean)})
    if not shown:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, row in shown.items():
        picture = open_checked(Path(rows.context["root"]) / rows.column(FILE).iloc[row])
        masks = [truth[row].array(), predictions.values[row].array()]
        _side_by_side(picture, masks).save(folder / f"{name}.png")
        found[f"{name}.png"] = f"{name}: {rows.ids[row]}, Dice {means[row]:.3f}; picture, truth, prediction"
    return found


def _side_by_side(picture: Image.Image, masks: list[np.ndarray]) -> Image.Image:
    small = picture.copy()
    small.thumbnail((_LONGEST, _LONGEST))
    found = Image.new("RGB", (small.width * (1 + len(masks)), small.height))
    found.paste(small, (0, 0))
    for at, mask in enumerate(masks, start=1):
        colours = Image.fromarray(colour_map()[mask]).resize(small.size, Image.Resampling.NEAREST)
        shown = Image.fromarray(np.where(mask == 0, 0, 160).astype(np.uint8)).resize(
            small.size, Image.Resampling.NEAREST
        )
        found.paste(Image.composite(colours, small, shown), (small.width * at, 0))
    return found
