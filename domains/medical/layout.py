"""Which files are the cases: folders of the Medical Segmentation Decathlon and of nnU-Net, plain folders, single files.

A case's patient is told from its name: `sub-12_ses-2` belongs to `sub-12`, `patient001_frame12` to `patient001`; a name
that ends in a visit, session, scan, time point or slice (`p7_visit2`, `p7-slice031`) to what stands before it; every other
case is a patient of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domains.medical.dicom import is_series
from domains.medical.volumes import SUFFIXES, is_volume, stem
from domains.shared.paths import is_hidden
from trainers.errors import DataError

DESCRIPTION = "dataset.json"
IMAGE_FOLDERS, MASK_FOLDERS = ("imagesTr", "images", "image"), ("labelsTr", "labels", "masks", "mask", "label")
IMAGE_NAMES = ("image", "path", "volume", "scan", "file", "images")
"""Of columns, in lower case; the first is how a missing one is named."""
PATIENT_NAMES = ("patient", "patient_id", "subject", "subject_id")
_CHANNEL = re.compile(r"^(?P<case>.+)_(?P<channel>\d{4})$")
_BIDS = re.compile(r"^(?P<patient>sub-[A-Za-z0-9]+)(?=_|$)")
_OWNER = re.compile(
    r"^(?P<patient>(?:patient|participant|subject|subj|pat)[_-]?[A-Za-z]{0,3}\d+)(?=[_.-]|$)", re.IGNORECASE
)
_VISIT = re.compile(
    r"^(?P<patient>.+?)[_.-](?:ses|session|visit|scan|slice|time|timepoint|tp|fu)[_-]?\d+(?:[_.-].*)?$", re.IGNORECASE
)


@dataclass(frozen=True)
class Description:
    """What is declared of the classes and channels. values: the number in the masks of each name; None: not declared."""

    names: tuple[str, ...] = ()
    values: tuple[int, ...] | None = None
    channels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Case:
    """images: a file a channel, or one.   mask: None where there is none.   problem: why it cannot be used.
    part: of a split, where a table gives one."""

    name: str
    images: tuple[str, ...]
    mask: str | None = None
    problem: str = ""
    part: str = ""


def patient_of(name: str) -> str:
    """The patient of a case by the rule of this module."""
    found = _BIDS.match(name) or _OWNER.match(name) or _VISIT.match(name)
    return found["patient"] if found else name


def description_of(root: Path) -> Description:
    """What the dataset.json in `root` declares; nothing where there is none. Raises DataError for one that is not usable."""
    path = root / DESCRIPTION
    if not path.is_file():
        return Description()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        names, values = _labels(found.get("labels") or {}, path)
        channels = found.get("channel_names") or found.get("modality")
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path}: no usable description of a data set ({error}). Mend it or take it away.") from None
    ordered = None if channels is None else tuple(str(channels[key]) for key in sorted(channels, key=int))
    return Description(names, values or None, ordered)


def _labels(labels: Mapping[str, Any], path: Path) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """MSD writes {"1": "tumour"}, nnU-Net {"tumour": 1}."""
    if any(isinstance(value, list) for value in labels.values()):
        raise DataError(f"{path}: labels made of regions (lists) cannot be learned yet. Give one number a class.")
    if "ignore" in labels:
        raise DataError(f"{path}: an 'ignore' label cannot be learned with yet. Leave those cases out.")
    pairs = [(int(key), str(name)) if str(key).isdigit() else (int(name), str(key)) for key, name in labels.items()]
    pairs.sort()
    if pairs and pairs[0][0] != 0:
        raise DataError(f"{path}: label 0 must be the background, and the lowest declared is {pairs[0][0]}.")
    return tuple(name for _, name in pairs), tuple(value for value, _ in pairs)


def labelled_cases(root: Path) -> tuple[list[Case], Description]:
    """Every case below `root`, one without image or mask with its problem; and what is declared.

    Raises DataError where there are no two folders of images and masks.
    """
    folders = [
        next((root / name for name in names if (root / name).is_dir()), None) for names in (IMAGE_FOLDERS, MASK_FOLDERS)
    ]
    if folders[0] is None or folders[1] is None:
        there = ", ".join(sorted(path.name for path in root.iterdir())[:10]) or "nothing"
        raise DataError(
            f"{root}: no folders of images and masks here ({there}). Lay them out as imagesTr/ and labelsTr/ with a "
            f"dataset.json (Decathlon, nnU-Net), or as images/ and masks/ with files of equal names ({', '.join(SUFFIXES)})."
        )
    described = description_of(root)
    files = [volumes_in(folder) for folder in folders if folder]
    # Files of one name below several folders (p1/ct.nii.gz, p2/ct.nii.gz) are told apart by their paths.
    whole = any(_repeats(each) for each in files)
    images = _grouped(_names(files[0], folders[0], whole), described)
    masks = {name: path for path, name in _names(files[1], folders[1], whole)}
    cases = []
    for name in sorted(images.keys() | masks.keys()):
        found, mask = images.get(name, ()), masks.get(name)
        problem = "" if found and mask else f"has no {'mask' if found else 'image'} called {name} in the other folder"
        cases.append(Case(name, found, mask, problem))
    return cases, described


def unlabelled_cases(path: Path) -> list[Case]:
    """Every image at `path` (a file, a folder of them, or a DICOM series), leaving folders of masks out."""
    if path.is_file() or is_series(path):
        return [Case(stem(path.name), (str(path),))]
    files = [file for file in volumes_in(path) if not set(Path(file).relative_to(path).parts[:-1]) & set(MASK_FOLDERS)]
    described = description_of(path)
    named = _names(files, path, _repeats(files))
    return [Case(name, images) for name, images in sorted(_grouped(named, described).items())]


def volumes_in(folder: Path) -> list[str]:
    """NIfTI files and folders of DICOM below `folder`, sorted; what is hidden is left out (`._x.nii.gz` of macOS,
    copies below .ipynb_checkpoints)."""
    every = [path for path in folder.rglob("*") if not is_hidden(path.relative_to(folder))]
    return sorted(str(path) for path in every if is_volume(path.name) or is_series(path))


def _repeats(files: Sequence[str]) -> bool:
    names = [Path(file).name for file in files]
    return len(set(names)) < len(names)


def _names(files: Sequence[str], folder: Path, whole: bool) -> list[tuple[str, str]]:
    """(file, its name without the suffix), with the path below `folder` where `whole`."""
    return [(file, stem(Path(file).relative_to(folder).as_posix() if whole else Path(file).name)) for file in files]


def _grouped(files: Sequence[tuple[str, str]], described: Description) -> dict[str, tuple[str, ...]]:
    """Files by case: `x_0000`, `x_0001` are channels of case x where all files are named so.

    files: (file, name).
    """
    matches = [_CHANNEL.match(name) for _, name in files]
    by_channel = all(matches) and any(match and match["channel"] == "0000" for match in matches)
    found: dict[str, tuple[str, ...]] = {}
    for (file, name), match in zip(files, matches, strict=True):
        key = match["case"] if by_channel and match else name
        found[key] = (*found.get(key, ()), file)
    return found
