"""Tags of words as entities: one notation for all files (BIO), scores by entity, and answers that are always well formed.

BIO, also called IOB2 (Ramshaw & Marcus 1995; Tjong Kim Sang & Veenstra 1999): B-TYPE on the first word of an entity, I-TYPE
on the others, O elsewhere. An entity counts as found where first word, last word and type are all right, as conlleval and
seqeval count; stats are a few numbers a row, so that they stream and can be resampled.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from domains.contract import Metric
from trainers.contract import Predictions

OUTSIDE = "O"
_TAG = re.compile(r"([BIESLUM])-(.+)")
# IOBES and BILOU name single words and last words too; BIO says the same with fewer tags.
_AS_BIO = {"B": "B", "S": "B", "U": "B", "I": "I", "E": "I", "L": "I", "M": "I"}
Entity = tuple[str, int, int]


@dataclass(frozen=True)
class Settled:
    """tags: of each sentence in BIO, None where they are no tags of entities.   reasons: why, by sentence.
    notices: what was changed."""

    tags: list[tuple[str, ...] | None]
    reasons: dict[int, str]
    notices: tuple[str, ...]


def entities(tags: Sequence[str]) -> list[Entity]:
    """(type, first word, last word) of each entity of one sentence in BIO. I-TYPE that continues nothing begins one."""
    found: list[Entity] = []
    for at, tag in enumerate(tags):
        if tag == OUTSIDE:
            continue
        is_first, kind = tag[0] == "B", tag[2:]
        if found and not is_first and found[-1][0] == kind and found[-1][2] == at - 1:
            found[-1] = (kind, found[-1][1], at)
        else:
            found.append((kind, at, at))
    return found


def as_tags(found: Sequence[Entity], num_words: int) -> tuple[str, ...]:
    """The BIO tags of a sentence of `num_words` words with these entities."""
    tags = [OUTSIDE] * num_words
    for kind, first, last in found:
        tags[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return tuple(tags)


def types_of(tags: Sequence[str]) -> tuple[str, ...]:
    """The types of entities that these tags name, sorted."""
    return tuple(sorted({tag[2:] for tag in tags if tag != OUTSIDE}))


def rarest_types(target: Sequence[Sequence[str]] | np.ndarray) -> np.ndarray:
    """(rows,) the type of entity in each row that the fewest rows hold; O where there is none."""
    held = [types_of(tags) for tags in target]
    counts = Counter(kind for types in held for kind in types)
    return np.array([min(types, key=lambda kind: (counts[kind], kind)) if types else OUTSIDE for types in held])


def settled(sentences: Sequence[Sequence[str] | None]) -> Settled:
    """Tags as they stand in a file, in BIO. Reads IOB1, IOBES, BILOU, and bare types (one entity as long as they repeat).

    What is no tag of the notation that the file uses makes a sentence unusable, with the reason.
    """
    known = {tag for sentence in sentences if sentence is not None for tag in sentence}
    is_bare = not any(_TAG.fullmatch(tag) for tag in known)
    tags: list[tuple[str, ...] | None] = []
    reasons: dict[int, str] = {}
    counts: Counter[str] = Counter()
    for at, sentence in enumerate(sentences):
        wrong = None if sentence is None else _first_wrong(sentence, is_bare)
        if sentence is None or wrong is not None:
            tags.append(None)
            if wrong is not None:
                reasons[at] = _reason(sentence or (), wrong, is_bare)
            continue
        tags.append(_from_bare(sentence) if is_bare else _from_marked(sentence, counts))
    return Settled(tags, reasons, _notices(counts, is_bare and known != {OUTSIDE} and bool(known)))


def _first_wrong(sentence: Sequence[str], is_bare: bool) -> int | None:
    def is_fine(tag: str) -> bool:
        return tag == OUTSIDE or (bool(tag.strip()) if is_bare else bool(_TAG.fullmatch(tag)))

    return next((at for at, tag in enumerate(sentence) if not is_fine(tag)), None)


def _reason(sentence: Sequence[str], at: int, is_bare: bool) -> str:
    if not str(sentence[at]).strip():
        return f"word {at + 1} has no tag"
    return f"tag {sentence[at]!r} of word {at + 1} is neither {OUTSIDE} nor like B-TYPE or I-TYPE"


def _from_bare(sentence: Sequence[str]) -> tuple[str, ...]:
    return as_tags(entities([tag if tag == OUTSIDE else f"I-{tag}" for tag in sentence]), len(sentence))


def _from_marked(sentence: Sequence[str], counts: Counter[str]) -> tuple[str, ...]:
    """BIO of one sentence; counts what had to be changed."""
    tags: list[str] = []
    before, before_ended = OUTSIDE, True
    for tag in sentence:
        if tag == OUTSIDE:
            tags.append(tag)
            before, before_ended = OUTSIDE, True
            continue
        mark, kind = tag[0], tag[2:]
        continues = _AS_BIO[mark] == "I" and before == kind and not before_ended
        counts["other marks"] += mark not in "BI"
        counts["begins with I"] += not continues and mark in "IELM"
        tags.append(f"I-{kind}" if continues else f"B-{kind}")
        before, before_ended = kind, mark in "ESLU"
    return tuple(tags)


def _notices(counts: Counter[str], is_bare: bool) -> tuple[str, ...]:
    found = []
    if is_bare:
        found.append("tags name types without B- and I-: neighbouring words of one type are read as one entity")
    if counts["other marks"]:
        found.append(f"{counts['other marks']:,} tags mark last or single words (IOBES, BILOU); they are read as BIO")
    if counts["begins with I"]:
        found.append(
            f"{counts['begins with I']:,} entities begin with I-TYPE (IOB1, or a slip); they are read as beginning with "
            "B-TYPE"
        )
    return tuple(found)


# --- scores: stats are, for each type, entities that are right, entities that were named, and entities that there are ---


def entity_metrics(tags: Sequence[str]) -> tuple[Metric, ...]:
    """F1 of entities over all types (it decides), precision, recall, and the mean F1 of the types, as in seqeval.

    tags: all that training knew.
    """
    stats = partial(_counts, types_of(tags))
    return (
        Metric("entity_f1", "", True, stats, _micro_f1),
        Metric("precision", "", True, stats, _precision),
        Metric("recall", "", True, stats, _recall),
        Metric("macro_f1", "", True, stats, _macro_f1),
    )


def _counts(types: tuple[str, ...], truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    """(rows, 3 x (types + 1)); the last three count types that training did not know."""
    place = {kind: at for at, kind in enumerate(types)}
    stats = np.zeros((len(truth), 3, len(types) + 1))
    for row, (right, answer) in enumerate(zip(truth, predictions.values, strict=True)):
        there, named = set(entities(right)), set(entities(answer))
        for column, group in enumerate((there & named, named, there)):
            for kind, _, _ in group:
                stats[row, column, place.get(kind, -1)] += 1
    return stats.reshape(len(truth), -1)


def _sums(stats: np.ndarray) -> np.ndarray:
    """(3, types + 1)."""
    sums: np.ndarray = stats.sum(axis=0).reshape(3, -1)
    return sums


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


def _micro_f1(stats: np.ndarray) -> float:
    """NaN only where there is no entity, neither found nor to be found."""
    right, named, there = _sums(stats).sum(axis=1)
    return _share(2 * right, named + there) if named + there else float("nan")


def _precision(stats: np.ndarray) -> float:
    right, named, there = _sums(stats).sum(axis=1)
    return _share(right, named) if named + there else float("nan")


def _recall(stats: np.ndarray) -> float:
    right, named, there = _sums(stats).sum(axis=1)
    return _share(right, there) if named + there else float("nan")


def _macro_f1(stats: np.ndarray) -> float:
    right, named, there = _sums(stats)
    present = named + there > 0
    return float(np.mean(2 * right[present] / (named + there)[present])) if present.any() else float("nan")


# --- answers that are well formed --------------------------------------------------------------------------------------


def best_tags(scores: np.ndarray, tags: Sequence[str]) -> list[str]:
    """The BIO tags of one sentence with the highest sum of log probabilities among those that are well formed (Viterbi).

    scores: (words, tags) log probabilities.
    """
    if not len(scores):
        return []
    may_follow = _may_follow(tuple(tags))
    is_first = np.array([not tag.startswith("I-") for tag in tags])
    best = np.where(is_first, scores[0], -np.inf)
    came_from = np.zeros(scores.shape, dtype=np.int64)
    for at in range(1, len(scores)):
        paths = np.where(may_follow, best[:, None], -np.inf)
        came_from[at] = paths.argmax(axis=0)
        best = paths.max(axis=0) + scores[at]
    path = [int(best.argmax())]
    for at in range(len(scores) - 1, 0, -1):
        path.append(int(came_from[at, path[-1]]))
    return [tags[place] for place in reversed(path)]


def _may_follow(tags: tuple[str, ...]) -> np.ndarray:
    """(tags, tags) whether the second may stand after the first: I-TYPE only after B-TYPE or I-TYPE."""
    return np.array([[not b.startswith("I-") or (a != OUTSIDE and a[2:] == b[2:]) for b in tags] for a in tags])
