"""The inner contract for masks: prepared cases, random patches, Dice with cross entropy, sliding windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from domains.medical.augment import training_patch
from domains.medical.configure import Configuration
from domains.medical.losses import deep_losses
from domains.medical.masked import IMAGES
from domains.medical.prepare import Prepared, prepare, restored, restored_probabilities
from domains.medical.shelf import Shelf, shelve
from domains.medical.soft_masks import SoftMask
from domains.medical.volumes import Mask
from trainers.contract import JSON, Batch, Predictions, Role

WINDOWS_AT_ONCE = {2: 16, 3: 1}
OVERLAP = 0.5
"""Of neighbouring windows; nnU-Net steps by half a patch."""


class MaskTask:
    """Meets `trainers.contract.Task`. One example is one case; each time it is drawn, one patch of it is seen.

    model: gives a list of logits from full resolution down while it trains, and then the first alone; its `heads` are those
    of classes.   cache: a folder that outlives the run.   is_soft: answer with probabilities, which have a mean.
    """

    couples_rows = False
    min_rows = 1

    def __init__(
        self, model: torch.nn.Module, options: Any, plan: Configuration, fitted: JSON, cache: Path | None = None
    ) -> None:
        self.model, self.options, self.plan = model, options, plan
        self.intensities, self.cache = fitted["intensities"], cache
        self.is_soft = False

    def roles(self) -> Mapping[str, Role]:
        """Kernels, norms and the heads."""
        return {
            name: Role("head" if name.startswith("heads.") else "matrix" if value.ndim > 1 else "scalar")
            for name, value in self.model.named_parameters()
        }

    def examples(self, train: Any, folder: Path) -> Shelf:
        """Cases prepared once into the cache, or into `folder` where there is none."""
        return shelve(train, self.plan, self.intensities, self.cache or folder)

    def sizes(self, examples: Sequence[Any]) -> None:
        """All patches cost the same."""

    def draw(self, examples: Sequence[Any], rngs: Sequence[np.random.Generator]) -> Batch:
        """Patches (B, C, D, H, W) float32 and masks (B, 1, D, H, W) uint8."""
        strength = self.options.augment
        patches = [training_patch(case, self.plan, strength, rngs[i]) for i, case in enumerate(examples)]
        images, masks = (torch.from_numpy(np.stack(each)) for each in zip(*patches, strict=True))
        num = float(len(examples))
        return Batch((images, masks[:, None]), {"dice": num, "cross_entropy": num})

    def loss(self, model: torch.nn.Module, inputs: Any) -> Mapping[str, torch.Tensor]:
        """Dice and cross entropy of every case, summed over cases."""
        images, masks = inputs
        outputs = model(images)
        how = {"tversky_beta": self.options.tversky_beta, "focal_gamma": self.options.focal_gamma}
        with torch.autocast(images.device.type, enabled=False):
            return deep_losses(outputs, masks[:, 0], **how)

    def row_sizes(self, rows: Any) -> Sequence[int]:
        """Voxels of each case."""
        return [int(np.prod(rows.context["looks"][name].geometry.shape)) for name in rows.ids]

    def collate(self, rows: Any) -> list[Prepared]:
        """Every case by itself: their shapes differ."""
        return [prepare(paths, self.plan, self.intensities) for paths in rows.column(IMAGES)]

    def predict(self, model: torch.nn.Module, inputs: Sequence[Prepared]) -> Predictions:
        """A mask for every case, in the geometry of its file."""
        return Predictions.of_files([self._mask(model, case) for case in inputs])

    def _mask(self, model: torch.nn.Module, case: Prepared) -> Mask | SoftMask | None:
        device = next(model.parameters()).device
        image = torch.from_numpy(case.image)[None].to(device)
        found = self._probabilities(model, image)
        if not bool(torch.isfinite(found).all()):
            return None
        if self.is_soft:
            return SoftMask.of(restored_probabilities(found, case.geometry, self.plan), case.geometry)
        return Mask.of(restored(found, case.geometry, self.plan), case.geometry)

    def _probabilities(self, model: torch.nn.Module, image: torch.Tensor) -> torch.Tensor:
        """(K, D, H, W) mean over the mirrored views."""
        from monai.inferers.utils import sliding_window_inference

        axes = (
            [2 + self.plan.axes.index("xyz".index(name)) for name in self.plan.mirror]
            if self.options.test_mirror
            else []
        )
        views = [list(chosen) for size in range(len(axes) + 1) for chosen in combinations(axes, size)]
        total: Any = 0.0
        for view in views:
            logits: Any = sliding_window_inference(
                image.flip(view) if view else image,
                self.plan.patch,
                WINDOWS_AT_ONCE[self.plan.dimensions],
                lambda x: model(x).float(),
                overlap=OVERLAP,
                mode="gaussian",
            )
            total = total + (logits.flip(view) if view else logits).softmax(dim=1)
        mean: torch.Tensor = total / len(views)
        return mean[0]
