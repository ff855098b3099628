"""Which files are the cases: folders of the Medical Segmentation Decathlon and of nnU-Net, plain folders, single files.

A dataset.json with a list of training cases says which mask goes with which image; otherwise equal names do.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from domains.medical.dicom import is_series
from domains.medical.volumes import SUFFIXES, is_volume, stem
from domains.shared.paths import is_hidden, path_problem
from trainers.errors import DataError

DESCRIPTION = "dataset.json"
IMAGE_FOLDERS, MASK_FOLDERS = ("imagesTr", "images", "image"), ("labelsTr", "labels", "masks", "mask", "label")
IMAGE_NAMES = ("image", "path", "volume", "scan", "file", "images")
"""Of columns, in lower case; the first is how a missing one is named."""
_CHANNEL = re.compile(r"^(?P<case>.+)_(?P<channel>\d{4})$")


@dataclass(frozen=True)
class Description:
    """What is declared of the classes and channels. values: the number in the masks of each name; None: not declared.
    training: (image, mask) of each listed case.   num_training: how many cases there are said to be.
    num_unlisted: images beside those listed."""

    names: tuple[str, ...] = ()
    values: tuple[int, ...] | None = None
    channels: tuple[str, ...] | None = None
    training: tuple[tuple[str, str], ...] = ()
    num_training: int | None = None
    num_unlisted: int = 0


@dataclass(frozen=True)
class Case:
    """images: a file a channel, or one.   mask: None where there is none.   problem: why it cannot be used.
    part: of a split, where a table gives one.   path: of the image, below the folder that is read; tells the patient."""

    name: str
    images: tuple[str, ...]
    mask: str | None = None
    problem: str = ""
    part: str = ""
    path: str = ""


def description_of(root: Path) -> Description:
    """What the dataset.json in `root` declares; nothing where there is none. Raises DataError for one that is not usable."""
    path = root / DESCRIPTION
    if not path.is_file():
        return Description()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for key in ("labels", "channel_names", "modality"):
            if not isinstance(found.get(key) or {}, Mapping):
                raise ValueError(f'{key!r} must be an object such as {{"0": "name"}}, not {type(found[key]).__name__}')
        names, values = _labels(found.get("labels") or {}, path)
        channels = found.get("channel_names") or found.get("modality")
        ordered = None if channels is None else tuple(str(channels[key]) for key in sorted(channels, key=int))
        training = tuple((str(pair["image"]), str(pair["label"])) for pair in found.get("training") or ())
        number = found.get("numTraining")
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise DataError(f"{path}: no usable description of a data set ({error}). Mend it or take it away.") from None
    return Description(names, values or None, ordered, training, number if isinstance(number, int) else None)


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

    Raises DataError where there are no two folders of images and masks, and no list of them.
    """
    described = description_of(root)
    if listed := _listed(root, described.training):
        used = {file for case in listed for file in case.images}
        there = {file for folder in {Path(file).parent for file in used} for file in volumes_in(folder)}
        return listed, replace(described, num_unlisted=len(there - used))
    folders = [
        next((root / name for name in names if (root / name).is_dir()), None) for names in (IMAGE_FOLDERS, MASK_FOLDERS)
    ]
    if folders[0] is None or folders[1] is None:
        holds = ", ".join(sorted(path.name for path in root.iterdir())[:10]) or "nothing"
        raise DataError(
            f"{root}: no folders of images and masks here ({holds}). Lay them out as imagesTr/ and labelsTr/ with a "
            f"dataset.json (Decathlon, nnU-Net), or as images/ and masks/ with files of equal names ({', '.join(SUFFIXES)})."
        )
    files = [volumes_in(folder) for folder in folders if folder]
    # Files of one name below several folders (p1/ct.nii.gz, p2/ct.nii.gz) are told apart by their paths.
    whole = any(_repeats(each) for each in files)
    masks: dict[str, list[str]] = {}
    for path, name in _names(files[1], folders[1], whole):
        masks.setdefault(name, []).append(path)
    images = _grouped(_names(files[0], folders[0], whole), masks.keys())
    cases = []
    for name in sorted(images.keys() | masks.keys()):
        found, of_mask = images.get(name, Channels()), masks.get(name, [])
        problem = found.problem
        if not found.files or not of_mask:
            problem = f"has no {'mask' if found.files else 'image'} called {name} in the other folder"
        elif len(of_mask) > 1:
            problem = f"has {len(of_mask)} masks of that name: {', '.join(Path(path).name for path in of_mask)}"
        path = Path(found.files[0]).relative_to(folders[0]).as_posix() if found.files else name
        cases.append(Case(name, found.files, of_mask[0] if of_mask else None, problem, path=path))
    return cases, described


def _listed(root: Path, training: Sequence[tuple[str, str]]) -> list[Case]:
    """The cases that a dataset.json lists; none where it lists none, or no image of the list is there."""
    images = _images_of(root, [image for image, _ in training])
    if not any(found.files for found in images):
        return []
    repeated = Counter(os.path.normpath(file) for pair in training for file in pair)
    names = [stem(Path(image).name) for image, _ in training]
    if len(set(names)) < len(names):
        names = [stem(os.path.normpath(image)) for image, _ in training]
    cases = []
    for name, (files, of_channels), (image, mask) in zip(names, images, training, strict=True):
        problem = path_problem(image, root, "image") or path_problem(mask, root, "label") or of_channels
        if missing := [each for each, there in ((image, files), (mask, (root / mask).exists())) if not there]:
            problem = problem or f"{DESCRIPTION} lists {missing[0]}, and there is no such file"
        if twice := [each for each in (image, mask) if repeated[os.path.normpath(each)] > 1]:
            problem = problem or f"{DESCRIPTION} lists {twice[0]} more than once"
        cases.append(Case(name, files, str(root / mask), problem, path=image))
    return cases


def _images_of(root: Path, listed: Sequence[str]) -> list[Channels]:
    """The file that each name of a list means, or its channels: nnU-Net lists x.nii.gz for x_0000.nii.gz and x_0001.nii.gz."""
    folders: dict[tuple[Path, str], dict[str, Channels]] = {}
    found = []
    for image in listed:
        path, name = root / image, stem(Path(image).name)
        place = (path.parent, path.name.removeprefix(name))
        if path_problem(image, root, "image"):
            found.append(Channels())
        elif path.exists():
            found.append(Channels((str(path),)))
        else:
            if place not in folders:
                numbered = path.parent.glob(f"*_[0-9][0-9][0-9][0-9]{place[1]}")
                folders[place] = _grouped([(str(each), stem(each.name)) for each in numbered], ())
            found.append(folders[place].get(name, Channels()))
    return found


def unlabelled_cases(path: Path) -> list[Case]:
    """Every image at `path` (a file, a folder of them, or a DICOM series), leaving folders of masks out."""
    if path.is_file() or is_series(path):
        return [Case(stem(path.name), (str(path),))]
    files = [file for file in volumes_in(path) if not set(Path(file).relative_to(path).parts[:-1]) & set(MASK_FOLDERS)]
    named = _names(files, path, _repeats(files))
    return [Case(name, found.files, problem=found.problem) for name, found in sorted(_grouped(named, ()).items())]


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


class Channels(NamedTuple):
    """The files of one image, in the order of its channels; and what is wrong with them."""

    files: tuple[str, ...] = ()
    problem: str = ""


def _grouped(files: Sequence[tuple[str, str]], masks: Collection[str]) -> dict[str, Channels]:
    """Files by case: `x_0000`, `x_0001` are channels of case x where all files are named so, and no mask is.

    files: (file, name).   masks: names of masks.
    """
    matches = [_CHANNEL.match(name) for _, name in files]
    by_channel = all(matches) and any(match and match["channel"] == "0000" for match in matches)
    by_channel = by_channel and not any(name in masks for _, name in files)
    found: dict[str, list[tuple[int, str]]] = {}
    for (file, name), match in zip(files, matches, strict=True):
        key, channel = (match["case"], int(match["channel"])) if by_channel and match else (name, 0)
        found.setdefault(key, []).append((channel, file))
    return {key: _channels(sorted(numbered)) for key, numbered in found.items()}


def _channels(numbered: Sequence[tuple[int, str]]) -> Channels:
    numbers, files = [number for number, _ in numbered], tuple(file for _, file in numbered)
    names = ", ".join(Path(file).name for file in files)
    if len(set(numbers)) < len(numbers):
        return Channels(files, f"has several files of one name: {names}. Keep one")
    missing = [f"_{number:04d}" for number in range(max(numbers)) if number not in numbers]
    return Channels(files, f"lacks channel {missing[0]}: there is {names}" if missing else "")
