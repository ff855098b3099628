"""What embedding once saves: CPU-seconds of encoding once and twenty epochs of head, against encoding every epoch.

    python benchmarks/embed_once.py --data deeploc.csv --target location --rows 200

Start-up, reading and splitting are left out of both. "Every epoch" is measured on one epoch and multiplied: each epoch
costs the same. Weights are random, which changes no time.
"""

import argparse
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from domains.contract import Request
from domains.proteins import data, esm2_embed
from trainers.contract import Plan
from trainers.embed import VectorCache, embedded
from trainers.settings import Embed

NUM_EPOCHS = 20
TARGET_SHARE = 1 / 15


class Silence:
    """A watch that keeps its files in a folder and says nothing."""

    metric, higher_is_better, rank, world = "accuracy", True, 0, 1

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder / "run", folder / "cache"

    def score(self, rows: Any, predictions: Any) -> None: ...
    def log(self, **event: Any) -> None: ...
    def should_stop(self) -> None: ...


def main() -> None:
    arguments = _parser().parse_args()
    train, plan = _prepared(arguments)
    learner = esm2_embed.build(plan)
    learner.encoder.encode(train.take([0]))  # start-up: the network is loaded here
    with tempfile.TemporaryDirectory() as name:
        started = time.process_time()
        learner.fit(train, None, Silence(Path(name)))
        once = time.process_time() - started
    started = time.process_time()
    with closing(VectorCache(None)) as cache:
        embedded(train, learner.encoder, cache, num_tokens=learner.settings.encode_tokens)
    epoch = time.process_time() - started
    share = once / (NUM_EPOCHS * epoch)
    print(f"once and {NUM_EPOCHS} epochs of head: {once:.1f} CPU-s, of which encoding about {epoch:.1f}")
    print(f"encoding in each of {NUM_EPOCHS} epochs: {NUM_EPOCHS * epoch:.1f} CPU-s")
    print(f"share {share:.4f} = 1/{1 / share:.1f} (at most {TARGET_SHARE:.4f})")
    raise SystemExit(share > TARGET_SHARE)


def _prepared(arguments: argparse.Namespace) -> tuple[Any, Plan]:
    request = Request(target=arguments.target)
    reading = data.read(arguments.data, request)
    bad = {row.position for row in reading.bad}
    good = [i for i in range(len(reading.table)) if i not in bad]
    step = max(1, len(good) // arguments.rows)
    train = reading.table.take(good[::step][: arguments.rows])
    facts = data.describe(train, reading.task, request)
    options = esm2_embed.Options(weights=arguments.weights).model_dump()
    settings = Embed.model_validate({"head": {"epochs": NUM_EPOCHS, "precision": "fp32", "compile": "off"}})
    plan = Plan(
        "proteins/esm2-embed-head", "proteins", reading.task, "", options, settings.model_dump(), facts.as_json()
    )
    return train, plan


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--weights", default="random:6x320")
    return parser


if __name__ == "__main__":
    main()
