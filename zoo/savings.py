"""What would make a training smaller: every saving forecast alone, and the first combination that fits the machine.

What changes the passes is traced anew; what only shares out or shrinks states is arithmetic on the terms of the forecast.
Heavy: imports torch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from trainers.contract import JSON
from trainers.errors import DoesNotFitError
from trainers.settings import SHARDED_OPTIMIZERS
from zoo.forecasts import forecast_of
from zoo.job import Job
from zoo.plan import with_settings

SHARED = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "averages_bytes")
"""What FSDP splits among processes."""
SHARE_OF_8_BIT = (1 + 4 / 256) / 4
"""Of AdamW's float32 states: a byte a number, and a float32 scale for 256 of them. Source: Dettmers et al. 2021, arXiv
2110.02861, section 2."""
PROCESSES = (2, 8)


@dataclass(frozen=True)
class Saving:
    """A way to need less, and the peak of memory with it. how: what to add to the command line."""

    name: str
    how: str
    peak_bytes: int


Peak = Callable[[JSON], int | None]
"""From settings and options by their paths to the peak in bytes; None where they do not go with this training."""


def report_of(job: Job, forecast: JSON) -> JSON:
    """Each saving alone, and the first combination below the machine's memory (None where nothing has to be saved)."""
    terms, limit = forecast["memory"], job.plan.machine.memory_bytes
    choices = sets_of(job.plan.settings, job.plan.options)
    peak = _peaks(job)
    singles = [*traced(choices, peak), *counted(job, terms)]
    found: JSON = {"peak_bytes": terms["peak_bytes"], "memory_bytes": limit}
    found["savings"] = [vars(each) for each in singles if each.peak_bytes < terms["peak_bytes"]]
    found["proposed"] = None
    if terms["peak_bytes"] > limit:
        found["proposed"] = vars(first_that_fits(choices, peak, limit))
    return found


def sets_of(settings: JSON, options: JSON) -> dict[str, JSON]:
    """The savings that this training does not have yet, the cheapest first, as paths and values; none for other trainers."""
    if settings["trainer"] != "gradient":
        return {}
    at_once, found = settings["micro_batch_size"] or settings["batch_size"], dict[str, JSON]()
    for part in (2, 4):
        if at_once >= part:
            found[f"micro-batches 1/{part}, gradients added up"] = {"train.micro_batch_size": at_once // part}
    if at_once > 1:
        found["one example at once, gradients added up"] = {"train.micro_batch_size": 1}
    if not settings["checkpoint_activations"]:
        found["activations computed twice (a third more to compute)"] = {"train.checkpoint_activations": True}
    if options.get("method") == "all":
        found["adapters (LoRA) in place of all weights"] = {"options.method": "lora"}
    return found


def traced(choices: dict[str, JSON], peak: Peak) -> Iterator[Saving]:
    """Each choice alone that goes with this model."""
    for name, sets in choices.items():
        if (found := peak(sets)) is not None:
            yield Saving(name, as_flags(sets), found)


def counted(job: Job, terms: JSON) -> Iterator[Saving]:
    """What does not change the passes: 8-bit states on a GPU, and a share of weights and states for each process."""
    settings, peak = job.plan.settings, terms["peak_bytes"]
    if settings.get("optimizer") == "adamw" and job.plan.machine.device == "cuda":
        less = round(terms["optimizer_bytes"] * (1 - SHARE_OF_8_BIT))
        yield Saving("states of the optimizer in 8 bits", "--set train.optimizer=adamw-8bit", peak - less)
    if settings.get("optimizer") in SHARDED_OPTIMIZERS:
        shared = sum(terms[name] for name in SHARED)
        for count in PROCESSES:
            how = (
                f"torchrun --nproc-per-node {count} -m zoo.cli train ... --shard, each with a machine or GPU of its own"
            )
            yield Saving(f"split among {count} (FSDP2), each", how, peak - round(shared * (1 - 1 / count)))


def first_that_fits(choices: dict[str, JSON], peak: Peak, limit: int) -> Saving:
    """The shortest row of choices, taken one after the other, whose peak is below `limit`.

    Raises DoesNotFitError, which names the smallest, where none is.
    """
    taken, names, tried = JSON(), list[str](), list[Saving]()
    for name, sets in choices.items():
        # A smaller micro-batch takes the place of a larger one.
        names = [each for each in names if not choices[each].keys() & sets.keys()] + [name]
        if (found := peak({**taken, **sets})) is None:
            names.remove(name)
            continue
        taken |= sets
        tried.append(Saving(" + ".join(names), as_flags(taken), found))
        if found <= limit:
            return tried[-1]
    nearest = min(tried, key=lambda each: each.peak_bytes, default=None)
    says = f" Nearest: {nearest.name}, {_gib(nearest.peak_bytes)} ({nearest.how})." if nearest else ""
    raise DoesNotFitError(
        f"The forecast does not fit the {_gib(limit)} of this machine, whatever is saved.{says} Use a smaller model or "
        "shorter inputs, or more processes with --shard."
    )


def as_flags(sets: JSON) -> str:
    """The settings as the command line takes them."""
    return " ".join(f"--set {path}={str(value).lower()}" for path, value in sets.items())


def lines_of(report: JSON) -> Iterator[str]:
    """A report for a person."""
    for each in report["savings"]:
        less = 1 - each["peak_bytes"] / report["peak_bytes"]
        yield f"saving   {each['name']}: {_gib(each['peak_bytes'])} ({-less:+.0%})  {each['how']}"
    if report["proposed"]:
        proposed = report["proposed"]
        yield (
            f"proposed {proposed['how']}: {_gib(report['peak_bytes'])} do not fit the {_gib(report['memory_bytes'])} of this "
            f"machine, {_gib(proposed['peak_bytes'])} do"
        )


def _peaks(job: Job) -> Peak:
    def peak(sets: JSON) -> int | None:
        settings = {path: value for path, value in sets.items() if path.startswith("train.")}
        options = {path.partition(".")[2]: value for path, value in sets.items() if path.startswith("options.")}
        plan = with_settings(job.plan, settings)
        found: Any = forecast_of(replace(job, plan=replace(plan, options={**plan.options, **options})))
        return None if not found or "memory" not in found else int(found["memory"]["peak_bytes"])

    return peak


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
