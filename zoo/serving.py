"""What limits answering: the key-value cache, and whether arithmetic or memory is the bottleneck. Pure functions."""

import math
from dataclasses import dataclass

from zoo.hardware import Gpu

# Positions a page of a paged cache holds (vLLM's default, Kwon et al. 2023, arXiv 2309.06180).
PAGE = 16


@dataclass(frozen=True)
class Cache:
    """A key-value cache: one key and one value of `head_size` for each layer, key-value head and position.

    kv_heads: as many as query heads, fewer with grouped queries (GQA), 1 with multi-query.  bytes_per_value: 2 for
    bf16, 1 for 8 bits, 0.5 for 4; add the scales, 2 / group size for one bf16 scale a group.
    window: positions that a layer with sliding attention keeps; None: all.  full_layers: layers without a window.
    """

    layers: int
    kv_heads: int
    head_size: int
    bytes_per_value: float = 2.0
    window: int | None = None
    full_layers: int = 0

    @property
    def bytes_per_token(self) -> float:
        """Bytes that one more position costs while no window is full."""
        return self.layers * self._per_layer

    def bytes_for(self, length: int) -> float:
        """Bytes of one sequence of `length` positions."""
        if self.window is None:
            return length * self.bytes_per_token
        kept = min(length, self.window)
        return self._per_layer * (self.full_layers * length + (self.layers - self.full_layers) * kept)

    @property
    def _per_layer(self) -> float:
        return 2 * self.kv_heads * self.head_size * self.bytes_per_value


def paged_positions(length: int, page: int = PAGE) -> int:
    """Positions that a paged cache reserves for a sequence: at most a page less one is wasted, not the longest length."""
    return page * math.ceil(length / page)


def tokens_per_second(gpu: Gpu, weight_bytes: float, cache_bytes: float = 0.0) -> float:
    """The most tokens a second one sequence can get: each reads all weights and its cache once from memory."""
    return gpu.gb_per_second * 1e9 / (weight_bytes + cache_bytes)


def ridge(gpu: Gpu) -> float | None:
    """FLOPs for each byte moved at which arithmetic and memory take equally long; None where no bf16 peak is known.

    Peak over bandwidth (Williams et al. 2009, the roofline): A100 153, H100 295. A flat "50" is wrong for both.
    """
    return None if gpu.bf16_tflops is None else gpu.bf16_tflops * 1e3 / gpu.gb_per_second


def is_bandwidth_bound(flops_per_byte: float, gpu: Gpu) -> bool | None:
    """Whether work of this arithmetic intensity waits for memory on `gpu`; None where its peak is unknown."""
    limit = ridge(gpu)
    return None if limit is None else flops_per_byte < limit


# What a machine of much, slow memory (DGX Spark, GB10) is good for, from the brief: parameters below, and the use.
_SLOW_MEMORY = (
    (1e9, "excellent"),
    (7e9, "good"),
    (13e9, "QLoRA"),
    (30e9, "fine-tune only"),
    (math.inf, "inference only"),
)
_SLOW_MEMORY_MOST = 70e9


def slow_memory_use(params: float) -> str:
    """What a bandwidth-limited machine with 128 GB is good for at this size; half-open, so 7e9 is QLoRA."""
    if params > _SLOW_MEMORY_MOST:
        return "not advised"
    return next(use for below, use in _SLOW_MEMORY if params < below)
