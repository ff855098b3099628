"""`zoo plan RECIPE --params | --tokens | --flops | --hours`: how large, how long and what it costs, without any data.

Everything follows from `zoo.scaling`; no torch, no numpy. `answer` gives plain values, `zoo.sizing_text` their words.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainers.errors import UsageError
from zoo import parallel, scaling, serving
from zoo.hardware import Gpu, catalogue, gpu_named
from zoo.registry import Recipe, Registry, Scaling

SCHEMA_VERSION = 1
_DEFAULT_GPU = "A100"
_SLOW_MEMORY = "GB10"
_MOST = 1e30
_REPEATING_SOURCE = "muennighoff2023"
_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_SIZES = ("params", "tokens", "flops", "hours")
# Where no context is asked about, the length for which the cache of one sequence is shown.
_USUAL_CONTEXT = 2048


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the user said; None where nothing was. hours: wall clock on `gpus` of `gpu`.

    tflops: dense bf16 peak in place of the catalogue's.  price: for one GPU-hour, in any currency.  watts: for one GPU.
    unique: tokens there are.  context: positions of a sequence; given, attention's FLOPs are counted too.
    """

    params: float | None = None
    tokens: float | None = None
    flops: float | None = None
    hours: float | None = None
    gpu: str | None = None
    gpus: int | None = None
    mfu: float | None = None
    tflops: float | None = None
    price: float | None = None
    watts: float | None = None
    unique: float | None = None
    context: int | None = None


def count(text: str, option: str) -> float:
    """The number in "1e9", "350M", "7B" or "1.4T". Raises UsageError naming the option."""
    head, factor = (text[:-1], _SUFFIXES[text[-1].upper()]) if text[-1:].upper() in _SUFFIXES else (text, 1.0)
    try:
        number = float(head) * factor
    except ValueError:
        raise UsageError(
            f"{option} {text!r}: no number. Write 1e9, or 350M, 7B, 1.4T (K, M, B, T: thousand to trillion)."
        ) from None
    return positive(number, option)


def answer(recipe: Recipe, registry: Registry, sizes: Sizes) -> dict[str, Any]:
    """Plain values for one JSON object. Raises UsageError where too little, too much or nonsense was said."""
    rule = _scaling_of(recipe, registry)
    _check(sizes)
    gpu = _gpu(sizes)
    law = scaling.Law(sizes.context or 0, _shape_rule(rule))
    rows = [_priced(row, sizes, gpu) for row in _rows(sizes, gpu, law, rule.per_parameter)]
    first = rows[0]
    shape = scaling.shape_of(first["params"], _shape_rule(rule))
    return {
        "schema_version": SCHEMA_VERSION,
        "recipe": recipe.name,
        "status": recipe.status,
        "unit": rule.unit,
        "asked": {name: value for name, value in asdict(sizes).items() if value is not None},
        "assumed": _assumed(sizes, gpu, law, rule),
        "rows": rows,
        "shape": asdict(shape),
        "learning_rate": _learning_rate(shape),
        "repeating": _repeating(sizes.unique, first["tokens"]),
        "serving": _serving(first["params"], shape, rule, sizes, gpu) if rule.causal else None,
        "ways": [
            asdict(way)
            for way in parallel.ways(recipe.name, first["params"], sizes.gpus or 1, gpu, context=sizes.context or 0)
        ],
        "budget": _budget(sizes, gpu, first),
        "notes": list(_notes(rule, shape, first, law)) + _machine_notes(gpu, first["params"]),
        "sources": _sources(registry, rule, sizes),
    }


# --- what may be asked ----------------------------------------------------------------------------------------------


def _scaling_of(recipe: Recipe, registry: Registry) -> Scaling:
    if recipe.scaling is None:
        able = ", ".join(name for name, other in registry.recipes.items() if other.scaling)
        raise UsageError(
            f"{recipe.name} is no transformer trained from nothing, so no scaling law sizes it. These are: {able}. "
            "Leave out --params, --tokens, --flops, --hours and what goes with them to plan it with data."
        )
    return recipe.scaling


def _check(sizes: Sizes) -> None:
    for name, value in asdict(sizes).items():
        if isinstance(value, int | float):
            positive(value, f"--{name}")
    if sizes.mfu is not None and sizes.mfu > 1:
        raise UsageError(f"--mfu {sizes.mfu:g}: a share of the peak, at most 1. For 40 % write 0.4.")
    said = [f"--{name}" for name in _SIZES if getattr(sizes, name) is not None]
    if not said:
        raise UsageError(
            "say one of --params, --tokens, --flops or --hours. Example: --params 1B, or --hours 24 --gpu h100"
        )
    if "--flops" in said and "--hours" in said:
        raise UsageError("--flops and --hours both say how much compute there is. Leave one out.")
    if len(said) > 2:
        raise UsageError(f"{', '.join(said)}: two of parameters, tokens and compute fix the third. Leave one out.")
    _check_hardware(sizes)


def _check_hardware(sizes: Sizes) -> None:
    for name in ("hours", "gpus", "tflops"):
        if getattr(sizes, name) is not None and sizes.gpu is None:
            raise UsageError(f"--{name} {getattr(sizes, name):g}: of which GPU? Add --gpu, for example --gpu h100.")


def positive(number: float, option: str) -> float:
    """`number` itself; UsageError naming the option unless it is above 0 and below what anyone can mean."""
    if not 0 < number <= _MOST:
        raise UsageError(f"{option} {number:g}: must be a number above 0, at most {_MOST:g}.")
    return number


def _gpu(sizes: Sizes) -> Gpu:
    """The GPU asked about, an A100 if none was; with its bf16 peak as said or as in the catalogue."""
    gpu = gpu_named(sizes.gpu) if sizes.gpu else next(gpu for gpu in catalogue() if gpu.name == _DEFAULT_GPU)
    if sizes.tflops is None and gpu.bf16_tflops is None:
        raise UsageError(
            f"--gpu {gpu.name}: its data sheet states no dense bf16 peak. Add a measured one with --tflops."
        )
    return gpu if sizes.tflops is None else replace(gpu, bf16_tflops=sizes.tflops)


def _shape_rule(rule: Scaling) -> scaling.ShapeRule:
    return scaling.ShapeRule(rule.width_per_layer, rule.head_size, rule.vocabulary, rule.embedding_tables)


# --- the answer -----------------------------------------------------------------------------------------------------

Row = dict[str, Any]


def _rows(sizes: Sizes, gpu: Gpu, law: scaling.Law, ratio: float) -> Iterator[Row]:
    """One row if two of parameters, tokens and compute are said, and the best split of its compute; else one a ratio."""
    compute = sizes.flops
    if sizes.hours is not None:
        hours = sizes.hours * (sizes.gpus or 1)
        compute = scaling.flops_within(hours, gpu.bf16_tflops or 0.0, sizes.mfu or scaling.TABLE_MFU)
    pair = _pair(sizes.params, sizes.tokens, compute, law)
    if pair is not None:
        yield _row("as asked", *pair, law)
        best = scaling.params_within(law.flops(*pair), ratio, law)
        yield _row("best for the same FLOPs", best, ratio * best, law)
        return
    for name, each in (("compute-optimal", ratio), *(("inference-optimal", each) for each in scaling.INFERENCE)):
        params = sizes.params or (scaling.params_for(sizes.tokens, each) if sizes.tokens else None)
        params = params or scaling.params_within(compute or 0.0, each, law)
        yield _row(name, params, sizes.tokens or scaling.tokens_for(params, each), law)


def _pair(
    params: float | None, tokens: float | None, flops: float | None, law: scaling.Law
) -> tuple[float, float] | None:
    """(parameters, tokens) where two of the three are known, else None."""
    if params and tokens:
        return params, tokens
    if params and flops:
        return params, scaling.tokens_within(flops, params, law)
    if tokens and flops:
        return scaling.params_on(flops, tokens, law), tokens
    return None


def _row(name: str, params: float, tokens: float, law: scaling.Law) -> Row:
    ratio = tokens / params
    return {
        "rule": name,
        "per_parameter": ratio,
        "params": params,
        "tokens": tokens,
        "flops": law.flops(params, tokens),
    }


def _priced(row: Row, sizes: Sizes, gpu: Gpu) -> Row:
    """The row with GPU-hours, wall clock, cost and energy (None where no price or power was said)."""
    hours = scaling.gpu_hours(row["flops"], gpu.bf16_tflops or 0.0, sizes.mfu or scaling.TABLE_MFU)
    return {
        **row,
        "gpu_hours": hours,
        "hours": hours / (sizes.gpus or 1),
        "cost": hours * sizes.price if sizes.price else None,
        "kwh": scaling.energy_kwh(hours, sizes.watts) if sizes.watts else None,
    }


def _assumed(sizes: Sizes, gpu: Gpu, law: scaling.Law, rule: Scaling) -> dict[str, Any]:
    return {
        "gpu": gpu.name,
        "gpu_stated": sizes.gpu is not None,
        "gpus": sizes.gpus or 1,
        "bf16_tflops": gpu.bf16_tflops,
        "mfu": sizes.mfu or scaling.TABLE_MFU,
        "mfu_stated": sizes.mfu is not None,
        "flops_formula": law.formula,
        "per_parameter": rule.per_parameter,
        "price_per_gpu_hour": sizes.price,
        "watts_per_gpu": sizes.watts,
    }


def _learning_rate(shape: scaling.Shape) -> dict[str, Any]:
    tuned = scaling.TUNED_WIDTH
    return {
        "tuned_at_width": tuned,
        "embedding_factor": scaling.width_factor(shape.width),
        "mup_adam_factors": scaling.mup_rates(1.0, shape.width, tuned),
    }


def _repeating(unique: float | None, tokens: float) -> dict[str, Any] | None:
    """What passes over `unique` tokens are worth, and how many are worth `tokens` new ones (None: no number is)."""
    if unique is None:
        return None
    epochs, worth = tokens / unique, scaling.epochs_worth(unique, tokens)
    return {
        "unique": unique,
        "epochs": epochs,
        "effective": scaling.effective_tokens(unique, epochs),
        "epochs_worth_all": worth if math.isfinite(worth) else None,
        "at_most": unique * (1 + scaling.REPEATS_SCALE),
    }


def _serving(params: float, shape: scaling.Shape, rule: Scaling, sizes: Sizes, gpu: Gpu) -> dict[str, Any]:
    """The cache of one sequence in variants, and the bound that memory bandwidth sets on one sequence, in bf16."""
    length = sizes.context or _USUAL_CONTEXT
    full = serving.Cache(shape.layers, shape.heads, rule.head_size)
    last = max(1, shape.layers // 4)  # the pattern SSSL: one layer in four sees everything
    variants: Mapping[str, serving.Cache] = {
        "bf16": full,
        "grouped_queries_4": replace(full, kv_heads=math.ceil(shape.heads / 4)),
        "8_bit": replace(full, bytes_per_value=1.0),
        "4_bit": replace(full, bytes_per_value=0.5),
        "window_1024_in_3_of_4_layers": replace(full, window=1024, full_layers=last),
    }
    return {
        "length": length,
        "cache_bytes_per_token": full.bytes_per_token,
        "cache_bytes": {name: cache.bytes_for(length) for name, cache in variants.items()},
        "paged_positions": serving.paged_positions(length),
        "flops_per_byte_to_be_compute_bound": serving.ridge(gpu),
        "fits_one_gpu": 2 * params + full.bytes_for(length) <= gpu.memory_gb * 1e9,
        "most_tokens_per_second": serving.tokens_per_second(gpu, 2 * params, full.bytes_for(length)),
    }


def _budget(sizes: Sizes, gpu: Gpu, first: Row) -> dict[str, Any] | None:
    """What the rules for compute say, where a budget was said: its hours, or those that the first row takes."""
    if sizes.hours is None and sizes.gpus is None:
        return None
    hours = sizes.hours or first["hours"]
    mfu = sizes.mfu or scaling.TABLE_MFU
    advice = parallel.compute_advice(first["params"], sizes.gpus or 1, hours, gpu=gpu, mfu=mfu)
    return {
        "rule": advice.rule.name,
        "verdict": advice.verdict,
        "parallel": advice.rule.parallel,
        "affordable_params": advice.affordable_params,
        "conflicts": list(advice.conflicts),
    }


def _sources(registry: Registry, rule: Scaling, sizes: Sizes) -> list[dict[str, Any]]:
    cited = [registry.sources[name] for name in (rule.source, *[_REPEATING_SOURCE] * (sizes.unique is not None))]
    return [{"title": source.title, "year": source.year, "url": source.url} for source in cited]


def _notes(rule: Scaling, shape: scaling.Shape, first: Row, law: scaling.Law) -> Iterator[str]:
    if rule.caveat:
        yield rule.caveat
    if shape.embedding_share > 0.1:
        yield (
            f"{shape.embedding_share:.0%} of the parameters are embeddings: N counts them, as Chinchilla's does; "
            "Kaplan's N leaves them out and would ask for another size."
        )
    if not law.context:
        yield "Attention is not in 6 N D: name --context to count it."
    if first["per_parameter"] < rule.per_parameter / 2:
        yield f"Only {first['per_parameter']:.1f} {rule.unit} a parameter: a smaller model does better on this compute."


def _machine_notes(gpu: Gpu, params: float) -> list[str]:
    if gpu.name != _SLOW_MEMORY:
        return []
    use = serving.slow_memory_use(params)
    return [
        f"{gpu.name} (DGX Spark) at this size: {use}. Its memory is slow and shared with the system: FP8, torch.compile, "
        "larger batches and checkpointing for training; grouped queries, a quantised or paged cache and windows for serving."
    ]
