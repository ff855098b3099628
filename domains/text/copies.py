"""Texts that are copies of one another, exact or near: they must not stand on two sides of a split.

Near: the sets of their runs of three words overlap enough (Broder 1997, "On the resemblance and containment of
documents"). All pairs that share a run are compared exactly; runs that very many texts share tell nothing and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from domains.contract import Keys, Request
from domains.shared.frames import FrameTable
from domains.shared.groupings import equal_rows, joined
from domains.shared.roles import named_keys
from trainers.contract import JSON

RUN, WORD = 3, r"(?u)\w+"
NEAR = 0.7
"""Jaccard index from which two texts are near copies: one word changed in thirty gives 0.8."""
MOST_SHARED = 500
"""Texts that may share a run of words: what more of them share is boilerplate, and would cost time squared."""
_AT_ONCE = 4096


def folded(text: str) -> str:
    """A text without what copies of it may differ in: case and white space."""
    return " ".join(text.casefold().split())


def copy_keys(
    table: FrameTable,
    request: Request,
    column: str,
    *,
    fast: bool,
    what: str = "texts",
    of: str = "",
    given: str = "the column 'split' says which row goes where",
    stratum: np.ndarray | None = None,
) -> Keys:
    """Copies and near copies of the texts in `column` stay together; named columns and a column "split" come first.

    what, of: what the texts are, in words ("prompts", " of prompts").   given: why "split" says where rows go.
    """
    code = copy_groups(table.column(column).tolist(), near=not fast)
    if (named := named_keys(table, request, stratum)) is not None:
        return with_copies(named, code)
    if "split" in table.frame.columns and table.target_name != "split":
        return Keys("given", given, given=table.column("split").tolist(), group=code, stratum=stratum)
    how, evidence = search_of_copies(code, fast=fast)
    if evidence["num_copies"]:
        because = f"{evidence['num_copies']:,} copies or near copies{of} stay with their originals ({how})"
        return Keys("grouped", because, group=code, stratum=stratum, evidence=evidence)
    because = f"no two {what} are copies or near copies ({how})"
    return Keys("random" if stratum is None else "stratified", because, stratum=stratum, evidence=evidence)


def with_copies(named: Keys, code: np.ndarray) -> Keys:
    """The keys by a named column, where copies in two of its groups join them. code: what `copy_groups` returned."""
    if named.group is None:
        return named
    group = joined([named.group, code])
    num_joined = len(set(named.group)) - len(np.unique(group))
    because = f"{named.because}; {num_joined:,} of its groups hold copies of others" if num_joined else named.because
    return replace(named, group=group, because=because)


def search_of_copies(code: np.ndarray, *, fast: bool) -> tuple[str, JSON]:
    """How copies were looked for, in words, and what was found. code: what `copy_groups` returned."""
    how = "only exact copies were looked for (--fast)" if fast else f"near: {NEAR:.0%} of runs of {RUN} words shared"
    near = "not looked for" if fast else f"Jaccard index >= {NEAR}"
    return how, {"num_copies": len(code) - len(np.unique(code)), "near_copies": near}


def copy_groups(texts: Sequence[str], *, near: bool) -> np.ndarray:
    """(texts,) group numbers from 0; exact copies (case and white space aside) share one, and with `near` near ones too."""
    distinct, code = np.unique(np.array([folded(text) for text in texts], dtype=object), return_inverse=True)
    if not near or len(distinct) < 2:
        return np.asarray(code)
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    these, those = near_pairs(distinct.tolist())
    graph = coo_array((np.ones(len(these)), (these, those)), shape=(len(distinct), len(distinct)))
    return np.asarray(connected_components(graph, directed=False)[1][code])


def near_pairs(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Positions of each pair of texts, the first before the second, whose runs of words overlap by NEAR or more."""
    runs = _runs(texts)
    sizes = np.diff(runs.indptr)
    found = []
    for start in range(0, len(texts), _AT_ONCE):
        shared = (runs[start : start + _AT_ONCE] @ runs.T).tocoo()
        these, those = shared.row + start, shared.col
        either = sizes[these] + sizes[those] - shared.data
        kept = (these < those) & (shared.data >= NEAR * either)
        found.append(np.stack([these[kept], those[kept]]))
    these, those = np.concatenate(found, axis=1)
    return these, those


def nearest(texts: np.ndarray, these: np.ndarray, those: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each text of `these` the highest Jaccard index of runs of words with one of `those` (1 for copies too short to
    have any), and where that one stands among them (-1: nowhere)."""
    plain = np.array([folded(text) for text in texts], dtype=object)
    highest, position = equal_rows(plain, these, those)
    if not len(these) or not len(those):
        return highest, position
    runs = _runs(plain.tolist())
    sizes = np.diff(runs.indptr)
    others = runs[those].T
    for start in range(0, len(these), _AT_ONCE):
        rows = these[start : start + _AT_ONCE]
        shared = (runs[rows] @ others).tocoo()
        shared.data = shared.data / (sizes[rows][shared.row] + sizes[those][shared.col] - shared.data)
        best = np.asarray(shared.max(axis=1).todense()).reshape(-1)
        place = np.asarray(shared.tocsr().argmax(axis=1)).reshape(-1)
        better = best > highest[start : start + _AT_ONCE]
        highest[start : start + _AT_ONCE][better] = best[better]
        position[start : start + _AT_ONCE][better] = place[better]
    return highest, position


def _runs(texts: Sequence[str]) -> Any:
    """(texts, runs) sparse, 1 where a text has a run of words that not too many share."""
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import HashingVectorizer

    hashed = HashingVectorizer(
        token_pattern=WORD, ngram_range=(RUN, RUN), n_features=2**31 - 1, binary=True, norm=None, alternate_sign=False
    ).transform(texts)
    # Hashed columns are too many to count in an array; those in use are few.
    _, place, counts = np.unique(hashed.indices, return_inverse=True, return_counts=True)
    compact = csr_array((np.ones(len(place), np.int32), place, hashed.indptr), shape=(len(texts), len(counts)))
    return compact[:, np.flatnonzero(counts <= MOST_SHARED)]
