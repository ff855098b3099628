"""Labelled scans as slices, read once: training scans mapped from disk, judged ones kept in memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from domains.medical.scans import read_scan, slices_of
from domains.medical.volumes import VolumeError
from domains.shared.pictures import in_threads
from trainers.contract import JSON
from trainers.errors import DataError

_VALUES, _INDEX = "slices.bin", "slices.json"
_AT_ONCE = 64
LARGEST_SHARE_OF_DISK = 0.5
"""Of the free space; a set that needs more is read anew each time."""
MOST_BYTES = 512 << 20
"""Of judged scans in memory."""


class SliceReader:
    """Makes (S, H, W, 3) uint8 of the scan in a file, and remembers it, up to MOST_BYTES."""

    def __init__(self, *, num: int, side: int, window: Sequence[float] | None) -> None:
        """See `scans.slices_of`."""
        self.num, self.side, self.window = num, side, window
        self.kept: dict[str, np.ndarray] = {}
        self.num_bytes = 0

    def read(self, path: str) -> np.ndarray:
        """The slices of one scan. Raises DataError for a file that has changed since the data was read."""
        try:
            return slices_of(read_scan(Path(path)), num=self.num, side=self.side, window=self.window)
        except VolumeError as error:
            raise DataError(f"{path}: was readable when the data was read and no longer is: {error}") from None

    def batch(self, paths: Sequence[str]) -> np.ndarray:
        """(scans, S, H, W, 3) uint8."""
        return np.stack(in_threads(self._remembered, paths))

    def _remembered(self, path: str) -> np.ndarray:
        found = self.kept.get(path)
        if found is None:
            found = self.read(path)
            if self.num_bytes + found.nbytes <= MOST_BYTES:
                self.kept[path] = found
                self.num_bytes += found.nbytes
        return found


class SliceShelf(Sequence[tuple[np.ndarray, Any]]):
    """(slices, target) of each training scan. values: mapped; None reads a file at every access."""

    def __init__(self, reader: SliceReader, paths: Sequence[str], values: np.ndarray | None, targets: Any) -> None:
        self.reader, self.paths, self.values, self.targets = reader, paths, values, targets

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: Any) -> Any:
        found = self.reader.read(self.paths[position]) if self.values is None else self.values[position]
        return found, self.targets[position]


def shelved(reader: SliceReader, paths: Sequence[str], folder: Path, targets: Any) -> SliceShelf:
    """The scans in `paths`, as slices in `folder`; what an earlier call completed there is used again."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = (len(paths), reader.num, reader.side, reader.side, 3)
    key: JSON = {"shape": list(shape), "window": reader.window and list(reader.window), "paths": list(paths)}
    index = folder / _INDEX
    if not (index.exists() and json.loads(index.read_text()) == key):
        if int(np.prod(shape, dtype=np.int64)) > LARGEST_SHARE_OF_DISK * shutil.disk_usage(folder).free:
            return SliceShelf(reader, paths, None, targets)
        with (folder / _VALUES).open("wb") as file:
            for start in range(0, len(paths), _AT_ONCE):
                for slices in in_threads(reader.read, paths[start : start + _AT_ONCE]):
                    file.write(slices.tobytes())
        part = folder / (_INDEX + ".part")  # renamed last: an index means that every value is there
        part.write_text(json.dumps(key))
        part.replace(index)
    return SliceShelf(reader, paths, np.memmap(folder / _VALUES, np.uint8, "r", shape=shape), targets)
