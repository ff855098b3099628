"""What this machine is: cores, memory and device that a run may really use. No torch unless a GPU is asked about."""

import functools
import os
import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainers.contract import Machine
from trainers.errors import UsageError, did_you_mean

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# Asking torch costs a second, and its waiting threads then spin beside those of XGBoost; the drivers' files say first.
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_BF16_FLAGS = {"avx512_bf16", "amx_bf16"}
DEVICES = ("auto", "cpu", "cuda", "mps")
_CATALOGUE = Path(__file__).with_name("gpus.yaml")
# Parts of a GPU, and chips that share no more than the name with it.
_NOT_THE_WHOLE = ("MIG", "Laptop", "Max-Q")


@dataclass(frozen=True)
class Gpu:
    """A line of gpus.yaml: dense bf16 TFLOP/s (None where no data sheet says it), memory in GB, bandwidth in GB/s."""

    name: str
    bf16_tflops: float | None
    memory_gb: float
    gb_per_second: float
    source: str


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


@functools.cache
def catalogue() -> tuple[Gpu, ...]:
    """The GPUs whose data sheets are known, in the order in which they are looked up."""
    return tuple(Gpu(**entry) for entry in yaml.safe_load(_CATALOGUE.read_text(encoding="utf-8"))["gpus"])


def gpu_called(name: str) -> Gpu | None:
    """The catalogue's entry for a device as its driver names it; None for unknown ones and for slices of a GPU."""
    if any(word in name for word in _NOT_THE_WHOLE):
        return None
    return next((gpu for gpu in catalogue() if re.search(rf"\b{re.escape(gpu.name)}\b", name)), None)


def gpu_named(name: str) -> Gpu:
    """The catalogue's entry for what a person types: h100, a100-sxm4-40gb, l4, 4090. UsageError for unknown ones."""
    wanted = _letters(name)
    known = {_letters(word): gpu for gpu in catalogue() for word in (gpu.name, _without_maker(gpu.name))}
    if wanted not in known:
        names = [gpu.name for gpu in catalogue()]
        raise UsageError(f"--gpu {name!r}: not in the catalogue.{did_you_mean(name, names)} Known: {', '.join(names)}.")
    return known[wanted]


def _without_maker(name: str) -> str:
    """ "RTX 4090" is also asked for as 4090."""
    return re.sub(r"^(NVIDIA|Tesla|RTX) ", "", name)


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def memory_limit() -> int:
    """Bytes of main memory this process may use: the smallest limit of the machine, its control groups and its SLURM job."""
    total = min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_slurm_limits()])
    for name in (*_CGROUP_LIMITS, *_own_limits(_text("/proc/self/cgroup"))):
        text = _text(name)
        if text.isdigit():
            total = min(total, int(text))
    return total


def _slurm_limits() -> list[int]:
    """Bytes that the job asked for, where SLURM runs it: clusters that set no control group end what takes more.

    In megabytes a node (0: all of it), a core or a GPU. Source: the manual of sbatch, output environment variables.
    """
    megabytes = [_number("SLURM_MEM_PER_NODE")]
    megabytes += [_number(f"SLURM_MEM_PER_{each}") * _number(f"SLURM_{each}S_ON_NODE") for each in ("CPU", "GPU")]
    return [each << 20 for each in megabytes if each]


def _number(variable: str) -> int:
    """Of the environment; 0 where there is none."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else 0


def _own_limits(groups: str) -> list[str]:
    """The limit files of the control group this process is in and of all above it. groups: /proc/self/cgroup.

    A batch system or a service manager limits such a group; in a container it is the topmost that is seen.
    """
    found = []
    for line in groups.splitlines():
        number, controllers, path = line.split(":", 2)
        root, file = Path("/sys/fs/cgroup"), "memory.max"
        if number != "0":
            root, file = root / "memory", "memory.limit_in_bytes"
        if number == "0" or "memory" in controllers.split(","):
            own = root / path.strip("/")
            found += [str(folder / file) for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return found


def memory_used(device: str = "cpu") -> int:
    """Bytes in use right now: of a CUDA device what torch holds there, else of main memory what this process holds."""
    if device.startswith("cuda") and (cuda := _cuda()) is not None:
        return int(cuda.memory_reserved())
    pages = _text("/proc/self/statm").split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else peak_memory()


def peak_memory() -> int:
    """The most bytes of main memory this process ever held."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # kilobytes, but on macOS bytes


def peak_gpu_memory() -> int | None:
    """The most bytes that tensors took on the CUDA device since `forget_gpu_peak`; None where none was used."""
    cuda = _cuda()
    return None if cuda is None else int(cuda.max_memory_allocated())


def forget_gpu_peak() -> None:
    """Let the peak of a CUDA device start from what is held now: in a notebook another run may have come before."""
    if (cuda := _cuda()) is not None:
        cuda.reset_peak_memory_stats()


def _cuda() -> Any:
    """torch.cuda where this process has used it already, else None: a question must not start a GPU."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def num_cores() -> int:
    """Cores this process may run on, no more than its SLURM task has."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(found, _number("SLURM_CPUS_PER_TASK") or found)


def _cpu() -> Machine:
    facts = _text("/proc/cpuinfo")
    lines = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in facts.splitlines())}
    flags = set(lines.get("flags", lines.get("Features", "")).split())
    return Machine("cpu", lines.get("model name", "CPU"), num_cores(), memory_limit(), bool(flags & _BF16_FLAGS))


def has_gpu_driver() -> bool:
    """Whether the system knows a GPU, as far as can be told without torch."""
    return sys.platform == "darwin" or any(Path(name).exists() for name in _GPU_DRIVERS)


def _accelerator() -> Machine | None:
    if not has_gpu_driver():
        return None
    try:
        import torch
    except ImportError:
        return None
    if torch.cuda.is_available():
        found, name = torch.cuda.get_device_properties(0), torch.cuda.get_device_name(0)
        # A GPU without memory of its own shares that of the machine (GB10), with the limits of this process.
        memory = min(found.total_memory, memory_limit()) if found.is_integrated else found.total_memory
        known = gpu_called(name)
        peak = 1e12 * (known.bf16_tflops or 0.0) if known is not None else 0.0
        return Machine("cuda", name, num_cores(), memory, torch.cuda.is_bf16_supported(), peak)
    if torch.backends.mps.is_available():
        return Machine("mps", "Apple GPU", num_cores(), memory_limit(), False)
    return None


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
