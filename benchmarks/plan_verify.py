"""How near forecasts come: peak memory and time of a step, said before the first step, beside what came of it.

python benchmarks/plan_verify.py FOLDER [NAME ...]

Each recipe is measured first in a few steps of another batch size on another split of its embedded data (`zoo plan
--measure --seed 1`), then it runs, and the run is compared with what was said before its first step: memory by the trace,
the step by roofline alone and by what was measured. Memory is the peak of the
process while it trains and judges, less what an idle process with torch takes. FOLDER keeps the runs and a cache of its
own; what is finished there is not run again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

OFF = {"train.compile": "off"}
BATCH, MICRO = "train.batch_size", "train.micro_batch_size"
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "mlp": ("tabular/mlp", {"options.ensemble": 32, "options.width": 2048}, {BATCH: 128}, {BATCH: 256}),
    "ft": ("tabular/ft-transformer", {"options.width": 384, "options.depth": 6}, {BATCH: 128}, {BATCH: 256}),
    "gpt": ("text/gpt-pretrain", {"options.depth": 6, "options.width": 384}, {BATCH: 8}, {BATCH: 16}),
    "encoder": ("text/encoder-classify", {}, {BATCH: 16}, {BATCH: 64}),
    "seq2seq": (
        "text/seq2seq",
        {"options.weights": "random:4x384", "train.micro_batch_tokens": None},
        {BATCH: 128},
        {BATCH: 256},
    ),
    "cnn": ("images/cnn-finetune", {"options.image_size": 160}, {BATCH: 16}, {BATCH: 32}),
    "vit": ("images/vit-scratch", {}, {BATCH: 64, MICRO: 64}, {BATCH: 128, MICRO: 128}),
    "esm2": ("proteins/esm2-finetune", {}, {BATCH: 64}, {BATCH: 192}),
    "bases": ("genomics/scratch", {"options.filters": 256, "options.blocks": 4}, {BATCH: 128}, {BATCH: 256}),
    "gnn": ("molecules/gnn-scratch", {"options.width": 600}, {BATCH: 200}, {BATCH: 400}),
    "smiles": ("molecules/smiles-lm", {"options.width": 256, "options.depth": 6}, {BATCH: 64}, {BATCH: 128}),
    "schnet": ("molecules/schnet", {"options.width": 256}, {BATCH: 64}, {BATCH: 128}),
    "segment": ("images/segment", {}, {BATCH: 16}, {BATCH: 32}),
    "nnunet": ("medical/nnunet", {"options.base_features": 24}, {BATCH: 4}, {BATCH: 8}),
}
"""By a short name: the recipe, the settings of its model, of the steps that are measured, and of the run that is compared."""
SAME_SPLIT = ("smiles",)
"""Whose vocabulary, and with it the model, would be another on another split."""
SIZED = ("encoder", "seq2seq", "esm2")
"""Batches of like length come in random order, so a few of them have no typical time: these runs see every row once."""
IDLE = "import torch; print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"


def zoo(folder: Path, name: str, *arguments: str, sets: dict[str, Any]) -> None:
    """Run a verb with the cache in `folder`, which also gets its output as NAME.log."""
    pairs = [f"--set={path}={json.dumps(value)}" for path, value in (OFF | sets).items()]
    with (folder / f"{name}.log").open("w") as log:
        environment = {**os.environ, "ZOO_CACHE": str(folder / "cache")}
        command = [sys.executable, "-m", "zoo.cli", *arguments, "--fast", *pairs]
        subprocess.run(command, stdout=log, stderr=log, env=environment, check=True)


def line_of(recipe: str, sets: dict[str, Any], out: Path, idle: int) -> str:
    """A row of the table."""
    actual, said = (json.loads((out / name).read_text()) for name in ("actual.json", "forecast.json"))
    step, was, took = said["step"], actual["peak_training_bytes"] - idle, actual["step_seconds"]
    memory = said["memory"]["peak_bytes"] - idle
    measured = f"{step['seconds']:.3g} | {step['seconds'] / took - 1:+.0%}" if step["is_measured"] else "- | -"
    settings = ", ".join(f"{path.split('.')[1]}={value}" for path, value in sets.items())
    cells = [f"{was / 1e9:.2f} | {memory / 1e9:.2f} | {memory / was - 1:+.0%} | {took:.3g}"]
    cells += [f"{step['bound_seconds']:.3g} | {step['bound_seconds'] / took - 1:+.0%}", measured]
    return f"| {recipe} ({settings}) | {' | '.join(cells)} | {actual['num_steps']} |"


def main(folder: Path, names: list[str]) -> None:
    (folder / "cache").mkdir(exist_ok=True, parents=True)
    idle = 1024 * int(subprocess.run([sys.executable, "-c", IDLE], capture_output=True, text=True, check=True).stdout)
    print(f"an idle process with torch: {idle / 1e9:.2f} GB\n")
    heads = ("GB", "said", "error", "s a step", "by roofline", "error", "by measurement", "error", "steps")
    print(f"| run | {' | '.join(heads)} |\n|{'---|' * (1 + len(heads))}", flush=True)
    for name in names or RUNS:
        recipe, model, other, own = RUNS[name]
        out, sets = folder / name, model | own
        try:
            if not (out / "actual.json").exists():
                seed = "0" if name in SAME_SPLIT else "1"
                zoo(folder, f"{name}-measure", "plan", recipe, "--measure", "--seed", seed, sets=model | other)
                ends = ("--epochs", "1") if name in SIZED else ("--budget", "20")
                zoo(folder, name, "train", recipe, *ends, "--out", str(out), sets=sets)
            print(line_of(recipe, sets, out, idle), flush=True)
        except (subprocess.CalledProcessError, OSError, KeyError) as error:
            print(f"| {recipe} | failed: {error} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
