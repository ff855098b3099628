"""Pretrained weights: where they are, what identifies them, and their tensors. Nothing is unpickled freely.

`resolve` turns `options.weights` (hub id, folder or file) into `Weights`; `read_tensors` reads one file safely;
`random_shape` reads the specs of weights that nobody trained.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import re
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainers.contract import JSON
from trainers.errors import DataError, MissingError, UsageError, did_you_mean

if TYPE_CHECKING:
    import torch

CONFIG = ("*.json",)
# In order of preference: the safe format first, pickled tensors only where a hub entry has nothing else.
FORMATS = ("*.safetensors", "*.bin")
RANDOM_HEAD_SIZE = 16
"""Numbers a head of attention, of weights drawn at random."""
_RANDOM = re.compile(r"random(?:-(\w+))?:(\d+)x(\d+)")
FILE_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")


@dataclass(frozen=True)
class Weights:
    """Weights that are on this machine. path: a folder or a file.   revision: the hub's commit, "" for local ones."""

    id: str
    path: Path
    revision: str = ""

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The files with tensors, sorted; of several formats in a folder the safest."""
        if self.path.is_file():
            return (self.path,)
        found = (sorted(self.path.glob(pattern)) for pattern in (*FORMATS, "*.pt", "*.pth"))
        return next((tuple(files) for files in found if files), ())

    @cached_property
    def sha256(self) -> str:
        """Hash of the weights file; of the files' hashes in order of their names where there are several."""
        hashes = [_sha256(file) for file in self.files]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()

    def reference(self) -> JSON:
        """What a run keeps instead of a copy."""
        return {"id": self.id, "path": str(self.path), "revision": self.revision, "sha256": self.sha256}


def resolve(spec: str, *, formats: Sequence[str] = FORMATS, also: Sequence[str] = CONFIG) -> Weights:
    """Find weights by hub id ("facebook/esm2_t12_35M_UR50D"), folder or file; fetch a hub id that is not cached.

    formats: patterns of weight files, tried in order: the first that the hub has is fetched.   also: fetched with it.
    Raises MissingError naming what is missing and the command that fetches it; HF_HUB_OFFLINE is respected.
    """
    path = Path(spec).expanduser()
    if path.exists():
        return _local(spec, path.resolve())
    if looks_like_path(spec):
        raise MissingError(f"options.weights: {spec}: no such file or folder.{_near(path)}")
    return _from_hub(spec, formats, also)


def with_config(weights: Weights) -> Weights:
    """`weights`, which must be a folder with a config.json. Raises MissingError where there is none."""
    if not weights.path.is_dir() or not (weights.path / "config.json").exists():
        raise MissingError(f"options.weights: {weights.path}: no config.json here. Give the whole folder of the model.")
    return weights


def config_json(folder: Path) -> JSON:
    """The values in a model's config.json. Raises DataError where it is not JSON."""
    path = folder / "config.json"
    try:
        found: JSON = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}). Fetch it again.") from None
    return found


def kept_config(config: Any) -> JSON:
    """A transformers config as the plain values that a run keeps: without where it came from and how it was stored."""
    drop = ("architectures", "torch_dtype", "dtype", "transformers_version", "_name_or_path")
    kept = {name: value for name, value in config.to_dict().items() if name not in drop}
    return dict(json.loads(json.dumps(kept, default=str)))


def resolve_reference(reference: JSON) -> Weights:
    """The weights that a run refers to: where they were, else by their id. Raises MissingError if their hash changed."""
    at = Path(reference["path"])
    # A random or local id means nothing elsewhere, a hub id does.
    weights = Weights(reference["id"], at, reference["revision"]) if at.exists() else resolve(reference["id"])
    if weights.sha256 != reference["sha256"]:
        raise MissingError(
            f"{weights.path}: these are not the weights that the run was trained on (sha256 {weights.sha256[:12]}, "
            f"expected {reference['sha256'][:12]} of {reference['id']}). Put the right file back."
        )
    return weights


def random_shape(spec: str, kinds: Sequence[str] = ("",)) -> tuple[int, int] | None:
    """(layers, width) of "random:2x64"; None for any other spec. Raises UsageError for a malformed one.

    kinds: architectures that the caller can draw; "random-mamba:2x64" is of kind "mamba", "random:2x64" of kind "".
    """
    if not spec.startswith("random"):
        return None
    found = _RANDOM.fullmatch(spec)
    layers, width = (int(found[2]), int(found[3])) if found and random_kind(spec) in kinds else (0, 0)
    if not layers or not width or width % RANDOM_HEAD_SIZE:
        raise UsageError(
            f"options.weights: {spec!r}: write random:LAYERSxWIDTH, WIDTH a multiple of {RANDOM_HEAD_SIZE} (random:2x64)."
        )
    return layers, width


def random_kind(spec: str) -> str:
    """The architecture that a spec of random weights names: "mamba" of "random-mamba:2x64"; else ""."""
    found = _RANDOM.fullmatch(spec)
    return (found[1] or "") if found else ""


def random_notes(spec: str) -> list[str]:
    """A warning where nothing was pretrained."""
    return (
        [f"{spec}: random weights, nothing pretrained; good for trying out only"] if spec.startswith("random") else []
    )


def weights_facts(spec: str, find: Callable[[str], Weights]) -> JSON:
    """Id, revision and sha256 of the weights that `find` finds; the spec alone for random ones. Raises MissingError."""
    if spec.startswith("random"):
        return {"id": spec, "revision": "", "sha256": ""}
    return {name: value for name, value in find(spec).reference().items() if name != "path"}


def looks_like_path(spec: str) -> bool:
    """Whether `spec` can only be a file or folder, not a hub id of the form name or owner/name."""
    return spec.startswith(("/", ".", "~")) or spec.count("/") > 1 or "\\" in spec or spec.endswith(FILE_SUFFIXES)


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, or of a PyTorch file that holds nothing but plain values and tensors.

    Raises DataError for a damaged file and for one that wants to run code.
    """
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    found = read_torch(path)
    tensors = found.get("state_dict", found.get("model", found)) if isinstance(found, dict) else found
    import torch

    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in tensors.items()
    ):
        raise DataError(f"{path}: holds no table of named tensors. Save model.state_dict(), best as safetensors.")
    return tensors


def read_torch(path: Path) -> object:
    """What a PyTorch file holds, read without running code: tensors, plain values and argparse.Namespace only."""
    import torch

    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # fair-esm keeps its settings in one
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        # torch's own text advises to read the file all the same, which would run its code.
        raise DataError(
            f"{path}: refused, it holds more than tensors and plain values, and reading those could run code. "
            "Save the state_dict as safetensors and give that."
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path}: not a readable PyTorch file ({said}).") from None


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from reporting heads that are unexpected or missing, from drawing bars, and from telling users
    which names peft ought to call it by."""
    from transformers import utils

    logging: Any = utils.logging
    verbosity, had_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bar:
            logging.enable_progress_bar()


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, struct.error) as error:
        raise DataError(f"{path}: not a readable safetensors file ({error}). Fetch it again.") from None


def _local(spec: str, path: Path) -> Weights:
    weights = Weights(spec, path)
    if not weights.files:
        raise MissingError(f"options.weights: {path}: this folder has no {' or '.join((*FORMATS, '*.pt'))} file.")
    return weights


def _near(path: Path) -> str:
    folder = path.parent
    return did_you_mean(path.name, [other.name for other in folder.iterdir()]) if folder.is_dir() else ""


def _from_hub(spec: str, formats: Sequence[str], also: Sequence[str]) -> Weights:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        for offline in (True, False):  # what is cached needs no request
            for pattern in formats:
                try:
                    folder = Path(snapshot_download(spec, allow_patterns=[*also, pattern], local_files_only=offline))
                except LocalEntryNotFoundError:
                    if not offline:
                        raise
                    continue
                if any(folder.glob(pattern)):
                    return Weights(spec, folder, folder.name)
    except HFValidationError:
        raise UsageError(f"options.weights: {spec!r} is no hub id (owner/name), and no such file or folder.") from None
    except _fetching_errors() as error:
        raise _not_fetched(spec, str(error).strip().split("\n")[0] or type(error).__name__) from None
    raise _not_fetched(spec, f"the hub has no {' or '.join(formats)} file for it")


def _fetching_errors() -> tuple[type[Exception], ...]:
    """The hub's own errors are OSErrors or ValueErrors; a connection lost midway shows as its HTTP library's."""
    try:
        import httpx
    except ModuleNotFoundError:  # huggingface_hub before 1.0 used requests, whose errors are OSErrors
        return (OSError, ValueError)
    return (OSError, ValueError, httpx.HTTPError)


def _not_fetched(spec: str, reason: str) -> MissingError:
    # The hub's own advice names its variable, which --offline sets.
    reason = "asking the hub is off: --offline" if os.environ.get("HF_HUB_OFFLINE") == "1" else reason
    return MissingError(
        f"options.weights: {spec} is not in the local cache and could not be fetched ({reason}). On a machine with "
        f"network: hf download {spec}. Or give a folder or file: --set options.weights=FOLDER."
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
