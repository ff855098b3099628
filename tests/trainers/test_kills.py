"""Killed with SIGKILL at random moments while snapshots are written, again and again: every run goes on."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from toys import ToyWatch, VectorTask, plan_of, vector_rows, vector_statistics

from trainers.gradient import GradientLearner

HERE = Path(__file__).parent
SETTINGS = {
    "batch_size": 8,
    "precision": "fp32",
    "keep": "last",
    "save_steps": 1,
    "ema": 0.9,
    "schedule": "constant",
    "warmup": 0,
}


@pytest.fixture(autouse=True)
def without_what_only_long_runs_need(monkeypatch):
    """The children sync as always; these runs are only compared with them."""
    monkeypatch.setattr("trainers.checkpoint.sync", lambda path: None)
    monkeypatch.setattr("gc.collect", lambda: 0)


# One interpreter forks a child a try: starting Python with torch anew would take ten seconds each.
SCRIPT = """
import gc, os, sys
import torch
from pathlib import Path
from toys import *
from trainers.gradient import GradientLearner
torch.set_num_threads(1)
gc.collect = lambda: 0  # the first collection after a fork copies all of torch
def run(folder, steps):
    settings = {**%r, "steps": steps}
    learner = GradientLearner(plan_of(settings), vector_statistics, lambda s, p: VectorTask(s, dropout=0.3))
    learner.fit(vector_rows(45), None, ToyWatch(folder))
folder = Path(sys.argv[1])
run(folder.parent / "warm", 2)  # what is imported and compiled at first use, children have from their parent
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            run(folder, 100000)
        except BaseException as error:
            print("error", repr(error), flush=True)
        os._exit(1)
    print("started", child, flush=True)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""


def killed_often(folder, num_kills, seed=0):
    """Kill `num_kills` runs in a row, each continuing the one before; returns the steps at which snapshots stood."""
    paths = os.pathsep.join([str(HERE), str(HERE.parent.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT % SETTINGS, str(folder)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    # Whatever hangs, the test ends: without the process, readline returns an empty line.
    watchdog = threading.Timer(60 + 10 * num_kills, process.kill)
    watchdog.start()
    rng, newest = random.Random(seed), [0]
    try:
        for _ in range(num_kills):
            child = started(process)
            try:
                wait_for_snapshot_after(newest[-1], folder)
                time.sleep(0.15 * rng.random())
            finally:
                os.kill(child, signal.SIGKILL)
            assert process.stdout.readline() == "ended\n", "the run ended in an error of its own"
            newest.append(newest_step(folder))
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    return newest[1:]


def started(process):
    """The id of a new run."""
    process.stdin.write("go\n")
    process.stdin.flush()
    found = re.fullmatch(r"started (\d+)\n", process.stdout.readline())
    assert found, "no run was started"
    return int(found.group(1))


def newest_step(folder):
    return max((int(path.name[5:]) for path in (folder / "checkpoints").glob("step-????????")), default=0)


def wait_for_snapshot_after(step, folder):
    until = time.monotonic() + 60
    while newest_step(folder) <= step:
        assert time.monotonic() < until, f"no snapshot after {step} within a minute"
        time.sleep(0.002)


def finished(folder, steps):
    learner = GradientLearner(
        plan_of({**SETTINGS, "steps": steps, "save_steps": None}),
        vector_statistics,
        lambda s, p: VectorTask(s, dropout=0.3),
    )
    watch = ToyWatch(folder)
    learner.fit(vector_rows(45), None, watch)
    return torch.cat([tensor.flatten() for tensor in learner.task.model.state_dict().values()]), watch


def check_kills(tmp_path, num_kills):
    newest = killed_often(tmp_path / "killed", num_kills)
    assert newest == sorted(newest), "no kill costs a step that an earlier snapshot had"
    steps = newest[-1] + 5
    resumed, watch = finished(tmp_path / "killed", steps)
    assert len(watch.of_kind("resume")) == 1
    whole, _ = finished(tmp_path / "whole", steps)
    # Schedules follow progress, and a killed run planned more steps than this one: constant, so that bits can agree.
    assert torch.equal(resumed, whole)
    return len(newest)


def test_six_kills_during_saves_cost_no_bits(tmp_path):
    assert check_kills(tmp_path, 6) == 6


@pytest.mark.slow
def test_a_hundred_kills_during_saves_cost_no_bits(tmp_path):
    assert check_kills(tmp_path, 100) == 100
