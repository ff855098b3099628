"""Segmentation with MONAI's Swin UNETR: windows of attention on the way down, convolutions on the way up.

Reading, preparing, patches, losses, sliding windows and stray pieces are those of medical/nnunet; the patch is cut to multiples
of 32 voxels, at most 96, which is what the network halves five times. `options.weights` takes an encoder that was pretrained
without labels (MONAI's model_swinvit.pt), a whole Swin UNETR of the same width, or a run of this recipe.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from pydantic import Field
from torch import nn

from domains.contract import Facts
from domains.medical.configure import Configuration, configured
from domains.medical.learner import MaskLearner, MaskOptions, configuration_of
from domains.medical.task import MaskTask
from domains.shared.convolutions import keep_thin_volumes_in_float32
from domains.shared.weights import read_tensors, resolve
from trainers.contract import JSON, Machine, Plan, Role
from trainers.empty import without_storage
from trainers.errors import DataError, MissingError, UsageError
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"feature_size": 12, "patch": [32, 32, 64], "augment": 0.2, "test_mirror": False},
    "train": {"epochs": 2, "batch_size": 8, "lr": 3e-3, "precision": "fp32", "compile": "off"},
}
STEP, MOST_EDGE = 32, 96
"""Voxels: a patch is halved five times, and published networks see 96 along every axis."""
SCRATCH = "none"
BYTES_A_VOXEL_AND_FEATURE = 90
"""What backward keeps at full resolution, deeper levels included. Measured: the forecast of `zoo plan medical/swin-unetr` on
hippocampus, 64 x 64 x 32 voxels, 24 features, float32."""
_ENCODER, _OUT, _BODY = "swinViT.", "out.", "body."
_INPUT = _ENCODER + "patch_embed.proj.weight"
_RENAMED = {".mlp.fc1.": ".mlp.linear1.", ".mlp.fc2.": ".mlp.linear2."}


class Options(MaskOptions):
    """The `options:` block of medical/swin-unetr."""

    weights: str = Field(SCRATCH, description=f'file or folder of weights, a run of this recipe, or "{SCRATCH}"')
    feature_size: int = Field(48, ge=12, multiple_of=12, description="channels at full resolution; published: 48")


class Swin(nn.Module):
    """MONAI's network with its head apart.

    x: (B, C, D, H, W), each a multiple of 32. Training gives a list with one entry, (B, K, D, H, W) logits, as networks with
    deep supervision do; otherwise that entry.
    """

    def __init__(self, num_channels: int, num_classes: int, feature_size: int) -> None:
        try:
            from monai.networks.nets.swin_unetr import SwinUNETR
        except ModuleNotFoundError as error:
            raise MissingError(
                f"Package {error.name!r} is not installed. Install it with: pip install 'domain-model-zoo[medical]'"
            ) from None
        super().__init__()
        net: Any = SwinUNETR(num_channels, num_classes, feature_size=feature_size)
        self.heads = nn.ModuleList([net.out])
        net.out = nn.Identity()
        self.body = net
        keep_thin_volumes_in_float32(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor | list[torch.Tensor]:
        logits: torch.Tensor = self.heads[0](self.body(x))
        return [logits] if self.training else logits


class SwinTask(MaskTask):
    """Masks by a Swin UNETR."""

    def roles(self) -> Mapping[str, Role]:
        """As of convolutions, but tables of positions are no matrices."""
        found = dict(super().roles())
        return {name: Role("embedding") if "position_bias" in name else role for name, role in found.items()}


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """The configuration, and estimates from it. Raises UsageError for a patch that does not fit, MissingError or DataError
    where the weights are not to be had."""
    found = _configured(facts, options, machine, settings)
    with without_storage():
        network = Swin(len(facts.schema["channels"]), len(facts.schema["names"]), options.feature_size)
    steps, rows = settings.planned_steps(facts.num_rows), settings.micro_batch_size or settings.batch_size
    voxels = found.patch[0] * found.patch[1] * found.patch[2]
    notes = [
        f"patches of {' x '.join(map(str, found.patch))} voxels of {' x '.join(f'{mm:g}' for mm in found.spacing)} mm",
        "random weights: no pretraining"
        if options.weights == SCRATCH
        else _fitted(network.body.state_dict(), *_tensors(options.weights))[1],
    ]
    return {
        "configuration": found.model_dump(mode="json"),
        "num_parameters": sum(parameter.numel() for parameter in network.parameters()),
        "memory_bytes": voxels * options.feature_size * BYTES_A_VOXEL_AND_FEATURE * rows,
        **({"num_steps": steps} if steps else {}),
        "notes": notes,
    }


def _configured(facts: Facts, options: Options, machine: Machine, settings: Gradient) -> Configuration:
    """nnU-Net's spacing, order of axes and normalisation, in three dimensions, with a patch that can be halved five times."""
    given = {"plan": None, "dimensions": 3, "spacing": options.spacing, "mirror": options.mirror}
    wanted = SimpleNamespace(**given, base_features=options.feature_size, patch=None)
    free = configured(facts, wanted, machine, batch_size=settings.batch_size)
    wanted.patch = options.patch or _edges(free.patch)
    if any(edge % STEP for edge in wanted.patch) or max(wanted.patch) == STEP:
        raise UsageError(
            f"options.patch {wanted.patch}: the network halves it five times and must keep more than one voxel. Give multiples "
            f"of {STEP}, not all of them {STEP}."
        )
    return configured(facts, wanted, machine, batch_size=settings.batch_size)


def _edges(free: Sequence[int]) -> tuple[int, ...]:
    """The nearest multiples; a patch that would shrink to a single voxel gets twice the step along its longest axis."""
    edges = [min(MOST_EDGE, max(STEP, STEP * round(edge / STEP))) for edge in free]
    if max(edges) == STEP:
        edges[max(range(3), key=lambda axis: free[axis])] = 2 * STEP
    return tuple(edges)


def build(plan: Plan) -> MaskLearner:
    """The learner of this plan."""
    return MaskLearner(plan, make_task)


def load(plan: Plan, folder: Path) -> MaskLearner:
    """The learner that `save` wrote into `folder`."""
    return MaskLearner.load(plan, folder, make_task)


def make_task(plan: Plan, fitted: JSON, cache: Path | None, pretrained: bool) -> MaskTask:
    """See `domains.medical.learner.MakeTask`."""
    schema, options = plan.facts["schema"], Options.model_validate(plan.options)
    network = Swin(len(schema["channels"]), len(schema["names"]), options.feature_size)
    if pretrained and options.weights != SCRATCH:
        tensors, _ = _fitted(network.body.state_dict(), *_tensors(options.weights))
        network.body.load_state_dict(tensors, strict=False)
    return SwinTask(network, options, configuration_of(plan), fitted, cache)


# --- weights -----------------------------------------------------------------------------------------------------------


def _tensors(spec: str) -> tuple[dict[str, torch.Tensor], Path]:
    """What a file holds, by MONAI's names."""
    found = resolve(spec, also=("*.json",))
    if len(found.files) != 1:
        raise MissingError(f"options.weights: {found.path}: {len(found.files)} files of weights. Give the one file.")
    tensors = read_tensors(found.files[0])
    names = {name: name.removeprefix("module.").removeprefix(_BODY) for name in tensors}
    # Pretraining without labels keeps the encoder alone, under names of its own.
    is_encoder = not any(name.startswith(_ENCODER) for name in names.values())
    return {_monais(_ENCODER + new if is_encoder else new): tensors[old] for old, new in names.items()}, found.files[0]


def _monais(name: str) -> str:
    for old, new in _RENAMED.items():
        name = name.replace(old, new)
    return name


def _fitted(
    own: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor], path: Path
) -> tuple[dict[str, torch.Tensor], str]:
    """The tensors that the network takes over, and what to say of them. own: the network's, which may be without storage.

    Other channels than the file's share its first convolution. The head is never taken over: its classes are others.
    Raises DataError where the encoder is not whole.
    """
    wanted = [name for name in own if not name.startswith(_OUT) and not name.endswith("relative_position_index")]
    taken = {name: found[name] for name in wanted if name in found and found[name].shape == own[name].shape}
    if _INPUT in found and _INPUT not in taken:
        kernel, channels = found[_INPUT], own[_INPUT].shape[1]
        shared = kernel.mean(1, keepdim=True).expand(-1, channels, *kernel.shape[2:]) * (kernel.shape[1] / channels)
        if shared.shape == own[_INPUT].shape:
            taken[_INPUT] = shared
    lacking = [name for name in wanted if name.startswith(_ENCODER) and name not in taken]
    if lacking:
        raise DataError(
            f"{path}: not the encoder of this Swin UNETR: {_first(lacking, own, found)}. Another feature_size?"
        )
    others = [name for name in wanted if not name.startswith(_ENCODER)]
    num = sum(name in taken for name in others)
    rest = "its way up too" if num == len(others) else f"{num} of {len(others)} tensors of its way up"
    return taken, f"weights of {path.name}: the whole encoder, {rest}; the head is new"


def _first(lacking: Sequence[str], own: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    name = lacking[0]
    here = f"{json.dumps(list(found[name].shape))} there" if name in found else "not there"
    return f"{name} is {json.dumps(list(own[name].shape))} here and {here}" + (
        f", and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    )
