"""Snapshots: whole or not at all, and never trusted unseen."""

import json
import random
import shutil
import threading

import numpy as np
import pytest
import torch
from torch import nn

from trainers import optim
from trainers.checkpoint import MARKER, Snapshots, damage, write_folder, write_json, write_tensors
from trainers.contract import Role
from trainers.errors import DoesNotFitError
from trainers.settings import Gradient


class TiedNet(nn.Module):
    """An embedding whose weights are also the output's, and a buffer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.out = nn.Linear(4, 6, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("num_seen", torch.zeros(()))

    def forward(self, x):
        self.num_seen += 1
        return self.out(torch.dropout(self.embed(x), 0.5, self.training))


def trained(num_steps=2):
    torch.manual_seed(0)
    model = TiedNet()
    optimizer = optim.make_optimizer(model, {"embed.weight": Role("embedding")}, Gradient())
    for _ in range(num_steps):
        model(torch.arange(6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def state(step, best_step=None):
    return {"step": step, "best_step": best_step}


@pytest.fixture
def snapshots(tmp_path):
    events = []
    made = Snapshots(tmp_path / "checkpoints", lambda **event: events.append(event))
    made.events = events
    return made


def names(snapshots):
    return [folder.name for folder in sorted(snapshots.folder.iterdir())]


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    write_folder(
        tmp_path / "a", {"x.json": lambda path: write_json(path, 1), "y.json": lambda path: write_json(path, 2)}
    )
    write_folder(tmp_path / "a", {"x.json": lambda path: write_json(path, 3)})
    assert json.loads((tmp_path / "a" / "x.json").read_text()) == 3
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [MARKER, "manifest.json", "x.json"]
    assert damage(tmp_path / "a") == ""


def test_a_write_that_fails_half_way_leaves_the_old_folder(tmp_path):
    def broken(path):
        path.write_text("half")
        raise OSError("disk full")

    write_folder(tmp_path / "a", {"x.json": lambda path: write_json(path, 1)})
    with pytest.raises(OSError, match="disk full"):
        write_folder(tmp_path / "a", {"x.json": broken})
    assert damage(tmp_path / "a") == ""
    assert json.loads((tmp_path / "a" / "x.json").read_text()) == 1


def test_values_that_json_cannot_hold_are_refused(tmp_path):
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"mean": np.float32(1)})


def test_weights_buffers_memory_and_chance_come_back_bit_by_bit(snapshots):
    model, optimizer = trained()
    random.seed(5)
    np.random.seed(5)
    snapshots.write(state(2), model, optimizer)
    expected = random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3)
    twin, other = trained(num_steps=0)
    assert snapshots.restore(snapshots.newest(), twin, other) == state(2)
    found = random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3)
    assert found[:4] == expected[:4]
    assert torch.equal(found[4], expected[4])
    assert twin.num_seen == 2
    assert twin.out.weight is twin.embed.weight
    assert torch.equal(twin.embed.weight, model.embed.weight)
    memory, copied = optim.optimizer_memory(optimizer)[1], optim.optimizer_memory(other)[1]
    assert memory.keys() == copied.keys() == {f"embed.weight/{key}" for key in ("step", "exp_avg", "exp_avg_sq")}
    assert all(torch.equal(memory[key], copied[key]) for key in memory)


def test_the_two_newest_stay_and_the_best_of_each(snapshots):
    for step, best in [(1, 1), (2, 1), (3, 3), (4, 3), (5, 3)]:
        snapshots.write(state(step, best), *trained())
    assert names(snapshots) == ["step-00000001", "step-00000003", "step-00000004", "step-00000005"]
    snapshots.write(state(6, 6), *trained())
    # 5 still says that 3 is the best: should 6 be torn, training goes on from 5.
    assert names(snapshots) == ["step-00000001", "step-00000003", "step-00000005", "step-00000006"]
    assert [event["step"] for event in snapshots.events] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("every", [1, 10, 50])
def test_there_is_always_a_snapshot_to_go_back_to(snapshots, every, monkeypatch):
    monkeypatch.setattr("trainers.checkpoint.sync", lambda path: None)
    for step in range(every, 181, every):
        snapshots.write(state(step), *trained())
        if step > 130:
            lag = step - int(snapshots.newest_until(step - 30).name[5:])
            assert 30 <= lag <= 30 + max(30, every)
        assert len(names(snapshots)) <= 4


def corrupt(folder):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (corrupt, "model.safetensors has changed"),
        (lambda folder: (folder / "optimizer.safetensors").write_bytes(b""), "optimizer.safetensors has changed"),
        (lambda folder: (folder / "state.json").unlink(), "state.json is missing"),
        (lambda folder: (folder / MARKER).unlink(), "it was not finished"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json cannot be read"),
    ],
)
def test_a_torn_newest_snapshot_is_said_aloud_and_the_one_before_is_used(snapshots, harm, reason):
    for step in (1, 2):
        snapshots.write(state(step), *trained())
    harm(snapshots.path(2))
    assert snapshots.newest() == snapshots.path(1)
    warnings = [event["text"] for event in snapshots.events if event["kind"] == "warning"]
    assert len(warnings) == 1
    assert "step-00000002" in warnings[0]
    assert reason in warnings[0]


def test_a_torn_snapshot_is_set_aside_and_training_keeps_two_whole_ones(snapshots):
    for step in (1, 2, 3):
        snapshots.write(state(step), *trained())
    (snapshots.path(3) / "state.json").write_text("{")
    assert snapshots.newest() == snapshots.path(2)
    snapshots.write(state(3), *trained())
    snapshots.write(state(4), *trained())
    whole = [path for path in snapshots.folder.glob("step-*") if not path.suffix and not damage(path)]
    assert {"step-00000003", "step-00000004"} <= {path.name for path in whole}


def test_a_full_disk_is_an_error_of_the_disk(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        write_tensors(tmp_path / "no folder" / "x.safetensors", {"x": torch.zeros(2)})


def test_what_a_kill_left_unfinished_is_no_snapshot(snapshots):
    snapshots.write(state(1), *trained())
    shutil.copytree(snapshots.path(1), snapshots.folder / "step-00000002.tmp")
    assert snapshots.newest() == snapshots.path(1)
    snapshots.write(state(2), *trained())
    assert names(snapshots) == ["step-00000001", "step-00000002"]


def test_without_snapshots_there_is_no_newest(snapshots):
    assert snapshots.newest() is None


def test_training_goes_on_while_a_snapshot_is_written(snapshots, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr("trainers.checkpoint.sync", lambda path: go_on.wait(10))
    model, optimizer = trained()
    with snapshots:
        snapshots.write(state(2), model, optimizer)
        before = model.embed.weight.detach().clone()
        with torch.no_grad():
            model.embed.weight.add_(1)
        assert snapshots.newest() is None, "it is still being written"
        go_on.set()
    snapshots.restore_model(snapshots.path(2), model)
    assert torch.equal(model.embed.weight, before), "what was copied when it was asked for"


def test_a_full_disk_is_said_at_the_next_snapshot_or_at_the_end(snapshots, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainers.checkpoint.sync", full)
    with pytest.raises(DoesNotFitError, match=r"No space left on device.*Make room"), snapshots:
        snapshots.write(state(1), *trained())
    with pytest.raises(KeyError), snapshots:  # another error comes first
        raise snapshots.write(state(1), *trained()) or KeyError
    assert "No space left" in snapshots.events[-1]["text"]


def test_a_snapshot_of_another_model_names_where_they_differ(snapshots):
    snapshots.write(state(1), *trained())
    with pytest.raises(ValueError, match="another model; they differ in bias"):
        snapshots.restore_model(snapshots.path(1), nn.Linear(4, 6))


def test_a_snapshot_is_replaced_without_a_moment_in_which_there_is_none(tmp_path, monkeypatch):
    write_folder(tmp_path / "a", {"x.json": lambda path: write_json(path, 1)})
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    write_folder(tmp_path / "a", {"x.json": lambda path: write_json(path, 2)})
    assert json.loads((tmp_path / "a.old.tmp" / "x.json").read_text()) == 1


def test_weights_may_be_read_by_whoever_may_read_their_folder(tmp_path):
    tmp_path.chmod(0o755)
    write_tensors(tmp_path / "x.safetensors", {"x": torch.zeros(2)})
    assert (tmp_path / "x.safetensors").stat().st_mode & 0o777 == 0o644
