"""A small T5 from scratch on Multi30k: can it learn 32 pairs by heart, and does it translate after ten minutes?

    python benchmarks/seq2seq.py overfit --data multi30k
    python benchmarks/seq2seq.py translate --data multi30k --seconds 600

multi30k: the folder with train.de, train.en, val.*, test_2016_flickr.* (Elliott et al. 2016, arXiv 1605.00459).
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

import zoo
from domains.text.parallel_files import read_folder
from zoo.report import score_text

NUM_PAIRS, BLEU_TO_REACH = 32, 90.0
OPTIONS = {"options.weights": "random:3x256", "train.lr": 1e-3}


def main() -> None:
    arguments = _parser().parse_args()
    sys.exit(not {"overfit": overfit, "translate": translate}[arguments.what](arguments))


def overfit(arguments: argparse.Namespace) -> bool:
    """Train on 32 pairs, and ask for the same; the other rows are there because a run needs them."""
    frame = read_folder(Path(arguments.data)).frame
    parts = {name: frame[frame["split"] == name] for name in ("train", "valid", "test")}
    known = parts["train"].head(NUM_PAIRS)
    data = pd.concat([known, parts["valid"].head(8), parts["test"].head(8)])
    sets = {**OPTIONS, "options.dropout": 0.0, "train.keep": "last", "train.evaluations": 1}
    run = _trained(data, set=sets, epochs=arguments.epochs)
    scores = run.evaluate(known, target="en")
    print(
        f"BLEU on the {NUM_PAIRS} pairs it was trained on: {score_text(scores['bleu'])} (target: above {BLEU_TO_REACH})"
    )
    return bool(scores["bleu"]["value"] > BLEU_TO_REACH)


def translate(arguments: argparse.Namespace) -> bool:
    """Train on all pairs for a time, and compare with copying on the test part."""
    run = _trained(arguments.data, set={**OPTIONS, "train.batch_size": 64}, budget=arguments.seconds)
    metrics = run.metrics
    for name, scores in {"model": metrics["test"], **metrics["baseline"]}.items():
        print(name, {metric: score_text(score) for metric, score in scores.items()})
    return bool(metrics["test"]["bleu"]["value"] > metrics["baseline"]["copy"]["bleu"]["high"])


def _trained(data: Any, **more: Any) -> Any:
    folder = tempfile.mkdtemp()
    names = {"columns": {"source": "de"}, "target": "en"}
    return zoo.train("text/seq2seq", data, **names, out=f"{folder}/run", fast=True, say=print, **more)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overfit", "translate"))
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=float, default=150)
    parser.add_argument("--seconds", type=float, default=600)
    return parser


if __name__ == "__main__":
    main()
