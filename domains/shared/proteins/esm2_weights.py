"""Weights of ESM-2 from any of their homes: hub id, transformers folder, fair-esm name, fair-esm .pt file, a run of
proteins/protein-lm, or random.

fair-esm checkpoints are renamed key by key; the states are the same to float32 precision.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from domains.shared.esm import NO_ATTENTION_DROPOUT, demand_all, empty_encoder, from_folder
from domains.shared.proteins.esm2 import VOCABULARY, esm2_config
from domains.shared.proteins.masked_esm import MaskedEsm
from domains.shared.weights import Weights, config_json, random_shape, read_tensors, read_torch, resolve
from trainers.contract import JSON
from trainers.errors import DataError, MissingError, did_you_mean

FAIR_ESM_NAMES = (
    "esm2_t6_8M_UR50D",
    "esm2_t12_35M_UR50D",
    "esm2_t30_150M_UR50D",
    "esm2_t33_650M_UR50D",
    "esm2_t36_3B_UR50D",
    "esm2_t48_15B_UR50D",
)
RUN_PARTS = ("model/pretrain", "model")
"""Where a run of proteins/protein-lm keeps its checkpoint: beside the network that learned labels, or alone."""
_FAIR_PREFIX = re.compile(r"^(encoder\.)?(sentence_encoder\.)?")
_FAIR_PARTS = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "LayerNorm",
}


def find(spec: str) -> Weights:
    """The weights of a spec that is not random: hub id, fair-esm name, folder, file or run. Raises MissingError."""
    if not Path(spec).exists() and spec.startswith("esm2_") and "/" not in spec and not spec.endswith(".pt"):
        if spec not in FAIR_ESM_NAMES:
            raise MissingError(f"options.weights: no ESM-2 model {spec!r}.{did_you_mean(spec, FAIR_ESM_NAMES)}")
        return resolve(f"facebook/{spec}")
    return resolve(str(_of_run(Path(spec)) or spec))


def _of_run(path: Path) -> Path | None:
    """The checkpoint that a finished run of proteins/protein-lm left; None where `path` is no run."""
    if not (path / "plan.json").exists():
        return None
    found = next((path / part for part in RUN_PARTS if (path / part / "config.json").exists()), None)
    if found is None:
        raise MissingError(
            f"options.weights: {path} is a run that left no encoder. Give one of proteins/protein-lm, or a checkpoint."
        )
    return found


def read_config(spec: str) -> JSON:
    """The architecture behind a spec, as the values of a transformers `EsmConfig`; reads no tensor where it can."""
    shape = random_shape(spec)
    if shape is not None:
        return esm2_config(layers=shape[0], width=shape[1], heads=shape[1] // 16)
    weights = find(spec)
    folder = weights.path if weights.path.is_dir() else weights.path.parent
    if _is_fair(weights):
        return _fair_config(weights.path)[0]
    if not (folder / "config.json").exists():
        raise MissingError(f"options.weights: {folder}: no config.json beside the weights. Give the whole folder.")
    return _checked(_hub_config(folder), folder)


def load_encoder(spec: str) -> nn.Module:
    """The pretrained encoder of a spec, in evaluation mode. Random specs draw from torch's generator.

    Raises MissingError for weights that are not to be had, DataError for files that are no whole ESM-2.
    """
    config = read_config(spec)
    if random_shape(spec) is not None:
        return empty_encoder(config).eval()
    weights = find(spec)
    encoder = _from_fair(weights, config) if _is_fair(weights) else from_folder(weights)
    return encoder.eval()


def load_masked(spec: str, reference: JSON | None = None) -> nn.Module:
    """The encoder of a spec with its language head, a `MaskedEsm`. Random ones are drawn from the seed in `reference`.

    Raises MissingError for weights that are not to be had, DataError for a checkpoint without a language head.
    """
    config = read_config(spec)
    if random_shape(spec) is not None:
        return _drawn(config, (reference or {}).get("seed", 0))
    network, weights = MaskedEsm(config), find(spec)
    if _is_fair(weights):
        named = {_renamed_whole(name): value for name, value in _fair_config(weights.path)[1].items()}
        fill_masked(network, {name: value for name, value in named.items() if name}, weights)
    else:
        tensors = {name: value for file in weights.files for name, value in read_tensors(file).items()}
        fill_masked(network, tensors, weights)
    return network.eval()


def masked_reference(spec: str, seed: int) -> JSON:
    """By what random weights are found again: their seed."""
    return {"id": spec, "path": "", "revision": f"seed {seed}", "sha256": "", "seed": seed}


def _drawn(config: JSON, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MaskedEsm(config).eval()


def fill_masked(network: nn.Module, found: Mapping[str, Tensor], weights: Weights) -> None:
    """Copy tensors named as in transformers' `EsmForMaskedLM`. Raises DataError where some are missing."""
    own = dict(network.named_parameters())
    missing = [name for name in own if name not in found or found[name].shape != own[name].shape]
    if any(name.startswith("lm_head.") for name in missing):
        raise DataError(
            f"{weights.path}: no language head (lm_head) in this checkpoint, so it cannot say how likely residues are. Give "
            "one as facebook/esm2_... or a run of proteins/protein-lm --task masked-lm."
        )
    demand_all(missing, weights)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(found[name])


def _hub_config(folder: Path) -> JSON:
    found = config_json(folder)
    drop = ("architectures", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "model_type")
    return {"model_type": found.get("model_type"), **{k: v for k, v in found.items() if k not in drop}}


def _checked(config: JSON, folder: Path) -> JSON:
    kind = config.pop("model_type")
    if kind != "esm" or config.get("is_folding_model") or config.get("vocab_size") != len(VOCABULARY):
        raise DataError(
            f"{folder}: a {kind!r} model with {config.get('vocab_size')} tokens, not an ESM-2 encoder "
            f"(esm, {len(VOCABULARY)} tokens). Give one with --set options.weights=..."
        )
    keep = (*esm2_config(layers=1, width=16, heads=1), "rope_theta", "emb_layer_norm_before")
    return {**{name: config[name] for name in keep if name in config}, **NO_ATTENTION_DROPOUT}


def _is_fair(weights: Weights) -> bool:
    """Whether these are fair-esm's: a lone PyTorch file, or a folder with one and no config.json."""
    file = weights.files[0]
    folder_has_config = (file.parent / "config.json").exists()
    return file.suffix in (".pt", ".pth") and (weights.path.is_file() or not folder_has_config)


def _fair_config(path: Path) -> tuple[JSON, dict[str, Tensor]]:
    """The architecture and the tensors (fair-esm's names, no prefix) of a fair-esm checkpoint or bare state_dict."""
    file = Weights(str(path), path).files[0]
    found = read_torch(file)
    state = found.get("model", found) if isinstance(found, dict) else {}
    state = {_FAIR_PREFIX.sub("", name): value for name, value in state.items() if isinstance(value, Tensor)}
    layers = {int(m[1]) for m in (re.match(r"layers\.(\d+)\.", name) for name in state) if m}
    if "embed_tokens.weight" not in state or not layers or "emb_layer_norm_after.weight" not in state:
        raise DataError(f"{file}: no fair-esm ESM-2 checkpoint (no embed_tokens, layers or emb_layer_norm_after).")
    width = state["embed_tokens.weight"].shape[1]
    settings = vars(found["cfg"]["model"]) if isinstance(found, dict) and "cfg" in found else {}
    heads = settings.get("encoder_attention_heads") or _fair_heads(state, width, file)
    config = esm2_config(layers=max(layers) + 1, width=width, heads=int(heads))
    return {**config, "token_dropout": bool(settings.get("token_dropout", True))}, state


def _fair_heads(state: Mapping[str, Tensor], width: int, file: Path) -> int:
    """A bare state_dict keeps no settings, but the rotary table has half a head's width."""
    table = state.get("layers.0.self_attn.rot_emb.inv_freq")
    if table is None:
        raise DataError(f"{file}: cannot tell the number of attention heads. Give the whole fair-esm checkpoint.")
    return width // (2 * len(table))


def _renamed_whole(name: str) -> str | None:
    """fair-esm's name of a tensor in the terms of `EsmForMaskedLM`; None for the contact head and rotary tables."""
    if name.startswith("lm_head."):
        return None if name == "lm_head.weight" else name  # tied to the table of tokens
    inside = _renamed(name)
    return inside and f"esm.{inside}"


def _renamed(name: str) -> str | None:
    """fair-esm's name of an encoder tensor in transformers' terms; None for the heads and rotary tables."""
    if name == "embed_tokens.weight":
        return "embeddings.word_embeddings.weight"
    if name.startswith("emb_layer_norm_after"):
        return f"encoder.{name}"
    found = re.fullmatch(r"layers\.(\d+)\.(.+)\.(weight|bias)", name)
    if found and found[2] in _FAIR_PARTS:
        return f"encoder.layer.{found[1]}.{_FAIR_PARTS[found[2]]}.{found[3]}"
    return None


def _from_fair(weights: Weights, config: JSON) -> nn.Module:
    encoder = empty_encoder(config)
    found = _fair_config(weights.path)[1]
    named = {_renamed(name): value for name, value in found.items()}
    own = dict(encoder.named_parameters())
    demand_all([name for name in own if name not in named or named[name].shape != own[name].shape], weights)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(named[name])
    return encoder
