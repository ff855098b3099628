"""What a step is counted to cost, and the share of a machine's peak that training makes of it."""

import json
import time

import pytest
import torch
from test_loop import fitted, fitted_tokens
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from toys import TokenTask, VectorTask, vector_rows, vector_statistics

from trainers import meter
from trainers.contract import Machine
from trainers.meter import FlopCounter, flops_of_shapes
from trainers.network import Network, compilations
from trainers.peak import Peak, measured_flops, peak_of
from trainers.settings import Gradient


@pytest.fixture(autouse=True)
def without_what_only_long_runs_need(monkeypatch):
    """Only a power cut needs fsync; and collecting the garbage of a test session takes longer than these trainings."""
    monkeypatch.setattr("trainers.checkpoint.sync", lambda path: None)
    monkeypatch.setattr("gc.collect", lambda: 0)


@pytest.fixture
def metered(monkeypatch):
    """Count from the first step on, against a peak of 1 GFLOP/s."""
    monkeypatch.setattr(meter, "SECONDS_BEFORE", 0.0)
    monkeypatch.setattr(meter, "peak_of", lambda machine, dtype, cache: Peak(1e9, "a test"))


class Block(nn.Module):
    """One layer of self-attention without dropout, so that CPUs take their fused kernel."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.to_qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        rows, length, width = x.shape
        qkv = self.to_qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*qkv)
        return x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))


def counted(counter, network, *inputs):
    with counter:
        network(*inputs).square().sum().backward()
    return counter.total if isinstance(counter, FlopCounter) else counter.get_total_flops()


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.Flatten(), nn.Linear(8 * 49, 5)), (2, 3, 16, 16)),
        (nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 3)), (4, 5, 7)),
    ],
)
def test_the_count_is_that_of_torchs_own_counter(network, shape):
    x = torch.randn(shape)
    assert counted(FlopCounter(), network, x) == counted(FlopCounterMode(display=False), network, x) > 0


@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize("layer", [nn.Conv2d, nn.ConvTranspose2d])
def test_a_convolution_in_groups_costs_its_share_forward_and_backward(layer, groups):
    x = torch.randn(2, 8, 10, 10, requires_grad=True)
    products = 2 * 10 * 10 * 3 * 3 * 8 * 8 // groups  # padded, so that there are as many outputs as inputs
    assert counted(FlopCounter(), layer(8, 8, 3, padding=1, groups=groups), x) == 3 * 2 * products


def test_attention_on_a_cpu_costs_what_its_products_do():
    rows, length, width = 3, 11, 32
    linear = 2 * rows * length * width * 4 * width  # to_qkv and out, forward
    attention = 2 * 2 * rows * length * length * width  # queries by keys, weights by values
    # Backward each linear layer takes twice its forward; fused attention 2.5 times, as it computes the weights again.
    expected = linear * 3 + attention * 3.5
    assert counted(FlopCounter(), Block(), torch.randn(rows, length, width, requires_grad=True)) == expected


def test_activations_computed_twice_count_once():
    block, x = Block(), torch.randn(2, 6, 32, requires_grad=True)
    assert counted(FlopCounter(), lambda x: checkpoint(block, x, use_reentrant=False), x) == counted(
        FlopCounter(), block, x
    )


def test_a_formula_that_fails_never_stops_a_training(monkeypatch):
    monkeypatch.setitem(meter.flop_registry, torch.ops.aten.addmm, lambda *args, **kwargs: 1 / 0)
    assert counted(FlopCounter(), nn.Linear(3, 2), torch.randn(4, 3)) == 2 * 4 * 3 * 2  # the weights' gradient is a mm


def test_counting_from_shapes_equals_counting_a_step_and_touches_nothing(tmp_path):
    rows = vector_rows(9)
    task = VectorTask(vector_statistics(rows), norm=True, dropout=0.5)
    task.examples(rows, tmp_path)
    network = Network(task.model, Gradient(), Machine(), lambda **event: None)
    batches = [task.draw(range(start, start + 3), [None] * 3) for start in (0, 3, 6)]
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    chance = torch.get_rng_state()
    from_shapes = flops_of_shapes(task, network, batches)
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())
    assert all(parameter.grad is None for parameter in task.model.parameters())
    with FlopCounter() as counter:
        for batch in batches:
            task.loss(task.model, batch.inputs)["mse"].backward()
    assert from_shapes == counter.total == 3 * 2 * 3 * (2 * 4 * 16 + 3 * 16)  # no gradient of the input


def test_a_model_whose_shapes_depend_on_values_is_not_counted_from_shapes(tmp_path):
    class Odd(VectorTask):
        def loss(self, model, inputs):
            return {"mse": model(inputs["x"]).sum() * float(inputs["y"].sum())}

    rows = vector_rows(4)
    task = Odd(vector_statistics(rows))
    task.examples(rows, tmp_path)
    network = Network(task.model, Gradient(), Machine(), lambda **event: None)
    assert flops_of_shapes(task, network, [task.draw(range(4), [None] * 4)]) is None


def test_a_run_tells_its_share_of_the_peak_with_what_it_was_worked_out_from(tmp_path, metered):
    _, facts, watch = fitted(tmp_path, {"steps": 30, "batch_size": 8})
    assert facts["flops_per_sample"] == 2 * 4 * 16 * 2 + 2 * 16 * 3  # the first layer's input needs no gradient
    assert facts["flops_from"] == "counted"
    assert (facts["peak_flops_per_second"], facts["peak_from"]) == (1e9, "a test")
    # All steps but the first, which was counted.
    assert 0 < facts["mfu"] < 1
    assert watch.of_kind("step")[-1]["mfu"] > 0
    assert "tokens_per_second" not in facts


def test_where_the_task_tells_sizes_speed_is_in_tokens(tmp_path, metered):
    _, facts, watch = fitted_tokens(tmp_path, {"steps": 12, "batch_size": 8})
    assert facts["tokens_per_second"] > facts["samples_per_second"]
    assert facts["flops_per_token"] > 0
    assert watch.of_kind("step")[-1]["tokens_per_second"] > 0


def test_only_one_step_is_counted_and_none_of_a_short_run(tmp_path, monkeypatch):
    entered = []

    class Noting(FlopCounter):
        def __enter__(self):
            entered.append(1)
            return super().__enter__()

    monkeypatch.setattr(meter, "FlopCounter", Noting)
    _, facts, _ = fitted(tmp_path / "short", {"steps": 12})
    assert (entered, "mfu" in facts) == ([], False)
    monkeypatch.setattr(meter, "SECONDS_BEFORE", 0.0)
    monkeypatch.setattr(meter, "peak_of", lambda machine, dtype, cache: Peak(1e9, "a test"))
    fitted(tmp_path / "long", {"steps": 12})
    assert entered == [1]


def test_layers_that_were_frozen_are_counted_anew_when_they_learn(tmp_path, metered):
    _, facts, _ = fitted(tmp_path, {"steps": 26, "batch_size": 8, "freeze_epochs": 1})
    _, free, _ = fitted(tmp_path / "free", {"steps": 26, "batch_size": 8})
    assert facts["flops_per_sample"] == free["flops_per_sample"]


def test_counting_changes_no_bit_of_what_is_learned(tmp_path, monkeypatch):
    plain, _, _ = fitted(tmp_path / "plain", {"steps": 12})
    monkeypatch.setattr(meter, "SECONDS_BEFORE", 0.0)
    other, _, _ = fitted(tmp_path / "counted", {"steps": 12})
    for name, value in plain.task.model.state_dict().items():
        assert torch.equal(value, other.task.model.state_dict()[name])


def test_a_compiled_network_is_counted_from_shapes_and_else_by_six_flops_a_weight_and_token(
    tmp_path, metered, monkeypatch
):
    class Compiled(Network):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            self.is_compiled, self.before = True, compilations()

    monkeypatch.setattr("trainers.parts.Network", Compiled)
    _, facts, _ = fitted(tmp_path / "v", {"steps": 8, "batch_size": 8})
    assert (facts["flops_per_sample"], facts["flops_from"]) == (2 * 4 * 16 * 2 + 2 * 16 * 3, "counted")
    monkeypatch.setattr(meter, "flops_of_shapes", lambda *args: None)
    learner, facts, _ = fitted_tokens(tmp_path / "t", {"steps": 8, "batch_size": 8})
    assert isinstance(learner.task, TokenTask)
    num_weights = sum(parameter.numel() for parameter in learner.task.model.parameters())
    assert facts["flops_per_token"] == pytest.approx(6 * num_weights)
    assert facts["flops_from"] == "6 x weights x tokens"


def test_a_data_sheet_counts_before_a_measurement_and_the_fastest_measurement_is_kept(tmp_path, monkeypatch):
    assert peak_of(Machine(peak_flops=5e12), torch.float32, tmp_path).flops_per_second == 5e12
    assert not list(tmp_path.iterdir())
    for measured, expected in ((1e9, 1e9), (3e9, 3e9), (2e9, 3e9)):
        monkeypatch.setattr("trainers.peak.measured_flops", lambda device, dtype, value=measured: value)
        assert peak_of(Machine(name="m"), torch.float32, tmp_path).flops_per_second == expected
    (kept,) = json.loads((tmp_path / "peaks.json").read_text()).items()
    assert kept == (f"m, cpu, {torch.get_num_threads()}, fp32", 3e9)
    (tmp_path / "peaks.json").write_text("{torn")
    assert peak_of(Machine(name="m"), torch.float32, tmp_path).flops_per_second == 2e9


def test_a_measured_peak_is_that_of_a_plain_product_and_shifts_no_chance():
    before = torch.get_rng_state()
    peak = measured_flops(torch.device("cpu"), torch.float32, seconds=0.02)
    assert torch.equal(torch.get_rng_state(), before)
    left = torch.randn(1024, 1024)
    began = time.process_time()  # not the clock: other processes share the cores
    for _ in range(5):
        left @ left
    rate = 5 * 2 * 1024**3 / ((time.process_time() - began) / torch.get_num_threads())
    assert 0.3 < rate / peak < 3
