"""From the fingerprint of the data to the plan of network and preprocessing, by the rules of nnU-Net.

Source of every rule: Isensee et al. 2021, doi 10.1038/s41592-020-01008-z, online methods and supplementary note 2. The
plan is a few numbers that a person can read, edit and give back (options.plan=FILE).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from domains.contract import Facts
from trainers.contract import Machine
from trainers.errors import UsageError

SMALLEST_EDGE = 4
"""Voxels that the deepest feature map keeps along every axis."""
ANISOTROPIC = 3.0
"""From this ratio of spacings on, the coarse axis is resampled to its finest tenth, not to its median."""
THIN = 8
"""Stacks with fewer slices than this are learned slice by slice."""
MOST_FEATURES = {3: 320, 2: 512}
MOST_VOXELS = {3: 128**3, 2: 512**2}
FEATURES = {"cpu": 16, "cuda": 32}
"""nnU-Net begins with 32. On two CPU cores 16 lets training see 2.3 times as many patches (.12 against .28 CPU-s a patch
of 40 x 56 x 40, compiled, bf16 with AMX)."""
_BYTES_A_VOXEL_AND_FEATURE = 60
"""Kept for backward at full resolution and below: about 14 maps of 2 bytes there, an eighth at each level down, and as much
again while gradients flow."""
_MEMORY_SHARE = 0.6

Axis = tuple[int, int, int]


class Configuration(BaseModel):
    """A plan for one set of cases. Axes are in the order of `axes`: the coarsest first, so that 2-D means patch[0] = 1.

    spacing: mm of the resampled voxels.   patch: voxels that the network sees at once.   strides, kernels: of each level,
    from the input down.   features: channels of each level.   normalisation: of each channel, "ct" clips to percentiles of
    the foreground of all cases and scales by their mean and deviation, "case" standardises each case by itself.
    mirror: axes (of x, y, z) along which cases may be flipped.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dimensions: Literal[2, 3]
    axes: Axis
    spacing: tuple[float, float, float]
    patch: Axis
    strides: tuple[Axis, ...]
    kernels: tuple[Axis, ...]
    features: tuple[int, ...]
    normalisation: tuple[Literal["ct", "case", "none"], ...]
    mirror: tuple[Literal["x", "y", "z"], ...]

    @model_validator(mode="after")
    def _fits(self) -> Configuration:
        if not len(self.strides) == len(self.kernels) == len(self.features) or len(self.strides) < 3:
            raise ValueError("strides, kernels and features need one entry a level, and at least 3 levels")
        for axis in range(3):
            step = math.prod(stride[axis] for stride in self.strides)
            if self.patch[axis] % step:
                raise ValueError(
                    f"patch {self.patch}: entry {axis} must be a multiple of {step}, the product of its strides"
                )
        if sorted(self.axes) != [0, 1, 2] or (self.dimensions == 2) != (self.patch[0] == 1):
            raise ValueError("axes must be 0, 1, 2 in some order, and patch[0] is 1 for 2 dimensions, else more")
        return self


def configured(facts: Facts, options: Any, machine: Machine, *, batch_size: int) -> Configuration:
    """The plan for data of these `facts`, with what the options say in place of the rules.

    Raises UsageError for a plan file or options that do not fit together.
    """
    given = _given(options)
    sizes = facts.sizes
    spacing = [sizes[f"median_{name}_mm"] for name in "xyz"]
    coarse = max(range(3), key=lambda axis: spacing[axis])
    if spacing[coarse] > ANISOTROPIC * min(spacing):
        spacing[coarse] = max(sizes[f"fine_{'xyz'[coarse]}_mm"], min(spacing))
    axes = tuple(given.get("axes") or sorted(range(3), key=lambda axis: (-spacing[axis], axis == 0, axis == 1)))
    spacing = list(given.get("spacing") or [spacing[axis] for axis in axes])
    extents = [sizes[f"median_{'xyz'[axis]}_extent_mm"] for axis in axes]
    shape = [max(1, round(extent / mm)) for extent, mm in zip(extents, spacing, strict=True)]
    dimensions = given.get("dimensions") or (2 if min(shape) < THIN else 3)
    first = options.base_features or FEATURES.get(machine.device.split(":")[0], 32)
    limit = _voxels_in(machine.memory_bytes, first, batch_size, MOST_VOXELS[dimensions])
    patch, strides, kernels = _pooled(shape, spacing, dimensions, limit, given.get("patch"))
    rules = {
        "dimensions": dimensions,
        "axes": axes,
        "spacing": [round(mm, 5) for mm in spacing],
        "patch": patch,
        "strides": strides,
        "kernels": kernels,
        "features": [min(first * 2**level, MOST_FEATURES[dimensions]) for level in range(len(strides))],
        "normalisation": [
            "ct" if name.strip().lower() in ("ct", "hu") else "case" for name in facts.schema["channels"]
        ],
        "mirror": _mirrored(facts.schema["names"]),
    }
    try:
        return Configuration.model_validate({**rules, **given})
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, fault['loc']))} {fault['msg']}" for fault in error.errors())
        raise UsageError(f"options.plan {options.plan or '(options)'}: {said}") from None


def _given(options: Any) -> dict[str, Any]:
    """What a person fixed: the plan file, then single options over it."""
    found: Any = {}
    if options.plan is not None:
        try:
            found = json.loads(Path(options.plan).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"options.plan {options.plan}: not readable as JSON ({error}).") from None
        for key in ("plan", "estimates", "configuration"):  # all that `zoo plan --json` prints, or a run's plan.json
            inner = found.get(key) if isinstance(found, Mapping) else None
            found = inner if isinstance(inner, Mapping) else found
        if not isinstance(found, dict) or not found:
            known = ", ".join(Configuration.model_fields)
            raise UsageError(f"options.plan {options.plan}: give an object with any of {known}.")
    single = {
        "dimensions": options.dimensions,
        "patch": options.patch,
        "spacing": options.spacing,
        "mirror": options.mirror,
    }
    return {**found, **{name: value for name, value in single.items() if value is not None}}


def memory_bytes(plan: Configuration, num_rows: int) -> int:
    """What training on `num_rows` patches at once keeps for backward."""
    return math.prod(plan.patch) * plan.features[0] * _BYTES_A_VOXEL_AND_FEATURE * num_rows


def _mirrored(names: Sequence[str]) -> list[str]:
    """Left and right of a body look alike, the other directions do not; and where classes are sides, neither do these."""
    has_sides = any(
        word in name.lower().replace("_", " ").split() for name in names for word in ("left", "right", "l", "r")
    )
    return [] if has_sides else ["x"]


def _voxels_in(memory_bytes: int, features: int, batch_size: int, most: int) -> int:
    """Voxels of a patch for which a batch fits into memory."""
    if not memory_bytes:
        return most
    return min(most, int(_MEMORY_SHARE * memory_bytes / (_BYTES_A_VOXEL_AND_FEATURE * features * batch_size)))


def _pooled(
    shape: Sequence[int], spacing: Sequence[float], dimensions: int, limit: int, given: Sequence[int] | None
) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Patch, strides and kernels: as large as the median case and the limit allow, each axis halved while 4 voxels are left
    and its spacing is within a factor of 2 of the finest."""
    patch = list(given) if given else [1 if dimensions == 2 and axis == 0 else size for axis, size in enumerate(shape)]
    while True:
        strides, kernels = _levels(patch, spacing)
        steps = [math.prod(stride[axis] for stride in strides) for axis in range(3)]
        fitting = patch if given else [math.ceil(size / step) * step for size, step in zip(patch, steps, strict=True)]
        if given or math.prod(fitting) <= limit:
            return fitting, strides, kernels
        # The axis that is longest for its share of the median case shrinks first, so that shapes stay alike.
        longest = max(range(3), key=lambda axis: patch[axis] / shape[axis] * (patch[axis] > 2 * SMALLEST_EDGE))
        if patch[longest] <= 2 * SMALLEST_EDGE:
            return fitting, strides, kernels
        patch[longest] = max(2 * SMALLEST_EDGE, fitting[longest] - steps[longest])


def _levels(patch: Sequence[int], spacing: Sequence[float]) -> tuple[list[list[int]], list[list[int]]]:
    size, mm = list(patch), list(spacing)
    strides, kernels = [[1, 1, 1]], []
    while True:
        # As nnU-Net: an axis twice as coarse as the finest is not convolved across until the others have caught up.
        open_axes = [axis for axis in range(3) if patch[axis] > 1]
        finest = min(mm[axis] for axis in open_axes)
        kernels.append([3 if patch[axis] > 1 and mm[axis] <= 2 * finest else 1 for axis in range(3)])
        halved = [axis for axis in open_axes if size[axis] >= 2 * SMALLEST_EDGE and mm[axis] <= 2 * finest]
        if not halved or len(strides) > 5:
            break
        strides.append([2 if axis in halved else 1 for axis in range(3)])
        size = [math.ceil(n / 2) if axis in halved else n for axis, n in enumerate(size)]
        mm = [value * 2 if axis in halved else value for axis, value in enumerate(mm)]
    while len(strides) < 3:  # the network needs three levels; tiny cases repeat their last one
        strides.append([1, 1, 1])
        kernels.append(kernels[-1])
    return strides, kernels
