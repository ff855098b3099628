"""What the races against transformers' Trainer share: a silent watch, a clock of CPU-seconds, and the Trainer's arguments."""

import argparse
import os
import time
from pathlib import Path
from typing import Any

from trainers.contract import Plan


class Silence:
    """A watch that keeps its files in a folder and says nothing."""

    metric, higher_is_better, rank, world = "score", True, 0, 1

    def __init__(self, folder: Path) -> None:
        self.folder = self.cache = folder

    def score(self, rows: Any, predictions: Any) -> None: ...
    def log(self, **event: Any) -> None: ...
    def should_stop(self) -> None: ...


def cpu_spent(run: Any) -> dict[str, float]:
    """CPU-seconds of `run`, all threads, and those of them in the kernel."""
    before, began = os.times(), time.process_time()
    run()
    return {"seconds": time.process_time() - began, "system": os.times().system - before.system}


def peer_arguments(folder: str, plan: Plan, arguments: argparse.Namespace) -> Any:
    """The Trainer's: fused AdamW, cosine, clipping at 1, bfloat16, grouped by length; it logs and saves nothing."""
    from transformers import TrainingArguments

    rows = arguments.peer_rows or arguments.batch_size
    assert arguments.batch_size % rows == 0, "--peer-rows must divide --batch-size"
    return TrainingArguments(
        output_dir=folder,
        num_train_epochs=arguments.epochs,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=arguments.batch_size // rows,
        train_sampling_strategy="group_by_length",
        learning_rate=plan.settings["lr"],
        lr_scheduler_type="cosine",
        warmup_steps=plan.settings["warmup"],
        weight_decay=0.0,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        bf16=True,
        use_cpu=True,
        seed=plan.seed,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
