"""Training pictures per CPU-second: ours, decoded once into a cache and decoded each time, against timm's own loader.

    python benchmarks/picture_loading.py cifar10-18k.tar --side 128 --pictures 3000 --pairs 5

All give normalised float batches of the same random boxes (at least 70 % of the area) and mirroring at one size, from the same
JPEG files in the same number, on one thread and without workers: what a picture costs, whichever core pays. timm:
`create_dataset` on class folders and `create_loader`. Ours: `draw` of images/cnn-finetune, then `normalised`. What filling the
cache costs is printed apart. The three alternate, and which begins changes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from domains.contract import Facts, Request
from domains.images import data
from domains.images.cnn import Options
from domains.images.labelled import FILE
from domains.images.shelf import Shelf, shelve
from domains.images.task import Examples, PictureTask
from domains.shared.timm_backbone import build_network, find_backbone, normalised, picture_config
from trainers.outcome import fit_outcome

NETWORK, SCALE = "test_efficientnet", 0.7
STORED_MARGIN = 8 / 7


def main() -> None:
    """Measure, pair by pair."""
    arguments = _parser().parse_args()
    torch.set_num_threads(1)
    rows = data.read(arguments.data, Request(task="classification")).table
    rows = rows.take(np.random.default_rng(0).permutation(len(rows))[: arguments.pictures])
    task, config = _task(rows, arguments.side)
    paths = [Path(rows.context["root"]) / file for file in rows.column(FILE)]
    targets = task.outcome.encoded(rows.target())
    with tempfile.TemporaryDirectory() as folder:
        began, side = time.process_time(), round(arguments.side * STORED_MARGIN)
        cached = shelve(paths, side, Path(folder), num_bytes=1)
        print(json.dumps({"filling the cache": round(len(paths) / (time.process_time() - began))}), flush=True)
        sides: dict[str, Callable[[], Iterator[Any]]] = {
            "cached": lambda: _ours(task, Examples(cached, targets), arguments.batch),
            "uncached": lambda: _ours(task, Examples(Shelf(paths, side, None), targets), arguments.batch),
            "timm": lambda: _timms(paths, config, arguments.side, arguments.batch),
        }
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for pair in range(arguments.pairs):
            for name in sides if pair % 2 else reversed(sides):
                rates[name].append(_rate(sides[name]))
            print(json.dumps({name: round(found[-1]) for name, found in rates.items()}), flush=True)
    for name in ("cached", "uncached"):
        ratios = [one / other for one, other in zip(rates[name], rates["timm"], strict=True)]
        median = statistics.median(ratios)
        print(f"{name} / timm: median {median:.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


def _rate(batches: Callable[[], Iterator[Any]]) -> float:
    """Pictures per CPU-second."""
    began, num = time.process_time(), 0
    for pictures in batches():
        num += len(pictures)
    return num / (time.process_time() - began)


def _task(rows: Any, side: int) -> tuple[PictureTask, dict[str, Any]]:
    found = find_backbone(NETWORK, "none")
    config = picture_config(found, side=side, crop_pct=1.0)
    facts: Facts = data.describe(rows, "classification", Request())
    fitted = {"backbone": found.as_json(), "pictures": config}
    fitted["outcome"] = fit_outcome(rows.target(), facts.classes).as_json()
    options = Options(network=NETWORK, weights="none", scale=SCALE)
    return PictureTask(build_network(found.as_json(), facts.num_outputs), options, facts, fitted), config


def _ours(task: PictureTask, examples: Examples, size: int) -> Iterator[torch.Tensor]:
    for start in range(0, len(examples), size):
        these = range(start, min(start + size, len(examples)))
        rngs = [np.random.default_rng([0, 0, i]) for i in these]
        yield normalised(task.draw([examples[i] for i in these], rngs).inputs[0], task.config)


def _timms(paths: list[Path], config: dict[str, Any], side: int, size: int) -> Iterator[torch.Tensor]:
    from timm.data import create_loader
    from timm.data.dataset import ImageDataset

    dataset: Any = ImageDataset(str(paths[0].parents[1]))
    dataset.reader.samples = [(str(path), 0) for path in paths]  # the same pictures, whichever part they are of
    loader = create_loader(
        dataset,
        input_size=(3, side, side),
        batch_size=size,
        is_training=True,
        use_prefetcher=False,
        no_aug=False,
        scale=(SCALE, 1.0),
        ratio=(3 / 4, 4 / 3),
        hflip=0.5,
        color_jitter=None,
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        num_workers=0,
        device=torch.device("cpu"),
        persistent_workers=False,
    )
    for pictures, _ in loader:
        yield pictures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="class folders of JPEG files, also packed")
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--pictures", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=5)
    return parser


if __name__ == "__main__":
    main()
