"""Progressive resizing against one size: CPU-seconds and test accuracy after equal steps, images/cnn-finetune.

    python benchmarks/growing_pictures.py cifar10-18k.tar --train 1200 --epochs 4 --seeds 0 1

Pictures are drawn from the archive's own train and test folders (a fifth as many as train for validation, 1,000 for the test),
ImageNet weights of EfficientNet-Lite0 at 128 pixels; both arms take the same pictures and steps, on one thread. CPU-seconds are
those of the whole run, the linear probe and all evaluations included, which cost both arms alike.
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import zoo

NUM_TEST = 1000


def main() -> None:
    """Both arms for each seed, one line each."""
    arguments = _parser().parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(arguments.data) as bundle:
        bundle.extractall(folder, filter="data")
        for seed in arguments.seeds:
            table = Path(folder) / f"pictures-{seed}.csv"
            _rows(Path(folder), arguments.train, seed).to_csv(table, index=False)
            for first in (None, arguments.first) if seed % 2 else (arguments.first, None):
                print(json.dumps(_trained(table, first, arguments.epochs, seed)), flush=True)


def _rows(root: Path, num_train: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    parts = {"train": num_train, "valid": num_train // 5, "test": NUM_TEST}
    files: dict[str, list[Path]] = {part: sorted(root.glob(f"*/{part}/*/*.jpg")) for part in ("train", "test")}
    train = [files["train"][at] for at in rng.permutation(len(files["train"]))]
    test = [files["test"][at] for at in rng.permutation(len(files["test"]))]
    chosen = {
        "train": train[:num_train],
        "valid": train[num_train : num_train + parts["valid"]],
        "test": test[:NUM_TEST],
    }
    rows = [(str(path.relative_to(root)), path.parent.name, part) for part in parts for path in chosen[part]]
    return pd.DataFrame(rows, columns=["path", "class", "split"])


def _trained(table: Path, first: float | None, epochs: int, seed: int) -> dict[str, Any]:
    sets = {"options.weights": "demo", "options.progressive": first, "train.epochs": epochs, "options.image_size": 128}
    with tempfile.TemporaryDirectory() as out:
        run = zoo.train("images/cnn-finetune", table, target="class", set=sets, seed=seed, out=Path(out) / "run")
        actual = json.loads((run.folder / "actual.json").read_text())
        names = ("num_steps", "cpu_seconds", "seconds_train", "samples_per_second", "num_skipped_steps")
        score = run.metrics["test"]["accuracy"]["value"]
        return {"first": first, "seed": seed, "test accuracy": score, **{name: actual[name] for name in names}}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a tar of train/CLASS and test/CLASS folders with JPEG files")
    parser.add_argument("--train", type=int, default=1200)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--first", type=float, default=0.5, help="options.progressive of the one arm")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    return parser


if __name__ == "__main__":
    main()
