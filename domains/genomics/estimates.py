"""What a plan says of sequences that are too long."""

from __future__ import annotations

from domains.contract import Facts
from domains.shared.sequences import cropped_notes


def length_notes(facts: Facts, most_bases: int) -> list[str]:
    """That training sequences lose both ends, if any do."""
    return cropped_notes(facts, most_bases, f"{most_bases:,} bases", "lose both ends", "options.max_bases")
