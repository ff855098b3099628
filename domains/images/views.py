"""Pictures as they are judged: timm's evaluation transform, kept in memory because validation sees them every epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from domains.shared.pictures import in_threads, open_checked

MOST_BYTES = 512 << 20


class PlainViews:
    """Makes the (3, side, side) uint8 view of a picture and remembers it, up to MOST_BYTES."""

    def __init__(self, data_config: Mapping[str, Any]) -> None:
        """data_config: as `timm.data.resolve_data_config` returns it."""
        from timm.data.transforms_factory import create_transform

        # The last two steps turn bytes into normalised floats; that happens on the device, in `normalised`.
        self.steps = create_transform(**data_config, is_training=False).transforms[:-2]
        self.kept: dict[Path, np.ndarray] = {}
        self.num_bytes = 0

    def batch(self, paths: Sequence[Path]) -> torch.Tensor:
        """(paths, 3, side, side) uint8. Raises DataError for a file that has changed since it was read."""
        return torch.from_numpy(np.stack(in_threads(self._view, paths))).permute(0, 3, 1, 2)

    def _view(self, path: Path) -> np.ndarray:
        found = self.kept.get(path)
        if found is None:
            picture: Any = open_checked(path)
            for step in self.steps:
                picture = step(picture)
            found = np.asarray(picture)
            if self.num_bytes + found.nbytes <= MOST_BYTES:
                self.kept[path] = found
                self.num_bytes += found.nbytes
        return found
