"""Fine-tuning ESM-2: residues per CPU-second of the zoo's own path against transformers' Trainer.

    python benchmarks/esm_finetune.py --rows 640 --peer-rows 4 --data beta_lactamase_fitness.csv --target fitness
    python benchmarks/esm_finetune.py --rows 640 --peer-rows 1 --data deeploc.csv --target location

Needs `pip install accelerate`. Both sides start from one random checkpoint of ESM-2 8M's shape (6 x 320, 20 heads) under
the same head (mean over residues, dropout, one linear layer), and take as many steps of as many examples of the same
split, with fused AdamW, the same rate, warm-up, cosine, clipping at 1 and bfloat16. The Trainer groups by length, pads to
the longest of its batch and logs nothing; neither side saves. `--peer-rows`, `--peer-attention` and `--peer-multiple` are its
micro-batch, attention and padding: eager attention was the fastest found, with 4 rows at once on TEM-1 and 1 on DeepLoc.
The zoo runs `loop.train` with its guard on and
micro-batches as registry.yaml sets them.

Only training is timed, in CPU-seconds of all threads; start-up, reading, splitting and evaluation are apart, and so is one
short run of each side before. Every epoch takes every training row (or `--rows` of them, drawn once), so both learn on the
same residues. Sides alternate, so that a slow minute of the machine hits both. The validation scores are called equal when
the zoo's mean over the pairs is at most TOLERANCE below the Trainer's; beside it stands the 95 % bootstrap interval of that
difference over the validation rows, the same rows for both. `--results` keeps each pair in a file and sums up all in it, so
that a race can be run in parts (`--first`).
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from trainer_peer import Silence, cpu_spent, peer_arguments

from domains.contract import Metric, Request
from domains.metrics import point
from domains.proteins import data, esm2_finetune
from domains.shared.esm import empty_encoder, pool_tokens
from domains.shared.proteins.esm2 import PAD, esm2_config, tokens
from domains.splits import make_split
from trainers.checkpoint import Snapshots
from trainers.contract import Machine, Plan, Predictions
from trainers.distributed import ALONE
from trainers.gradient import EvaluationBatch, predict_rows, seeded
from trainers.loop import train
from trainers.settings import Gradient

TARGET_RATIO = 1.4
TOLERANCE = 0.02
"""Of accuracy or Spearman's correlation: about one standard error of either on the 400 to 800 validation rows."""
NUM_RESAMPLES = 1000
WARM_UP_STEPS = 2
LAYERS, WIDTH, HEADS = 6, 320, 20


def main() -> None:
    arguments = _parser().parse_args()
    torch.set_num_threads(arguments.threads)
    runs = _kept(arguments.results)
    with tempfile.TemporaryDirectory() as folder:
        _make_checkpoint(Path(folder))
        tables, plan = _prepared(arguments, folder)
        num_rows = len(tables["train"])
        for side in SIDES.values():
            side(tables["train"].take(range(min(num_rows, WARM_UP_STEPS * arguments.batch_size))), plan, arguments)
        for number in range(arguments.first, arguments.first + arguments.pairs):
            runs.append(_pair(number, tables, plan, arguments))
            _keep(arguments.results, runs[-1])
    ratios = sorted(pair["zoo"]["rate"] / pair["trainer"]["rate"] for pair in runs)
    median = statistics.median(ratios)
    print(f"ratio: median {median:.3f}, range {ratios[0]:.3f} to {ratios[-1]:.3f} (target: at least {TARGET_RATIO})")
    is_equal = _compare_scores(runs, arguments.metric)
    sys.exit(median < TARGET_RATIO or not is_equal)


def _kept(file: Path | None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file and file.exists() else []


def _keep(file: Path | None, pair: dict[str, Any]) -> None:
    if file:
        with file.open("a") as lines:
            lines.write(json.dumps(pair) + "\n")


def _compare_scores(runs: list[dict[str, Any]], metric: Metric) -> bool:
    """Print the validation scores; whether the zoo's mean is within the tolerance."""
    for side in ("zoo", "trainer"):
        found = [pair[side]["score"] for pair in runs]
        loss = statistics.mean(pair[side]["loss"] for pair in runs)
        spread = f"{min(found):.4f} to {max(found):.4f}"
        print(f"{side}: validation {metric.name} {statistics.mean(found):.4f} ({spread}), loss {loss:.4f}")
    stats = [(np.array(pair["zoo"]["stats"]), np.array(pair["trainer"]["stats"])) for pair in runs]
    num_rows = len(stats[0][0])
    difference = _mean_difference(stats, metric, np.arange(num_rows))
    rng = np.random.default_rng(0)
    drawn = [_mean_difference(stats, metric, rng.integers(num_rows, size=num_rows)) for _ in range(NUM_RESAMPLES)]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    print(f"difference {difference:+.4f}, 95 % over {num_rows} rows {low:+.4f} to {high:+.4f} (tolerance {TOLERANCE})")
    return difference >= -TOLERANCE


def _mean_difference(stats: list[tuple[np.ndarray, np.ndarray]], metric: Metric, rows: np.ndarray) -> float:
    """The zoo's score less the Trainer's on these rows, mean over the pairs."""
    return float(np.mean([metric.value(ours[rows]) - metric.value(theirs[rows]) for ours, theirs in stats]))


def _pair(number: int, tables: dict[str, Any], plan: Plan, arguments: argparse.Namespace) -> dict[str, Any]:
    pair = {}
    for side in SIDES if number % 2 else reversed(SIDES):
        found = _run(side, tables, replace(plan, seed=number), arguments)
        pair[side] = {**found, "rate": found["residues"] / found["seconds"]}
        print(
            f"pair {number + 1} {side}: {found['residues']:,} residues, {found['seconds']:.1f} CPU-s "
            f"({found['system']:.1f} in the kernel), {pair[side]['rate']:.0f} a CPU-s, "
            f"{found['metric']} {found['score']:.4f}, loss {found['loss']:.4f}",
            flush=True,
        )
    return pair


def _make_checkpoint(folder: Path) -> None:
    with seeded(0):
        empty_encoder(esm2_config(layers=LAYERS, width=WIDTH, heads=HEADS)).save_pretrained(folder)  # type: ignore[operator]


# --- one run ---------------------------------------------------------------------------------------------------------


def _run(side: str, tables: dict[str, Any], plan: Plan, arguments: argparse.Namespace) -> dict[str, Any]:
    task, spent, num_residues = SIDES[side](tables["train"], plan, arguments)
    valid, batch = tables["valid"], EvaluationBatch(arguments.batch_size)
    found = predict_rows(task, valid.without_target(), Gradient(**plan.settings), plan, batch, ALONE)
    truth, metric = valid.target(), arguments.metric
    value, loss = point(metric, truth, found), _loss(truth, found, plan)
    score = float("nan") if value is None else value  # a rank correlation of equal predictions is undefined
    stats = metric.stats(truth, found).tolist()
    return {**spent, "residues": num_residues, "metric": metric.name, "score": score, "loss": loss, "stats": stats}


def _prepared(arguments: argparse.Namespace, weights: str) -> tuple[dict[str, Any], Plan]:
    request = Request(target=arguments.target)
    reading = data.read(arguments.data, request)
    bad = {row.position for row in reading.bad}
    table = reading.table.take([i for i in range(len(reading.table)) if i not in bad])
    split = make_split(data.keys(table, reading.task, request, fast=True), len(table), seed=0)
    shuffled = np.random.default_rng(0).permutation
    limits = {"train": arguments.rows, "valid": arguments.valid_rows}
    tables: dict[str, Any] = {
        name: table.take(shuffled(getattr(split, name))[:limit]) for name, limit in limits.items()
    }
    facts = data.describe(table.take(split.train), reading.task, request)
    arguments.metric = data.metrics(facts)[0]
    options = esm2_finetune.Options(weights=weights, max_residues=arguments.max_residues)
    settings = {
        "epochs": arguments.epochs,
        "batch_size": arguments.batch_size,
        "micro_batch_tokens": arguments.micro_batch_tokens,
        "lr": arguments.lr,
        "weight_decay": 0.0,
        "precision": "bf16",
        "evaluations": 1,
    }
    machine = Machine(cores=arguments.threads, bf16=True)
    shared = ("proteins/esm2-finetune", "proteins", reading.task, "", options.model_dump())
    return tables, Plan(*shared, Gradient(**settings).model_dump(), facts.as_json(), machine)


def _loss(truth: np.ndarray, found: Predictions, plan: Plan) -> float:
    """Cross entropy in nats, or squared error as a share of the truth's variance."""
    if found.scores is None:
        return float(np.square(np.asarray(truth, float) - found.values).mean() / np.var(np.asarray(truth, float)))
    position = {name: i for i, name in enumerate(plan.facts["classes"])}
    right = found.scores[np.arange(len(truth)), [position[str(name)] for name in truth]]
    return float(-np.log(np.clip(right, 1e-12, None)).mean())


def _fresh_task(train_rows: Any, plan: Plan) -> Any:
    learner = esm2_finetune.build(plan)
    with seeded(plan.seed):
        return learner.make_task(learner.compute_statistics(train_rows), True)


def _zoo(rows: Any, plan: Plan, arguments: argparse.Namespace) -> tuple[Any, dict[str, float], int]:
    task, settings = _fresh_task(rows, plan), Gradient(**plan.settings)
    num_residues = sum(min(len(sequence), arguments.max_residues) for sequence in rows.column("sequence"))
    with tempfile.TemporaryDirectory() as folder:
        watch = Silence(Path(folder))
        snapshots = Snapshots(watch.folder / "checkpoints", watch.log)
        snapshots.write = lambda *state: None  # type: ignore[method-assign]
        fixed: Any = {"machine": plan.machine, "seed": plan.seed, "watch": watch, "evaluate": None, "ranks": ALONE}
        with seeded(plan.seed):
            spent = cpu_spent(lambda: train(task, rows, settings, snapshots=snapshots, snapshot=None, **fixed))
    return task, spent, num_residues * arguments.epochs


# --- the peer --------------------------------------------------------------------------------------------------------


class PlainModel(nn.Module):
    """transformers' EsmModel under the zoo's head, as one would write it for the Trainer; counts residues it learns on."""

    def __init__(self, encoder: nn.Module, head: nn.Linear, dropout: float) -> None:
        super().__init__()
        self.encoder, self.head, self.dropout, self.num_residues = encoder, head, nn.Dropout(dropout), 0

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        is_residue = input_ids > 3
        self.num_residues += int(is_residue.sum())
        logits = self.head(self.dropout(pool_tokens(states, is_residue))).float()
        if labels.is_floating_point():
            return {"loss": functional.mse_loss(logits.squeeze(1), labels), "logits": logits}
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def _trainer(rows: Any, plan: Plan, arguments: argparse.Namespace) -> tuple[Any, dict[str, float], int]:
    from transformers import EsmModel, PrinterCallback, Trainer

    task = _fresh_task(rows, plan)
    load: Any = EsmModel.from_pretrained
    encoder = load(plan.options["weights"], add_pooling_layer=False, attn_implementation=arguments.peer_attention)
    model = PlainModel(encoder, task.model.head, plan.options["dropout"])
    examples = [_encoded(sequence, target, arguments.max_residues) for sequence, target in task.examples(rows, Path())]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=peer_arguments(folder, plan, arguments),
            train_dataset=examples,
            data_collator=lambda batch: _collated(batch, arguments.peer_multiple),
        )
        trainer.remove_callback(PrinterCallback)
        spent = cpu_spent(trainer.train)
    missing = task.model.load_state_dict(model.state_dict(), strict=False).missing_keys
    assert not missing, missing
    return task, spent, model.num_residues


def _encoded(sequence: str, target: Any, max_residues: int) -> dict[str, Any]:
    return {"input_ids": tokens([sequence], max_residues=max_residues)[0][0], "labels": target}


def _collated(batch: list[dict[str, Any]], multiple: int) -> dict[str, Tensor]:
    rows = [row["input_ids"] for row in batch]
    numbers = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    numbers = functional.pad(numbers, (0, -numbers.shape[1] % multiple), value=PAD)
    labels = torch.from_numpy(np.array([row["labels"] for row in batch]))
    return {"input_ids": numbers, "attention_mask": (numbers != PAD).long(), "labels": labels}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed of the first pair")
    parser.add_argument("--results", type=Path, help="file that keeps the pairs, one a line")
    parser.add_argument("--rows", type=int, help="training rows; all if not given")
    parser.add_argument("--valid-rows", type=int, help="validation rows; all if not given")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16, help="examples a step, on both sides")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--max-residues", type=int, default=1022)
    parser.add_argument("--threads", type=int, default=1, help="with more, waiting blurs CPU-seconds")
    parser.add_argument("--micro-batch-tokens", type=int, default=8192, help="the zoo's; registry.yaml")
    parser.add_argument("--peer-rows", type=int, help="examples at once; the whole step if not given")
    parser.add_argument("--peer-attention", default="eager", choices=["sdpa", "eager"])
    parser.add_argument("--peer-multiple", type=int, default=1, help="pad_to_multiple_of")
    return parser


SIDES = {"zoo": _zoo, "trainer": _trainer}

if __name__ == "__main__":
    main()
