"""Our loop with muon+adamw against transformers' Trainer with tuned AdamW: CPU-seconds to the same validation loss.

    pip install accelerate        # what the Trainer needs; no dependency of this project
    python benchmarks/gpt_cpu.py tune-theirs --data tinyshakespeare.txt      # and tune-ours
    python benchmarks/gpt_cpu.py race --data tinyshakespeare.txt
    python benchmarks/gpt_cpu.py cost --data tinyshakespeare.txt

Size of nanoGPT's recipe for a CPU (https://github.com/karpathy/nanoGPT): 4 layers, width 128, 4 heads, 64 characters,
batches of 12, 2,000 steps. Both sides train the same model (domains.text.gpt) from the same start on windows drawn
anywhere in the first nine tenths of the file, in bf16 autocast, with gradients clipped at 1, on one thread.
Validation: mean nats a character over all windows of the last tenth side by side, in float32, by one function, after
training.

tune-theirs: on seed 0, one setting at a time from GRIDS, keeping what lowers the validation loss, with 500 steps a
trial; then the rate, its half and its quarter with all 2,000 steps. Its rate decays to 0 over its steps.
tune-ours: on seed 0 the rate of the matrices alone, three values, 500 steps a trial. All else is what the optimizer's
table of rates says. THEIRS and OURS below hold what came out.
race: seeds 1, 2, 3, untouched by tuning. The target of a seed is what the Trainer reaches at the end of its 2,000 steps;
ours has half as many, fixed before the first race, with a whole schedule, and must end at most there. A seed that misses
its target is lost whatever its time. Counted are the CPU-seconds of `Trainer.train()` and of `learner.fit()` with the
snapshot at its end; left out are evaluation, imports, making model and Trainer, and 20 steps of each to warm up.
cost: fused AdamW with the same settings on both sides, alternating pairs; CPU-seconds a step from step 50 to the last,
nothing evaluated.

The Trainer is at its best: no logging, saving, reporting or progress bar, no workers, batches made by one gather, decay
for matrices only, fused AdamW. Ours runs as a recipe would: guard, snapshots, step lines.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from domains.text import gpt
from trainers.contract import Batch, Plan
from trainers.gradient import GradientLearner

LENGTH, BATCH, NUM_THEIR_STEPS = 64, 12, 2000
NUM_OUR_STEPS, NUM_SEARCH_STEPS = 1000, 500
TUNING_SEED, SEEDS = 0, (1, 2, 3)
TARGET_RATIO, TARGET_COST = 0.8, 1.05

THEIRS: dict[str, Any] = {
    "lr": 4e-3,
    "beta2": 0.95,
    "schedule": "linear",
    "warmup": 0.0,
    "weight_decay": 0.1,
    "precision": "bf16",
}
OURS: dict[str, Any] = {"lr": 0.02, "schedule": "trapezoid", "warmdown": 0.5, "precision": "bf16"}

Grid = Sequence[tuple[str, Sequence[Any]]]
GRIDS: dict[str, Grid] = {
    "theirs": (
        ("lr", (1e-3, 2e-3, 4e-3, 8e-3)),
        ("beta2", (0.99, 0.95, 0.999)),
        ("schedule", ("cosine", "linear")),
        ("warmup", (0.05, 0.0)),
        ("weight_decay", (0.1, 0.0)),
    ),
    "ours": (("lr", (0.01, 0.02, 0.04)),),
}


@dataclass(frozen=True)
class Corpus:
    """Characters as numbers. train: (N,).   valid: (windows, LENGTH + 1), side by side."""

    train: torch.Tensor
    valid: torch.Tensor
    vocab_size: int

    def __len__(self) -> int:
        return len(self.train) - LENGTH

    def windows(self, starts: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Characters and the ones that follow them, (rows, LENGTH) each."""
        every = self.train[torch.tensor(starts)[:, None] + torch.arange(LENGTH + 1)]
        return every[:, :-1], every[:, 1:]


def read_corpus(path: str) -> Corpus:
    """The first nine tenths to train on, the last for validation."""
    text = Path(path).read_text(encoding="utf-8")
    place = {character: at for at, character in enumerate(sorted(set(text)))}
    every = torch.tensor([place[character] for character in text])
    train, rest = every[: int(0.9 * len(every))], every[int(0.9 * len(every)) :]
    return Corpus(train, rest.unfold(0, LENGTH + 1, LENGTH), len(place))


def fresh_model(corpus: Corpus, seed: int) -> gpt.GPT:
    """The model of both sides; `windows`: so short a context is seen whole."""
    torch.manual_seed(seed)
    return gpt.GPT(gpt.GPTConfig(corpus.vocab_size, LENGTH, depth=4, width=128, num_heads=4, windows="L"))


@torch.no_grad()
def validation_loss(model: gpt.GPT, corpus: Corpus) -> float:
    """Mean nats a character over all validation windows."""
    model.eval()
    parts = [gpt.losses(model(rows[:, :-1]), rows[:, 1:])["cross_entropy"] for rows in corpus.valid.split(256)]
    return float(sum(parts)) / corpus.valid[:, 1:].numel()


class Stopwatch:
    """The processor's time at the start of every step, and of the whole."""

    def __init__(self) -> None:
        self.laps: list[float] = []

    def lap(self) -> None:
        self.laps.append(time.process_time())

    def per_step(self, first: int) -> float:
        """CPU-seconds a step from step number `first` to the last."""
        return (self.laps[-1] - self.laps[first]) / (len(self.laps) - 1 - first)


@dataclass(frozen=True)
class Trained:
    model: gpt.GPT
    cpu_seconds: float
    watch: Stopwatch


class CharTask:
    """The inner contract of our loop: windows of characters."""

    couples_rows, min_rows = False, 1

    def __init__(self, model: gpt.GPT, corpus: Corpus) -> None:
        self.model, self.corpus = model, corpus

    def roles(self) -> Mapping[str, Any]:
        return gpt.roles(self.model)

    def examples(self, train: Corpus, folder: Path) -> Sequence[int]:
        return range(len(train))

    def sizes(self, examples: Sequence[int]) -> None:
        """All windows are as long."""

    def draw(self, examples: Sequence[int], rngs: Any) -> Batch:
        return Batch(self.corpus.windows(examples), {"cross_entropy": float(LENGTH * len(examples))})

    def loss(self, model: nn.Module, inputs: tuple[torch.Tensor, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return gpt.losses(model(inputs[0]), inputs[1])


class Silence:
    """A watch that only looks at the processor's time."""

    metric, higher_is_better, rank, world = "loss", False, 0, 1

    def __init__(self, folder: Path, watch: Stopwatch) -> None:
        self.folder, self.cache, self.watch = folder, folder, watch

    def score(self, rows: Any, predictions: Any) -> None: ...
    def log(self, **event: Any) -> None: ...
    def should_stop(self) -> None:
        self.watch.lap()


def train_ours(corpus: Corpus, seed: int, num_steps: int, settings: Mapping[str, Any]) -> Trained:
    """The zoo's loop. settings: beyond batch, steps and precision; the optimizer's own defaults fill the rest."""
    base = {
        "optimizer": "muon+adamw",
        "steps": num_steps,
        "batch_size": BATCH,
        "compile": "off",
    }
    plan = Plan("text/gpt", "text", "generation", "", {}, {**base, **settings}, {}, seed=seed)
    model, watch = fresh_model(corpus, seed), Stopwatch()
    learner = GradientLearner(plan, lambda train: {}, lambda *_: CharTask(model, corpus))
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        learner.fit(corpus, None, Silence(Path(folder), watch))
        return Trained(model, time.process_time() - began, watch)


class WithLoss(nn.Module):
    """A model as the Trainer takes it: the mean loss comes out."""

    def __init__(self, model: gpt.GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.model(input_ids).flatten(0, 1), labels.flatten())}


class Windows(torch.utils.data.Dataset):
    """Batches at once (`__getitems__`), so that nothing is left to collate."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def __len__(self) -> int:
        return len(self.corpus)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([at])

    def __getitems__(self, starts: Sequence[int]) -> dict[str, torch.Tensor]:
        tokens, following = self.corpus.windows(starts)
        return {"input_ids": tokens, "labels": following}


def train_theirs(corpus: Corpus, seed: int, num_steps: int, settings: Mapping[str, Any]) -> Trained:
    """transformers' Trainer with fused AdamW."""
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    class Laps(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            watch.lap()

    model, watch = fresh_model(corpus, seed), Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=num_steps,
            per_device_train_batch_size=BATCH,
            learning_rate=settings["lr"],
            lr_scheduler_type=settings["schedule"],
            warmup_steps=settings["warmup"] * num_steps,
            max_grad_norm=1.0,
            bf16=settings["precision"] == "bf16",
            seed=seed,
            use_cpu=True,
            logging_strategy="no",
            save_strategy="no",
            eval_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_num_workers=0,
            dataloader_pin_memory=False,
            remove_unused_columns=False,
        )
        trainer = Trainer(
            model=WithLoss(model),
            args=arguments,
            train_dataset=Windows(corpus),
            data_collator=lambda batch: batch,
            optimizers=(their_adamw(model, settings), None),
            callbacks=[Laps()],
        )
        trainer.remove_callback(PrinterCallback)
        began = time.process_time()
        trainer.train()
        return Trained(model, time.process_time() - began, watch)


def their_adamw(model: nn.Module, settings: Mapping[str, Any]) -> torch.optim.AdamW:
    """As nanoGPT has it: what has two dimensions decays."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": settings["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings["lr"], betas=(0.9, settings["beta2"]), fused=True)


Train = Callable[[Corpus, int, int, Mapping[str, Any]], Trained]


def searched(train: Train, corpus: Corpus, num_steps: int, fixed: dict[str, Any], grid: Grid) -> dict[str, Any]:
    """Settings found one at a time: of each, the value with the lowest validation loss; the later ones stand at their
    first values meanwhile. fixed: settings that are not searched."""
    best = {**fixed, **{name: values[0] for name, values in grid}}
    known: dict[str, float] = {}

    def loss_of(settings: dict[str, Any]) -> float:
        if str(settings) not in known:
            trained = train(corpus, TUNING_SEED, num_steps, settings)
            known[str(settings)] = loss = validation_loss(trained.model, corpus)
            print(f"  {loss:.4f} nats  {trained.cpu_seconds:6.1f} CPU-s  {num_steps} steps  {settings}", flush=True)
        return known[str(settings)]

    for name, values in grid:
        base = best
        best = min(({**base, name: value} for value in values), key=loss_of)
    return best


def tune_theirs(corpus: Corpus, arguments: argparse.Namespace) -> bool:
    """Search with NUM_SEARCH_STEPS, then at full length among the rate found, its half and its quarter."""
    found = searched(train_theirs, corpus, NUM_SEARCH_STEPS, THEIRS, GRIDS["theirs"])
    rates = [found["lr"] * share for share in (1, 0.5, 0.25)]
    print(f"best: {searched(train_theirs, corpus, NUM_THEIR_STEPS, found, [('lr', rates)])}")
    return True


def tune_ours(corpus: Corpus, arguments: argparse.Namespace) -> bool:
    """Search with NUM_SEARCH_STEPS."""
    print(f"best: {searched(train_ours, corpus, NUM_SEARCH_STEPS, OURS, GRIDS['ours'])}")
    return True


def race(corpus: Corpus, arguments: argparse.Namespace) -> bool:
    """Both sides on seeds that tuning never saw; True where ours reaches every target in few enough CPU-seconds."""
    ratios, reached = [], []
    for seed in arguments.seeds:
        sides = {
            "theirs": lambda seed=seed: train_theirs(corpus, seed, NUM_THEIR_STEPS, THEIRS),
            "ours": lambda seed=seed: train_ours(corpus, seed, NUM_OUR_STEPS, OURS),
        }
        trained = {name: sides[name]() for name in (list(sides) if seed % 2 else reversed(sides))}
        losses = {name: validation_loss(each.model, corpus) for name, each in trained.items()}
        ratios.append(trained["ours"].cpu_seconds / trained["theirs"].cpu_seconds)
        reached.append(losses["ours"] <= losses["theirs"])
        print(f"seed {seed}: ratio {ratios[-1]:.3f}, target {'reached' if reached[-1] else 'MISSED'}")
        for name, each in trained.items():
            print(f"  {name}: {losses[name]:.4f} nats, {each.cpu_seconds:.1f} CPU-s", flush=True)
    median = statistics.median(ratios)
    print(f"ratio: median {median:.3f}, range {min(ratios):.3f}-{max(ratios):.3f} (target: at most {TARGET_RATIO})")
    return median <= TARGET_RATIO and all(reached)


def cost(corpus: Corpus, arguments: argparse.Namespace) -> bool:
    """CPU-seconds a step at the same optimizer."""
    same = {"optimizer": "adamw", "lr": THEIRS["lr"], "betas": (0.9, THEIRS["beta2"]), "precision": arguments.precision}
    sides = {
        "ours": lambda: train_ours(corpus, 0, arguments.steps, same),
        "theirs": lambda: train_theirs(corpus, 0, arguments.steps, {**THEIRS, "precision": arguments.precision}),
    }
    ratios = []
    for number in range(arguments.pairs):
        order = list(sides) if number % 2 else list(reversed(sides))
        spent = {name: 1000 * sides[name]().watch.per_step(50) for name in order}
        ratios.append(spent["ours"] / spent["theirs"])
        print(f"pair {number + 1}: ours {spent['ours']:.2f} ms a step, theirs {spent['theirs']:.2f}", flush=True)
    median = statistics.median(ratios)
    print(f"ratio: median {median:.3f}, range {min(ratios):.3f}-{max(ratios):.3f} (target: at most {TARGET_COST})")
    return median <= TARGET_COST


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tune-theirs", "tune-ours", "race", "cost"))
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="of race")
    parser.add_argument("--pairs", type=int, default=7, help="of cost")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16", help="of cost")
    parser.add_argument("--steps", type=int, default=300, help="of cost, a run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    corpus = read_corpus(arguments.data)
    for train, settings in ((train_ours, OURS), (train_theirs, THEIRS)):  # imports, allocator, kernels
        train(corpus, TUNING_SEED, 20, settings)
    is_won = {"tune-theirs": tune_theirs, "tune-ours": tune_ours, "race": race, "cost": cost}[arguments.what](
        corpus, arguments
    )
    sys.exit(not is_won)


if __name__ == "__main__":
    main()
