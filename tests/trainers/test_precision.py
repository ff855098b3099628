"""What `auto` means, and falling back when compiling fails."""

import pytest
import torch
from toys import VectorTask, vector_rows, vector_statistics

from trainers.contract import Machine
from trainers.precision import (
    Network,
    autocast,
    autocast_dtype,
    loss_scaler,
    matmul_precision,
    placed,
    products_in,
    should_compile,
)
from trainers.settings import Gradient


def task_and_inputs():
    rows = vector_rows(8)
    task = VectorTask(vector_statistics(rows))
    task.examples(rows, None)
    return task, task.draw(range(8), None).inputs


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


def test_auto_compiles_on_cuda_only():
    assert should_compile("auto", Machine(device="cuda:0"))
    assert not should_compile("auto", Machine())
    assert should_compile("on", Machine())
    assert not should_compile("off", Machine(device="cuda"))


def test_matmul_precision_is_given_back():
    before = torch.get_float32_matmul_precision()
    with matmul_precision("auto", Machine(device="cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    with matmul_precision("fp32", Machine(device="cuda")):
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == before


def test_compiling_produces_graphs_and_the_same_loss():
    task, inputs = task_and_inputs()
    # "eager" traces like the real backend, and spares half a minute of building kernels.
    network = Network(task.model, Gradient(compile="on", precision="fp32"), Machine(), print, backend="eager")
    loss = network.losses(task, inputs)["mse"]
    assert network.num_graphs > 0
    torch.testing.assert_close(loss, task.loss(task.model, inputs)["mse"])


def test_a_failed_compile_falls_back_and_says_so_once():
    def broken(graph, inputs):
        raise RuntimeError("no compiler here")

    task, inputs = task_and_inputs()
    said = []
    network = Network(task.model, Gradient(compile="on"), Machine(), lambda **e: said.append(e), backend=broken)
    with pytest.raises(Exception, match="no compiler here") as caught:
        network.losses(task, inputs)
    assert network.falls_back(caught.value)
    assert torch.isfinite(network.losses(task, inputs)["mse"])
    assert not network.falls_back(caught.value), "a second error is a real one"
    assert len(said) == 1
    assert "no compiler here" in said[0]["text"]
    assert network.num_graphs == 0


def test_nested_inputs_keep_their_shape_when_placed():
    inputs = {"a": torch.ones(1), "b": [torch.ones(2), (torch.ones(3), "text")]}
    moved = placed(inputs, torch.device("meta"))
    assert moved["a"].device.type == "meta"
    assert moved["b"][1][0].device.type == "meta"
    assert moved["b"][1][1] == "text"
    assert placed(inputs, torch.device("cpu")) is inputs
