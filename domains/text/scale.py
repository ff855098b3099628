"""How large a GPT and its vocabulary should be for a corpus, where the user does not say; and how far that is from
compute-optimal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from domains.contract import Facts
from domains.text.gpt import GPTConfig

TOKENS_PER_PARAMETER = 20.0
"""Hoffmann et al. 2022, arXiv 2203.15556, table 3."""
GOOD_EPOCHS = 4.0
"""Passes over the same text that are nearly as good as new text: Muennighoff et al. 2023, arXiv 2305.16264, abstract."""
VOCABULARIES = ((4 << 20, 1024), (64 << 20, 4096), (1 << 30, 8192), (16 << 30, 16384), (float("inf"), 32768))
"""Below so many bytes so large a vocabulary: rare tokens of a small corpus are never learned. The first is measured on
tinyshakespeare, the last is the usual one, those between are guesses."""
BYTES_PER_TOKEN = {1024: 2.5, 4096: 3.4, 8192: 3.8, 16384: 4.2, 32768: 4.5}
"""Of English prose; only the plan's estimates need it."""
DROPOUT = 0.2
"""Where the corpus is too small for the model, so that it is read many times; a corpus that is large enough needs none.
There value embeddings are left out too: they learn the text by heart (figures in this folder's README)."""
LEAST_DEPTH, MOST_DEPTH = 4, 24
"""Four layers are cheap and better than fewer even where a corpus is too small for them by the rule of 20 tokens."""


@dataclass(frozen=True)
class Size:
    """What follows from corpus and options. tokens: of one pass over the training part, guessed."""

    config: GPTConfig
    tokens: float
    params: float

    def note(self, epochs: float | None) -> str:
        """How the number of tokens stands to what the parameters could learn from."""
        passes = GOOD_EPOCHS if epochs is None else epochs
        seen = self.tokens * passes
        ratio = seen / self.params
        where = "compute-optimal" if 10 <= ratio <= 40 else "few for its size" if ratio < 10 else "many for its size"
        return (
            f"{self.config.depth} layers of width {self.config.width}, {self.params / 1e6:.3g}M parameters; about "
            f"{self.tokens / 1e6:.3g}M training tokens, with {passes:g} passes {ratio:.3g} a parameter ({where}: the rule "
            f"is {TOKENS_PER_PARAMETER:g})"
        )


def size_of(facts: Facts, options: Any) -> Size:
    """The shape for these facts: depth by the one dial, or as many layers as the tokens are enough for."""
    num_bytes = facts.sizes["total_bytes"]
    vocabulary = options.vocabulary or next(size for below, size in VOCABULARIES if num_bytes < below)
    nearest = min(BYTES_PER_TOKEN, key=lambda known: abs(known - vocabulary))
    tokens = num_bytes / BYTES_PER_TOKEN[nearest]
    enough_for = tokens * GOOD_EPOCHS / TOKENS_PER_PARAMETER
    depth = options.depth or depth_for(enough_for, vocabulary, options)
    config = config_of(depth, vocabulary, options)
    params = num_parameters(config)
    if params > enough_for:
        config = for_scarce_text(config, options)
    return Size(config, tokens, num_parameters(config))


def for_scarce_text(config: GPTConfig, options: Any) -> GPTConfig:
    """The same shape, harder to learn a text by heart with; what the user said stays."""
    return replace(
        config,
        dropout=DROPOUT if options.dropout is None else options.dropout,
        value_embeddings=bool(options.value_embeddings),
    )


def depth_for(params: float, vocabulary: int, options: Any) -> int:
    """The most layers that keep within `params`, between LEAST_DEPTH and MOST_DEPTH."""
    fitting = [
        depth
        for depth in range(LEAST_DEPTH, MOST_DEPTH + 1)
        if num_parameters(config_of(depth, vocabulary, options)) <= params
    ]
    return max(fitting, default=LEAST_DEPTH)


def config_of(depth: int, vocabulary: int, options: Any) -> GPTConfig:
    """The model of these options; width 64 * depth unless it is said, in whole heads."""
    head_size = options.head_size
    num_heads = max(1, -(-(options.width or 64 * depth) // head_size))
    return GPTConfig(
        vocabulary,
        options.context,
        depth,
        num_heads * head_size,
        num_heads,
        num_kv_heads=options.kv_heads,
        feed_forward=options.feed_forward,
        windows=options.windows,
        value_embeddings=options.value_embeddings is not False,
        logit_cap=options.logit_cap,
        z_loss=options.z_loss,
        is_tied=options.is_tied,
        dropout=options.dropout or 0.0,
    )


def num_parameters(config: GPTConfig) -> int:
    """Counted by formula, as a plan needs no weights: attention, feed-forward, gates, tables, head with its bias."""
    width, kv_width = config.width, config.kv_heads * config.head_size
    gated = 3 * 64 * -(-8 * width // (3 * 64)) * width
    block = 2 * width * width + 2 * width * kv_width + (gated if config.feed_forward == "swiglu" else 8 * width * width)
    with_values = sum(config.has_values(layer) for layer in range(config.depth))
    values = with_values * (config.vocab_size * kv_width + min(32, width) * config.kv_heads)
    tables = (1 if config.is_tied else 2) * config.vocab_size * width + config.vocab_size
    return config.depth * (block + 2) + values + tables
