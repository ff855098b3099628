"""What a plan says of encoder recipes before training: tokens, cropped texts, where the weights come from."""

from __future__ import annotations

from typing import Protocol

from domains.contract import Facts
from domains.shared.weights import random_notes, weights_facts
from domains.text import encoder_weights as encoders
from trainers.contract import JSON
from trainers.errors import UsageError
from trainers.settings import Gradient

# AdamW in float32: weight, gradient and two moments.
BYTES_PER_PARAMETER = 16
# Activations kept for the backward pass, per token, layer and width; Korthikanti et al. 2022, arXiv 2205.05198, eq. 2,
# less the attention matrix, which sdpa does not keep. In bytes with 16-bit activations.
ACTIVATION_BYTES = 34

CHARACTERS_PER_TOKEN = 4.2
"""Of English prose under BERT's word pieces (AG News: 4.2, start and end included); other scripts have fewer."""


class Sized(Protocol):
    """What every encoder recipe's options say of size."""

    @property
    def weights(self) -> str: ...
    @property
    def max_tokens(self) -> int: ...


def encoder_estimates(facts: Facts, options: Sized, settings: Gradient, num_outputs: int) -> JSON:
    """Parameters, steps, FLOPs and memory from lengths and architecture.

    Raises MissingError where the weights are not to be had, UsageError for more tokens than the encoder has positions.
    """
    config = encoders.read_config(options.weights)
    limit = encoders.most_tokens(config)
    if options.max_tokens > limit:
        raise UsageError(
            f"options.max_tokens is {options.max_tokens}, but {options.weights} reads {limit} tokens at most: "
            f"--set options.max_tokens={limit}"
        )
    estimates = network_estimates(facts, config, options.max_tokens, settings, num_outputs)
    return {**estimates, "weights": weights_facts(options.weights, encoders.find)}


def network_estimates(facts: Facts, config: JSON, max_tokens: int, settings: Gradient, num_outputs: int) -> JSON:
    """Parameters, steps, FLOPs and memory of an encoder of this architecture with a linear head."""
    total = encoders.num_parameters(config) + (config["hidden_size"] + 1) * num_outputs
    rows = settings.micro_batch_size or settings.batch_size
    widest = min(rows * max_tokens, settings.micro_batch_tokens or rows * max_tokens)
    activations = widest * config["num_hidden_layers"] * config["hidden_size"] * ACTIVATION_BYTES
    return {
        "num_parameters": total,
        "num_steps": settings.planned_steps(facts.num_rows),
        "flops_per_epoch": 6 * total * num_tokens(facts, max_tokens),
        "memory_bytes": BYTES_PER_PARAMETER * total + activations * (1 if settings.precision != "fp32" else 2),
    }


def num_tokens(facts: Facts, max_tokens: int) -> int:
    """Tokens of one pass over the training rows, guessed from characters."""
    guessed = facts.sizes["total_characters"] / CHARACTERS_PER_TOKEN + 2 * facts.num_rows
    return int(min(guessed, facts.num_rows * max_tokens))


def cropping_notes(facts: Facts, spec: str, max_tokens: int) -> list[str]:
    """What to expect of long texts, and a warning where nothing was pretrained."""
    notes = random_notes(spec)
    longest = facts.sizes["longest_characters"] / CHARACTERS_PER_TOKEN + 2
    if longest > max_tokens:
        notes.append(
            f"the longest training text has {facts.sizes['longest_characters']:,.0f} characters, about {longest:,.0f} "
            f"tokens; texts are cropped after {max_tokens} (options.max_tokens), and training says how many"
        )
    return notes
