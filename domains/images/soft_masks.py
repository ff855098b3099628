"""Answers of several networks to one picture, put together: the mean of their probabilities, and the mask that it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from domains.images.mask_files import MaskPicture
from domains.shared.soft_masks import pack_probabilities, unpack_steps


@dataclass(frozen=True)
class SoftPicture:
    """How probable each class is in every pixel that the network saw, in steps of 1/255, packed.

    shape: (K, h, w), padding left out.   source: (height, width) of the picture.   values: as of `MaskPicture`.
    """

    packed: bytes
    shape: tuple[int, int, int]
    source: tuple[int, int]
    values: tuple[int, ...]
    suffix = ".png"

    @classmethod
    def of(cls, probabilities_KHW: torch.Tensor, source: tuple[int, int], values: Sequence[int]) -> SoftPicture:
        """probabilities: from 0 to 1."""
        num, height, width = probabilities_KHW.shape
        found = pack_probabilities(probabilities_KHW.detach().float().cpu().numpy())
        return cls(found, (num, height, width), source, tuple(values))

    def steps(self) -> np.ndarray:
        """(K, h, w) uint8: 255 for a probability of 1."""
        return unpack_steps(self.packed, self.shape)

    @staticmethod
    def mean(masks: Sequence[SoftPicture]) -> MaskPicture:
        """The class of the highest mean in every pixel of the picture; networks may have seen it in different sizes."""
        largest = max((each.shape[1:] for each in masks), key=lambda size: size[0])
        total = torch.zeros(masks[0].shape[0], *largest)
        for each in masks:
            own = torch.from_numpy(each.steps().astype(np.float32))[None]
            total += F.interpolate(own, size=largest, mode="bilinear", align_corners=False)[0]
        return on_picture(total, masks[0].source, masks[0].values)

    def write(self, path: Path) -> None:
        """The mask that it names by itself."""
        self.mean([self]).write(path)


_MOST_LOGITS = 1 << 28
"""Numbers of an answer that is enlarged smoothly; a larger one takes the nearest pixel."""


def on_picture(logits_KHW: torch.Tensor, source: tuple[int, int], values: Sequence[int]) -> MaskPicture:
    """The class of the highest value in every pixel of a picture of `source` (height, width)."""
    if len(logits_KHW) * source[0] * source[1] <= _MOST_LOGITS:
        large = F.interpolate(logits_KHW[None], size=source, mode="bilinear", align_corners=False)[0]
        return MaskPicture.of(large.argmax(dim=0).cpu().numpy(), values)
    classes = F.interpolate(logits_KHW.argmax(dim=0)[None, None].float(), size=source, mode="nearest-exact")
    return MaskPicture.of(classes[0, 0].cpu().numpy(), values)
