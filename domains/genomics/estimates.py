"""What a plan says of sequences that are too long."""

from __future__ import annotations

from domains.contract import Facts


def length_notes(facts: Facts, most_bases: int, what: str) -> list[str]:
    """That training sequences are cropped, if any are. what: happens to them, in words ("lose both ends")."""
    longest = facts.sizes["longest"]
    if longest <= most_bases:
        return []
    known = facts.sizes.get(f"longer_than_{most_bases}")
    count = f"{known:,.0f}" if known is not None else "some"
    return [
        f"{count} of {facts.num_rows:,} training sequences are longer than {most_bases:,} bases and {what}; the longest has "
        f"{longest:,.0f} (options.max_bases)"
    ]
