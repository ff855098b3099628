"""Answers of several networks to one case, put together: the mean of their probabilities, and the mask that it names.

Source: Isensee et al. 2021, online methods, "Ensembling": softmax probabilities of the five folds are averaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from domains.medical.components import largest_only
from domains.medical.volumes import Geometry, Mask
from domains.shared.soft_masks import pack_probabilities, unpack_steps


@dataclass(frozen=True)
class SoftMask:
    """How probable each class is in every voxel, in steps of 1/255, packed.

    num_classes: with the background.   pieces: classes of which the network that answered keeps the largest piece alone.
    """

    geometry: Geometry
    packed: bytes
    num_classes: int
    pieces: tuple[int, ...] = ()
    suffix = ".nii.gz"

    @classmethod
    def of(cls, probabilities: np.ndarray, geometry: Geometry) -> SoftMask:
        """probabilities: (K, x, y, z) from 0 to 1, in the order of the file."""
        return cls(geometry, pack_probabilities(probabilities), len(probabilities))

    def steps(self) -> np.ndarray:
        """(K, x, y, z) uint8: 255 for a probability of 1."""
        return unpack_steps(self.packed, (self.num_classes, *self.geometry.shape))

    @staticmethod
    def mean(masks: Sequence[SoftMask]) -> Mask:
        """The class of the highest mean in every voxel; stray pieces go where most of the networks would drop them."""
        total = masks[0].steps().astype(np.uint32)
        for each in masks[1:]:
            total += each.steps()
        votes = Counter(value for each in masks for value in each.pieces)
        pieces = [value for value, num in sorted(votes.items()) if 2 * num > len(masks)]
        return Mask.of(largest_only(total.argmax(axis=0).astype(np.uint8), pieces), masks[0].geometry)

    def write(self, path: Path) -> None:
        """The mask that it names by itself."""
        self.mean([self]).write(path)
