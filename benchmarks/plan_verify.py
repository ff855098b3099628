"""How near forecasts come: peak memory and time of a step, said before the first step, beside what came of it.

python benchmarks/plan_verify.py FOLDER [NAME ...]

Every recipe runs twice on its embedded data: small first, so that this machine has experience of it, then in another size,
and only the second is compared. Memory is the peak of the process while it trains and judges, less what an idle process
with torch takes. FOLDER keeps the runs and a cache of its own; what is finished there is not run again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

OFF = {"train.compile": "off"}
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mlp": (
        "tabular/mlp",
        {"options.ensemble": 8, "options.width": 1024, "train.batch_size": 128},
        {"options.ensemble": 32, "options.width": 2048, "train.batch_size": 256},
    ),
    "ft": (
        "tabular/ft-transformer",
        {"options.width": 128, "options.depth": 4, "train.batch_size": 128},
        {"options.width": 384, "options.depth": 6, "train.batch_size": 256},
    ),
    "gpt": (
        "text/gpt-pretrain",
        {"options.depth": 4, "options.width": 256, "train.batch_size": 8},
        {"options.depth": 6, "options.width": 384, "train.batch_size": 16},
    ),
    "encoder": ("text/encoder-classify", {"train.batch_size": 16}, {"train.batch_size": 64}),
    "seq2seq": (
        "text/seq2seq",
        {"options.weights": "random:2x128", "train.batch_size": 64},
        {"options.weights": "random:4x384", "train.batch_size": 256, "train.micro_batch_tokens": None},
    ),
    "cnn": ("images/cnn-finetune", {"options.image_size": 96}, {"options.image_size": 160}),
    "vit": (
        "images/vit-scratch",
        {"train.batch_size": 64, "train.micro_batch_size": 64},
        {"train.batch_size": 256, "train.micro_batch_size": 256},
    ),
    "esm2": ("proteins/esm2-finetune", {"train.batch_size": 32}, {"train.batch_size": 192}),
    "bases": (
        "genomics/scratch",
        {"options.filters": 64, "options.blocks": 2, "train.batch_size": 64},
        {"options.filters": 256, "options.blocks": 4, "train.batch_size": 256},
    ),
    "gnn": ("molecules/gnn-scratch", {"train.batch_size": 50}, {"options.width": 600, "train.batch_size": 400}),
    "smiles": (
        "molecules/smiles-lm",
        {"options.width": 128, "options.depth": 4},
        {"options.width": 256, "options.depth": 6, "train.batch_size": 128},
    ),
    "nnunet": ("medical/nnunet", {"train.batch_size": 2}, {"train.batch_size": 8, "options.base_features": 24}),
}
"""By a short name: the recipe, the settings of the run that only teaches, and of the run that is compared."""
SIZED = ("encoder", "seq2seq", "esm2")
"""Batches of like length come in random order, so a few of them have no typical time: these runs see every row once."""
IDLE = "import torch; print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"


def carried_out(folder: Path, name: str, recipe: str, sets: dict[str, Any], ends: tuple[str, str]) -> dict[str, Any]:
    """The run `name` below `folder`; its actual.json."""
    out = folder / name
    if not (out / "actual.json").exists():
        pairs = [f"--set={path}={json.dumps(value)}" for path, value in (OFF | sets).items()]
        command = ["-m", "zoo.cli", "train", recipe, *ends, "--fast", "--out", str(out), *pairs]
        with (folder / f"{name}.log").open("w") as log:
            environment = {**os.environ, "ZOO_CACHE": str(folder / "cache")}
            subprocess.run([sys.executable, *command], stdout=log, stderr=log, env=environment, check=True)
    return dict(json.loads((out / "actual.json").read_text()))


def line_of(recipe: str, sets: dict[str, Any], actual: dict[str, Any], idle: int) -> str:
    """A row of the table."""
    said, was = actual["forecast_memory_bytes"] - idle, actual["peak_training_bytes"] - idle
    step_said, step_was = actual["forecast_step_seconds"], actual["step_seconds"]
    settings = ", ".join(f"{path.split('.')[1]}={value}" for path, value in sets.items())
    return (
        f"| {recipe} ({settings}) | {said / 1e9:.2f} | {was / 1e9:.2f} | {said / was - 1:+.0%} | {step_said:.3g} | "
        f"{step_was:.3g} | {step_said / step_was - 1:+.0%} |"
    )


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cache").mkdir(exist_ok=True)
    idle = 1024 * int(subprocess.run([sys.executable, "-c", IDLE], capture_output=True, text=True, check=True).stdout)
    print(f"an idle process with torch: {idle / 1e9:.2f} GB\n")
    print("| run | GB said | GB measured | error | s a step said | s measured | error |\n|---|---|---|---|---|---|---|")
    for name in names or RUNS:
        recipe, small, large = RUNS[name]
        try:
            carried_out(folder, f"{name}-small", recipe, small, ("--budget", "6"))
            ends = ("--epochs", "1") if name in SIZED else ("--budget", "20")
            print(line_of(recipe, large, carried_out(folder, name, recipe, large, ends), idle), flush=True)
        except (subprocess.CalledProcessError, KeyError) as error:
            print(f"| {recipe} | failed: {error} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
