"""What the checks of benchmarks/cases.py have at hand: the zoo's command line in a process of its own, its memory measured,
and a list of what was seen."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
LONGEST_SECONDS = 400
SMALL: Mapping[str, Sequence[str]] = {
    "tabular/xgboost": ("train.rounds=30", "train.max_depth=3"),
    "tabular/mlp": ("options.width=32", "options.depth=1", "train.batch_size=16", "train.lr=0.005"),
    "text/encoder-classify": ("options.weights=random:2x32", "options.max_tokens=64", "train.micro_batch_tokens=2048"),
    "text/full-finetune": ("options.weights=random:2x64", "options.max_tokens=96", "train.batch_size=8"),
    "proteins/esm2-finetune": ("options.weights=random:2x32", "train.batch_size=8"),
    "genomics/scratch": ("train.batch_size=16",),
    "molecules/gnn-scratch": ("options.width=32", "options.hidden=32", "train.batch_size=16", "train.lr=0.005"),
    "images/cnn-finetune": ("options.network=test_efficientnet", "options.weights=none", "options.image_size=32"),
    "medical/cnn-finetune": (
        *("options.network=test_efficientnet", "options.weights=none", "options.image_size=32"),
        *("options.slices=4", "train.batch_size=8"),
    ),
    "medical/nnunet": ("train.steps=2", "train.epochs=null", "train.compile=off", "train.batch_size=1"),
}
"""Sizes with which a recipe takes seconds; all but images' pretrained ones start from random weights."""


@dataclass(frozen=True)
class Ended:
    """A command that ended. code: its exit code.   peak_bytes: the most memory that it had."""

    code: int
    out: str
    err: str
    peak_bytes: int


@dataclass
class Bench:
    """One case on the bench. case: its folder.   work: an empty folder in which commands run.
    seen: (as expected, in words), by `see`."""

    case: Path
    work: Path
    seen: list[tuple[bool, str]] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def zoo(self, *arguments: Any) -> Ended:
        """Run one command of the zoo."""
        return self.run(sys.executable, "-m", "zoo.cli", *arguments)

    def run(self, *command: Any) -> Ended:
        """Run any command in `work`."""
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "ZOO_CACHE": str(self.work / "cache")}
        with (self.work / "out").open("w+") as out, (self.work / "err").open("w+") as err:
            process = subprocess.Popen(
                [str(a) for a in command], cwd=self.work, env=environment, stdout=out, stderr=err
            )
            self.process = process
            clock = threading.Timer(LONGEST_SECONDS, process.kill)
            clock.start()
            _, status, usage = os.wait4(process.pid, 0)
            clock.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0), err.seek(0)
            return Ended(process.returncode, out.read(), err.read(), usage.ru_maxrss * 1024)

    def train(self, recipe: str, data: Any, *arguments: Any, run: str = "run", sets: Sequence[str] = ()) -> Ended:
        """Train a small version of `recipe` into work/`run`."""
        small = [part for each in (*SMALL[recipe], *sets) for part in ("--set", each)]
        return self.zoo("train", recipe, "--data", data, *small, "--out", self.work / run, *arguments)

    def predict(self, data: Any, *arguments: Any, run: str = "run") -> tuple[Ended, list[dict[str, str]]]:
        """Predict; the lines of predictions.csv, none where it failed."""
        out = self.work / "answers.csv"
        out.unlink(missing_ok=True)
        ended = self.zoo("predict", self.work / run, data, "--out", out, *arguments)
        return ended, lines_of(out) if out.exists() else []

    def see(self, as_expected: bool, words: str) -> None:
        """Note one thing that was looked at."""
        self.seen.append((bool(as_expected), words))

    def see_code(self, ended: Ended, code: int, what: str) -> None:
        """Note an exit code; where it is another, the last of what was said too."""
        said = "" if ended.code == code else f" ({' '.join(ended.err.split())[-300:]})"
        self.see(ended.code == code and "Traceback" not in ended.err, f"{what}: exit {ended.code}{said}")

    def see_named(self, ended: Ended, names: Sequence[str], *, absent: Sequence[str] = ()) -> None:
        """Note whether stderr names all of `names` and none of `absent`."""
        lacking = [name for name in names if name not in ended.err]
        extra = [name for name in absent if name in ended.err]
        words = f"not named: {', '.join(lacking)}" if lacking else f"named: {', '.join(names)}"
        self.see(not lacking and not extra, words + (f"; named for nothing: {', '.join(extra)}" if extra else ""))

    def json(self, name: str, run: str = "run") -> Any:
        """A JSON file of a run; NaN in it is an error."""
        return json.loads((self.work / run / name).read_text(), parse_constant=refuse_constant)

    def events(self, run: str = "run") -> list[Any]:
        """The events of a run."""
        lines = (self.work / run / "events.jsonl").read_text().splitlines()
        return [json.loads(line, parse_constant=refuse_constant) for line in lines]


Check = Callable[[Bench], None]


def lines_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def numbers_of(answers: Sequence[Mapping[str, str]]) -> list[list[float]]:
    """Probabilities, or the predicted numbers, of each line; NaN where there are none."""
    names = [name for name in (answers[0] if answers else {}) if name.startswith("probability_")] or ["prediction"]
    return [[float(line[name] or "nan") for name in names] for line in answers]


def largest_difference(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """Between two lists of answers; infinite where their shapes differ or nothing is there."""
    if len(one) != len(other) or not one:
        return float("inf")
    return max(abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


def refuse_constant(name: str) -> None:
    """For json.loads: NaN and infinities are no JSON."""
    raise ValueError(f"{name} in JSON")


def weights_of(run: Path) -> dict[str, Any]:
    """Every tensor of a run's model, by file and name."""
    from safetensors.numpy import load_file

    files = sorted((run / "model").rglob("*.safetensors"))
    return {f"{file.name}:{name}": value for file in files for name, value in load_file(file).items()}


def weights_differ(one: Path, other: Path) -> float:
    """The largest difference between the weights of two runs."""
    import numpy as np

    first, second = weights_of(one), weights_of(other)
    if first.keys() != second.keys() or not first:
        return float("inf")
    wide = {name: value.astype(np.float64) for name, value in first.items()}
    return max(float(np.abs(value - second[name].astype(np.float64)).max(initial=0)) for name, value in wide.items())
