"""Documents that training leaves out: copies of earlier or of held-out ones, and such as are hardly language."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from domains.text.copies import RUN, WORD, folded

Refusal = Callable[[str], str | None]

NUM_BANDS, ROWS_OF_BAND = 14, 8
"""112 minima in bands of 8: documents that share 72 % of their runs of words meet with probability 1/2 (Leskovec et al.,
Mining of Massive Datasets, section 3.4.2: (1 / bands) ** (1 / rows))."""
FILTER_BITS = 1 << 27
"""Bits of the filter of each band, 16 MiB: memory stays flat, and up to 10 million documents fewer than one in a
thousand is taken for a copy by chance."""
FILTER_HASHES = 4
RULES = {
    "short": "fewer than 50 words",
    "long words": "words of fewer than 3 or more than 10 characters on average",
    "symbols": "more than one # or ... for ten words",
    "letters": "fewer than 80 % of the words with a letter",
}
"""Of the rules of Rae et al. 2021, arXiv 2112.11446, appendix A.1.1, those that need no word list."""
_PRIME = np.uint64((1 << 61) - 1)


def refusal_of(dedupe: str, quality: str, held_out: Any) -> Refusal | None:
    """Why a document is left out of training, or None; asked about each document once, in order.

    dedupe: "exact" (case and white space aside), "near" or "off".   held_out: hashes the documents of other parts.
    """
    rules: list[Refusal] = []
    if quality == "gopher":
        rules.append(poor)
    if dedupe != "off":
        rules.append(copies(digest, set, held_out))
    if dedupe == "near":
        rules.append(near_copies(held_out))
    if not rules:
        return None
    return lambda text: next((reason for rule in rules if (reason := rule(text)) is not None), None)


def poor(text: str) -> str | None:
    """Which of RULES a document breaks."""
    words = text.split()
    if len(words) < 50:
        return "short"
    if not 3 <= sum(map(len, words)) / len(words) <= 10:
        return "long words"
    if text.count("#") + text.count("...") + text.count("\u2026") > 0.1 * len(words):
        return "symbols"
    if sum(any(map(str.isalpha, word)) for word in words) < 0.8 * len(words):
        return "letters"
    return None


def digest(text: str) -> bytes:
    """Eight bytes that copies of a text share."""
    return hashlib.blake2b(folded(text).encode(), digest_size=8).digest()


def copies(hashed: Callable[[str], bytes], container: type[set[bytes]], held_out: Any) -> Refusal:
    """Refuse what occurred before or is held out. Costs about 60 bytes a document."""
    away = container(held_out.apply(hashed)) if held_out is not None else container()
    seen = container()

    def refusal(text: str) -> str | None:
        key = hashed(text)
        if key in away:
            return "copy of a held-out document"
        if key in seen:
            return "copy"
        seen.add(key)
        return None

    return refusal


def near_copies(held_out: Any) -> Refusal:
    """Refuse what shares most runs of words with an earlier or a held-out document: MinHash in bands (Broder 1997), each
    band with a Bloom filter."""
    away, seen = Filters(), Filters()
    for bands in held_out.apply(bands_of) if held_out is not None else ():
        away.add(bands)

    def refusal(text: str) -> str | None:
        bands = bands_of(text)
        if away.has(bands):
            return "near copy of a held-out document"
        if seen.has(bands):
            return "near copy"
        seen.add(bands)
        return None

    return refusal


def bands_of(text: str) -> np.ndarray:
    """(NUM_BANDS,) uint64: one hash of ROWS_OF_BAND minima each; empty for texts of fewer words than a run."""
    words = re.findall(WORD, text.casefold())
    runs = {" ".join(words[at : at + RUN]) for at in range(len(words) - RUN + 1)}
    if not runs:
        return np.empty(0, np.uint64)
    hashes = np.array(
        [int.from_bytes(hashlib.blake2b(run.encode(), digest_size=4).digest()) for run in runs], np.uint64
    )
    factors, shifts = _permutations()
    minima = ((hashes[:, None] * factors + shifts) % _PRIME).min(axis=0).reshape(NUM_BANDS, ROWS_OF_BAND)
    return np.array(
        [int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest()) for row in minima], np.uint64
    )


def _permutations() -> tuple[np.ndarray, np.ndarray]:
    """Factors below 2^29, so that products with 32-bit hashes do not overflow before the prime."""
    rng = np.random.default_rng(0)
    num = NUM_BANDS * ROWS_OF_BAND
    return rng.integers(1, 1 << 29, num).astype(np.uint64), rng.integers(0, 1 << 60, num).astype(np.uint64)


class Filters:
    """A Bloom filter for each band, made when first needed."""

    def __init__(self) -> None:
        self.bits: np.ndarray | None = None

    def has(self, bands: np.ndarray) -> bool:
        """Whether any band is known."""
        if self.bits is None or not len(bands):
            return False
        byte, bit = self._places(bands)
        return bool(((np.take_along_axis(self.bits, byte, axis=1) >> bit) & 1).all(axis=1).any())

    def add(self, bands: np.ndarray) -> None:
        """Remember all bands."""
        if len(bands):
            if self.bits is None:
                self.bits = np.zeros((NUM_BANDS, FILTER_BITS // 8), np.uint8)
            byte, bit = self._places(bands)
            for band in range(NUM_BANDS):
                np.bitwise_or.at(self.bits[band], byte[band], np.uint8(1) << bit[band])

    def _places(self, bands: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(bands, hashes) byte and bit: Kirsch & Mitzenmacher 2006, "Less hashing, same performance"."""
        first, second = bands & np.uint64(0xFFFFFFFF), bands >> np.uint64(32)
        at = (first[:, None] + np.arange(FILTER_HASHES, dtype=np.uint64) * second[:, None]) % np.uint64(FILTER_BITS)
        return (at >> np.uint64(3)).astype(np.int64), (at & np.uint64(7)).astype(np.uint8)
