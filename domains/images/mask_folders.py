"""Which pictures are masks of which others, by the names of files and folders alone. Standard library only.

images/x.png belongs to masks/x.png, also below train/, valid/ and test/, or with these below images/ and masks/.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from trainers.errors import DataError

IMAGE_FOLDERS = ("images", "image", "imgs", "jpegimages")
MASK_FOLDERS = ("masks", "mask", "labels", "label", "annotations", "segmentationclass")
MASK_COLUMNS = ("mask", "segmentation", "seg", "label")
_MASK_ENDINGS = ("", "_mask", "-mask", "_seg", "_label")


class Pair(NamedTuple):
    """name: what both paths have in common.   picture, mask: below the root; None where there is none."""

    name: str
    picture: str | None
    mask: str | None


def paired(files: Iterable[str], where: str) -> list[Pair]:
    """Pictures and masks among the paths of picture files, in order of name; none unless there are folders of both.

    Raises DataError where one name belongs to two files.
    """
    kinds: list[list[tuple[str, str]]] = [[], []]
    for file in files:
        parts = file.split("/")
        for kind, names in zip(kinds, (IMAGE_FOLDERS, MASK_FOLDERS), strict=True):
            at = next((i for i, part in enumerate(parts[:-1]) if part.lower() in names), None)
            if at is not None:
                kind.append(("/".join([*parts[:at], *parts[at + 1 : -1], Path(parts[-1]).stem]), file))
                break
    if not all(kinds):
        return []
    images, masks = (_by_name(kind, where) for kind in kinds)
    owners = {name + ending: name for ending in reversed(_MASK_ENDINGS) for name in images}
    of_image: dict[str, str] = {}
    for name, file in masks.items():
        if name in owners and (other := of_image.setdefault(owners[name], file)) != file:
            raise DataError(
                f"{where}: {other} and {file} are both masks of {images[owners[name]]}. Keep the right one."
            )
    alone = [Pair(name, None, file) for name, file in masks.items() if name not in owners]
    return sorted([*(Pair(name, file, of_image.get(name)) for name, file in images.items()), *alone])


def num_with_masks(files: Iterable[str], where: str) -> int:
    """How many pictures have a mask, where most of them do; else 0: folders may be called so for another reason."""
    pairs = paired(files, where)
    num = sum(None not in pair for pair in pairs)
    return num if 2 * num > len(pairs) else 0


def _by_name(found: Iterable[tuple[str, str]], where: str) -> dict[str, str]:
    by_name: dict[str, str] = {}
    for name, file in found:
        if name in by_name:
            raise DataError(
                f"{where}: {by_name[name]} and {file} differ in nothing but their endings, so a mask or a picture belongs to "
                "both. Give each its own name."
            )
        by_name[name] = file
    return by_name
