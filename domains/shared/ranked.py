"""Which answers a person looks at."""

from collections.abc import Mapping

_SHOWN = (("worst", 0.0), ("median", 0.5), ("best", 1.0))


def worst_median_best(scores: Mapping[int, float]) -> dict[str, int]:
    """Rows by name. scores: row -> a finite score, higher is better; nothing of nothing."""
    ranked = sorted(scores, key=lambda row: scores[row])
    return {name: ranked[round(place * (len(ranked) - 1))] for name, place in _SHOWN} if ranked else {}
