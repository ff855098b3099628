"""Prepared training cases kept on disk as plain bytes, so that resampling is paid once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from domains.medical.configure import Configuration
from domains.medical.prepare import prepare, prepare_mask
from domains.medical.volumes import MaskFile
from domains.shared.folders import made_once
from trainers.contract import JSON

_INDEX = "cases.json"
_LOCATIONS = 1000
"""Voxels of each class that are remembered to place patches at; nnU-Net keeps as many tens of thousands."""


class StoredCase(NamedTuple):
    """image: (C, D, H, W) float16, mapped.   mask: (D, H, W) uint8, mapped.   places: (n, 3) voxels of each class that is
    there, evenly picked."""

    image: np.ndarray
    mask: np.ndarray
    places: list[np.ndarray]


class Shelf(Sequence[StoredCase]):
    """The cases that `shelve` left in a folder."""

    def __init__(self, folder: Path, entries: Sequence[JSON]) -> None:
        self.folder, self.entries = folder, entries

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, position: Any) -> Any:
        entry = self.entries[position]
        shape = tuple(entry["shape"])
        image = np.memmap(self.folder / entry["image"], np.float16, "r", shape=shape)
        mask = np.memmap(self.folder / entry["mask"], np.uint8, "r", shape=shape[1:])
        return StoredCase(image, mask, [np.asarray(places) for places in entry["places"]])


def shelve(rows: Any, plan: Configuration, fitted: Sequence[JSON], cache: Path) -> Shelf:
    """The cases of `rows` with their masks, prepared below `cache` once for all runs.

    Found again under plan, intensities and files (names, sizes, times), which name the folder.
    """
    folder = cache / "volumes" / _key(rows, plan, fitted)

    def write(unfinished: Path) -> None:
        pairs = enumerate(zip(rows.column("images"), rows.target(), strict=True))
        entries = [_stored(position, *pair, plan, fitted, unfinished) for position, pair in pairs]
        (unfinished / _INDEX).write_text(json.dumps(entries))

    made_once(folder, write)
    return Shelf(folder, json.loads((folder / _INDEX).read_text()))


def _stored(
    position: int, paths: Sequence[str], mask: MaskFile, plan: Configuration, fitted: Sequence[JSON], folder: Path
) -> JSON:
    case = prepare(paths, plan, fitted)
    labels = prepare_mask(mask, case.geometry, plan)
    names = (f"{position:06d}.image", f"{position:06d}.mask")
    case.image.astype(np.float16).tofile(folder / names[0])
    labels.astype(np.uint8).tofile(folder / names[1])
    places = []
    for value in np.unique(labels[labels > 0]):
        found = np.argwhere(labels == value)
        places.append(found[:: max(1, len(found) // _LOCATIONS)].tolist())
    return {"shape": list(case.image.shape), "image": names[0], "mask": names[1], "places": places}


def _key(rows: Any, plan: Configuration, fitted: Sequence[JSON]) -> str:
    files = [str(path) for paths in rows.column("images") for path in paths] + [mask.path for mask in rows.target()]
    states = [(path, Path(path).stat().st_size, Path(path).stat().st_mtime_ns) for path in files]
    text = json.dumps([plan.model_dump(mode="json"), list(fitted), states])
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
