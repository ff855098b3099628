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
SECONDS, SECONDS_A_SIZE = 0.1, 0.02
"""How long the largest product is repeated, and each smaller one: among many one runs undisturbed, and that counts."""
SMALLEST, LARGEST = 512, 8192
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
    path, key = cache / PEAKS_FILE, f"{machine_key(machine)}, {NAMES[dtype]}"
    known, now = read_peaks(path), measured_flops(torch.device(machine.device), dtype)
    if now > known.get(key, 0.0):
        known[key] = now
        with contextlib.suppress(OSError):  # a cache that cannot be written is no reason to end a training
            write_json_whole(path, known)
    return Peak(known[key], f"{NAMES[dtype]} product measured on this machine")


def machine_key(machine: Machine) -> str:
    """What a measurement of speed is kept under: the machine, the device and how many threads work."""
    return f"{machine.name}, {machine.device}, {torch.get_num_threads()}"


def read_peaks(path: Path) -> dict[str, float]:
    """What was kept in `path`; nothing where it is missing or damaged."""
    try:
        return {str(key): float(value) for key, value in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def measured_flops(device: torch.device, dtype: torch.dtype, seconds: float = SECONDS) -> float:
    """FLOP/s of the fastest of several products of square matrices, as large as take ten milliseconds."""
    side = SMALLEST
    while (took := product_seconds(device, dtype, side, SECONDS_A_SIZE)) < LONG_ENOUGH_SECONDS and side < LARGEST:
        side *= 2
    return 2 * side**3 / min(took, product_seconds(device, dtype, side, seconds))


def product_seconds(device: torch.device, dtype: torch.dtype, side: int, seconds: float) -> float:
    """The shortest time of a product of two (side, side) matrices, repeated for `seconds`, once at least."""
    # A generator of its own: measuring must not shift the chance of the training around it.
    rng = torch.Generator(device).manual_seed(0)
    # One row for all: drawing all numbers would take longer than multiplying them.
    left = torch.rand(side, generator=rng, device=device).to(dtype).expand(side, side).contiguous()
    times: list[float] = []
    with torch.no_grad():
        left @ left  # the first call chooses a kernel
        began = time.perf_counter()
        while not times or time.perf_counter() - began < seconds:
            wait(device)
            start, worked = time.perf_counter(), time.process_time()
            left @ left
            wait(device)
            times.append(time.perf_counter() - start)
            if device.type == "cpu":
                # Threads that wait for a core make a product look slow; what they worked shows how long it took them.
                times.append((time.process_time() - worked) / torch.get_num_threads())
    return min(times)


def wait(device: torch.device) -> None:
    """Wait until an accelerator has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
