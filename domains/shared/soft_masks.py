"""Probabilities of classes in every place of a mask, kept small until they are averaged with those of other networks."""

from __future__ import annotations

import zlib

import numpy as np

_STEPS = 255


def pack_probabilities(probabilities: np.ndarray) -> bytes:
    """Numbers from 0 to 1, in steps of 1/255."""
    return zlib.compress(np.rint(probabilities * _STEPS).astype(np.uint8).tobytes(), 1)


def unpack_steps(packed: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """uint8 of `shape`: 255 for a probability of 1."""
    return np.frombuffer(zlib.decompress(packed), np.uint8).reshape(shape)
