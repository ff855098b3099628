"""Forecasts beside what came of them: said before the first step, compared after the last, kept for the runs to come.

forecast.json   in the run folder: what was said
runs.jsonl      in the cache: a line for every run of this machine that had a forecast
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from trainers.checkpoint import write_json
from trainers.contract import JSON, Machine, Plan, Task, Watch
from trainers.forecast import forecast, input_bytes, peak_bytes
from trainers.parts import Parts
from trainers.peak import machine_key
from trainers.settings import Gradient
from trainers.trace import num_bytes

FORECAST_FILE, RUNS_FILE = "forecast.json", "runs.jsonl"
WORTH_BYTES = 2 << 20
"""Of weights and a batch: what is smaller fits everywhere, and a forecast would take longer than many such trainings."""
FEW = 8
"""So many of the last runs of a recipe tell what operations alone do not."""


def foretold(task: Task, parts: Parts, plan: Plan, valid: Any, watch: Watch) -> JSON:
    """What this training will take, also written down and logged; empty where it is small or cannot be said.

    Nothing that goes wrong here is a reason not to train.
    """
    settings, machine = Gradient.model_validate(plan.settings), plan.machine
    if not _is_worth_it(task, parts):
        return {}
    rows = valid.without_target() if hasattr(valid, "without_target") else valid
    factor = learned_factor(past_runs(watch.cache, machine), plan.recipe)
    began = time.monotonic()
    try:
        with torch.random.fork_rng():
            found = forecast(task, parts, settings, machine=machine, rows=rows, cache=watch.cache, factor=factor)
    except Exception as error:
        watch.log(kind="forecast", text=f"none: {type(error).__name__}: {' '.join(str(error).split())[:120]}")
        return {}
    found["seconds_taken"] = time.monotonic() - began
    with contextlib.suppress(OSError):
        write_json(watch.folder / FORECAST_FILE, found)
    gib, seconds = found["memory"]["peak_bytes"] / 2**30, found["step"]["seconds"]
    text = f"memory {gib:.2f} GiB at most, {seconds:.3g} s a step"
    watch.log(kind="forecast", text=text, memory=found["memory"], time=found["step"])
    return found


def _is_worth_it(task: Task, parts: Parts) -> bool:
    weights = sum(num_bytes(each) for each in task.model.parameters())
    # Drawing a batch may be slow, and is not asked for where the weights decide.
    return weights >= WORTH_BYTES or weights + sum(map(input_bytes, parts.feed.drawn(0).batches[:1])) >= WORTH_BYTES


def gained(said: JSON, actual: JSON, plan: Plan, watch: Watch) -> JSON:
    """For actual.json: the peak of memory while training, and the forecast; the two also go to the machine's past runs."""
    peak = peak_bytes(plan.machine.device)
    if not said or not peak:
        return {"peak_training_bytes": peak or None}
    told = {"forecast_memory_bytes": said["memory"]["peak_bytes"], "forecast_step_seconds": said["step"]["seconds"]}
    line = {
        "time": round(time.time(), 1),
        "recipe": plan.recipe,
        "machine": machine_key(plan.machine),
        "run": str(Path(watch.folder).absolute()),
        "num_steps": actual["num_steps"],
        "peak_training_bytes": peak,
        "step_seconds": actual.get("step_seconds"),
        "bound_seconds": said["step"]["bound_seconds"],
        "factor": said["step"]["factor"],
        **told,
    }
    watch.log(kind="forecast", text=comparison(line))
    with contextlib.suppress(OSError):
        watch.cache.mkdir(parents=True, exist_ok=True)
        with (watch.cache / RUNS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return {"peak_training_bytes": peak, **told}


def comparison(line: JSON) -> str:
    """What was said and what came, in one line: memory of the process (of tensors on a GPU) and the median step."""
    said, was = line["forecast_memory_bytes"], line["peak_training_bytes"]
    text = f"memory planned {said / 2**30:.2f} GiB, actual {was / 2**30:.2f} GiB ({said / was - 1:+.0%})"
    if not line["step_seconds"]:
        return text
    said, was = line["forecast_step_seconds"], line["step_seconds"]
    return f"{text}; a step planned {said:.3g} s, actual {was:.3g} s ({said / was - 1:+.0%})"


def past_runs(cache: Path, machine: Machine | None = None) -> list[JSON]:
    """The lines of this cache, the oldest first; of one machine where it is named."""
    try:
        lines = (cache / RUNS_FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # a line that a kill cut off
            found.append(json.loads(line))
    return [each for each in found if machine is None or each["machine"] == machine_key(machine)]


def learned_factor(runs: list[JSON], recipe: str) -> float:
    """How many times longer steps took than their operations alone: of this recipe, else of all; 1 without experience."""
    known = [each for each in runs if each["step_seconds"] and each["bound_seconds"]]
    own = [each for each in known if each["recipe"] == recipe] or known
    return float(median([each["step_seconds"] / each["bound_seconds"] for each in own[-FEW:]] or [1.0]))
