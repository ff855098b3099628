"""text/lora-finetune on Multi30k (English to German): does the validation loss fall, and what became of the weights?

    python benchmarks/lora_pairs.py data MULTI30K pairs.csv 1000            # the first pairs of train.en and train.de
    zoo train text/lora-finetune --data pairs.csv --target target --set options.weights=WEIGHTS --out RUN
    python benchmarks/lora_pairs.py check RUN pairs.csv WEIGHTS             # loss, hash, merged against adapter

Peak memory is in RUN/actual.json (peak_memory_bytes), the whole command's.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from domains.contract import Request
from domains.shared.weights import resolve
from domains.text import pairs
from domains.text.causal import export_merged, load
from trainers.contract import Plan
from zoo import saved

NUM_CHECKED = 40


def data(folder: Path, target: Path, num: int) -> None:
    """Write `num` pairs as CSV with the columns source and target."""
    lines = {name: (folder / f"train.{name}").read_text(encoding="utf-8").split("\n")[:num] for name in ("en", "de")}
    pd.DataFrame({"source": lines["en"], "target": lines["de"]}).to_csv(target, index=False)


def check(run: Path, source: Path, weights: str) -> None:
    """Print validation loss by step, whether the base weights are what they were, and how far merged ones differ."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    print("validation bits per byte:", [(e["step"], round(e["score"], 4)) for e in events if e["kind"] == "eval"])
    plan = json.loads((run / "plan.json").read_text())
    print("base sha256 unchanged:", plan["estimates"]["weights"]["sha256"] == resolve(weights).sha256)
    table = pairs.read(source, Request(task="generation")).table.take(range(NUM_CHECKED)).without_target()
    merged = export_merged(run, Path(tempfile.mkdtemp()) / "merged")
    exact = {
        **plan,
        "options": {**plan["options"], "base": "fp32"},
        "settings": {**plan["settings"], "precision": "fp32"},
    }
    adapted = load(Plan.from_json(exact), run / "model").predict(table).values
    whole = {**exact, "options": {**exact["options"], "method": "all", "weights": str(merged)}}
    folder = Path(tempfile.mkdtemp())
    (folder / "weights").symlink_to(merged)
    (folder / "statistics.json").write_text(json.dumps({"weights": {"id": str(merged)}, "tokenizer": ""}))
    together = load(Plan.from_json(whole), folder).predict(table).values
    print(
        "bits of an answer, merged against adapter: largest difference",
        np.abs(adapted - together).max(),
        "of",
        adapted.max(),
    )
    print("peak GiB:", saved.read_json(run / "actual.json")["peak_memory_bytes"] / 2**30)


if __name__ == "__main__":
    verb, *words = sys.argv[1:]
    if verb == "data":
        data(Path(words[0]), Path(words[1]), int(words[2]))
    else:
        check(Path(words[0]), Path(words[1]), words[2])
