"""What glibc's allocator makes of a sequence of tensors that are made and dropped: how far the process grows.

Pieces of other sizes leave holes, and `heap` keeps what is free. No formula says how much that is, so the sequence is put to
the allocator itself, in a process of its own. Nothing is written into the memory, so none of it is taken.

Every tensor comes with small records. They settle in what aligning a large piece leaves over beside it, and when the piece
is free again, it cannot grow together with its neighbours: a tensor of the same size may not fit there any more.

Where the first holes lie decides much of the rest (the same training grew by 110 to 370 MB over what it holds at once, for
another length of a path), so the sequence is put to several heaps that begin differently, and the middle answer counts.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from statistics import median

from trainers.heap import KEPT_BYTES

SECONDS, HEAPS = 20, 5
RECORD_BYTES = (96, 176)
"""Of a tensor beside its numbers: torch's storage and tensor objects, as malloc is asked for them on 64 bits."""
_CHILD = """
import ctypes, json, os, random, sys
libc = ctypes.CDLL(None)
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks u f keep".split()]
libc.mallinfo2.restype = Info
libc.free.argtypes = [ctypes.c_void_p]
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
libc.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
kept, records, heaps, events = json.load(sys.stdin)
libc.mallopt(-3, kept)
libc.mallopt(-1, (1 << 31) - 1)
def taken():
    info = libc.mallinfo2()
    return info.arena + info.hblkhd
def grown(seed):
    sizes = random.Random(seed)
    begun = [libc.malloc(sizes.randrange(16, 1 << 16)) for _ in range(200)]
    for at in range(0, 200, 2):
        libc.free(begun[at])
    base = peak = taken()
    held, place = {}, ctypes.c_void_p()
    for number, size in events:
        if size:
            if libc.posix_memalign(ctypes.byref(place), 64, size):
                sys.exit("no address space")
            held[number] = [*(libc.malloc(each) for each in records), place.value]
            peak = max(peak, taken())
        elif number in held:
            for each in held.pop(number):
                libc.free(each)
    return peak - base
for seed in range(heaps):
    if not os.fork():
        print(grown(seed), flush=True)
        os._exit(0)
    os.wait()
"""


def grown_by(events: Sequence[tuple[int, int]]) -> int | None:
    """Bytes by which a process grows over `events` (as in `trace.Trace`); None without glibc, or where it does not tell."""
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return None
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-c", _CHILD],
            input=json.dumps([KEPT_BYTES, RECORD_BYTES, HEAPS, list(events)]),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        return int(median(map(int, done.stdout.split())))
    except (OSError, subprocess.SubprocessError, ValueError):  # no answer has no median either
        return None
