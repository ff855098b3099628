"""What this machine is, as far as a run may use it."""

import os

import pytest

from trainers.errors import UsageError
from zoo import hardware


def test_the_cpu_has_cores_and_memory_and_no_torch_is_needed():
    machine = hardware.detect("cpu")
    assert machine.device == "cpu"
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert 2**28 < machine.memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_control_group_limit_is_heeded(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("1073741824\n")
    monkeypatch.setattr(hardware, "_CGROUP_LIMITS", (str(tmp_path / "memory.max"),))
    assert hardware.memory_limit() == 2**30


def test_an_unknown_or_absent_device_is_refused():
    with pytest.raises(UsageError, match="Known: auto, cpu"):
        hardware.detect("gpu")
    import torch

    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="not on this machine"):
            hardware.detect("cuda")
