"""How fast a machine computes and moves memory, measured once and kept; what a list of operations takes at those rates."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from trainers.checkpoint import write_json_whole
from trainers.contract import Machine
from trainers.peak import machine_key, measured_flops, wait
from trainers.trace import Operation

RATES_FILE = "rates.json"
_MOVED, _CALLS, _TRIES = 64 << 20, 2000, 3


@dataclass(frozen=True)
class Rates:
    """FLOP/s of products in 32 and 16 bits, bytes/s read and written, and seconds that calling an operation takes."""

    flops_32: float
    flops_16: float
    bytes_per_second: float
    call_seconds: float


def rates_of(machine: Machine, cache: Path, *, anew: bool = False) -> Rates:
    """The rates of this machine with this number of threads, from `cache` unless they are to be measured `anew`."""
    path, key = cache / RATES_FILE, machine_key(machine)
    try:
        known = json.loads(path.read_text())
        if not anew:
            return Rates(**known[key])
    except (OSError, ValueError, KeyError, TypeError):
        known = {}
    found = measured(torch.device(machine.device))
    with contextlib.suppress(OSError):
        write_json_whole(path, {**known, key: asdict(found)})
    return found


def measured(device: torch.device) -> Rates:
    """Measure the rates in half a second; the best of a few tries, because what else runs only makes it slower."""
    with torch.no_grad():
        source, target = torch.zeros(_MOVED // 4, device=device), torch.empty(_MOVED // 4, device=device)
        small = torch.zeros(8, device=device)
        move = min(_seconds(lambda: target.copy_(source), 2, device) for _ in range(_TRIES))
        call = min(_seconds(lambda: small.add_(1), _CALLS, device) for _ in range(_TRIES))
    return Rates(measured_flops(device, torch.float32), measured_flops(device, torch.bfloat16), 2 * _MOVED / move, call)


def seconds_of(operations: Iterable[Operation], rates: Rates) -> float:
    """The sum over operations of the longer of computing and moving, and of calling each. Source: the roofline of Williams
    et al. 2009, doi 10.1145/1498765.1498785."""
    return sum(
        max(
            each.flops / (rates.flops_16 if each.is_16_bit else rates.flops_32),
            each.bytes_moved / rates.bytes_per_second,
        )
        + rates.call_seconds
        for each in operations
    )


def _seconds(call: object, times: int, device: torch.device) -> float:
    assert callable(call)
    call()
    wait(device)
    began = time.perf_counter()
    for _ in range(times):
        call()
    wait(device)
    return (time.perf_counter() - began) / times
