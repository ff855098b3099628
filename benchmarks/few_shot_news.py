"""text/few-shot-prompt on AG News: choose format and number of examples on validation rows, then one run on 200 test rows.

    python benchmarks/few_shot_news.py split ag_news_7600.csv news.csv      # zoo's own split, 200 rows to validate and test
    python benchmarks/few_shot_news.py choose news.csv WEIGHTS              # validation accuracy of every candidate
    python benchmarks/few_shot_news.py best news.csv WEIGHTS                # the command of the best one

WEIGHTS: a folder or hub id (for Gemma 3 270M without a hub: gemma_folder.py).
"""

import json
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from domains.contract import Request
from trainers.contract import Predictions
from zoo.job import prepare
from zoo.plan import Wishes, parts_of
from zoo.registry import load_registry

RECIPE, NUM_ROWS = "text/few-shot-prompt", 200
EXAMPLES = (4, 16, 32)
TEMPLATES = (
    "Text: {question}\nLabel: {answer}",
    "Article: {question}\nTopic: {answer}",
    "{question}\nThis news is about {answer}",
)
NAMES = ({"Sci/Tech": "Technology"},)
"""A word that the model knows; the others are words already."""


def split(source: Path, target: Path) -> None:
    """Write `source` with a column "split": training rows, and 200 each to validate and test on."""
    request = Request(target="label", task="classification")
    job = prepare("text/encoder-classify", source, request=request, wishes=Wishes({"options.weights": "random:1x16"}))
    frame = pd.read_csv(source)
    frame["split"] = ""
    rng = np.random.default_rng(0)
    for part in ("train", "valid", "test"):
        rows = getattr(job.split, part)
        rows = rows if part == "train" else rng.permutation(rows)[:NUM_ROWS]
        frame.loc[[int(job.usable.table.ids[row]) for row in rows], "split"] = part
    frame[frame["split"] != ""].to_csv(target, index=False)


class Watching:
    """As much of a `Watch` as fitting needs: accuracy."""

    metric, higher_is_better = "accuracy", True

    def score(self, rows, predictions: Predictions) -> float:
        return float(np.mean(rows.target() == predictions.values))

    def log(self, **event) -> None:
        pass


def choose(data: Path, weights: str) -> list[dict]:
    """The validation accuracy of every candidate, with and without calibration; the test rows are not looked at."""
    domain, family = parts_of(load_registry().get(RECIPE))
    reading = domain.read(data, Request(target="label", task="classification"))
    parts = reading.table.column("split").to_numpy()
    rows = {name: reading.table.take(np.flatnonzero(parts == name)) for name in ("train", "valid")}
    found = []
    for template, examples, names in product(TEMPLATES, EXAMPLES, NAMES):
        sets = {"options.weights": weights, "options.template": template, "train.examples": examples}
        sets |= {"options.names": names, "train.decide_rows": NUM_ROWS}
        job = prepare(RECIPE, data, request=Request(target="label"), wishes=Wishes(sets), fast=True)
        actual = family.build(job.plan).fit(rows["train"], rows["valid"], Watching())
        found.append({"sets": sets, **actual["validated"], "seconds": actual["seconds_train"]})
        print(json.dumps({**found[-1], "sets": [template, examples, names]}), flush=True)
    return found


def best(data: Path, weights: str) -> None:
    """Print the command of the candidate that validates best (the fewest examples among equals)."""
    found = choose(data, weights)
    top = max(found, key=lambda each: (max(each["none"], each["contextual"]), -each["sets"]["train.examples"]))
    words = " ".join(f"--set '{name}={json.dumps(value)}'" for name, value in top["sets"].items())
    print(f"zoo train {RECIPE} --data {data} --target label {words}")


if __name__ == "__main__":
    verb, *words = sys.argv[1:]
    {"split": lambda a, b: split(Path(a), Path(b)), "choose": choose, "best": lambda a, b: best(Path(a), b)}[verb](
        *words
    )
