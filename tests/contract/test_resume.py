"""A run that is killed and resumed ends with the same bits as one that was left alone."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from contract import tiny

from zoo.registry import load_registry

PREFIXES = {"gradient": "train.", "embed": "train.head.", "phases": "train.tune."}
"""Where the settings of the last training of a recipe stand, by its trainer."""
RESUMABLE = [
    recipe.name
    for recipe in load_registry().recipes.values()
    if recipe.status == "ready" and recipe.train["trainer"] in PREFIXES
]


def command(*words: object, cache: Path) -> subprocess.Popen:
    environment = {**os.environ, "ZOO_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "zoo.cli", *map(str, words)], env=environment, stdout=subprocess.PIPE, text=True
    )


def weights_of(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "model").rglob("*.safetensors")
    }


def steps_done(folder: Path) -> int:
    try:
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    except (OSError, ValueError):
        return 0
    return max((event["step"] for event in events if event["kind"] == "save"), default=0)


@pytest.mark.parametrize("recipe", RESUMABLE)
def test_killed_in_its_second_epoch_and_resumed_the_weights_are_bit_identical(recipe, tmp_path):
    task = load_registry().get(recipe).tasks[0]
    data, target = tiny.made(recipe, task, tmp_path)
    prefix = PREFIXES[load_registry().get(recipe).train["trainer"]]
    sets = {**tiny.sets(recipe, task, data, target, tmp_path), prefix + "batch_size": 16, prefix + "save_steps": 2}
    for name in ("epochs", "steps", "seconds"):
        sets.pop(prefix + name, None)
    epochs = 60 if "head" in prefix else 6
    words = ["train", recipe, "--data", data, "--fast", "--epochs", epochs]
    words += ["--target", target] if target else []
    words += [f"--set={path}={json.dumps(value)}" for path, value in sets.items()]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert command(*words, "--out", whole, cache=tmp_path / "cache").wait() == 0
    process = command(*words, "--out", killed, cache=tmp_path / "cache")
    # 70 % of the rows learn, 16 at a time.
    per_epoch = int(0.7 * (tiny.FEW_ROWS if recipe == "medical/swin-unetr" else tiny.NUM_ROWS)) // 16 + 1
    while steps_done(killed) <= per_epoch and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "model").exists()
    assert command("resume", killed, cache=tmp_path / "cache").wait() == 0
    assert weights_of(killed) == weights_of(whole)
    assert weights_of(whole)
    assert "resume" in (killed / "events.jsonl").read_text()


def test_the_battery_found_the_gradient_recipes():
    assert len(RESUMABLE) >= 3
