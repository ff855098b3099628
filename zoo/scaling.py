"""Scaling laws and the price of training: pure functions of numbers, without torch or numpy.

Parameters (N), tokens (D) and FLOPs are plain numbers (1e9, not "1B"); N counts all parameters, embeddings too. What a
whole question is answered with is in `zoo.sizing`; serving in `zoo.serving`; how to spread a job in `zoo.parallel`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

# Hoffmann et al. 2022, arXiv 2203.15556, table 3: about 20 tokens to a parameter at every size.
CHINCHILLA = 20.0
# A model that will answer often is made smaller and trained longer: the range of current practice, from the brief.
INFERENCE = (100.0, 200.0)
# What the brief's table of sizes implies on A100 (median of its rows, see the test): assumed where nobody measured.
TABLE_MFU = 0.277
# Muennighoff et al. 2023, arXiv 2305.16264, section 6: the fitted R*, repeats after which a token is worth 1/e.
REPEATS_SCALE = 15.4
# Epochs that are almost as good as new data, and those beyond which repeating does next to nothing (same paper, abstract).
GOOD_EPOCHS, LAST_EPOCHS = 4.0, 16.0
_FLOPS_PER_TERAFLOP_HOUR = 3600e12


# --- FLOPs ----------------------------------------------------------------------------------------------------------


def training_flops(params: float, tokens: float, *, layers: float = 0, width: float = 0, context: int = 0) -> float:
    """FLOPs of training a dense transformer once over `tokens`, forward and backward.

    6 N D for the matrices; with a context length T also attention's 12 * layers * width * T for each token, counted in
    full as the field does, though a causal kernel skips half of it.  Source: Kaplan et al. 2020, arXiv 2001.08361,
    table 1; Chowdhery et al. 2022, arXiv 2204.02311, appendix B.
    """
    return (6 * params + 12 * layers * width * context) * tokens


def gpu_hours(flops: float, tflops: float, mfu: float) -> float:
    """Hours of one GPU whose dense peak is `tflops` (10^12 FLOP/s), used at the share `mfu` of it."""
    return flops / (tflops * mfu * _FLOPS_PER_TERAFLOP_HOUR)


def flops_within(hours: float, tflops: float, mfu: float) -> float:
    """FLOPs done in so many GPU-hours: the inverse of `gpu_hours`."""
    return hours * tflops * mfu * _FLOPS_PER_TERAFLOP_HOUR


def implied_mfu(flops: float, hours: float, tflops: float) -> float:
    """The share of the peak at which `flops` take `hours` of one GPU."""
    return flops / (hours * tflops * _FLOPS_PER_TERAFLOP_HOUR)


def energy_kwh(hours: float, watts: float) -> float:
    """Energy of so many GPU-hours at a draw of `watts` for each GPU, its share of the host included or not as given."""
    return hours * watts / 1000


# --- shapes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShapeRule:
    """How a family grows: width = `width_per_layer` * layers, heads of `head_size`, so many tables of `vocabulary` rows."""

    width_per_layer: int
    head_size: int
    vocabulary: int
    embedding_tables: int = 2


@dataclass(frozen=True)
class Shape:
    """A transformer one could build; `params` are what it really has after rounding."""

    layers: int
    width: int
    heads: int
    params: float
    embedding_share: float


def matrix_params(layers: float, width: float) -> float:
    """Parameters in the matrices of all layers: attention 4 d^2 and a feed-forward of 8 d^2 in each."""
    return 12 * layers * width**2


def depth_of(params: float, rule: ShapeRule) -> float:
    """Layers, not rounded, at which a model of this rule has `params` parameters in matrices and embeddings."""
    return _solved(lambda depth: _params_at(depth, depth * rule.width_per_layer, rule), params)


def shape_of(params: float, rule: ShapeRule) -> Shape:
    """The whole number of layers nearest to `params`, with the width rounded up to whole heads."""
    layers = max(1, round(depth_of(params, rule)))
    heads = max(1, math.ceil(layers * rule.width_per_layer / rule.head_size))
    width = heads * rule.head_size
    total = _params_at(layers, width, rule)
    return Shape(layers, width, heads, total, 1 - matrix_params(layers, width) / total)


def _params_at(layers: float, width: float, rule: ShapeRule) -> float:
    return matrix_params(layers, width) + rule.embedding_tables * rule.vocabulary * width


def _solved(rising: Callable[[float], float], target: float) -> float:
    """The x > 0 with rising(x) = target, by halving in the logarithm: no start value to choose, and it cannot diverge."""
    low, high = 1e-12, 1e30
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if rising(middle) < target else (low, middle)
    return math.sqrt(low * high)


# --- sizes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Law:
    """What a FLOP count includes: 6 N D alone, or with a context length also attention in the shape that N has by `rule`."""

    context: int = 0
    rule: ShapeRule | None = None

    def flops(self, params: float, tokens: float) -> float:
        """FLOPs of training `params` on `tokens`."""
        if not self.context or self.rule is None:
            return training_flops(params, tokens)
        layers = depth_of(params, self.rule)
        return training_flops(
            params, tokens, layers=layers, width=layers * self.rule.width_per_layer, context=self.context
        )

    @property
    def formula(self) -> str:
        """The formula in use, in words for a person."""
        return f"6 N D + 12 layers d_model T D, T = {self.context}" if self.context and self.rule else "6 N D"


def tokens_for(params: float, ratio: float = CHINCHILLA) -> float:
    """Tokens at `ratio` to a parameter."""
    return ratio * params


def params_for(tokens: float, ratio: float = CHINCHILLA) -> float:
    """Parameters that `tokens` are enough for at `ratio` to a parameter."""
    return tokens / ratio


def params_within(flops: float, ratio: float = CHINCHILLA, law: Law = Law()) -> float:
    """Parameters that, trained on `ratio` tokens each, take `flops`. With 6 N D this is sqrt(flops / (6 ratio))."""
    return _solved(lambda params: law.flops(params, ratio * params), flops)


def tokens_within(flops: float, params: float, law: Law = Law()) -> float:
    """Tokens that a model of `params` can be trained on within `flops`."""
    return flops / law.flops(params, 1.0)


def params_on(flops: float, tokens: float, law: Law = Law()) -> float:
    """Parameters of the model whose training on `tokens` takes `flops`."""
    return _solved(lambda params: law.flops(params, tokens), flops)


# --- repeated data --------------------------------------------------------------------------------------------------


def effective_tokens(unique: float, epochs: float) -> float:
    """New tokens that `epochs` passes over `unique` ones are worth: U + U R* (1 - exp(-R / R*)) with R = epochs - 1.

    Up to one pass every token is new. Source: Muennighoff et al. 2023, arXiv 2305.16264, equation 5. A formula in
    circulation, D (1 - exp(-epochs)), gives 63 % for a single pass over new data and cannot be right.
    """
    if epochs <= 1:
        return unique * epochs
    return unique * (1 + REPEATS_SCALE * -math.expm1(-(epochs - 1) / REPEATS_SCALE))


def epochs_worth(unique: float, wanted: float) -> float:
    """Passes over `unique` tokens that are worth `wanted` new ones; infinite from U (1 + R*) on. Inverts the above."""
    repeats = (wanted / unique - 1) / REPEATS_SCALE
    if repeats <= 0:
        return wanted / unique
    return 1 - REPEATS_SCALE * math.log1p(-repeats) if repeats < 1 else math.inf


# --- what changes with the width --------------------------------------------------------------------------------------

TUNED_WIDTH = 768


def width_factor(width: float, tuned_at: float = TUNED_WIDTH) -> float:
    """s = (d_model / 768) ** -0.5, by which the AdamW rates of embeddings and unembedding are multiplied.

    The hidden matrices are Muon's and keep their rate. The practice this comes from (nanochat) leaves scalars alone.
    """
    return float((width / tuned_at) ** -0.5)


def mup_rates(rate: float, width: float, tuned_at: float) -> dict[str, float]:
    """Adam's learning rate for each kind of parameter when a rate tuned at one width moves to another.

    Matrices inside and at the output take tuned_at / width of it; what has only one side that grows (embeddings,
    biases, norms) keeps it. Holds with muP's initial values and output scale. Source: Yang et al. 2022, arXiv
    2203.03466, table 3.
    """
    inside = rate * tuned_at / width
    return {"hidden": inside, "output": inside, "embedding": rate, "vector": rate}


# --- optimizer states -------------------------------------------------------------------------------------------------

# Bytes a parameter of AdamW's two moments, in float32 and in 8 bits (without the small scales of each block).
ADAM_BYTES, ADAM_8BIT_BYTES = 8.0, 2.0
# Ours under autocast: float32 weights 4, float32 gradients 4, AdamW 8; before activations.
TRAINING_BYTES = 16.0


def saved_by_8bit(total_bytes: float | None = None) -> float:
    """Share saved by 8-bit moments: of the states themselves (75 %), or of a total of so many bytes a parameter.

    The "30 %" in circulation is true of a total of 20 bytes only.
    """
    return (ADAM_BYTES - ADAM_8BIT_BYTES) / (ADAM_BYTES if total_bytes is None else total_bytes)
