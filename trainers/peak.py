"""How fast a machine multiplies matrices: from its data sheet where the plan knows it, else measured."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from trainers.checkpoint import write_json_whole
from trainers.contract import Machine

PEAKS_FILE = "peaks.json"
SECONDS = 0.1
"""How long the largest product is repeated; the fastest one counts."""
SMALLEST, LARGEST = 256, 8192
LONG_ENOUGH_SECONDS = 0.01
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


@dataclass(frozen=True)
class Peak:
    """FLOP/s that a device reaches on dense matrix products, and where the figure is from."""

    flops_per_second: float
    source: str


def peak_of(machine: Machine, dtype: torch.dtype, cache: Path) -> Peak:
    """The peak that MFU is measured against.

    A GPU's is that of its data sheet for dense products in bf16 (fp16 where it has no bf16), as is usual, whatever the
    run's format. Other machines' is that of a product in `dtype`, measured in a fifth of a second; the fastest that
    was ever seen is kept in `cache` and counts, because what else runs at the moment only ever makes it slower.
    """
    if machine.peak_flops:
        return Peak(machine.peak_flops, "data sheet, dense bf16 or fp16")
    path, key = cache / PEAKS_FILE, f"{machine.name}, {machine.device}, {torch.get_num_threads()}, {NAMES[dtype]}"
    known, now = read_peaks(path), measured_flops(torch.device(machine.device), dtype)
    if now > known.get(key, 0.0):
        known[key] = now
        with contextlib.suppress(OSError):  # a cache that cannot be written is no reason to end a training
            write_json_whole(path, known)
    return Peak(known[key], f"{NAMES[dtype]} product measured on this machine")


def read_peaks(path: Path) -> dict[str, float]:
    """What was kept in `path`; nothing where it is missing or damaged."""
    try:
        return {str(key): float(value) for key, value in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def measured_flops(device: torch.device, dtype: torch.dtype, seconds: float = SECONDS) -> float:
    """FLOP/s of the fastest of several products of square matrices, as large as take ten milliseconds."""
    side = SMALLEST
    while (took := product_seconds(device, dtype, side, seconds=0.0)) < LONG_ENOUGH_SECONDS and side < LARGEST:
        side *= 2
    return 2 * side**3 / min(took, product_seconds(device, dtype, side, seconds=seconds))


def product_seconds(device: torch.device, dtype: torch.dtype, side: int, *, seconds: float) -> float:
    """The shortest time of a product of two (side, side) matrices, repeated for `seconds`, at least once after one more."""
    # A generator of its own: measuring must not shift the chance of the training around it.
    rng = torch.Generator(device).manual_seed(0)
    left = torch.rand(side, side, generator=rng, device=device).to(dtype)
    best, began = float("inf"), time.perf_counter()
    with torch.no_grad():
        left @ left
        while best == float("inf") or time.perf_counter() - began < seconds:
            wait(device)
            start = time.perf_counter()
            left @ left
            wait(device)
            best = min(best, time.perf_counter() - start)
    return best


def wait(device: torch.device) -> None:
    """Wait until an accelerator has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
