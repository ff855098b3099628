"""What a recommendation says once the machine and the time are known: the rules for compute, and what they contradict."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from trainers.errors import UsageError
from zoo import parallel, scaling
from zoo.hardware import Gpu, gpu_named
from zoo.recommend import Recommendation
from zoo.sizing import positive
from zoo.sizing_text import short


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What there is; None where nobody said. hours: wall clock.  memory: GiB of the device that trains."""

    gpu: str | None = None
    gpus: int | None = None
    hours: float | None = None
    memory: float | None = None


def with_budget(answer: Recommendation, budget: Budget) -> Recommendation:
    """The same answer with what the budget allows and every conflict named; the recipe stays, as n chose it.

    Raises UsageError for an unknown GPU, hours or GPUs without one, and impossible numbers.
    """
    for name in ("gpus", "hours", "memory"):
        value = getattr(budget, name)
        if value is not None:
            positive(value, f"--{name}")
        if name != "memory" and value is not None and budget.gpu is None:
            raise UsageError(f"--{name} {value:g}: of which GPU? Add --gpu, for example --gpu h100.")
    gpu = gpu_named(budget.gpu) if budget.gpu else None
    allowed = _allowed(gpu, budget.gpus or 1, budget.hours) if gpu and budget.hours else {}
    conflicts = [*_rule_conflicts(answer, allowed), *_memory_conflicts(answer, gpu, budget)]
    return replace(answer, budget={**allowed, "conflicts": conflicts})


def _allowed(gpu: Gpu, gpus: int, hours: float) -> dict[str, Any]:
    """The rule that holds and, where the GPU's peak is known, what the hours are enough for (parameters; None: unknown)."""
    rule = parallel.compute_rule(gpus, hours)
    says = f"{rule.name}: {rule.says}; {rule.parallel}"
    affordable = None
    if gpu.bf16_tflops is not None:
        affordable = scaling.params_within(scaling.flops_within(gpus * hours, gpu.bf16_tflops, scaling.TABLE_MFU))
        says += f". {gpus} x {gpu.name} for {hours:g} hours at {scaling.TABLE_MFU:.1%} of peak train a transformer of "
        says += f"{short(affordable)} parameters from nothing (20 tokens each)"
    return {"rule": rule.name, "says": says, "affordable_params": affordable, "from_scratch": rule.scratch > 0}


def _rule_conflicts(answer: Recommendation, allowed: dict[str, Any]) -> Iterator[str]:
    if allowed and answer.recipe.scaling and not allowed["from_scratch"]:
        other = f" The runner-up is {answer.runner_up.name}." if answer.runner_up else ""
        yield f"{answer.recipe.name} trains from nothing, and with {allowed['rule']} the rule is to adapt.{other}"


def _memory_conflicts(answer: Recommendation, gpu: Gpu | None, budget: Budget) -> Iterator[str]:
    needed, name = answer.recipe.needs.memory_gib, answer.recipe.name
    there = budget.memory if budget.memory is not None else gpu.memory_gb * 1e9 / 2**30 if gpu else None
    if needed is not None and there is not None and needed > there:
        yield f"{name} needs about {needed:g} GiB, and {there:.3g} are there. Try a smaller model or batch."
