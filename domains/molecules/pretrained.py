"""Where a pretrained graph network comes from: a run of ours, a checkpoint of chemprop, CheMeleon, admet-ai, or random.

`source` reads shape and provenance, `fill` the tensors. A head is never taken over: the new question has its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from domains.molecules import chemprop_weights
from domains.molecules.networks import Architecture
from domains.shared.weights import Weights, random_notes, random_shape, read_tensors, resolve
from trainers.contract import JSON, Plan
from trainers.errors import DataError, MissingError, UsageError
from trainers.gradient import STATISTICS, WEIGHTS

ADMET, CHEMELEON = "admet-ai", "chemeleon"
ADMET_KINDS, ADMET_MODELS = ("classification", "regression"), 5
CHEMELEON_URL = "https://zenodo.org/records/15460715/files/chemeleon_mp.pt"
CHEMPROP_FILES = ("*.pt", "*.ckpt")
OTHERS = re.compile(r"members\.[1-9]")
GRAPH_FAMILIES = ("domains.molecules.gnn_scratch", "domains.molecules.gnn_finetune")


@dataclass(frozen=True)
class Source:
    """shape: of the network.   weights: by our names.   columns: what was predicted in pretraining, as far as known.
    about: where from, in words.   reference: id, revision and sha256."""

    shape: Architecture
    weights: Mapping[str, Tensor]
    columns: tuple[str, ...]
    about: str
    reference: JSON


def source(spec: str) -> Source:
    """The network behind `options.weights`. Raises MissingError where it is not to be had, DataError where it is no
    network of molecules, UsageError for a malformed spec."""
    if (shape := random_shape(spec)) is not None:
        depth, width = shape
        own = Architecture(width=width, hidden=width, depth=depth)
        return Source(own, {}, (), random_notes(spec)[0], {"id": spec, "revision": "", "sha256": ""})
    if (Path(spec) / "plan.json").is_file():
        return _of_run(Path(spec))
    weights = _found(spec)
    found = chemprop_weights.read(_only_file(weights))
    names = f" for {len(found.columns)} columns ({', '.join(found.columns[:4])} ...)" if found.columns else ""
    reference = {name: value for name, value in weights.reference().items() if name != "path"}
    return Source(found.shape, found.weights, found.columns, f"{spec}: a network of chemprop trained{names}", reference)


def fill(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put in what was pretrained, all but the head. Raises DataError where a tensor has another shape."""
    own = network.state_dict()
    taken = {name: value for name, value in weights.items() if not name.startswith("head.")}
    unlike = sorted(name for name, value in taken.items() if name not in own or own[name].shape != value.shape)
    if unlike:
        raise DataError(f"options.weights: the tensor {unlike[0]!r} does not fit the network it says it is of.")
    with torch.no_grad():
        for name, value in taken.items():
            own[name].copy_(value)


def overlap_notes(found: Source, names: tuple[str, ...]) -> list[str]:
    """What a reader must know of the pretraining. names: the columns to be predicted now."""
    notes = [found.about]
    seen = {name.lower() for name in found.columns}
    if same := [name for name in names if name.lower() in seen]:
        notes.append(
            f"pretraining already saw labels called {', '.join(same)}: if they are these, the scores here are too good and "
            "prove nothing; compare with molecules/gnn-scratch"
        )
    elif found.columns:
        notes.append("molecules of the test part may have been in pretraining, with other labels: scores can flatter")
    if any("aqsol" in name.lower() for name in found.columns):
        notes.append(
            "pretraining saw solubilities (AqSolDB, which holds most of ESOL): solubility scores here prove nothing"
        )
    if found.reference["id"].startswith(ADMET):
        notes.append("all admet-ai networks come from one collection (TDC), Tox21 and AqSolDB among it")
    return notes


def _found(spec: str) -> Weights:
    if spec.split(":")[0] == ADMET:
        return Weights(spec, _admet_file(spec))
    if spec == CHEMELEON:
        path = Path.home() / ".chemprop" / "chemeleon_mp.pt"  # where chemprop keeps it, too
        if not path.is_file():
            raise MissingError(
                f"options.weights: {spec} is not here. Fetch it: curl -L --create-dirs -o ~/.chemprop/chemeleon_mp.pt "
                f"{CHEMELEON_URL} (MIT; cite 10.48550/arXiv.2506.15792)"
            )
        return Weights(spec, path)
    return resolve(spec, formats=CHEMPROP_FILES)


def _only_file(weights: Weights) -> Path:
    files = (
        [weights.path] if weights.path.is_file() else sorted(f for p in CHEMPROP_FILES for f in weights.path.glob(p))
    )
    if len(files) != 1:
        raise MissingError(
            f"options.weights: {weights.path}: {len(files)} checkpoints of chemprop here, and one is needed. Name the file "
            "(model.pt, best.ckpt), or a run folder of molecules/gnn-scratch."
        )
    return files[0]


def _admet_file(spec: str) -> Path:
    """admet-ai, or admet-ai:KIND/NUMBER, as a file of the package."""
    kind, _, number = (spec.partition(":")[2] or "classification/0").partition("/")
    if kind not in ADMET_KINDS or number not in map(str, range(ADMET_MODELS)):
        raise UsageError(f"options.weights: {spec!r}: write {ADMET}:classification/0 (or regression, 0 to 4).")
    spec_found = find_spec("admet_ai")
    roots = list(spec_found.submodule_search_locations or ()) if spec_found else []
    for root in roots:
        path = Path(root) / "resources" / "models" / f"admet_{kind}" / f"model_{number}.pt"
        if path.is_file():
            return path
    raise MissingError(
        "options.weights: the networks of admet-ai (14 MB, MIT) are not here: pip install --no-deps admet-ai==2.0.1. Or "
        "give a run of molecules/gnn-scratch, a checkpoint of chemprop, or chemeleon: --set options.weights=..."
    )


def _of_run(folder: Path) -> Source:
    plan = Plan.from_json(json.loads((folder / "plan.json").read_text(encoding="utf-8")))
    if plan.module not in GRAPH_FAMILIES or not (folder / "model" / WEIGHTS).is_file():
        raise UsageError(
            f"options.weights: {folder} is a run of {plan.recipe} or has not ended; take a finished one of "
            "molecules/gnn-scratch or molecules/gnn-finetune."
        )
    fitted: dict[str, Any] = json.loads((folder / "model" / STATISTICS).read_text(encoding="utf-8"))
    # Of an ensemble its first network.
    found = read_tensors(folder / "model" / WEIGHTS)
    tensors = {name.removeprefix("members.0."): value for name, value in found.items() if not OTHERS.match(name)}
    shape = Architecture(**fitted["architecture"])
    if "descriptors" in fitted:  # the first hidden layer read descriptors, which are scaled anew for each set
        tensors = {name: value for name, value in tensors.items() if not name.startswith("hidden.")}
        shape = replace(shape, hidden_layers=0)
    columns = tuple(plan.facts["schema"]["targets"])
    about = f"{folder}: {plan.recipe} on {plan.facts['num_rows']:,} molecules ({', '.join(columns[:4])})"
    reference = Weights(str(folder), folder / "model" / WEIGHTS).reference()
    return Source(shape, tensors, columns, about, {name: value for name, value in reference.items() if name != "path"})
