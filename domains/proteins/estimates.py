"""What a plan says of ESM-2 recipes before training: tokens, memory, cropped sequences, where the weights come from."""

from __future__ import annotations

from domains.contract import Facts
from domains.shared.proteins.esm2 import NUM_ADDED_TOKENS
from domains.shared.sequences import cropped_notes


def length_notes(facts: Facts, max_residues: int) -> list[str]:
    """How many of the training sequences are cropped."""
    return cropped_notes(facts, max_residues, f"{max_residues} residues", "are cropped", "options.max_residues")


def num_tokens_seen(facts: Facts, max_residues: int) -> int:
    """Tokens of one pass over the training rows, at most: cropping is counted for the longest sequence only."""
    total = facts.sizes["total_residues"] + NUM_ADDED_TOKENS * facts.num_rows
    return int(min(total, facts.num_rows * (max_residues + NUM_ADDED_TOKENS)))
