"""Fine-tuning a BERT-like encoder: tokens per CPU-second of the zoo's own path against transformers' Trainer.

    python benchmarks/encoder_classify.py --data ag_news_7600.csv --target label --probe        # the peer's best setting
    python benchmarks/encoder_classify.py --data ag_news_7600.csv --target label --rows 1600 --peer-rows R
    python benchmarks/encoder_classify.py --data ag_news_7600.csv --target label --pairs 1 --epochs 2 --peer-rows R

Needs `pip install accelerate`. Both sides start from the same pretrained encoder (`--weights`, the demo's MiniLM) under the
same head (mean over tokens, dropout, one linear layer), and take as many steps of as many examples of the same split, with
fused AdamW, one rate for all, warm-up, cosine, clipping at 1 and bfloat16. The Trainer groups by length, pads to the longest
of its batch, logs and saves nothing. `--peer-rows` and `--peer-attention` are its micro-batch and attention: `--probe` times
short runs of it in all of them, and the best is what the zoo is compared with. The zoo runs `loop.train` with its guard on
and micro-batches as registry.yaml sets them; it saves nothing either.

Only training is timed, in CPU-seconds of all threads (one, unless said): start-up, reading, cutting into tokens, splitting
and evaluation are apart on both sides, and so is a short run of each before. Tokens are those of the texts, start and end
included, padding not, and are the same for both. Sides alternate, so that a slow minute of the machine hits both. The
validation scores are called equal when the zoo's mean is at most TOLERANCE below the Trainer's.
"""

import argparse
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

from domains.contract import Request
from domains.metrics import classification_metrics, interval, point
from domains.shared.pooled import mean_state
from domains.splits import make_split
from domains.text import data, encoder
from domains.text.encoder_weights import find, without_pooler
from trainers.checkpoint import Snapshots
from trainers.contract import Machine, Plan
from trainers.distributed import ALONE
from trainers.gradient import EvaluationBatch, predict_rows, seeded
from trainers.loop import train
from trainers.settings import Gradient

TARGET_RATIO = 1.3
TOLERANCE = 0.01
"""Of accuracy: about one standard error of it on 1,100 validation rows."""
WARM_UP_STEPS, PROBE_STEPS = 2, 6
PROBED_ROWS, PROBED_ATTENTION = (4, 8, 16, 32), ("sdpa", "eager")


def main() -> None:
    arguments = _parser().parse_args()
    torch.set_num_threads(arguments.threads)
    tables, plan = _prepared(arguments)
    if arguments.probe:
        _probe(tables["train"], plan, arguments)
        return
    for side in SIDES.values():
        side(_first(tables["train"], WARM_UP_STEPS, arguments), plan, arguments)
    runs = [
        _pair(number, tables, plan, arguments) for number in range(arguments.first, arguments.first + arguments.pairs)
    ]
    ratios = sorted(pair["zoo"]["rate"] / pair["trainer"]["rate"] for pair in runs)
    median = statistics.median(ratios)
    print(f"ratio: median {median:.3f}, range {ratios[0]:.3f} to {ratios[-1]:.3f} (target: at least {TARGET_RATIO})")
    is_equal = _compare_scores(runs)
    sys.exit(median < TARGET_RATIO or not is_equal)


def _probe(rows: Any, plan: Plan, arguments: argparse.Namespace) -> None:
    """Time short runs of the Trainer in every micro-batch and attention, once there and once back."""
    few = _first(rows, PROBE_STEPS, arguments)
    settings = [(size, kind) for kind in arguments.probed for size in PROBED_ROWS]
    _trainer(_first(rows, WARM_UP_STEPS, arguments), plan, arguments)
    for size, kind in (*settings, *reversed(settings)):
        arguments.peer_rows, arguments.peer_attention = size, kind
        _, spent, num_tokens = _trainer(few, plan, arguments)
        print(f"trainer, {size:2} rows, {kind:5}: {num_tokens / spent['seconds']:.0f} tokens a CPU-s", flush=True)


def _first(rows: Any, num_steps: int, arguments: argparse.Namespace) -> Any:
    return rows.take(range(min(len(rows), num_steps * arguments.batch_size)))


def _compare_scores(runs: list[dict[str, Any]]) -> bool:
    """Print the validation scores; whether the zoo's mean is within the tolerance."""
    scores = {side: np.array([pair[side]["score"] for pair in runs]) for side in SIDES}
    for side in SIDES:
        loss = statistics.mean(pair[side]["loss"] for pair in runs)
        print(f"{side}: validation accuracy {scores[side].mean():.4f}, log loss {loss:.4f}")
    difference = float((scores["zoo"] - scores["trainer"]).mean())
    print(f"difference {difference:+.4f} (tolerance {TOLERANCE})")
    return difference >= -TOLERANCE


def _pair(number: int, tables: dict[str, Any], plan: Plan, arguments: argparse.Namespace) -> dict[str, Any]:
    pair = {}
    for side in SIDES if number % 2 else reversed(SIDES):
        found = _run(side, tables, replace(plan, seed=number), arguments)
        pair[side] = {**found, "rate": found["tokens"] / found["seconds"]}
        low, high = found["interval"]
        print(
            f"pair {number + 1} {side}: {found['tokens']:,} tokens, {found['seconds']:.1f} CPU-s "
            f"({found['system']:.1f} in the kernel), {pair[side]['rate']:.0f} a CPU-s, "
            f"accuracy {found['score']:.4f} ({low:.4f}-{high:.4f}), log loss {found['loss']:.4f}",
            flush=True,
        )
    return pair


# --- one run ---------------------------------------------------------------------------------------------------------


def _run(side: str, tables: dict[str, Any], plan: Plan, arguments: argparse.Namespace) -> dict[str, Any]:
    task, spent, num_tokens = SIDES[side](tables["train"], plan, arguments)
    valid = tables["valid"]
    batch = EvaluationBatch(arguments.batch_size)
    found = predict_rows(task, valid.without_target(), Gradient(**plan.settings), plan, batch, ALONE)
    metrics = {metric.name: metric for metric in classification_metrics(plan.facts["classes"])}
    accuracy, loss = (point(metrics[name], valid.target(), found) for name in ("accuracy", "log_loss"))
    stats = metrics["accuracy"].stats(valid.target(), found)
    between = interval(metrics["accuracy"], stats, np.arange(len(valid)))
    return {**spent, "tokens": num_tokens, "score": accuracy, "loss": loss, "interval": between}


def _prepared(arguments: argparse.Namespace) -> tuple[dict[str, Any], Plan]:
    request = Request(target=arguments.target, task="classification")
    reading = data.read(arguments.data, request)
    split = make_split(data.keys(reading.table, reading.task, request, fast=True), len(reading.table), seed=0)
    shuffled = np.random.default_rng(0).permutation
    rows = {"train": shuffled(split.train)[: arguments.rows], "valid": shuffled(split.valid)[: arguments.valid_rows]}
    tables = {name: reading.table.take(chosen) for name, chosen in rows.items()}
    facts = data.describe(reading.table.take(split.train), reading.task, request)
    options = encoder.Options(weights=arguments.weights, max_tokens=arguments.max_tokens)
    settings = Gradient(
        epochs=arguments.epochs,
        batch_size=arguments.batch_size,
        micro_batch_tokens=arguments.micro_batch_tokens,
        lr=arguments.lr,
        warmup=0.1,
        weight_decay=0.0,
        precision="bf16",
        evaluations=1,
    )
    machine = Machine(cores=arguments.threads, bf16=True)
    shared = ("text/encoder-classify", "text", reading.task, "", options.model_dump(), settings.model_dump())
    return tables, Plan(*shared, facts.as_json(), machine)


def _fresh_task(rows: Any, plan: Plan) -> Any:
    learner = encoder.build(plan)
    with seeded(plan.seed):
        return learner.make_task(learner.compute_statistics(rows), True)


class CutOnce:
    """A task whose examples are made before the clock starts, as the Trainer's are."""

    def __init__(self, task: Any, examples: Any) -> None:
        self.task, self.made = task, examples

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def examples(self, rows: Any, folder: Path) -> Any:
        return self.made


def _zoo(rows: Any, plan: Plan, arguments: argparse.Namespace) -> tuple[Any, dict[str, float], int]:
    task, settings = _fresh_task(rows, plan), Gradient(**plan.settings)
    examples = task.examples(rows, Path())
    with tempfile.TemporaryDirectory() as folder:
        watch = Silence(Path(folder))
        snapshots = Snapshots(watch.folder / "checkpoints", watch.log)
        snapshots.write = lambda *state: None  # type: ignore[method-assign]
        fixed: Any = {"machine": plan.machine, "seed": plan.seed, "watch": watch, "evaluate": None, "ranks": ALONE}
        cut: Any = CutOnce(task, examples)
        with seeded(plan.seed):
            spent = cpu_spent(lambda: train(cut, rows, settings, snapshots=snapshots, snapshot=None, **fixed))
    return task, spent, _num_tokens(examples, arguments)


def _num_tokens(examples: Any, arguments: argparse.Namespace) -> int:
    return sum(len(numbers) for numbers, _ in examples) * arguments.epochs


# --- the peer --------------------------------------------------------------------------------------------------------


class PlainModel(nn.Module):
    """transformers' encoder under the zoo's head, as one would write it for the Trainer."""

    def __init__(self, network: nn.Module, head: nn.Linear, dropout: float) -> None:
        super().__init__()
        self.encoder, self.head, self.dropout = network, head, nn.Dropout(dropout)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.head(self.dropout(mean_state(states, attention_mask.bool()))).float()
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def _trainer(rows: Any, plan: Plan, arguments: argparse.Namespace) -> tuple[Any, dict[str, float], int]:
    from transformers import AutoModel, PrinterCallback, Trainer

    task = _fresh_task(rows, plan)
    load: Any = AutoModel.from_pretrained
    folder = find(plan.options["weights"]).path
    network = without_pooler(load(folder, dtype=torch.float32, attn_implementation=arguments.peer_attention))
    for part in network.modules():  # as the zoo has it: dropout before the head alone
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    model = PlainModel(network, task.model.head, plan.options["dropout"])
    examples = task.examples(rows, Path())
    with tempfile.TemporaryDirectory() as output:
        trainer = Trainer(
            model=model,
            args=peer_arguments(output, plan, arguments),
            train_dataset=[{"input_ids": torch.from_numpy(numbers), "labels": y} for numbers, y in examples],
            data_collator=lambda batch: _collated(batch, task.tokenizer.pad),
        )
        trainer.remove_callback(PrinterCallback)
        spent = cpu_spent(trainer.train)
    missing = task.model.load_state_dict(model.state_dict(), strict=False).missing_keys
    assert not missing, missing
    return task, spent, _num_tokens(examples, arguments)


def _collated(batch: list[dict[str, Any]], pad: int) -> dict[str, Tensor]:
    rows = [row["input_ids"].long() for row in batch]
    lengths = torch.tensor([len(row) for row in rows])
    numbers = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    is_token = torch.arange(numbers.shape[1]) < lengths[:, None]
    labels = torch.from_numpy(np.array([row["labels"] for row in batch]))
    return {"input_ids": numbers, "attention_mask": is_token.long(), "labels": labels}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--weights", default="demo")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed of the first pair; even ones begin with the Trainer")
    parser.add_argument("--rows", type=int, help="training rows; all if not given")
    parser.add_argument("--valid-rows", type=int, help="validation rows; all if not given")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32, help="examples a step, on both sides")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1, help="with more, waiting blurs CPU-seconds")
    parser.add_argument("--micro-batch-tokens", type=int, default=8192, help="the zoo's; registry.yaml")
    parser.add_argument("--peer-rows", type=int, default=32, help="examples at once")
    parser.add_argument("--peer-attention", default="sdpa", choices=PROBED_ATTENTION)
    parser.add_argument("--probed", nargs="+", default=PROBED_ATTENTION, choices=PROBED_ATTENTION)
    parser.add_argument("--probe", action="store_true", help="time the Trainer's micro-batches and attentions, and end")
    return parser


SIDES = {"zoo": _zoo, "trainer": _trainer}

if __name__ == "__main__":
    main()
