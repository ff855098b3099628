"""When a network is compiled, that it then is, and falling back when compiling fails."""

import pytest
import torch
from toys import ToyWatch, VectorTask, plan_of, vector_rows, vector_statistics

from trainers import network as network_module
from trainers.contract import Machine
from trainers.gradient import GradientLearner
from trainers.network import STEPS_BEFORE_DECIDING, Network, repays_on_cpu, should_compile
from trainers.schedule import Budget
from trainers.settings import Gradient


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    """Graphs are kept for all equal networks of a process."""
    torch._dynamo.reset()


def task_and_inputs():
    rows = vector_rows(8)
    task = VectorTask(vector_statistics(rows))
    task.examples(rows, None)
    return task, task.draw(range(8), None).inputs


def test_auto_compiles_on_cuda_only():
    assert should_compile("auto", Machine(device="cuda:0"))
    assert not should_compile("auto", Machine())
    assert should_compile("on", Machine())
    assert not should_compile("off", Machine(device="cuda"))


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


def test_breaks_and_recompiles_are_counted():
    class Breaking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x):
            y = self.layer(x)
            torch._dynamo.graph_break()
            return y * 2

    task, inputs = task_and_inputs()
    model = Breaking()
    network = Network(model, Gradient(compile="on"), Machine(), print, has_fixed_shapes=True, backend="eager")
    network.losses(task, inputs)
    assert network.facts() == {"compiled_graphs": 2, "graph_breaks": 1, "recompiles": 0}
    network.losses(task, {name: value[:5] for name, value in inputs.items()})
    assert network.facts()["recompiles"] > 0


def test_on_cpu_half_an_hour_and_more_repays_compiling():
    assert not repays_on_cpu(600)
    assert repays_on_cpu(3600)
    assert Budget("steps", 1000).seconds_left(100, 20.0) == pytest.approx(180)
    assert Budget("seconds", 100).seconds_left(3, 20.0) == 80


def test_the_choice_falls_once_the_pace_is_known_and_only_for_auto():
    task, _ = task_and_inputs()
    said = []

    def network(setting):
        return Network(task.model, Gradient(compile=setting), Machine(), lambda **e: said.append(e), backend="eager")

    assert not network("off").decide(STEPS_BEFORE_DECIDING, 1e6)
    assert not network("auto").decide(STEPS_BEFORE_DECIDING - 1, 1e6)
    assert not network("auto").decide(STEPS_BEFORE_DECIDING, 60)
    assert not said
    assert network("auto").decide(STEPS_BEFORE_DECIDING, 6000)
    assert "About 100 minutes" in said[0]["text"]


def test_a_run_that_began_to_compile_compiles_after_resuming(tmp_path, monkeypatch):
    def compiled_with_eager(self):
        self.options["backend"] = "eager"
        original(self)

    original = Network.compile
    monkeypatch.setattr(Network, "compile", compiled_with_eager)
    monkeypatch.setattr(network_module, "repays_on_cpu", lambda seconds: True)
    settings = {"steps": 30, "batch_size": 8, "precision": "fp32", "save_steps": 25}
    for steps in (30, 34):
        torch._dynamo.reset()
        learner = GradientLearner(
            plan_of({**settings, "steps": steps}), vector_statistics, lambda values, pretrained: VectorTask(values)
        )
        facts = learner.fit(vector_rows(40), None, ToyWatch(tmp_path))
        assert facts["compiled_graphs"] > 0
