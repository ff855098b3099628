"""What a person reads of a run without a terminal."""

from types import SimpleNamespace

import pytest

from zoo.watch import RunWatch


@pytest.mark.parametrize("kind", ["step", "encoding"])
def test_what_comes_often_is_said_every_half_minute_and_all_of_it_written(tmp_path, monkeypatch, kind):
    now, said = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    watch = RunWatch(tmp_path, SimpleNamespace(name="auc", higher_is_better=True), said.append)
    for second in range(100):
        now[0] = float(second)
        watch.log(kind=kind, done=second)
    watch.log(kind="warning", text="look")
    assert len(said) == 3 + 1
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 101


def test_of_several_processes_the_first_alone_writes(tmp_path):
    said = []
    watch = RunWatch(tmp_path, SimpleNamespace(name="auc", higher_is_better=True), said.append, rank=1, world=2)
    watch.log(kind="warning", text="look")
    assert not said
    assert not list(tmp_path.iterdir())
