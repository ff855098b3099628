"""Memory that training gives back is kept for its next step, on CPU under glibc.

Every step makes and drops the same tensors. glibc returns what is over its threshold (32 MiB at most) to the kernel, which
hands out zeroed pages again a moment later, one fault for every 4 KiB: the gradient of a table of 30,000 words alone costs
24 ms a step. Kept, the same addresses serve the next step. The price is a peak that holds what pieces of other sizes leave
between them; what is larger than KEPT_BYTES still goes back at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

KEPT_BYTES = 256 << 20
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Numbers of mallopt's parameters: mallopt(3)."""
_USUAL_MMAP_BYTES, _USUAL_TRIM_BYTES, _NO_TRIM_BYTES = 32 << 20, 64 << 20, (1 << 31) - 1
"""Where glibc's own moving thresholds end after the first large tensor."""


@contextmanager
def kept_heap(device: torch.device) -> Iterator[None]:
    """Keep freed memory within the process meanwhile; give it back at the end. Does nothing but on CPU with glibc."""
    libc = ctypes.CDLL(None) if device.type == "cpu" else None
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    assert libc is not None
    libc.mallopt(_MMAP_THRESHOLD, KEPT_BYTES)
    libc.mallopt(_TRIM_THRESHOLD, _NO_TRIM_BYTES)
    try:
        yield
    finally:
        libc.mallopt(_MMAP_THRESHOLD, _USUAL_MMAP_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, _USUAL_TRIM_BYTES)
        libc.malloc_trim(0)
