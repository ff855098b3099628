"""What this machine is: cores, memory and device that a run may really use. No torch unless a GPU is asked about."""

import os
import sys
from pathlib import Path

from trainers.contract import Machine
from trainers.errors import UsageError

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# Asking torch costs a second, and its waiting threads then spin beside those of XGBoost; the drivers' files say first.
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_BF16_FLAGS = {"avx512_bf16", "amx_bf16"}
DEVICES = ("auto", "cpu", "cuda", "mps")


def detect(device: str = "auto") -> Machine:
    """The machine as a plan sees it. device: "auto" takes a GPU when torch finds one.

    Raises UsageError for an unknown device or one that is not here.
    """
    if device not in DEVICES:
        raise UsageError(f"Unknown device {device!r}. Known: {', '.join(DEVICES)}.")
    if device == "cpu":
        return _cpu()
    found = _accelerator()
    if found is None or device not in ("auto", found.device):
        if device == "auto":
            return _cpu()
        raise UsageError(f"Device {device!r} is not on this machine. Leave --device out, or use --device cpu.")
    return found


def rank_and_world() -> tuple[int, int]:
    """The number of this process among those that torchrun started, and how many they are; (0, 1) without it."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def memory_limit() -> int:
    """Bytes of main memory this process may use: the smaller of the machine's and its control group's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _CGROUP_LIMITS:
        text = _text(name)
        if text.isdigit():
            total = min(total, int(text))
    return total


def num_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> Machine:
    facts = _text("/proc/cpuinfo")
    lines = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in facts.splitlines())}
    flags = set(lines.get("flags", lines.get("Features", "")).split())
    return Machine("cpu", lines.get("model name", "CPU"), num_cores(), memory_limit(), bool(flags & _BF16_FLAGS))


def _accelerator() -> Machine | None:
    if not any(Path(name).exists() for name in _GPU_DRIVERS) and sys.platform != "darwin":
        return None
    try:
        import torch
    except ImportError:
        return None
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
        return Machine("cuda", torch.cuda.get_device_name(0), num_cores(), memory, torch.cuda.is_bf16_supported())
    if torch.backends.mps.is_available():
        return Machine("mps", "Apple GPU", num_cores(), memory_limit(), False)
    return None


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
