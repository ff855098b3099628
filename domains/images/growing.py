"""Progressive resizing: training pictures that begin small and are of full size in the last stage.

Source: Tan and Le 2021, EfficientNetV2, arXiv 2104.00298, section 4: four stages of equal length, sides that grow evenly, and
augmentation that grows with them, for small pictures learned under strong augmentation lost accuracy; after Howard's entry to
DAWNBench of 2018 (fastai). That the last stage has the size that is judged matters: Touvron et al. 2019, Fixing the train-test
resolution discrepancy, arXiv 1906.06423, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from domains.shared import timm_backbone as nets
from trainers.contract import JSON, Stage
from trainers.errors import DataError, UsageError

NUM_STAGES = 4
_SIDE_STEP = 32
"""What convolutional networks of timm halve their pictures by in all."""


def growing_sides(full: int, first: float, step: int) -> list[int]:
    """Sides in pixels, one a stage: from about `first` of `full` to `full`, all but the last multiples of `step`."""
    shares = [first + (1 - first) * stage / (NUM_STAGES - 1) for stage in range(NUM_STAGES)]
    return [*(min(full, max(step, round(share * full / step) * step)) for share in shares[:-1]), full]


def stages_of(sides: Sequence[int]) -> tuple[Stage, ...]:
    """Equal shares of training; a picture costs about as many operations as it has pixels."""
    return tuple(Stage((at + 1) / len(sides), (side / sides[-1]) ** 2) for at, side in enumerate(sides))


def sides_of(model: torch.nn.Module, full: int, first: float | None) -> list[int]:
    """The side in pixels of each stage of training `model`; one alone without `first`."""
    if first is None:
        return [full]
    # A transformer's patches must fill the picture.
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    return growing_sides(full, first, max(patch) if isinstance(patch, tuple) else _SIDE_STEP)


def fitting_sides(backbone: JSON, num_outputs: int, full: int, first: float) -> list[int]:
    """The side of each stage, all tried on this network without computing a number.

    Raises UsageError where there is nothing smaller to begin with, and for a network that takes one size only.
    """
    try:
        with torch.device("meta"), torch.no_grad():
            model = nets.build_network(backbone, num_outputs).eval()
            sides = sides_of(model, full, first)
            for side in sorted(set(sides)):
                model(torch.empty(1, 3, side, side))
    except DataError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"options.progressive: {backbone['network']} does not take pictures of several sizes ({reason}). Leave the option "
            "out, or take a convolutional network or a plain ViT, whose positions timm interpolates."
        ) from None
    if sides[0] == full:
        raise UsageError(
            f"options.progressive={first}: {backbone['network']} cannot begin with less than {full} pixels, for sides go in "
            "steps of what it divides them by. Leave the option out, or set a larger options.image_size."
        )
    return sides
