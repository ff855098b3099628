"""What `zoo.sizing.answer` found, for a terminal."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

_INDENT = 12
_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_BYTES = ((1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB"))

Found = Mapping[str, Any]


def as_text(found: Found, width: int = 100) -> str:
    """The answer as a table and labelled lines of at most `width` columns (the table as wide as it must be)."""
    lines = [
        f"{found['recipe']}  ({found['status']}; from scaling laws alone, no data was read)",
        "",
        *_table(found),
        "",
    ]
    for label, says in _labelled(found):
        indent = " " * _INDENT
        lines += textwrap.wrap(f"{label:<{_INDENT}}{says}", width, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines)


def short(number: float, units: tuple[tuple[float, str], ...] = _UNITS) -> str:
    """Three significant digits with a letter: 1.25e8 is 125M. Below 1000 the digits alone."""
    size, letter = next(((size, letter) for size, letter in units if number >= size * 0.9995), (1.0, ""))
    return f"{_three(number / size)}{letter}"


def _three(number: float) -> str:
    """Three significant digits, thousands separated; with an exponent only where no one has any use for the digits."""
    if not 1e-3 <= number < 1e12:
        return f"{number:.2e}".replace("e+", "e")
    digits = f"{float(f'{number:.3g}'):,.10f}"
    return digits.rstrip("0").rstrip(".")


def _table(found: Found) -> Iterator[str]:
    rows = [_heads(found), *(_cells(found, row) for row in found["rows"])]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        aligned = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join([row[0].ljust(widths[0]), *aligned[1:]])


def _heads(found: Found) -> list[str]:
    unit, assumed = found["unit"], found["assumed"]
    heads = ["size", f"{unit}/param", "params", unit, "FLOPs", f"{assumed['gpu']}-hours", f"time on {assumed['gpus']}"]
    return heads + ["cost"] * bool(assumed["price_per_gpu_hour"]) + ["kWh"] * bool(assumed["watts_per_gpu"])


def _cells(found: Found, row: Found) -> list[str]:
    cells = [row["rule"], _three(row["per_parameter"]), short(row["params"]), short(row["tokens"])]
    cells += [f"{row['flops']:.2e}".replace("e+", "e"), _three(row["gpu_hours"]), time_text(row["hours"])]
    return cells + [_three(row[name]) for name in ("cost", "kwh") if row[name] is not None]


def time_text(hours: float) -> str:
    """In the largest unit of which there are two."""
    for size, name in ((24 * 365.25, "years"), (24.0, "days"), (1.0, "hours")):
        if hours >= 2 * size:
            return f"{_three(hours / size)} {name}"
    return f"{_three(hours * 60)} minutes"


def _labelled(found: Found) -> Iterator[tuple[str, str]]:
    yield "assumed", _assumed(found["assumed"])
    yield "shape", _shape(found["shape"])
    yield "rates", _rates(found["learning_rate"])
    if found["repeating"]:
        yield "repeating", _repeating(found["repeating"], found["unit"])
    if found["budget"]:
        yield from _budget(found["budget"])
    for way in found["ways"]:
        yield ("spread" if way["here"] else "elsewhere"), f"{way['name']}: {way['how']} ({way['because']})"
    if found["serving"]:
        yield "serving", _serving(found["serving"], found["assumed"]["gpu"])
    yield from (("note", says) for says in found["notes"])
    yield from (("source", f"{item['title']} ({item['year']}) {item['url'] or ''}") for item in found["sources"])


def _assumed(assumed: Found) -> str:
    mfu = "as stated" if assumed["mfu_stated"] else "implied by the brief's table of sizes; say yours with --mfu"
    gpu = f"{assumed['gpu']} with {assumed['bf16_tflops']:g} TFLOP/s in bf16" + (
        "" if assumed["gpu_stated"] else " (no --gpu named)"
    )
    return (
        f"FLOPs = {assumed['flops_formula']}; {gpu}; {assumed['mfu']:.1%} of that peak ({mfu}: over 30 % is decent, "
        "40 % good, 50 % excellent on one GPU)"
    )


def _shape(shape: Found) -> str:
    return (
        f"{shape['layers']} layers, width {shape['width']:,}, {shape['heads']} heads: {short(shape['params'])} parameters, "
        f"{shape['embedding_share']:.0%} of them embeddings"
    )


def _rates(rates: Found) -> str:
    return (
        f"tuned at width {rates['tuned_at_width']}: embeddings and unembedding under AdamW x {rates['embedding_factor']:.3f} "
        f"(width ** -0.5), Muon's matrices unchanged; with muP under Adam matrices x {rates['mup_adam_factors']['hidden']:.3f}"
    )


def _repeating(repeat: Found, unit: str) -> str:
    share = repeat["effective"] / (repeat["unique"] * repeat["epochs"])
    says = (
        f"{_three(repeat['epochs'])} passes over {short(repeat['unique'])} {unit} are worth {short(repeat['effective'])} "
        f"new ones ({share:.0%}; up to 4 passes are nearly as good as new data, after 16 little is left to gain)"
    )
    if repeat["epochs"] <= 1:
        return f"{short(repeat['unique'])} {unit} are enough: no pass is repeated"
    if repeat["epochs_worth_all"] is None:
        return f"{says}; no number of passes is worth more than {short(repeat['at_most'])}"
    return f"{says}; {_three(repeat['epochs_worth_all'])} passes would be worth all of them"


def _budget(budget: Found) -> Iterator[tuple[str, str]]:
    affordable = short(budget["affordable_params"])
    yield "rule", f"{budget['rule']}: {budget['verdict']}; {budget['parallel']}. Affordable from scratch: {affordable}"
    yield from (("conflict", says) for says in budget["conflicts"])


def _serving(serving: Found, gpu: str) -> str:
    cache = {name: short(value, _BYTES) for name, value in serving["cache_bytes"].items()}
    fits = "" if serving["fits_one_gpu"] else f", which one {gpu} cannot hold"
    return (
        f"KV cache {short(serving['cache_bytes_per_token'], _BYTES)} a token in bf16; at {serving['length']:,} tokens "
        f"{cache['bf16']}, with grouped queries (4 to 1) {cache['grouped_queries_4']}, in 8 bits {cache['8_bit']}, in 4 "
        f"{cache['4_bit']}, with a window of 1,024 in 3 of 4 layers {cache['window_1024_in_3_of_4_layers']}. {gpu} waits "
        f"for memory below {serving['flops_per_byte_to_be_compute_bound']:.0f} FLOP/byte: one sequence gets "
        f"{_three(serving['most_tokens_per_second'])} tokens/s at most with bf16 weights{fits}"
    )
