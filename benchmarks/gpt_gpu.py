"""What share of a GPU's peak GPT-2 124M reaches in our loop, eager and compiled, and in transformers' compiled Trainer.

    pip install accelerate                             # what the Trainer needs; no dependency of this project
    python benchmarks/gpt_gpu.py                       # one CUDA GPU with 40 GB or --batch 4; at most eight minutes
    python benchmarks/gpt_gpu.py --device cpu --tiny   # the same code on a tiny model: shows that it runs, no more

No GPU was at hand when this was written: only the second form has been run.

Every side trains transformers' GPT2LMHeadModel, made from its config, on rows of 1,024 random tokens (they change no
time), in bf16 autocast with fused AdamW, clipped at 1. `ours` and `Trainer, our loss` call the network without labels
and take the cross entropy inside the compiled part; `Trainer` gives labels, as its users do. Timed are the steps after
WARM_STEPS, compiling and warming up left out, from one wait for the device to the next.

FLOP a token: 6 N + 12 * layers * width * T, with N without position embeddings (Chowdhery et al. 2022, arXiv 2204.02311,
appendix B); the share is of a large bf16 product of matrices measured in the same run, and, where the card is known, of
its data sheet. Targets: ours compiled at least 0.5 of that product, and 1.1 times the compiled Trainer.
"""

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from trainers.contract import Batch, Machine, Plan, Role
from trainers.gradient import GradientLearner

WARM_STEPS = 15
SHEET_TFLOPS = {"H200": 989.5, "H100": 989.5, "A100": 312.0, "4090": 165.0, "L4": 121.0}
"""Dense bf16, from the makers' data sheets; H100 and H200 are the SXM ones."""
MEMORY_BYTES_A_GIB = 1 << 30
TARGET_SHARE, TARGET_RATIO = 0.5, 1.1


@dataclass(frozen=True)
class Job:
    """What all sides share."""

    config: GPT2Config
    rows: torch.Tensor
    batch: int
    num_steps: int
    device: str

    def model(self) -> nn.Module:
        """The network of every side, from the same start."""
        torch.manual_seed(0)
        return GPT2LMHeadModel(self.config)

    def flop_per_token(self) -> float:
        config, model = self.config, self.model()
        num_counted = sum(p.numel() for p in model.parameters()) - config.n_positions * config.n_embd
        return 6 * num_counted + 12 * config.n_layer * config.n_embd * config.n_positions


class WithLoss(nn.Module):
    """The network with its cross entropy, summed: one graph, in which casting and normalising fuse."""

    def __init__(self, network: nn.Module, *, is_mean: bool) -> None:
        super().__init__()
        self.network, self.is_mean = network, is_mean

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.network(input_ids, use_cache=False).logits[:, :-1].flatten(0, 1)
        how = "mean" if self.is_mean else "sum"
        return {"loss": nn.functional.cross_entropy(logits.float(), labels[:, 1:].flatten(), reduction=how)}


class Clock:
    """Seconds a step, from the start of step WARM_STEPS to that of the last one, the device waited for at both."""

    def __init__(self, device: str, num_steps: int) -> None:
        self.device, self.last, self.step = device, num_steps - 1, 0
        self.marks: list[float] = []

    def lap(self) -> None:
        if self.step in (WARM_STEPS, self.last):
            if self.device == "cuda":
                torch.cuda.synchronize()
            self.marks.append(time.perf_counter())
        self.step += 1

    @property
    def seconds_per_step(self) -> float:
        return (self.marks[1] - self.marks[0]) / (self.last - WARM_STEPS)


class TokenRows:
    """The inner contract of our loop: rows of tokens."""

    couples_rows, min_rows = False, 1

    def __init__(self, job: Job) -> None:
        self.model, self.rows = WithLoss(job.model(), is_mean=False), job.rows

    def roles(self) -> Mapping[str, Role]:
        return {name: Role("matrix" if p.ndim == 2 else "scalar") for name, p in self.model.named_parameters()}

    def examples(self, train: Any, folder: Path) -> Sequence[int]:
        return range(len(train))

    def sizes(self, examples: Sequence[int]) -> None: ...

    def draw(self, examples: Sequence[int], rngs: Any) -> Batch:
        rows = self.rows[torch.tensor(examples)]
        return Batch(rows, {"loss": float(rows[:, 1:].numel())})

    def loss(self, model: nn.Module, inputs: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return model(inputs, inputs)


class Silence:
    """A watch that starts the clock at every step, and repeats warnings: a failed compile must not stay unseen."""

    metric, higher_is_better, rank, world = "loss", False, 0, 1

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.cache, self.clock = folder, folder, clock

    def score(self, rows: Any, predictions: Any) -> None: ...

    def log(self, **event: Any) -> None:
        if event["kind"] == "warning":
            print(f"  {event['text']}")

    def should_stop(self) -> None:
        self.clock.lap()


def ours(job: Job, compile_policy: str) -> float:
    """Seconds a step of our loop."""
    settings = {"optimizer": "adamw", "lr": 6e-4, "betas": (0.9, 0.95), "weight_decay": 0.1, "steps": job.num_steps}
    settings |= {"batch_size": job.batch, "precision": "bf16", "compile": compile_policy, "evaluations": 1}
    plan = Plan("text/gpt2", "text", "generation", "", {}, settings, {}, Machine(job.device, bf16=True))
    clock = Clock(job.device, job.num_steps)
    learner = GradientLearner(plan, lambda train: {}, lambda *_: TokenRows(job))
    with tempfile.TemporaryDirectory() as folder:
        done = learner.fit(job.rows, None, Silence(Path(folder), clock))
    print(f"  loss {done['train_loss']:.3f}, {done['compiled_graphs']} compiled graphs")
    return clock.seconds_per_step


def theirs(job: Job, *, with_our_loss: bool) -> float:
    """Seconds a step of transformers' Trainer, compiled."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    clock = Clock(job.device, job.num_steps)

    class Laps(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock.lap()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=job.num_steps,
            per_device_train_batch_size=job.batch,
            learning_rate=6e-4,
            adam_beta2=0.95,
            weight_decay=0.1,
            optim="adamw_torch_fused",
            max_grad_norm=1.0,
            bf16=True,
            tf32=True if job.device == "cuda" else None,
            torch_compile=True,
            use_cpu=job.device == "cpu",
            logging_strategy="no",
            save_strategy="no",
            eval_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=job.device == "cuda",
            remove_unused_columns=False,
        )
        model = WithLoss(job.model(), is_mean=True) if with_our_loss else job.model()
        data = [{"input_ids": row, "labels": row} for row in job.rows]
        done = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Laps()]).train()
    print(f"  loss {done.training_loss:.3f}")
    return clock.seconds_per_step


def product_tflops(device: str, size: int) -> float:
    """TFLOP/s of a bf16 product of square matrices: the best of ten tries."""
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    seconds = []
    for _ in range(13):
        began = time.perf_counter()
        left @ right
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds[3:]) / 1e12


def measured(job: Job, run: Callable[[], float]) -> tuple[float, float]:
    """Tokens a second, and GiB of memory at the peak; what it leaves behind is cleared."""
    if job.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    tokens_per_second = job.batch * job.config.n_positions / run()
    peak = torch.cuda.max_memory_allocated() / MEMORY_BYTES_A_GIB if job.device == "cuda" else float("nan")
    torch._dynamo.reset()
    gc.collect()
    if job.device == "cuda":
        torch.cuda.empty_cache()
    return tokens_per_second, peak


def main() -> None:
    arguments = _parser().parse_args()
    job, name = _job(arguments), torch.cuda.get_device_name(0) if arguments.device == "cuda" else "CPU"
    product = product_tflops(job.device, 512 if arguments.tiny else 8192)
    sheet = next((tflops for part, tflops in SHEET_TFLOPS.items() if part in name), float("nan"))
    sides: dict[str, Callable[[], float]] = {
        "ours, eager": lambda: ours(job, "off"),
        "ours, compiled": lambda: ours(job, "on"),
        "Trainer, our loss, compiled": lambda: theirs(job, with_our_loss=True),
        "Trainer, compiled": lambda: theirs(job, with_our_loss=False),
    }
    sides = {side: run for side, run in sides.items() if arguments.only in side}
    print(f"{name}, torch {torch.__version__}; product of matrices {product:.1f} TFLOP/s, data sheet {sheet}")
    speeds = {}
    for side, run in sides.items():
        print(side, flush=True)
        speeds[side] = measured(job, run)
    print("| side | tokens/s | TFLOP/s | of the product | of the data sheet | peak GiB |\n|---|---|---|---|---|---|")
    shares = {}
    for side, (speed, peak) in speeds.items():
        tflops = speed * job.flop_per_token() / 1e12
        shares[side] = tflops / product
        print(f"| {side} | {speed:,.0f} | {tflops:.3g} | {shares[side]:.3f} | {tflops / sheet:.3f} | {peak:.1f} |")
    if arguments.only:
        return
    ratio = speeds["ours, compiled"][0] / speeds["Trainer, compiled"][0]
    print(f"ours to the Trainer, both compiled: {ratio:.3f} (target {TARGET_RATIO}); of the product {TARGET_SHARE}")
    sys.exit(not arguments.tiny and (ratio < TARGET_RATIO or shares["ours, compiled"] < TARGET_SHARE))


def _job(arguments: argparse.Namespace) -> Job:
    # 50,304: the vocabulary of 50,257 filled up to a multiple of 64, for all sides.
    size = {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 64, "vocab_size": 256} if arguments.tiny else {}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(**{"n_positions": 1024, "vocab_size": 50304, **ends, **dropout, **size})
    generator = torch.Generator().manual_seed(0)
    batch, num_steps = (2, WARM_STEPS + 11) if arguments.tiny else (arguments.batch, arguments.steps)
    # As many as are drawn: a new epoch would cost either side something that has nothing to do with the card.
    rows = torch.randint(0, config.vocab_size, (num_steps * batch, config.n_positions), generator=generator)
    return Job(config, rows, batch, num_steps, arguments.device)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, to see that everything runs")
    parser.add_argument("--only", default="", help="sides whose name holds this: eager, ours, Trainer, ...")
    parser.add_argument("--batch", type=int, default=16, help="rows of 1,024 tokens a step")
    parser.add_argument("--steps", type=int, default=100, help="of each side, WARM_STEPS of them untimed")
    return parser


if __name__ == "__main__":
    main()
