"""Muon+AdamW against AdamW on text/gpt-pretrain: bits per byte after equal CPU-seconds.

    python benchmarks/gpt_optimizers.py tune --data tinyshakespeare.txt
    python benchmarks/gpt_optimizers.py race --data tinyshakespeare.txt

Both train the recipe's model from the same start on the same windows in the same order, on one thread. What a step costs
is measured over 7 steps, and each side gets as many steps as the CPU-seconds are enough for, with a whole schedule. So a
busy machine changes nothing.
tune: on seed 0, the rate of each side by the bits per byte of the validation part; AdamW as nanoGPT has it (betas 0.9 and
0.95, decay 0.1 for matrices, 5 % warm-up, cosine to a tenth), Muon with the recipe's own settings. CHOSEN holds the rates.
race: seeds 1, 2, 3, which tuning never saw. Told are the validation and the test part; nothing is chosen by the test.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from domains.contract import Request
from domains.splits import make_split
from domains.text import corpus, gpt_pretrain
from trainers.contract import Plan
from zoo.job import prepare
from zoo.plan import Wishes, parse_sets

RECIPE = "text/gpt-pretrain"
TUNING_SEED, SEEDS, PROBE_STEPS, WARM_STEPS = 0, (1, 2, 3), 9, 2
SIDES: Mapping[str, Mapping[str, Any]] = {
    "muon+adamw": {},
    "adamw": {
        "optimizer": "adamw",
        "betas": [0.9, 0.95],
        "eps": 1e-8,
        "weight_decay": 0.1,
        "decay_schedule": "constant",
        "warmup": 0.05,
        "schedule": "cosine",
        "final_lr": 0.1,
        "momentum_warmup": 0.0,
        "ema": None,
    },
}
RATES = {"muon+adamw": (0.015, 0.03, 0.06), "adamw": (1e-3, 2e-3, 4e-3, 8e-3)}
CHOSEN: dict[str, float] = {"muon+adamw": 0.03, "adamw": 4e-3}


class Silence:
    """A watch that keeps the processor's time at the start of every step."""

    metric, higher_is_better, rank, world = "bits_per_byte", False, 0, 1

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache, self.laps = folder, folder, list[float]()

    def score(self, rows: Any, predictions: Any) -> None: ...
    def log(self, **event: Any) -> None: ...
    def should_stop(self) -> None:
        self.laps.append(time.process_time())


class Race:
    """The corpus in its parts, and runs on it."""

    def __init__(self, data: str, seconds: float, sets: Mapping[str, Any]) -> None:
        table = corpus.read(data, Request(task="generation")).table
        split = make_split(corpus.keys(table, "generation", Request(), fast=False), len(table), seed=0)
        self.parts = {name: table.take(getattr(split, name)) for name in ("train", "valid", "test")}
        self.metric = corpus.metrics(corpus.describe(self.parts["train"], "generation", Request()))[0]
        self.data, self.seconds, self.sets = data, seconds, dict(sets)

    def trained(self, side: str, rate: float, seed: int) -> dict[str, float]:
        """Bits per byte of the parts, and what it took."""
        values = {**self.sets, **{f"train.{name}": value for name, value in SIDES[side].items()}}
        probe = self._fit({**values, "train.lr": rate, "train.steps": PROBE_STEPS}, seed)[1]
        cost = (probe.laps[-1] - probe.laps[WARM_STEPS]) / (len(probe.laps) - 1 - WARM_STEPS)
        steps = max(PROBE_STEPS, round(self.seconds / cost))
        learner, _, spent = self._fit({**values, "train.lr": rate, "train.steps": steps}, seed)
        scores = {name: self._score(learner, name) for name in ("valid", "test")}
        return {**scores, "steps": steps, "cpu_seconds": spent}

    def _fit(self, sets: Mapping[str, Any], seed: int) -> tuple[Any, Silence, float]:
        wishes = Wishes({**sets, "train.epochs": None, "train.seconds": None}, seed=seed)
        plan: Plan = prepare(RECIPE, self.data, wishes=wishes).plan
        learner = gpt_pretrain.build(replace(plan, seed=seed))
        with tempfile.TemporaryDirectory() as folder:
            watch, began = Silence(Path(folder)), time.process_time()
            learner.fit(self.parts["train"], None, watch)
            return learner, watch, time.process_time() - began

    def _score(self, learner: Any, name: str) -> float:
        rows = self.parts[name]
        return self.metric.value(self.metric.stats(rows.target(), learner.predict(rows.without_target())))


def tune(race: Race, arguments: argparse.Namespace) -> None:
    """The validation score of each rate."""
    for side in arguments.sides:
        for rate in RATES[side]:
            found = race.trained(side, rate, TUNING_SEED)
            print(f"{side} lr {rate:g}: valid {found['valid']:.4f} in {found['steps']} steps", flush=True)


def compete(race: Race, arguments: argparse.Namespace) -> None:
    """Both sides on each seed."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for seed in arguments.seeds:
        for side in SIDES if seed % 2 else reversed(SIDES):
            found[side].append(race.trained(side, CHOSEN[side], seed))
            print(side, "seed", seed, {name: round(value, 4) for name, value in found[side][-1].items()}, flush=True)
    for side, each in found.items():
        for name in ("valid", "test"):
            values = [one[name] for one in each]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            print(
                f"{side}: {name} {statistics.mean(values):.4f} bits per byte (deviation {spread:.4f}, {len(values)} seeds)"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tune", "race"))
    parser.add_argument("--data", required=True)
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU-seconds of a run, one thread")
    parser.add_argument("--set", nargs="+", default=[], help="settings of both sides, such as train.batch_size=8")
    parser.add_argument("--sides", nargs="+", default=list(SIDES), help="of tune")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="of race")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    race = Race(arguments.data, arguments.seconds, parse_sets(arguments.set))
    {"tune": tune, "race": compete}[arguments.what](race, arguments)


if __name__ == "__main__":
    main()
