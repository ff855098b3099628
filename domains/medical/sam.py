"""The network of the Segment Anything Model (SAM) from a hub id, a folder, or random: pictures and boxes in, masks out.

Source: Kirillov et al. 2023, arXiv 2304.02643; MedSAM is the same network with other weights (Ma et al. 2024).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from domains.shared.weights import (
    RANDOM_HEAD_SIZE,
    Weights,
    config_json,
    kept_config,
    quiet_transformers,
    random_shape,
    resolve,
    with_config,
)
from trainers.contract import JSON, Role
from trainers.errors import DataError, MissingError

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
"""What SAM's pictures are standardised by where the folder does not say."""
_RANDOM_SIDE, _RANDOM_PATCH, _FREQUENCIES = 64, 8, 0.3
_LAYER = re.compile(r"^net\.vision_encoder\.layers\.(\d+)\.")
# Prompts keep their meaning: MedSAM's authors hold the prompt encoder too. And of the four masks that SAM can answer with
# the first is for boxes; what makes the others, and what tells how good they are, has no loss.
_HELD = re.compile(
    r"^net\.(?:prompt_encoder|shared_image_embedding|mask_decoder\.(?:iou_prediction_head|output_hypernetworks_mlps\.[1-9]))\."
)


class Sam(nn.Module):
    """x: (B, 3, S, S) standardised, boxes: (B, N, 4) first and last pixel as x0, y0, x1, y1 -> logits (B, N, S, S).

    Without boxes, one around the whole picture.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, boxes: torch.Tensor | None = None) -> torch.Tensor:
        side = x.shape[-1]
        if boxes is None:
            boxes = x.new_tensor([0.0, 0.0, side - 1.0, side - 1.0]).expand(len(x), 1, 4)
        masks: torch.Tensor = self.net(pixel_values=x, input_boxes=boxes, multimask_output=False).pred_masks[:, :, 0]
        return F.interpolate(masks.float(), size=(side, side), mode="bilinear", align_corners=False)


def side_of(config: JSON) -> int:
    """Pixels along the side of a picture."""
    return int(config["vision_config"]["image_size"])


def find(spec: str) -> Weights:
    """The folder of weights that are not random. Raises MissingError."""
    return with_config(resolve(spec))


def config_of(spec: str) -> JSON:
    """The architecture behind a spec. Raises MissingError, and DataError for what is no SAM."""
    shape = random_shape(spec)
    if shape is not None:
        return _random_config(*shape)
    folder = find(spec).path
    if (kind := config_json(folder).get("model_type")) != "sam":
        raise DataError(f"{folder}: a {kind!r} model, and one of type 'sam' is needed (wanglab/medsam-vit-base).")
    return _plain(_classes()[0].from_pretrained(folder, local_files_only=True))


def pictures_of(spec: str) -> JSON:
    """Mean and deviation of the colours, from 0 to 1, that the network expects, by the preprocessor_config.json of its folder.

    MedSAM's own scripts standardise nothing (MedSAM_Inference.py); a folder says so by "do_normalize": false.
    """
    path = None if random_shape(spec) is not None else find(spec).path / "preprocessor_config.json"
    if path is None or not path.is_file():
        return IMAGENET
    found = config_json_of(path)
    if not found.get("do_normalize", True):
        return {"mean": [0.0] * 3, "std": [1.0] * 3}
    return {"mean": found.get("image_mean", IMAGENET["mean"]), "std": found.get("image_std", IMAGENET["std"])}


def empty(config: JSON) -> Sam:
    """The network with random weights from torch's generator."""
    make_config, make = _classes()
    made = make_config.from_dict(config)
    # transformers draws frequencies for published weights to overwrite, so high that no two pixels are alike. Measured on
    # random:1x32, 28 made-up scans to learn from and 6 others, 800 steps of 14 at 5e-3: Dice on the others .90 with this
    # scale, .76 with a third of it, .56 with 1 (which fits its training slices best).
    made.vision_config.scale = _FREQUENCIES
    return Sam(make(made))


def pretrained(spec: str, config: JSON) -> Sam:
    """The network with the weights of a spec. Raises DataError for files that are no whole SAM."""
    if random_shape(spec) is not None:
        return empty(config)
    from safetensors import SafetensorError

    make_config, make = _classes()
    folder = find(spec).path
    options: JSON = {"dtype": torch.float32, "local_files_only": True, "output_loading_info": True}
    try:
        with quiet_transformers():
            net, info = make.from_pretrained(folder, config=make_config.from_dict(config), **options)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise DataError(f"{folder}: cannot be loaded ({str(error).strip().splitlines()[0]}).") from None
    if missing := sorted(info["missing_keys"]):
        raise DataError(
            f"{folder}: {len(missing)} tensors of SAM are missing, the first is {missing[0]!r}. Fetch it again."
        )
    return Sam(net)


def roles_of(model: nn.Module, *, freeze_encoder: bool) -> Mapping[str, Role]:
    """Depth by layer of the image encoder, the mask decoder last; what does not learn has no role."""
    names = dict(model.named_parameters())
    deepest = 2 + max(int(found[1]) for found in map(_LAYER.match, names) if found)
    roles = {}
    for name, parameter in names.items():
        is_encoder = name.startswith("net.vision_encoder.")
        if _HELD.match(name) or (is_encoder and freeze_encoder):
            continue
        layer = _LAYER.match(name)
        depth = int(layer[1]) + 1 if layer else 0 if is_encoder and ".neck." not in name else deepest
        is_table = name.endswith(("_token.weight", "_tokens.weight", "pos_embed")) or ".rel_pos_" in name
        roles[name] = Role("embedding" if is_table else "matrix" if parameter.ndim > 1 else "scalar", depth)
    return roles


def config_json_of(path: Path) -> JSON:
    """The values of another JSON file of a model. Raises DataError where it is not JSON."""
    import json

    try:
        found: JSON = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}). Fetch it again.") from None
    return found


def _classes() -> tuple[Any, Any]:
    try:
        from transformers import SamConfig, SamModel
    except ImportError as error:
        raise MissingError(
            f"Package {error.name or 'transformers'!r} is not installed. Install it with: pip install "
            "'domain-model-zoo[medical]'"
        ) from None
    return SamConfig, SamModel


def _random_config(layers: int, width: int) -> JSON:
    heads, middle = width // RANDOM_HEAD_SIZE, 2 * RANDOM_HEAD_SIZE
    size = {"image_size": _RANDOM_SIDE, "patch_size": _RANDOM_PATCH}
    vision = {
        **size,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "output_channels": middle,
        "num_pos_feats": middle // 2,
        "window_size": _RANDOM_SIDE // _RANDOM_PATCH // 2,
        "global_attn_indexes": [layers - 1],
        "initializer_range": width**-0.5,
    }
    decoder = {"hidden_size": middle, "mlp_dim": 4 * middle, "num_attention_heads": 2, "iou_head_hidden_dim": middle}
    # transformers' own 1e-10 and .02 are for weights to be overwritten: a mask, a product of two such layers, would stay 0.
    made = _classes()[0](
        initializer_range=middle**-0.5,
        vision_config=vision,
        prompt_encoder_config={**size, "hidden_size": middle},
        mask_decoder_config=decoder,
    )
    return _plain(made)


def _plain(config: Any) -> JSON:
    parts = ("vision_config", "prompt_encoder_config", "mask_decoder_config")
    return {**kept_config(config), **{name: kept_config(getattr(config, name)) for name in parts}}
