"""Which answers a person looks at."""

from collections.abc import Mapping

_SHOWN = (("worst", 0.0), ("best", 1.0), ("median", 0.5))


def worst_median_best(scores: Mapping[int, float]) -> dict[str, int]:
    """Rows by name. scores: row -> a finite score, higher is better; no row comes twice."""
    ranked = sorted(scores, key=lambda row: scores[row])
    found: dict[str, int] = {}
    for name, place in _SHOWN if ranked else ():
        row = ranked[round(place * (len(ranked) - 1))]
        if row not in found.values():  # of two, half-way is one of them
            found[name] = row
    return found
