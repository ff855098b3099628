"""What a training would take, without training: the run is begun in a folder that is thrown away, and ended at its forecast.

Also what this machine's past runs make of their forecasts. Heavy: imports torch.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from domains.contract import Facts
from domains.shared.folders import cache_folder
from trainers.contract import JSON
from trainers.errors import StoppedError
from trainers.settings import SETTINGS
from zoo import hardware
from zoo.job import Job
from zoo.plan import parts_of, with_settings
from zoo.sizing_text import time_text

MISSED_BY, ROOFLINE_BELOW = 0.25, 4
"""How far steps were from what few measured ones said, and how many times longer than their roofline at most
(benchmarks/README.md)."""


SMALL_RATE = 1e-9


class ForetoldError(Exception):
    """Ends a training that was begun for its forecast."""


class PlanWatch:
    """Meets `trainers.contract.Watch` for a training that takes no step."""

    rank, world = 0, 1

    def __init__(self, folder: Path, metric: Any) -> None:
        self.folder, self.cache = folder, cache_folder()
        self.metric, self.higher_is_better = metric.name, metric.higher_is_better
        self.forecast: JSON = {}

    def score(self, rows: Any, predictions: Any) -> None:
        """Nothing is judged."""

    def log(self, **event: Any) -> None:
        """Hear the forecast, and end there; other events are not told."""
        if event.get("kind") == "forecast":
            self.forecast = {name: event[name] for name in ("text", "memory", "time") if name in event}
            raise ForetoldError

    def should_stop(self) -> str:
        """Before the first step, where there was no forecast."""
        return "planned"


class MeasureWatch(PlanWatch):
    """A watch that lets a training take its steps, and says nothing."""

    def log(self, **event: Any) -> None:
        """Nothing is told."""

    def should_stop(self) -> None:  # type: ignore[override]
        """Never: the plan has few steps."""


def measured_step(job: Job, num_steps: int = 6) -> float | None:
    """Seconds of a step, the median of a few real ones; None where training does not go by steps.

    They are kept with the machine's past runs, so forecasts of this recipe and model follow from them from now on.
    """
    domain, family = parts_of(job.recipe)
    trainer = SETTINGS[job.plan.settings["trainer"]]
    if not trainer.has_forecast:
        return None
    sets = {f"train.{name}": value for name, value in trainer.flags["steps"](num_steps).items()}
    # A schedule of six steps is at its peak at once, where some models diverge: these are not to learn.
    rates = {name.removesuffix("steps") + "lr": SMALL_RATE for name in sets if name.endswith(".steps")}
    plan = with_settings(job.plan, sets | rates)
    metric = domain.metrics(Facts.from_json(job.plan.facts))[0]
    with tempfile.TemporaryDirectory(prefix="zoo-plan-") as folder:
        # Without validation rows nothing is judged.
        watch, none = MeasureWatch(Path(folder), metric), job.part("valid").take([])
        actual: JSON = family.build(plan).fit(job.part("train"), none, watch)
    return actual.get("step_seconds")


def forecast_of(job: Job, say: Callable[[str], None] | None = None) -> JSON | None:
    """Memory by term and the time of a step, as training would say them; None where it says none.

    Takes what training takes before its first step: fitting tokenizers and the like, loading weights, a trace.
    """
    if not SETTINGS[job.plan.settings["trainer"]].has_forecast:
        return None
    domain, family = parts_of(job.recipe)
    metric = domain.metrics(Facts.from_json(job.plan.facts))[0]
    with tempfile.TemporaryDirectory(prefix="zoo-plan-") as folder:
        watch = PlanWatch(Path(folder), metric)
        try:
            family.build(job.plan).fit(job.part("train"), job.part("valid"), watch)
        except (ForetoldError, StoppedError):
            pass
        except Exception as error:
            if say:
                say(f"warning: no forecast: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        return watch.forecast or None


def total_of(job: Job, forecast: JSON | None, price: float | None, watts: float | None) -> JSON:
    """Seconds of all steps as the step's forecast has them, with a range; empty where steps or their time are not known.

    price: of an hour of this machine, in any currency.   watts: what it draws.   Judging and saving are not in it.
    """
    step, budget = _step_of(forecast), job.plan.settings.get("seconds")
    num_steps = job.plan.estimates.get("num_steps")
    if budget:
        seconds = dict.fromkeys(("seconds", "seconds_low", "seconds_high"), float(budget))
    elif step and num_steps:
        seconds = {name.replace("step", "seconds", 1): num_steps * each for name, each in step.items()}
    else:
        return {}
    hours = {name.removeprefix("seconds"): each / 3600 for name, each in seconds.items()}
    costs = {f"cost{name}": price * each for name, each in hours.items()} if price else {}
    energy = {f"kwh{name}": watts * each / 1000 for name, each in hours.items()} if watts else {}
    return {"num_steps": num_steps, **seconds, **costs, **energy}


def _step_of(forecast: JSON | None) -> dict[str, float]:
    """Seconds of a step and their range; empty where they are not known."""
    if forecast and (measured := forecast.get("measured_step_seconds")):
        return {"step": measured, "step_low": measured / (1 + MISSED_BY), "step_high": measured * (1 + MISSED_BY)}
    if not forecast or "time" not in forecast:
        return {}
    time = forecast["time"]
    if time["is_measured"]:
        each = time["seconds"]
        return {"step": each, "step_low": each / (1 + MISSED_BY), "step_high": each * (1 + MISSED_BY)}
    bound = time["bound_seconds"]
    return {"step": time["seconds"], "step_low": bound, "step_high": max(time["seconds"], ROOFLINE_BELOW * bound)}


def lines_of(forecast: JSON | None) -> Iterator[str]:
    """A forecast for a person."""
    if forecast is None:
        return
    if "text" in forecast:
        yield f"forecast {forecast['text']}"
    if forecast.get("measured_step_seconds"):
        yield f"measured {forecast['measured_step_seconds']:.3g} s a step"
    for name, value in forecast.get("memory", {}).items():
        yield f"forecast memory, {name.removesuffix('_bytes')}: {value / 2**20:,.1f} MiB"
    for name in ("flops", "bytes_moved"):
        if "time" in forecast:
            yield f"forecast {name} of a step: {forecast['time'][name]:.3g}"
    if total := forecast.get("total"):
        yield f"forecast time of all steps: {_with_range(total, 'seconds', lambda each: time_text(each / 3600))}"
        yield from (f"forecast {name}: {_with_range(total, name, _short)}" for name in ("kwh", "cost") if name in total)


def _short(number: float) -> str:
    return f"{number:.3g}"


def _with_range(total: JSON, name: str, words: Callable[[float], str]) -> str:
    middle, low, high = (words(total[f"{name}{end}"]) for end in ("", "_low", "_high"))
    return middle if low == high else f"{middle} ({low} to {high})"


def calibrated() -> JSON:
    """The rates of this machine, measured anew and kept."""
    from trainers.speed import rates_of

    return asdict(rates_of(hardware.detect(), cache_folder(), anew=True))


def past(recipe: str | None) -> list[JSON]:
    """This cache's past runs that had a forecast, of one recipe or all."""
    from trainers.experience import past_runs

    return [run for run in past_runs(cache_folder()) if recipe in (None, run["recipe"])]


def table_of(runs: Sequence[JSON], is_wanted: bool = True) -> list[str]:
    """A line a run, and the middle of the errors."""
    from trainers.experience import comparison

    if not is_wanted:
        return []
    if not runs:
        return ["No run of this machine had a forecast yet: zoo train RECIPE --data FILE"]
    errors = median(abs(run["forecast_memory_bytes"] / run["peak_training_bytes"] - 1) for run in runs)
    return [
        *(f"{run['recipe']}: {comparison(run)}  {run['run']}" for run in runs),
        f"{len(runs)} runs; memory is off by {errors:.0%} in the middle",
    ]
