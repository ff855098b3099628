"""Memory kept from step to step."""

from __future__ import annotations

import ctypes
import resource

import pytest
import torch

from trainers.heap import _resident_bytes, kept_heap

HAS_GLIBC = hasattr(ctypes.CDLL(None), "malloc_trim")
NUM_BYTES = 48 << 20


def page_faults_of_a_large_tensor() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.empty(NUM_BYTES // 4).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(not HAS_GLIBC, reason="another C library")
def test_a_large_tensor_is_made_anew_without_asking_the_kernel_for_pages():
    with kept_heap(torch.device("cpu")):
        for _ in range(6):  # until the heap has found its places
            page_faults_of_a_large_tensor()
        kept = page_faults_of_a_large_tensor()
    assert kept < 100
    assert page_faults_of_a_large_tensor() > 10 * max(kept, 1)


@pytest.mark.skipif(not HAS_GLIBC, reason="another C library")
def test_what_lies_free_between_pieces_goes_back_when_the_process_has_grown():
    with kept_heap(torch.device("cpu")) as tidy:
        tidy()
        before = _resident_bytes()
        pieces = [torch.ones(2 << 20) for _ in range(400)]  # 3.2 GB, with what stays between
        stay = pieces[1::2]
        grown = _resident_bytes() - before
        del pieces
        tidy()
        assert _resident_bytes() - before < 0.6 * grown
    assert len(stay) == 200


def test_elsewhere_nothing_happens_and_errors_pass():
    with pytest.raises(ZeroDivisionError), kept_heap(torch.device("cuda")):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), kept_heap(torch.device("cpu")):
        raise ZeroDivisionError
