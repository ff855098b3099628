"""What a budget of GPUs and hours is good for, and how to spread a model over GPUs. Pure functions.

The rules of thumb are the brief's (one source, no paper). They know neither the kind of GPU nor the exact hours, so
`compute_advice` also does the arithmetic of `zoo.scaling` and names every conflict between the two.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from zoo.hardware import Gpu
from zoo.scaling import CHINCHILLA, TABLE_MFU, TRAINING_BYTES, flops_within, gpu_hours, params_within, training_flops
from zoo.sizing_text import short

_DAY = 24.0
# Least activations a parameter, with checkpointing; the range in the brief is 4 to 8 bytes.
_ACTIVATION_BYTES = 4.0
# Weights of QLoRA: 4 bits a parameter and scales (Dettmers et al. 2023, arXiv 2305.14314, section 3).
_FOUR_BIT_BYTES = 0.5
_GPUS_PER_NODE = 8
# The largest size that a rule names as its upper end ("7B+" and "70B+" have none).
_LARGEST_NAMED = 3e9
# Where one sequence's activations begin to outgrow a GPU (torchtitan and Megatron split it from about here).
_LONG_CONTEXT = 32_768


@dataclass(frozen=True)
class ComputeRule:
    """One line of the brief: from so many GPUs and hours on, what to train from scratch and what to adapt.

    scratch: parameters up to which to train from scratch (0: adapt rather than train).  adapt: the same for adapting.
    """

    name: str
    gpus: int
    hours: float
    scratch: float
    adapt: float
    how: str
    parallel: str
    train: str = "train from scratch"

    @property
    def says(self) -> str:
        """The sizes of the rule in words."""
        if not self.scratch:
            return f"fine-tune under {short(self.adapt)} parameters rather than train; LoRA or QLoRA for larger models"
        if self.scratch == math.inf:
            return "any size from scratch"
        beyond = f", {self.how} up to {short(self.adapt)}" if self.how else ""
        return f"up to {short(self.scratch)} parameters from scratch{beyond}"


_BELOW_70B = math.nextafter(70e9, 0)  # the next rule says "70B and more"
_AT_LEAST_20 = "train from scratch, on at least 20 tokens a parameter"
_FIVE_WAYS = "tensor, pipeline, data, expert and context parallel together"

RULES = (
    ComputeRule("one GPU, under a day", 1, 0, 0, 500e6, "fine-tune, or LoRA / QLoRA for large models", "one process"),
    ComputeRule("one GPU, 1 to 7 days", 1, _DAY, 1e9, 7e9, "QLoRA", "one process"),
    ComputeRule("4 to 8 GPUs, 1 to 7 days", 4, _DAY, 3e9, 13e9, "fine-tune", "DDP"),
    ComputeRule("32 or more GPUs, weeks", 32, 7 * _DAY, _BELOW_70B, _BELOW_70B, "", "FSDP or pipeline", _AT_LEAST_20),
    ComputeRule("hundreds of GPUs, months", 100, 30 * _DAY, math.inf, math.inf, "", _FIVE_WAYS, _AT_LEAST_20),
)


@dataclass(frozen=True)
class Advice:
    """The rule that holds, what to do with the model asked about, and where rule and arithmetic disagree."""

    rule: ComputeRule
    verdict: str
    affordable_params: float
    conflicts: tuple[str, ...]


def compute_rule(gpus: int, hours: float) -> ComputeRule:
    """The last rule whose GPUs and hours are both there; half-open, so 24 hours are a day, not under one."""
    return [rule for rule in RULES if gpus >= rule.gpus and hours >= rule.hours][-1]


def compute_advice(params: float, gpus: int, hours: float, *, gpu: Gpu, mfu: float = TABLE_MFU) -> Advice:
    """What the brief's rules say to a model of `params` on so many GPUs for `hours` of wall clock, conflicts named.

    gpu: with a known bf16 peak.  affordable_params: what could be trained from scratch on 20 tokens a parameter, by 6 N D.
    """
    assert gpu.bf16_tflops is not None, "the caller refuses GPUs without a known peak"
    rule = compute_rule(gpus, hours)
    affordable = params_within(flops_within(gpus * hours, gpu.bf16_tflops, mfu))
    conflicts = (
        *_against_the_gaps(rule, gpus, hours),
        *_against_the_hours(rule, params, gpus * hours, gpu, mfu),
        *_against_the_memory(rule, params, gpus, gpu),
    )
    return Advice(rule, verdict(rule, params), affordable, conflicts)


def verdict(rule: ComputeRule, params: float) -> str:
    """What the rule alone says to a model of this size."""
    if params <= rule.scratch:
        return rule.train
    if not rule.scratch:
        return "fine-tune rather than train" if params < rule.adapt else "LoRA or QLoRA"
    if params <= rule.adapt:
        return rule.how
    larger = next(other for other in RULES if other.scratch >= params)
    return f"too large: training it takes {larger.name}"


def _against_the_gaps(rule: ComputeRule, gpus: int, hours: float) -> Iterator[str]:
    """Budgets between two rules, where the smaller one is taken."""
    most = {1: 1, 4: 8}.get(rule.gpus)
    if most and (gpus > most or hours > 7 * _DAY):
        yield f"no rule speaks of {gpus} GPUs for {hours:,.4g} hours; the nearest below is taken ({rule.name})"


def _against_the_hours(rule: ComputeRule, params: float, hours: float, gpu: Gpu, mfu: float) -> Iterator[str]:
    needed = gpu_hours(training_flops(params, CHINCHILLA * params), gpu.bf16_tflops or 0.0, mfu)
    sums = f"20 tokens a parameter take {needed:,.0f} {gpu.name}-hours at {mfu:.1%} of peak; there are {hours:,.0f}"
    enough = needed <= hours * (1 + 1e-6)  # a size worked out from these very hours takes just them
    if params <= rule.scratch and not enough:
        yield f"the rule trains this size from scratch, the arithmetic says it cannot be done in time: {sums}"
    if params > rule.scratch and enough:
        yield f"the rule does not train this size from scratch, the arithmetic says it can be done: {sums}"
    affordable = params_within(flops_within(hours, gpu.bf16_tflops or 0.0, mfu))
    if affordable < rule.scratch <= _LARGEST_NAMED:
        yield f"the rule goes up to {short(rule.scratch)} from scratch, the hours at hand only to {short(affordable)}"


def _against_the_memory(rule: ComputeRule, params: float, gpus: int, gpu: Gpu) -> Iterator[str]:
    whole, room = params * (TRAINING_BYTES + _ACTIVATION_BYTES) / 1e9, gpu.memory_gb
    if params <= rule.scratch and rule.parallel in ("one process", "DDP") and whole > room:
        where = "sharding (FSDP2)" if gpus * room >= whole else "more GPUs"
        yield (
            f"the rule says {rule.parallel}, but {whole:,.0f} GB do not fit the {room:g} GB of one {gpu.name}: {where}"
        )
    if params > rule.scratch and params * _FOUR_BIT_BYTES / 1e9 > room * gpus:
        yield f"even 4-bit weights ({params * _FOUR_BIT_BYTES / 1e9:,.0f} GB) do not fit {gpus} {gpu.name}"


# --- ways to spread a job -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """One way of spreading a job. `here`: whether the zoo runs it itself."""

    name: str
    here: bool
    how: str
    because: str


def ways(
    recipe: str, params: float, gpus: int, gpu: Gpu, *, context: int = 0, experts: bool = False
) -> tuple[Way, ...]:
    """How to train `params` on so many GPUs, the zoo's own way first, then what to use elsewhere and when.

    Counts 16 bytes a parameter (float32 weights and gradients, AdamW) and at least 4 for activations: a first sieve,
    not the memory plan.  Empty of own ways where even sharding does not fit.
    """
    return (*_here(recipe, params, gpus, gpu), *_elsewhere(params, gpus, context, experts))


def _here(recipe: str, params: float, gpus: int, gpu: Gpu) -> Iterator[Way]:
    whole = params * (TRAINING_BYTES + _ACTIVATION_BYTES) / 1e9
    sums = f"{whole:,.0f} GB of weights, gradients, states and least activations; {gpu.memory_gb:g} GB a GPU"
    if whole <= gpu.memory_gb and gpus == 1:
        yield Way("one process", True, f"zoo train {recipe}", f"it fits: {sums}")
    elif whole <= gpu.memory_gb:
        yield Way("DDP", True, _torchrun(recipe, gpus), f"a copy fits each GPU, so only gradients travel: {sums}")
    elif whole <= gpu.memory_gb * gpus:
        yield Way(
            "FSDP2", True, f"{_torchrun(recipe, gpus)} --shard", f"a copy does not fit one GPU, its parts do: {sums}"
        )
    else:
        least = math.ceil(whole / gpu.memory_gb)
        yield Way("does not fit", False, f"{least} {gpu.name} at least, or LoRA / QLoRA of a pretrained model", sums)


def _torchrun(recipe: str, gpus: int) -> str:
    nodes = math.ceil(gpus / _GPUS_PER_NODE)
    many = f"--nnodes {nodes} --nproc-per-node {math.ceil(gpus / nodes)}"
    places = f"--standalone --nproc-per-node {gpus}" if nodes == 1 else f"{many} --rdzv-endpoint HOST:29500"
    return f"torchrun {places} -m zoo.cli train {recipe}"


def _elsewhere(params: float, gpus: int, context: int, experts: bool) -> Iterator[Way]:
    if params >= 7e9 and gpus > 1:
        why = (
            "within a node: splits each matrix, so that a layer and its activations fit and NVLink carries the traffic"
        )
        yield Way("tensor", False, "torchtitan or Megatron-LM", why)
    if params >= 7e9 and gpus >= 32:
        why = "across nodes: only activations pass between stages, where the network is too slow to gather weights"
        yield Way("pipeline", False, "torchtitan or Megatron-LM", why)
    if context >= _LONG_CONTEXT:
        why = f"sequences of {context:,}: splits the positions of one sequence over GPUs (ring attention)"
        yield Way("context", False, "torchtitan or Megatron-LM", why)
    if experts or (params >= 70e9 and gpus >= 100):
        yield Way(
            "expert", False, "Megatron-LM or DeepSpeed", "only for mixtures of experts: experts on their own GPUs"
        )
    if params >= 70e9 and context < _LONG_CONTEXT and gpus >= 100:
        yield Way("context", False, "torchtitan or Megatron-LM", "the fifth way at this size, once sequences grow long")
