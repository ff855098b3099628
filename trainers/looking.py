"""Looking into a training on request: where the time goes (train.profile), and what the layers put out
(train.watch_activations). Both cost time, and nothing when they are off."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from trainers.contract import JSON, Watch
from trainers.settings import Gradient

WAIT, WARM_UP, ACTIVE = 3, 2, 5
"""Steps before, steps traced and thrown away, steps traced and kept."""
NUM_ROWS = 25
SECONDS_BETWEEN_LOOKS = 10.0
MANY_DEAD = 0.5
"""Share of zeros of a layer from which it is named: half, as dead ReLUs are commonly counted."""
BYTES = 4


@contextlib.contextmanager
def profiled(settings: Gradient, watch: Watch, device: torch.device) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each step; writes profile/trace.json (for chrome://tracing) and profile/slowest.tsv
    into the run folder where the settings ask for it."""
    if not settings.profile or watch.rank > 0:
        yield lambda: None
        return
    from torch.profiler import ProfilerActivity, profile, schedule

    folder = watch.folder / "profile"
    folder.mkdir(parents=True, exist_ok=True)

    def write(trace: Any) -> None:
        trace.export_chrome_trace(str(folder / "trace.json"))
        (folder / "slowest.tsv").write_text(slowest(trace, device.type))
        watch.log(kind="profile", folder=str(folder))

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    steps = schedule(wait=WAIT, warmup=WARM_UP, active=ACTIVE, repeat=1)
    with profile(activities=kinds, schedule=steps, on_trace_ready=write, record_shapes=True, with_flops=True) as run:
        yield run.step


def slowest(trace: Any, device_type: str) -> str:
    """A table of the operations that took longest: calls, milliseconds, FLOP, FLOP per byte of their inputs."""

    def own_time(event: Any) -> float:
        return float(event.self_device_time_total if device_type == "cuda" else event.self_cpu_time_total)

    events = sorted(trace.key_averages(group_by_input_shape=True), key=own_time, reverse=True)[:NUM_ROWS]
    lines = ["operation\tshapes\tcalls\tmilliseconds\tflop\tflop_per_byte"]
    for event in events:
        size = BYTES * event.count * sum(_numel(shape) for shape in event.input_shapes or [])
        intensity = f"{event.flops / size:.2f}" if event.flops and size else ""
        cells = [event.key, event.input_shapes, event.count, f"{own_time(event) / 1000:.3f}", event.flops, intensity]
        lines.append("\t".join(str(cell) for cell in cells))
    return "\n".join(lines) + "\n"


def _numel(shape: Any) -> int:
    return int(torch.Size(shape).numel()) if shape and all(isinstance(side, int) for side in shape) else 0


@contextlib.contextmanager
def watched_activations(model: torch.nn.Module, settings: Gradient, watch: Watch) -> Iterator[Callable[[int], None]]:
    """Yield a function to call after each step; every ten seconds it writes what each layer put out in the coming step
    into activations.jsonl of the run folder, and logs the layer with most zeros."""
    if not settings.watch_activations or watch.rank > 0:
        yield lambda step: None
        return
    found: dict[str, JSON] = {}
    is_looking, looked_at = True, time.monotonic()

    def hook_of(name: str) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            if is_looking and module.training and isinstance(output, torch.Tensor) and output.is_floating_point():
                found[name] = statistics(output.detach())

        return hook

    def look(step: int) -> None:
        nonlocal is_looking, looked_at
        if found:
            write_statistics(watch, step, found)
            found.clear()
            is_looking, looked_at = False, time.monotonic()
        elif time.monotonic() - looked_at > SECONDS_BETWEEN_LOOKS:
            is_looking = True

    leaves = [(name, part) for name, part in model.named_modules() if name and not list(part.children())]
    handles = [part.register_forward_hook(hook_of(name)) for name, part in leaves]
    try:
        yield look
    finally:
        for handle in handles:
            handle.remove()


def statistics(output: torch.Tensor) -> JSON:
    """Mean, deviation, share of zeros, and share of units that are zero for every example of the micro-batch.

    output: (rows, units), (rows, length, units) or (rows, channels, height, width).
    """
    values = output.float()
    units = values.movedim(1, -1).flatten(0, -2) if values.ndim >= 4 else values.reshape(-1, values.shape[-1])
    return {
        "mean": float(values.mean()),
        "std": float(values.std(correction=0)),
        "zeros": float((values == 0).float().mean()),
        "dead": float((units == 0).all(0).float().mean()),
    }


def write_statistics(watch: Watch, step: int, found: dict[str, JSON]) -> None:
    """One line into activations.jsonl, and one event about the layer with most dead units."""
    with (watch.folder / "activations.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, "layers": found}) + "\n")
    worst = max(found, key=lambda name: found[name]["dead"])
    dead = found[worst]["dead"]
    watch.log(kind="activations", step=step, layers=len(found), most_dead=worst, dead_units=dead)
    if dead > MANY_DEAD:
        text = f"{dead:.0%} of the units of layer {worst} are zero for every example: lower the learning rate."
        watch.log(kind="warning", text=text)
