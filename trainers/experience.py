"""Forecasts beside what came of them: said before the first step, compared after the last, kept for the runs to come.

forecast.json   in the run folder: what was said
runs.jsonl      in the cache: a line for every run of this machine that had a forecast
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Experience:
    """How many times longer steps took than their operations alone, and how that is known."""

    factor: float
    source: str
    is_own: bool = False


def foretold(task: Task, parts: Parts, plan: Plan, valid: Any, watch: Watch) -> JSON:
    """What this training will take, also written down and logged; empty where it is small or cannot be said.

    Nothing that goes wrong here is a reason not to train.
    """
    settings, machine = Gradient.model_validate(plan.settings), plan.machine
    if not _is_worth_it(task, parts):
        return {}
    rows = valid.without_target() if hasattr(valid, "without_target") else valid
    began = time.monotonic()
    try:
        with torch.random.fork_rng():
            found = forecast(task, parts, settings, machine=machine, rows=rows, cache=watch.cache)
    except Exception as error:
        watch.log(kind="forecast", text=f"none: {type(error).__name__}: {' '.join(str(error).split())[:120]}")
        return {}
    step, shape = found["step"], shape_of(task, settings)
    known = learned(past_runs(watch.cache, machine), plan.recipe, shape, step["bound_seconds"])
    step |= {"factor": known.factor, "seconds": step["bound_seconds"] * known.factor, "source": known.source}
    step |= {"is_measured": known.is_own, "middling_tokens": parts.feed.middling_tokens()}
    found |= {"shape": shape, "batch_size": parts.feed.batch_size, "seconds_taken": time.monotonic() - began}
    with contextlib.suppress(OSError):
        write_json(watch.folder / FORECAST_FILE, found)
    gib = found["memory"]["peak_bytes"] / 2**30
    text = f"memory {gib:.2f} GiB at most, {step['seconds']:.3g} s a step ({known.source})"
    watch.log(kind="forecast", text=text, memory=found["memory"], time=step)
    return found


def shape_of(task: Task, settings: Gradient) -> str:
    """A print of what decides how fast a step is beside its size: the model's weights, and how they are trained."""
    weights = [(name, *each.shape, each.requires_grad) for name, each in task.model.named_parameters()]
    ways = [settings.precision, settings.optimizer, settings.channels_last, settings.checkpoint_activations]
    return hashlib.sha256(repr((weights, ways)).encode()).hexdigest()[:16]


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
        "typical_seconds": _typical_seconds(said["step"], actual),
        "bound_seconds": said["step"]["bound_seconds"],
        "factor": said["step"]["factor"],
        "flops": said["step"]["flops"],
        "shape": said["shape"],
        "batch_size": said["batch_size"],
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


def _typical_seconds(step: JSON, actual: JSON) -> float | None:
    """Of a middling step, also where a few steps were taken whose examples are of other sizes."""
    if step["middling_tokens"] and actual.get("seconds_per_token"):
        return float(step["middling_tokens"] * actual["seconds_per_token"])
    return actual.get("step_seconds")


def learned(runs: list[JSON], recipe: str, shape: str, bound_seconds: float) -> Experience:
    """What earlier runs make of a step's bound: one of the same recipe and shape, the nearest in size, the last of those;
    else several of the recipe, or of all recipes."""
    known = [each for each in runs if each.get("typical_seconds", each["step_seconds"]) and each["bound_seconds"]]
    if own := [each for each in known if each["recipe"] == recipe and each.get("shape") == shape]:
        distances = [abs(math.log(each["bound_seconds"] / bound_seconds)) for each in own]
        nearest = own[max(range(len(own)), key=lambda at: (-distances[at], at))]
        day = time.strftime("%Y-%m-%d", time.localtime(nearest["time"]))
        source = f"measured on this machine on {day} with batch {nearest['batch_size']}"
        return Experience(nearest["typical_seconds"] / nearest["bound_seconds"], source, True)
    alike = [each for each in known if each["recipe"] == recipe] or known
    factor = median([each["step_seconds"] / each["bound_seconds"] for each in alike[-FEW:]] or [1.0])
    return Experience(float(factor), "by roofline, off by a factor of 1 to 4; --measure takes a few steps")
