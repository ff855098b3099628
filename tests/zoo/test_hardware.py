"""What this machine is, as far as a run may use it."""

import os
from types import SimpleNamespace

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


def test_the_limits_of_the_own_control_group_and_of_all_above_it_are_read():
    version_2 = hardware._own_limits("0::/slurm/job_7/step_0\n")
    assert version_2 == [
        f"/sys/fs/cgroup/{part}memory.max" for part in ("slurm/job_7/step_0/", "slurm/job_7/", "slurm/", "")
    ]
    version_1 = hardware._own_limits("5:cpu:/elsewhere\n4:cpuset,memory:/job\n")
    assert version_1 == [f"/sys/fs/cgroup/memory/{part}memory.limit_in_bytes" for part in ("job/", "")]
    assert hardware._own_limits("") == []


def test_what_a_slurm_job_asked_for_is_heeded(monkeypatch):
    for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    whole = hardware.memory_limit()
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "0")
    assert hardware.memory_limit() == whole
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "512")
    assert hardware.memory_limit() == 2**29
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "2")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    assert hardware.memory_limit() == 200 * 2**20
    assert hardware.num_cores() == 1


def test_a_gpu_that_shares_the_memory_of_the_machine_has_no_more_than_the_machine_allows(monkeypatch):
    torch = pytest.importorskip("torch")
    for is_integrated, memory in ((True, 2**30), (False, 2**37)):
        shape = SimpleNamespace(total_memory=2**37, is_integrated=is_integrated)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda at: "NVIDIA GB10")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda at, shape=shape: shape)
        monkeypatch.setattr(hardware, "has_gpu_driver", lambda: True)
        monkeypatch.setattr(hardware, "memory_limit", lambda: 2**30)
        assert hardware._accelerator().memory_bytes == memory


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989.5),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362.05),
        ("Tesla V100-SXM2-16GB", 125),
        ("Tesla V100-PCIE-16GB", 112),
        ("AMD Instinct MI300X", 1307.4),
        ("NVIDIA GB10", None),
    ],
)
def test_a_gpu_is_found_by_what_its_driver_calls_it(name, tflops):
    found = hardware.gpu_called(name)
    assert found is not None
    assert found.bf16_tflops == tflops


@pytest.mark.parametrize("name", ["NVIDIA L40", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H200 MIG 1g.18gb", ""])
def test_slices_and_relatives_of_a_gpu_are_not_taken_for_it(name):
    assert hardware.gpu_called(name) is None


def test_every_line_of_the_catalogue_can_be_reached_and_has_a_source():
    for gpu in hardware.catalogue():
        assert hardware.gpu_called(gpu.name) == gpu
        assert gpu.source
        assert gpu.gb_per_second > 100


def test_memory_in_use_lies_below_the_peak_and_no_gpu_is_started_to_ask():
    assert 2**20 < hardware.memory_used() <= 1.1 * hardware.peak_memory()  # the system counts in lumps
    hardware.forget_gpu_peak()
    assert hardware.peak_gpu_memory() is None


def test_an_unknown_or_absent_device_is_refused():
    with pytest.raises(UsageError, match="Known: auto, cpu"):
        hardware.detect("gpu")
    import torch

    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="not on this machine"):
            hardware.detect("cuda")
