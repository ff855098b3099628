"""What `auto` means for number formats."""

import pytest
import torch

from trainers.contract import Machine
from trainers.errors import UsageError
from trainers.precision import (
    autocast,
    autocast_dtype,
    loss_scaler,
    matmul_precision,
    placed,
    products_in,
    with_fp8_products,
)


def test_auto_is_bf16_exactly_where_the_machine_has_it():
    assert autocast_dtype("auto", Machine(bf16=True)) is torch.bfloat16
    assert autocast_dtype("auto", Machine(bf16=False)) is None
    assert autocast_dtype("fp32", Machine(bf16=True)) is None
    assert autocast_dtype("bf16", Machine(bf16=False)) is torch.bfloat16


def test_fp16_scales_its_loss_and_other_formats_do_not():
    assert autocast_dtype("fp16", Machine()) is torch.float16
    assert loss_scaler("fp16", Machine()).is_enabled()
    assert not loss_scaler("bf16", Machine()).is_enabled()
    assert not loss_scaler("auto", Machine(bf16=True)).is_enabled()


def test_an_optimizer_multiplies_in_bf16_where_the_run_does_and_never_in_fp16():
    assert products_in("auto", Machine(bf16=True)) is torch.bfloat16
    assert products_in("fp32", Machine(bf16=True)) is None
    assert products_in("fp16", Machine()) is None


def test_products_are_computed_in_the_planned_format():
    x = torch.ones(2, 2)
    with autocast("bf16", Machine()):
        assert (x @ x).dtype is torch.bfloat16
    with autocast("fp32", Machine()):
        assert (x @ x).dtype is torch.float32


def test_fp8_is_refused_where_the_device_has_none():
    assert autocast_dtype("fp8", Machine()) is torch.bfloat16
    with pytest.raises(UsageError, match=r"fp8, which needs a GPU .* Use --precision bf16"):
        with_fp8_products(torch.nn.Linear(16, 16), Machine())


def test_matmul_precision_is_given_back():
    before = torch.get_float32_matmul_precision()
    with matmul_precision("auto", Machine(device="cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    with matmul_precision("fp32", Machine(device="cuda")):
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == before


def test_nested_inputs_keep_their_shape_when_placed():
    inputs = {"a": torch.ones(1), "b": [torch.ones(2), (torch.ones(3), "text")]}
    moved = placed(inputs, torch.device("meta"))
    assert moved["a"].device.type == "meta"
    assert moved["b"][1][0].device.type == "meta"
    assert moved["b"][1][1] == "text"
    assert placed(inputs, torch.device("cpu")) is inputs
