"""Profiles and activation statistics on request."""

import json

import pytest
import torch
from test_loop import fitted
from torch import nn
from toys import VectorTask

from trainers.looking import statistics


@pytest.fixture(autouse=True)
def without_what_only_long_runs_need(monkeypatch):
    """Only a power cut needs fsync; and collecting the garbage of a test session takes longer than these trainings."""
    monkeypatch.setattr("trainers.checkpoint.sync", lambda path: None)
    monkeypatch.setattr("gc.collect", lambda: 0)


def test_a_profile_is_a_trace_and_a_table_of_what_was_slowest(tmp_path):
    _, _, watch = fitted(tmp_path, {"steps": 12, "profile": True})
    assert json.loads((tmp_path / "profile" / "trace.json").read_text())["traceEvents"]
    lines = (tmp_path / "profile" / "slowest.tsv").read_text().splitlines()
    assert lines[0].split("\t") == ["operation", "shapes", "calls", "milliseconds", "flop", "flop_per_byte"]
    assert any(line.startswith("aten::") for line in lines[1:])
    assert watch.of_kind("profile")


def test_without_asking_nothing_is_written(tmp_path):
    fitted(tmp_path, {"steps": 12})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints"]


def test_layers_that_put_out_nothing_are_named(tmp_path):
    class Dead(VectorTask):
        def __init__(self, values):
            super().__init__(values)
            self.model[0][2] = nn.ReLU()
            with torch.no_grad():
                self.model[0][0].bias[:12] = -1000.0

    learner, _, watch = fitted(tmp_path, {"steps": 3, "watch_activations": True}, make=Dead)
    line = json.loads((tmp_path / "activations.jsonl").read_text().splitlines()[0])
    assert line["step"] == 1
    assert line["layers"]["0.2"]["dead"] >= 12 / 16
    assert watch.of_kind("activations")[0]["most_dead"] in ("0.2", "0.3")
    assert "units of layer 0." in watch.of_kind("warning")[0]["text"]
    assert not any(part._forward_hooks for part in learner.task.model.modules())


def test_units_are_the_last_dimension_or_the_channels_of_pictures():
    picture = torch.zeros(2, 3, 4, 4)
    picture[0, 1, 2, 2] = 1.0
    assert statistics(picture)["dead"] == pytest.approx(2 / 3)
    tokens = torch.zeros(2, 5, 4)
    tokens[1, 3, 0] = 2.0
    found = statistics(tokens)
    assert found["dead"] == 0.75
    assert found["zeros"] == pytest.approx(39 / 40)
    assert found["mean"] == pytest.approx(2 / 40)
