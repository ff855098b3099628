"""How far drawn pictures lie from real ones: the Frechet distance of the normal distributions that fit features of both.

Source: Heusel et al. 2017, arXiv 1706.08500, experiments (performance measure) and appendix A1. On the 2,048 pooled features
of their Inception-v3 it is the FID; no network of timm has those weights, so what is counted here names its network and is
never called FID.

With no more pictures than features a covariance has no full rank and the distance says little, so none is counted. With more
it still falls as pictures are added (Chong and Forsyth 2020, arXiv 1911.07023): distances compare at equal numbers only.
Pictures are resized with an antialiasing filter (Parmar et al. 2022, arXiv 2104.11222).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from domains.images import flow
from trainers.contract import JSON

_AT_ONCE = 64


def frechet_distance(ones: np.ndarray, others: np.ndarray) -> float:
    """|m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)), of features (rows, width) in float64; at least two rows each.

    The trace of the root is the sum of the singular values of A B', where A'A = S1 and B'B = S2.
    """
    means = [each.mean(axis=0, dtype=np.float64) for each in (ones, others)]
    roots = [
        np.linalg.qr((each.astype(np.float64) - mean) / np.sqrt(len(each) - 1)).R
        for each, mean in zip((ones, others), means, strict=True)
    ]
    spread = sum(float(np.square(root).sum()) for root in roots)
    shared = float(np.linalg.svd(roots[0] @ roots[1].T, compute_uv=False).sum())
    return float(np.square(means[0] - means[1]).sum()) + spread - 2 * shared


def why_not(num_pictures: int, width: int) -> str:
    """Why so many pictures, drawn and real alike, give no distance on `width` features; "" where they do."""
    if num_pictures > width:
        return ""
    return f"{num_pictures:,} pictures do not tell the spread of {width:,} features: there must be more pictures than features"


class Features:
    """The pooled features of a pretrained network of timm; `name` says which.

    Raises UsageError or MissingError for weights that are not to be had.
    """

    def __init__(self, weights: str, device: str) -> None:
        from domains.shared import timm_backbone as nets

        found = nets.find_backbone(None, weights)
        self.name, self.device, self._normalised = found.network, torch.device(device), nets.normalised
        side = int((found.picture_config.get("input_size") or (3, 224, 224))[-1])
        self.side, self.config = side, nets.picture_config(found, side=side, crop_pct=1.0)
        self.model = nets.build_network(found.as_json(), 0, weights=found.weights).to(self.device).eval()
        self.width = nets.num_features(self.model)

    def __call__(self, pictures_NHWC: np.ndarray) -> np.ndarray:
        """(rows, width) float32 of uint8 pictures."""
        size = (self.side, self.side)
        views = [Image.fromarray(each).resize(size, Image.Resampling.BICUBIC) for each in pictures_NHWC]
        stacked = torch.from_numpy(np.stack([np.asarray(view) for view in views])).permute(0, 3, 1, 2).to(self.device)
        with torch.no_grad():
            found: np.ndarray = self.model(self._normalised(stacked, self.config)).float().cpu().numpy()
        return found


Drawing = Callable[[Sequence[int], np.ndarray], np.ndarray]
"""drawing(numbers, rows) -> (numbers, side, side, 3) uint8: new pictures of the classes of these training rows."""


def compared(
    drawing: Drawing, train: Any, features: Features, *, side: int, most: int, seed: int, log: Callable[..., None]
) -> JSON:
    """For actual.json: the distance of drawn pictures from as many training pictures, that of pixels that are drawn one by
    one (their mean and deviation kept), and a note of both, or of why there is none."""
    num = min(len(train), most)
    if problem := why_not(num, features.width):
        return {"notes": [f"No Frechet distance: {problem}."]}
    chosen = np.random.default_rng(seed).permutation(len(train))[:num]
    parts = [chosen[start : start + _AT_ONCE] for start in range(0, num, _AT_ONCE)]
    real = np.concatenate([flow.squares(train.take(part.tolist()), side) for part in parts]).transpose(0, 2, 3, 1)
    mean, deviation = real.mean(axis=0), real.std(axis=0)
    found: list[list[np.ndarray]] = []
    for number, part in enumerate(parts):
        these = range(number * _AT_ONCE, number * _AT_ONCE + len(part))
        normal = np.random.default_rng([seed, number]).normal(mean, deviation, (len(part), *mean.shape))
        pixels = normal.round().clip(0, 255).astype(np.uint8)
        found.append([features(each) for each in (real[these.start : these.stop], drawing(these, part), pixels)])
        log(kind="encoding", done=these.stop, of=num)
    truth, drawn, pixels = (np.concatenate(each) for each in zip(*found, strict=True))
    return _told(features, num, frechet_distance(truth, drawn), frechet_distance(truth, pixels))


def _told(features: Features, num: int, distance: float, of_pixels: float) -> JSON:
    note = (
        f"Frechet distance on the {features.width:,} features of {features.name}: {distance:.4g} between {num:,} drawn and as "
        f"many training pictures; {of_pixels:.4g} for pixels drawn one by one. It compares at this number of pictures and on "
        "this network only, and is not the FID of the literature."
    )
    figures = {"network": features.name, "width": features.width, "num_pictures": num}
    return {"frechet": {**figures, "distance": distance, "of_pixels": of_pixels}, "notes": [note]}
