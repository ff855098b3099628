"""Hostile moments of training; see benchmarks/cases.py."""

import csv
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from case_bench import LONGEST_SECONDS, Bench, Check, Ended, lines_of, weights_differ

TABLE = "tabular/mlp"
NO_CHANCE = ("options.dropout=0", "train.precision=fp32", "train.compile=off")
LONG = ("train.steps=400", "train.epochs=null", "train.save_steps=5", "train.evaluations=4", "train.batch_size=8")


def accumulation(bench: Bench) -> None:
    fixed = (*NO_CHANCE, "train.steps=10", "train.epochs=null", "train.batch_size=8", "train.micro_batch_tokens=null")
    for rows in (8, 2):
        sets = (*fixed, f"train.micro_batch_size={rows}", "train.guard=false")
        ended = bench.train("text/full-finetune", bench.case / "train.jsonl", run=f"of{rows}", sets=sets)
        bench.see_code(ended, 0, f"{rows} rows at once")
    whole, parts = (_logged(bench, f"of{rows}", "loss") for rows in (8, 2))
    both = whole.keys() & parts.keys()  # a line a second, and one of the last step
    far = max(abs(whole[step] - parts[step]) for step in both)
    bench.see(10 in both and far < 1e-4, f"smoothed losses differ by {far:.1g} at {len(both)} steps")
    far = weights_differ(bench.work / "of8", bench.work / "of2")
    bench.see(far < 1e-4, f"weights differ by {far:.1g}")


def last_window(bench: Bench) -> None:
    """Nine rows train; two of them, repeated, stand for the other parts."""
    rows = lines_of(bench.case / "train.csv")
    parts = ["train"] * len(rows) + ["valid"] * 2 + ["test"] * 2
    data = _written(bench.work / "nine.csv", [*rows, *rows[:2], *rows[:2]], parts)
    fixed = (*NO_CHANCE, "train.batch_size=8", "train.lr=0.01", "train.guard=false", "train.keep=last")
    for at_once in (2, 8):
        sets = (*fixed, f"train.micro_batch_size={at_once}")
        ended = bench.train(TABLE, data, "--target", "y", "--epochs", "1", run=f"of{at_once}", sets=sets)
        bench.see_code(ended, 0, f"{at_once} rows at once")
    steps = [bench.json("actual.json", f"of{at_once}")["num_steps"] for at_once in (2, 8)]
    bench.see(steps == [2, 2], f"steps {steps}")
    far = weights_differ(bench.work / "of2", bench.work / "of8")
    bench.see(far < 1e-6, f"weights differ from those of batches of 8 and 1 by {far:.1g}")


def _written(path: Path, rows: list[dict[str, str]], parts: list[str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "split"])
        writer.writeheader()
        writer.writerows({**row, "split": part} for row, part in zip(rows, parts, strict=True))
    return path


def exact_resume(bench: Bench) -> None:
    arguments = ("--target", "y", "--seed", "1")
    bench.see_code(bench.train(TABLE, bench.case / "train.csv", *arguments, run="whole", sets=LONG), 0, "whole run")
    stopped = _stopped(
        bench, lambda: bench.train(TABLE, bench.case / "train.csv", *arguments, sets=LONG), signal.SIGTERM
    )
    bench.see_code(stopped, 75, "SIGTERM")
    killed = _stopped(bench, lambda: bench.zoo("resume", bench.work / "run"), signal.SIGKILL)
    bench.see(killed.code == -signal.SIGKILL, f"SIGKILL: {killed.code}")
    ended = bench.zoo("resume", bench.work / "run")
    bench.see_code(ended, 0, "resume")
    bench.see_named(ended, ["step"])
    far = weights_differ(bench.work / "whole", bench.work / "run")
    bench.see(far == 0, f"weights differ by {far:g}")
    whole, again = _logged(bench, "whole", "lr"), _logged(bench, "run", "lr")
    both = whole.keys() & again.keys()  # the steps of which both runs wrote a line
    bench.see(bool(both) and all(whole[step] == again[step] for step in both), f"rates are equal at {len(both)} steps")


def _logged(bench: Bench, run: str, name: str) -> dict[int, float]:
    """A figure by step, of the steps that were logged."""
    return {event["step"]: event[name] for event in bench.events(run) if event["kind"] == "step" and name in event}


def _stopped(bench: Bench, command: Callable[[], Ended], number: int) -> Ended:
    """Run the command, and send it a signal once it has gone on for some steps."""
    before = _last_step(bench.work / "run")

    def shoot() -> None:
        for _ in range(LONGEST_SECONDS * 50):
            if _last_step(bench.work / "run") > before + 5 and bench.process is not None:
                bench.process.send_signal(number)
                return
            time.sleep(0.02)

    threading.Thread(target=shoot, daemon=True).start()
    return command()


def _last_step(run: Path) -> int:
    return max((int(path.name.split("-")[1]) for path in run.rglob("step-*") if path.name[5:].isdigit()), default=0)


def batch_sizes(bench: Bench) -> None:
    data = bench.case / "train.csv"
    bench.see_code(bench.train(TABLE, data, "--target", "y", "--epochs", "1"), 0, "train")
    found = {}
    for rows in (1, 32, 33):
        ended = bench.zoo(
            *("evaluate", bench.work / "run", "--data", bench.case / "val.csv", "--json"),
            *("--set", f"train.eval_batch_size={rows}"),
        )
        found[rows] = {name: score["value"] for name, score in json.loads(ended.out)["scores"].items()}
    far = max(
        abs(found[33][name] - found[rows][name]) / max(1, abs(found[33][name])) for rows in found for name in found[33]
    )
    bench.see(far < 1e-6, f"scores of batches of 1, 32 and 33 differ by {far:.1g} (rmse {found[33]['rmse']:.4g})")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "zoo.cli")
    sets = ("train.steps=1", "train.epochs=null", "train.batch_size=16", "options.dropout=0", "train.precision=fp32")
    common = ["train", TABLE, "--data", data, "--target", "y"]
    for each in sets:
        common += ["--set", each]
    bench.see_code(bench.run(*torchrun, *common, "--out", bench.work / "two"), 0, "two processes")
    bench.see_code(bench.zoo(*common, "--out", bench.work / "one"), 0, "one process")
    one, two = (bench.json("metrics.json", run)["test"]["rmse"]["value"] for run in ("one", "two"))
    bench.see(abs(one - two) < 1e-6 * max(1, one), f"test rmse {one:.8g} and {two:.8g}")


def one_class(bench: Bench) -> None:
    rows, valid = lines_of(bench.case / "train.csv"), lines_of(bench.case / "val_one_class.csv")
    data = _written(bench.work / "parts.csv", [*rows, *valid], ["train"] * len(rows) + ["valid"] * len(valid))
    ended = bench.train(TABLE, data, "--target", "y", "--epochs", "2")
    bench.see_code(ended, 0, "train")
    auc = bench.json("metrics.json")["valid"]["auc"]  # NaN is no JSON, and refused
    bench.see(auc["value"] is None and "class" in auc["reason"], f"validation AUC {auc['value']}: {auc.get('reason')}")


def overflow(bench: Bench) -> None:
    sets = ("train.precision=fp16",)
    ended = bench.train(TABLE, bench.case / "train.csv", "--target", "y", "--epochs", "3", sets=sets)
    bench.see(ended.code in (0, 2, 5), f"huge column in fp16: exit {ended.code}")
    if ended.code:
        bench.see_named(ended, ["huge"])
    else:
        score = bench.json("metrics.json")["test"]["log_loss"]["value"]
        bench.see(score is not None and score < 5, f"log loss {score:.3g}, rows unharmed")
        bench.see_named(ended, ["huge"]) if "huge" in ended.err else None
    ended = bench.train(TABLE, bench.case / "spike.csv", "--target", "y", "--epochs", "3", run="spike")
    bench.see(ended.code in (0, 5), f"outlier: exit {ended.code}")
    events = bench.events("spike") if (bench.work / "spike/events.jsonl").exists() else []
    num = sum(event["kind"] == "rollback" for event in events)
    bench.see(num <= 3, f"{num} rollbacks")


CHECKS: dict[str, Check] = {
    "trainer/01-grad-accum-equivalence": accumulation,
    "trainer/02-partial-last-window": last_window,
    "trainer/03-resume-is-exact": exact_resume,
    "trainer/06-val-loss-weighting": batch_sizes,
    "trainer/07-one-class-validation": one_class,
    "trainer/08-overflow-and-outliers": overflow,
}
