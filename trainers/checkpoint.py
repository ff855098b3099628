"""Snapshots of training that survive a kill at any moment: written whole or not at all, verified before use.

    checkpoints/statistics.json    what was fitted on the training rows, once
    checkpoints/step-00000120/     model.safetensors  optimizer.safetensors  state.json  manifest.json  COMPLETE
                                   averages.safetensors (with train.ema or a schedule-free optimizer)

Everything is copied first and written by a thread while training goes on. The two newest stay, the best one that each
of them names, and one to go back to when the loss rises. Only safetensors and JSON.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trainers.averages import Averages, set_weights
from trainers.contract import JSON
from trainers.distributed import ALONE, Ranks, like, whole
from trainers.errors import DoesNotFitError
from trainers.optim import load_optimizer_memory, optimizer_memory

MANIFEST, MARKER = "manifest.json", "COMPLETE"
NUM_NEWEST = 2
"""The newest, and the one before should the newest be torn."""
STEPS_BACK = 30
"""How much older than the newest a snapshot must be for going back to it: see `rollback`."""
DAMAGED = ".damaged"
"""What the name of a snapshot ends in that was found changed."""
RNG = "rng."
"""Prefix of torch's random states among the optimizer's tensors."""


def write_folder(target: Path, writers: Mapping[str, Callable[[Path], None]]) -> None:
    """Write a folder whole or not at all: files, their hashes, the marker, and only then the name.

    writers: file name -> function that writes that file. An existing `target` is replaced.
    """
    work = target.with_name(target.name + ".tmp")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for name, write in writers.items():
        write(work / name)
        sync(work / name)
    hashes = {name: sha256_of(work / name) for name in writers}
    write_json(work / MANIFEST, {"sha256": hashes})
    sync(work / MANIFEST)
    (work / MARKER).touch()
    sync(work)
    old = target.with_name(target.name + ".old.tmp")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    work.rename(target)
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def damage(folder: Path) -> str:
    """Why a folder that `write_folder` wrote cannot be trusted; an empty text if it can."""
    if not (folder / MARKER).is_file():
        return "it was not finished"
    try:
        hashes = json.loads((folder / MANIFEST).read_text())["sha256"]
    except (OSError, ValueError, KeyError, RecursionError):
        return f"{MANIFEST} cannot be read"
    for name, expected in hashes.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if sha256_of(folder / name) != expected:
            return f"{name} has changed since it was written"
    return ""


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """A safetensors file. Raises OSError where the disk does not take it, which safetensors calls an error of its own."""
    try:
        save_file(dict(tensors), path)
        path.chmod(path.parent.stat().st_mode & 0o666)  # safetensors lets the owner alone read it
    except SafetensorError as error:
        code = re.search(r"code: (\d+)", str(error))
        raise OSError(int(code[1]) if code else errno.EIO, str(error), str(path)) from error


def sync(path: Path) -> None:
    """Have a file's bytes, or a folder's names, on the disk before going on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """The hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, values: Any) -> None:
    """Write plain values; raises TypeError on anything else, so that nothing is lost between writing and reading."""
    path.write_text(json.dumps(values))


def write_json_whole(path: Path, values: Any) -> None:
    """`write_json`, with a kill leaving either the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(path.name + ".tmp")
    write_json(work, values)
    sync(work)
    work.replace(path)


class Snapshots:
    """The snapshots below one folder. `say` gets events: kind="save" and kind="warning".

    As a context manager it ends with the last snapshot on the disk. Costs host memory for one copy of a snapshot.
    Of several processes (`ranks`) the first one looks and writes for all; all must call, and see the same folder.
    A snapshot holds whole tensors and each process's chance, so any number of processes may go on from it.
    """

    def __init__(self, folder: Path, say: Callable[..., None], ranks: Ranks = ALONE) -> None:
        self.folder, self.say, self.ranks = folder, say, ranks
        self.pool: ThreadPoolExecutor | None = None
        self.writing: Future[None] | None = None

    def __enter__(self) -> Snapshots:
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshots")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._end_writing()
        except DoesNotFitError as error:
            if kind is None:
                raise
            self.say(kind="warning", text=str(error))
        finally:
            if self.pool is not None:
                self.pool.shutdown()
            self.pool = None

    def wait(self) -> None:
        """Return when what was last given to `write` is on the disk. Raises DoesNotFitError if it could not be written."""
        self._end_writing()
        self.ranks.wait()

    def _end_writing(self) -> None:
        writing, self.writing = self.writing, None
        try:
            if writing is not None:
                writing.result()
        except OSError as error:
            raise DoesNotFitError(
                f"A snapshot could not be written to {self.folder}: {error}. Make room there, then: zoo resume RUN"
            ) from error

    def path(self, step: int) -> Path:
        """Where the snapshot after `step` steps lies."""
        return self.folder / f"step-{step:08d}"

    def newest(self) -> Path | None:
        """The newest snapshot that is whole; each damaged one on the way to it is said aloud."""
        return self.ranks.told(self._newest() if self.ranks.is_first else None)

    def _newest(self) -> Path | None:
        for folder in reversed(self._all()):
            reason = damage(folder)
            if not reason:
                return folder
            self.say(kind="warning", text=f"Snapshot {folder.name} is not used: {reason}. Trying the one before it.")
            # Out of the way, so that it does not count as one of the newest that are kept.
            shutil.rmtree(aside := folder.with_suffix(DAMAGED), ignore_errors=True)
            folder.rename(aside)
        return None

    def newest_until(self, step: int) -> Path | None:
        """The newest snapshot that is whole and not later than `step`."""
        found = next((each for each in reversed(self._all()) if each <= self.path(step) and not damage(each)), None)
        return self.ranks.told(found)

    def drop_after(self, folder: Path) -> None:
        """Remove the snapshots that are later than the one in `folder`."""
        self.ranks.wait()  # until all have read what they go back to
        if not self.ranks.is_first:
            return
        for later in self._all():
            if later > folder:
                shutil.rmtree(later)

    def write(
        self, state: JSON, model: torch.nn.Module, optimizer: torch.optim.Optimizer, averages: Averages | None = None
    ) -> None:
        """Keep all that exact continuing needs. `state` holds `step`, and `best_step` or None.

        Returns when everything is copied; raises what the snapshot before could not be written for, see `wait`.
        """
        self.wait()
        memory, tensors = optimizer_memory(optimizer)
        chance = self.ranks.collected((host_rng_states(), torch_rng_states()))
        rng = {f"{RNG}{rank}.{name}": each for rank, (_, own) in enumerate(chance) for name, each in own.items()}
        parts = {"model": unique_weights(model), "optimizer": {**tensors, **rng}}
        if averages is not None:
            parts["averages"] = averages.tensors()
        copies = {name: host_copies(part, is_kept=self.ranks.is_first) for name, part in parts.items()}
        values = {"training": state, "rng": [host for host, _ in chance], "optimizer": memory}
        if not self.ranks.is_first:
            return
        if self.pool is None:
            self._write(values, copies)
        else:
            self.writing = self.pool.submit(self._write, values, copies)

    def restore(
        self,
        folder: Path,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        averages: Averages | None = None,
    ) -> JSON:
        """Set model, optimizer, averages and every source of chance to what `write` found, and return its `state`."""
        self.restore_model(folder, model)
        tensors, values = load_file(folder / "optimizer.safetensors"), read_state(folder)
        load_optimizer_memory(optimizer, values["optimizer"], tensors)
        if averages is not None:
            averages.load(load_file(folder / "averages.safetensors"))
        # Processes that were not there before keep the chance they began with.
        if (rank := self.ranks.rank) < len(values["rng"]):
            start = f"{RNG}{rank}."
            own = {name.removeprefix(start): each for name, each in tensors.items() if name.startswith(start)}
            set_rng_states(values["rng"][rank], own)
        return dict(values["training"])

    def restore_model(self, folder: Path, model: torch.nn.Module, *, with_averages: bool = False) -> None:
        """Set the model's weights and buffers alone; with_averages: its trained weights to their averages."""
        load_weights(model, load_file(folder / "model.safetensors"))
        if with_averages:
            set_weights(model, load_file(folder / "averages.safetensors"))

    def _write(self, values: JSON, parts: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        step = values["training"]["step"]
        files = {f"{name}.safetensors": partial(_tensors_to, tensors) for name, tensors in parts.items()}
        write_folder(self.path(step), {**files, "state.json": lambda path: write_json(path, values)})
        self._prune()
        self.say(kind="save", step=step, folder=self.path(step).name)

    def _all(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if not path.suffix)

    def _to_go_back_to(self) -> list[Path]:
        """The newest snapshot that is STEPS_BACK older than the last, and the next, which will follow it in that."""
        every = self._all()
        border = self.path(max(0, int(every[-1].name.removeprefix("step-")) - STEPS_BACK))
        num_old = sum(each <= border for each in every)
        return every[max(0, num_old - 1) : num_old + 1]

    def _prune(self) -> None:
        newest = self._all()[-NUM_NEWEST:]
        best = {read_state(folder)["training"]["best_step"] for folder in newest if not is_torn(folder)}
        kept = {*newest, *(self.path(step) for step in best if step is not None), *self._to_go_back_to()}
        for folder in self._all():
            if folder not in kept:
                shutil.rmtree(folder)


def is_torn(folder: Path) -> bool:
    """Whether a snapshot lacks its marker: the quick look, without hashing."""
    return not (folder / MARKER).is_file()


def read_state(folder: Path) -> JSON:
    """What state.json holds: `training` and `rng`."""
    return dict(json.loads((folder / "state.json").read_text()))


def unique_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights and buffers by name, those with several names once."""
    every = model.state_dict(keep_vars=True)
    first = {id(value): name for name, value in reversed(every.items())}
    return {name: every[name] for name in every if first[id(every[name])] == name}


def load_weights(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Give the model what `unique_weights` returned. Raises ValueError for names that are missing or too many."""
    every = model.state_dict(keep_vars=True)
    given = {id(every[name]) for name in tensors if name in every}
    wrong = sorted([name for name in every if id(every[name]) not in given] + [n for n in tensors if n not in every])
    if wrong:
        raise ValueError(f"The snapshot belongs to another model; they differ in {', '.join(wrong[:5])}.")
    model.load_state_dict({name: like(tensor, every[name]) for name, tensor in tensors.items()}, strict=False)


def host_copies(tensors: Mapping[str, torch.Tensor], *, is_kept: bool = True) -> dict[str, torch.Tensor]:
    """Copies on the host, contiguous, as safetensors takes them; training may go on to change the originals.

    Split tensors are put together one after another, for which every process must come here; those for which
    `is_kept` is False get nothing.
    """
    copies = {}
    for name, tensor in tensors.items():
        found = whole(tensor.detach())
        if is_kept:
            copies[name] = torch.empty(found.shape, dtype=found.dtype).copy_(found)
    return copies


def host_rng_states() -> JSON:
    """States of Python's and NumPy's global generators as plain values."""
    numpy_state = np.random.get_state(legacy=False)
    return {"python": random.getstate(), "numpy": {**numpy_state, "state": _plain(numpy_state["state"])}}


def torch_rng_states() -> dict[str, torch.Tensor]:
    """States of torch's generators: the CPU's, and that of this process's CUDA device where CUDA is in use."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_rng_states(host: JSON, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set the generators to what `host_rng_states` and `torch_rng_states` returned."""
    version, words, gauss = host["python"]
    random.setstate((version, tuple(words), gauss))
    key = np.asarray(host["numpy"]["state"]["key"], np.uint32)
    np.random.set_state({**host["numpy"], "state": {**host["numpy"]["state"], "key": key}})
    torch.set_rng_state(tensors["cpu"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


def _tensors_to(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    write_tensors(path, tensors)


def _plain(values: Mapping[str, Any]) -> JSON:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
