"""Several processes: the same sums, the same bits after resuming, the same answers; copies (DDP) and parts (FSDP2).

Two real processes meet over gloo. Everything they do for these tests they do in one go, in `everything`, because starting
them takes longer than all of it.
"""

import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from toys import (
    TokenTask,
    ToyWatch,
    VectorTask,
    in_two_processes,
    plan_of,
    token_rows,
    vector_rows,
    vector_statistics,
)

from trainers import distributed
from trainers.contract import Machine
from trainers.distributed import ALONE, Ranks, blocks_of, shares
from trainers.errors import StoppedError, UsageError
from trainers.feed import Feed
from trainers.gradient import GradientLearner
from trainers.loop import sum_backward
from trainers.network import Network
from trainers.settings import Gradient

BASE = {"batch_size": 8, "lr": 0.01, "precision": "fp32", "keep": "last"}
TEN_STEPS = {**BASE, "steps": 10, "schedule": "constant", "warmup": 0.0}
COMPILED = Gradient(compile="on", precision="fp32")
NUM_ROWS = 37
"""Five steps an epoch; the last one has five rows, for two processes."""


class Layers(nn.Module):
    """Vectors of four numbers through two equal blocks with dropout."""

    def __init__(self, dropout):
        super().__init__()
        self.start = nn.Linear(4, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(dropout)) for _ in range(2))
        self.end = nn.Linear(16, 1)

    def forward(self, x):
        x = self.start(x)
        for block in self.blocks:
            x = x + block(x)
        return self.end(x)


class LayersTask(VectorTask):
    def __init__(self, statistics, dropout=0.0, **rest):
        super().__init__(statistics, **rest)
        self.model = Layers(dropout)

    def roles(self):
        from trainers.contract import Role

        return {name: Role("head" if "end" in name else "matrix", 1) for name, _ in self.model.named_parameters()}


def learner_of(task, settings):
    if task is TokenTask:
        return GradientLearner(plan_of(settings), lambda train: {}, lambda values, pretrained: TokenTask(values))
    return GradientLearner(plan_of(settings), vector_statistics, lambda values, pretrained: task(values))


def layers_with_dropout(settings):
    return GradientLearner(plan_of(settings), vector_statistics, lambda v, pretrained: LayersTask(v, dropout=0.3))


RUNS = {
    "vectors": (VectorTask, TEN_STEPS, vector_rows),
    "vectors in micro-batches of 2": (VectorTask, {**TEN_STEPS, "micro_batch_size": 2}, vector_rows),
    "tokens": (TokenTask, TEN_STEPS, token_rows),
    "tokens in micro-batches by size": (TokenTask, {**TEN_STEPS, "micro_batch_tokens": 40}, token_rows),
    "muon": (LayersTask, {**TEN_STEPS, "optimizer": "muon+adamw"}, vector_rows),
    "moving average": (LayersTask, {**TEN_STEPS, "ema": 0.9}, vector_rows),
    "parts": (LayersTask, {**TEN_STEPS, "shard": True}, vector_rows),
    "parts, muon": (LayersTask, {**TEN_STEPS, "shard": True, "optimizer": "muon+adamw"}, vector_rows),
    "parts, moving average": (LayersTask, {**TEN_STEPS, "shard": True, "ema": 0.9}, vector_rows),
}
RESUMED = {
    "copies": {},
    "parts": {"shard": True},
    "parts, muon": {"shard": True, "optimizer": "muon+adamw"},
    "moving average": {"ema": 0.9},
    "micro-batches": {"micro_batch_size": 2},
}


def weights_of(learner):
    return {name: value.detach().clone() for name, value in learner.task.model.state_dict().items()}


def everything(rank, folder):
    """What one of two processes does: all below is asked of its results."""
    facts = {}
    for name, (task, settings, rows) in RUNS.items():
        train(folder / name, rank, learner_of(task, settings), rows(NUM_ROWS), facts, name)
    for name, settings in RESUMED.items():
        resumed_in_pairs(folder / f"resumed {name}", rank, settings)
    facts["compiled"] = compiled_graphs(rank)
    facts["slowest"] = Ranks(rank, 2).slowest(float(rank), rank == 0)
    facts["reason"] = Ranks(rank, 2).most_urgent("signal" if rank else None)
    facts["buffers"] = averaged_buffer(rank)
    (folder / f"facts-{rank}.json").write_text(json.dumps(facts))


def train(folder, rank, learner, rows, facts=None, name=None, **watch):
    seen = ToyWatch(folder, rank=rank, world=2, **watch)
    folder.mkdir(parents=True, exist_ok=True)
    valid = vector_rows(7, seed=5) if "x" in rows.columns else None
    actual = learner.fit(rows, valid, seen)
    save_file(weights_of(learner), folder / f"rank-{rank}.safetensors")
    if facts is not None:
        facts[name] = {"actual": actual, "scores": [event["score"] for event in seen.of_kind("eval")]}


def resumed_in_pairs(folder, rank, extra):
    """A whole run, and one that the second process is told to stop in its second epoch and that is then resumed."""
    settings = {**BASE, "epochs": 3, "save_steps": 3, **extra}
    train(folder / "whole", rank, layers_with_dropout(settings), vector_rows(NUM_ROWS))
    stop = {"stop_at": (7, "signal")} if rank == 1 else {}
    try:
        train(folder / "again", rank, layers_with_dropout(settings), vector_rows(NUM_ROWS), **stop)
    except StoppedError:
        (folder / f"stopped-{rank}").touch()
    train(folder / "again", rank, layers_with_dropout(settings), vector_rows(NUM_ROWS))


def compiled_graphs(rank):
    """Graphs of a copied and of a split model, compiled, with the loss and the norm of the gradient of a step."""
    counts = {}
    for name, is_split in (("copies", False), ("parts", True)):
        task, ranks = layers_task(), Ranks(rank, 2, is_split)
        if is_split:
            distributed.shard(task.model)
        network = Network(task.model, COMPILED, Machine(), print, ranks, backend="eager")
        counts[name] = {**one_step(task, network, ranks), "graphs": network.num_graphs}
    return counts


def layers_task():
    torch.manual_seed(0)
    return LayersTask({"mean": 0.0, "scale": 1.0})


def one_step(task, network, ranks):
    examples, cut = task.examples(vector_rows(8, unit=1.0), None), {"rows": None, "tokens": None, "min_rows": 1}
    feed = Feed(task.draw, examples, None, cut=cut, batch_size=8, seed=0, rank=ranks.rank, world=ranks.world)
    loss = sum_backward(task, network, feed.drawn(0), {"mse": 8.0}, ranks)
    gradients = [distributed.whole(parameter.grad).flatten() for parameter in task.model.parameters()]
    return {"loss": float(loss), "norm": float(torch.cat(gradients).norm())}


def averaged_buffer(rank):
    norm = nn.BatchNorm1d(3)
    norm.running_mean.fill_(float(rank))
    Ranks(rank, 2).average_buffers(norm)
    return norm.running_mean.tolist()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The folder that two processes have filled."""
    folder = tmp_path_factory.mktemp("pair")
    in_two_processes(everything, folder)
    return folder


def facts_of(pair, rank=0):
    return json.loads((pair / f"facts-{rank}.json").read_text())


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_learn_what_one_learns(pair, tmp_path, name):
    task, settings, rows = RUNS[name]
    alone = learner_of(task, {**settings, "shard": False})
    watch = ToyWatch(tmp_path)
    alone.fit(rows(NUM_ROWS), vector_rows(7, seed=5) if rows is vector_rows else None, watch)
    expected = weights_of(alone)
    for rank in (0, 1):
        found = load_file(pair / name / f"rank-{rank}.safetensors")
        assert found.keys() == expected.keys()
        # Muon divides by norms of nearly equal matrices, which widens differences of rounding.
        tolerance = 1e-4 if name == "muon" else 1e-5
        assert max(float((found[each] - expected[each]).abs().max()) for each in expected) < tolerance
    scores = [event["score"] for event in watch.of_kind("eval")]
    for rank in (0, 1):
        assert facts_of(pair, rank)[name]["scores"] == pytest.approx(scores, rel=1e-5), "metrics do not depend on ranks"


def test_a_step_counts_the_examples_of_all_processes(pair):
    for rank in (0, 1):
        assert facts_of(pair, rank)["vectors"]["actual"]["num_samples"] == 2 * NUM_ROWS


@pytest.mark.parametrize("name", RESUMED)
def test_two_processes_that_were_stopped_and_resumed_end_with_the_same_bits(pair, name):
    folder = pair / f"resumed {name}"
    assert (folder / "stopped-0").exists(), "one process is told to stop, and both do"
    assert (folder / "stopped-1").exists()
    for rank in (0, 1):
        whole, again = (load_file(folder / each / f"rank-{rank}.safetensors") for each in ("whole", "again"))
        assert all(torch.equal(whole[each], again[each]) for each in whole)


@pytest.mark.parametrize("name", ["copies", "parts", "parts, muon"])
def test_one_process_goes_on_from_a_snapshot_of_two(pair, tmp_path, name):
    shards = pair / f"resumed {name}" / "whole" / "checkpoints"
    newest = sorted(shards.glob("step-*"))[-1]
    (tmp_path / "checkpoints").mkdir()
    for each in (newest, shards / "statistics.json"):
        os.symlink(each, tmp_path / "checkpoints" / each.name)
    settings = {**BASE, "epochs": 3, "save_steps": 3, **RESUMED[name], "shard": False}
    learner, watch = layers_with_dropout(settings), ToyWatch(tmp_path)
    learner.fit(vector_rows(NUM_ROWS), None, watch)
    assert watch.of_kind("resume")[0]["step"] == 15
    expected = load_file(pair / f"resumed {name}" / "whole" / "rank-0.safetensors")
    assert all(torch.equal(weights_of(learner)[each], expected[each]) for each in expected)


@pytest.mark.parametrize("name", ["copies", "parts"])
def test_compiling_really_gives_graphs_and_the_gradient_of_one_process(pair, name):
    task = layers_task()
    expected = one_step(task, Network(task.model, Gradient(compile="off", precision="fp32"), Machine(), print), ALONE)
    for rank in (0, 1):
        found = facts_of(pair, rank)["compiled"][name]
        assert found.pop("graphs") > 0
        assert found == pytest.approx(expected, rel=1e-5)


def test_what_a_clock_or_a_signal_says_is_agreed_on(pair):
    for rank in (0, 1):
        facts = facts_of(pair, rank)
        assert facts["slowest"] == [1.0, True]
        assert facts["reason"] == "signal"
        assert facts["buffers"] == [0.5, 0.5, 0.5]


def test_blocks_are_the_repeated_layers():
    model = Layers(0.0)
    assert blocks_of(model) == list(model.blocks)
    assert blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == []


def test_every_process_computes_as_often_and_every_part_counts_once():
    parts = list("abcde")
    dealt = [shares(parts, Ranks(rank, 3)) for rank in range(3)]
    assert {len(each) for each in dealt} == {2}
    assert sorted(part for each in dealt for part, counts in each if counts) == parts
    assert [len(shares([], Ranks(rank, 2))) for rank in (0, 1)] == [0, 0]


def test_a_process_alone_answers_itself():
    assert ALONE.counted({"a": 1.0}) == {"a": 1.0}
    assert ALONE.collected("x") == ["x"]
    assert ALONE.told("x") == ALONE.most_urgent("x") == "x"
    assert ALONE.slowest(1.0, False) == (1.0, False)


def test_splitting_needs_somebody_to_share_with(tmp_path):
    with pytest.raises(UsageError, match="torchrun --nproc-per-node 2"):
        layers_with_dropout({**BASE, "shard": True}).fit(vector_rows(8), None, ToyWatch(tmp_path))


def test_splitting_refuses_optimizers_that_need_whole_matrices():
    with pytest.raises(ValueError, match="shard goes with the optimizers adamw, sgd, muon"):
        Gradient(shard=True, optimizer="soap")
    with pytest.raises(ValueError, match="fp16"):
        Gradient(shard=True, precision="fp16")
    assert np.isfinite(Gradient(shard=True).lr)
