"""Train, valid and test parts without leaks: a data type supplies keys, everything else happens here.

Rules: `random`, `stratified` (class shares kept even), `grouped` (rows of a group stay together, class shares as even as
the groups allow), `time` (the last rows are the test), `given` (as the user laid the files out), and those that a data type
names. The result carries its proof: sizes, class shares, groups, and the highest similarity found across sides where the
data type can measure one.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from domains.contract import Keys, Split
from trainers.contract import JSON
from trainers.errors import DataError, UsageError, did_you_mean

RULES = ("random", "stratified", "grouped", "time", "given")
SHARES = (0.70, 0.15, 0.15)
LARGEST_FREE_GROUP = 0.20
"""A group with more than this share of the rows goes whole to train: no test made of one family is worth having."""
GROUPS_GIVEN_UP = (
    "the groups leave a part without rows, so they are given up and similar rows may be on both sides ({})"
)
_PARTS = ("train", "valid", "test")
_MOST_ROUNDS = 20


def make_split(
    keys: Keys, num_rows: int, *, seed: int, rule: str | None = None, named: bool = False, called: str = ""
) -> Split:
    """Divide `num_rows` rows by `keys`; `rule` overrides what the data type chose, and the evidence then says so.

    named: the user named the groups or the rule. Else groups that leave no rows for a part are given up, out loud.
    called: the name of the split, where it has one beside its rule.

    Raises UsageError for an unknown rule or one whose key is missing, DataError when train or test would be empty.
    """
    chosen = checked_rule(rule or keys.rule, keys)
    if chosen in keys.named:
        return make_split(keys.named[chosen](seed), num_rows, seed=seed, named=True, called=chosen)
    rng = np.random.default_rng([seed, 0x5B117])
    part = _assign(chosen, keys, num_rows, rng)
    group = np.arange(num_rows) if keys.group is None else codes(keys.group)
    moved = move_leaks(keys, part, group) if chosen == "grouped" else {}
    if keys.group is not None and not named and _is_short(part):
        chosen, moved = without_groups(chosen, keys), {"optimistic": GROUPS_GIVEN_UP.format(keys.because)}
        part = _assign(chosen, replace(keys, group=None), num_rows, rng)
    if chosen in ("random", "stratified") and _is_short(part) and num_rows >= len(_PARTS):
        part = _one_in_each(num_rows, rng)
    train, valid, test = (np.flatnonzero(part == k) for k in range(3))
    for name, rows in zip(_PARTS, (train, valid, test), strict=True):
        if not len(rows) and name != "valid":
            raise DataError(
                f"The {called or chosen} split leaves no rows for {name} ({num_rows} rows). Give more rows or groups."
            )
    evidence = {**evidence_of(keys, part, group), **_named_rule(keys, rule), **overridden(keys, chosen), **moved}
    return Split(called or chosen, train, valid, test, group, evidence)


def _is_short(part: np.ndarray) -> bool:
    return len({0, 1, 2} - set(part.tolist())) > 0


def without_groups(rule: str, keys: Keys) -> str:
    """The rule that is left where groups are given up."""
    if rule != "grouped":
        return rule
    return "random" if keys.stratum is None else "stratified"


def _one_in_each(num_rows: int, rng: np.random.Generator) -> np.ndarray:
    """A random split of very few rows, none of the parts empty."""
    num_held = max(1, round(SHARES[1] * num_rows))
    part = np.zeros(num_rows, np.int64)
    part[: 2 * num_held] = np.repeat([1, 2], num_held)
    return rng.permutation(part)


def checked_rule(rule: str, keys: Keys) -> str:
    """The rule by which rows are divided. Raises UsageError for an unknown one, or one whose key these rows lack."""
    if rule in keys.named:
        return rule
    if rule not in RULES:
        known = (*RULES, *keys.named)
        raise UsageError(f"Unknown split {rule!r}.{did_you_mean(rule, known)} Known: {', '.join(known)}.")
    needs = {"grouped": ("group", "--group COLUMN"), "time": ("order", "--order COLUMN"), "given": ("given", "folders")}
    if rule in needs and getattr(keys, needs[rule][0]) is None:
        raise UsageError(f"Split {rule!r} needs {needs[rule][1]}, and this data has none.")
    return "random" if rule == "stratified" and keys.stratum is None else rule


def _named_rule(keys: Keys, rule: str | None) -> JSON:
    """Why rows are split so where the user named another rule than the data type's."""
    if rule is None or rule == keys.rule:
        return {}
    return {"because": f"--split {rule} was named; without it {keys.rule}: {keys.because}"}


def overridden(keys: Keys, chosen: str) -> JSON:
    """What the evidence says where the user chose less than the data type would have."""
    if chosen in ("random", "stratified") and keys.rule in ("grouped", "time"):
        why = f"similar rows may be on both sides; the default here is {keys.rule} ({keys.because})"
        return {"optimistic": why}
    return {}


def codes(values: Any) -> np.ndarray:
    """Whole numbers 0.. for the distinct values, in order of first appearance."""
    place: dict[Any, int] = {}
    return np.array([place.setdefault(value, len(place)) for value in values], dtype=np.int64)


def strata_of(keys: Keys, num_rows: int) -> np.ndarray:
    """(rows,) the stratum of each row as a number; zeros where there are none."""
    return np.zeros(num_rows, np.int64) if keys.stratum is None else codes(keys.stratum)


def _assign(rule: str, keys: Keys, num_rows: int, rng: np.random.Generator) -> np.ndarray:
    """(rows,) 0 train, 1 valid, 2 test, -1 unused."""
    if rule == "given":
        return _as_given(keys, num_rows, rng)
    if rule == "time":
        return _by_time(sortable(keys.order))
    if rule == "grouped":
        return by_group(codes(keys.group), strata_of(keys, num_rows), np.array(SHARES), rng)
    strata = strata_of(keys, num_rows) if rule == "stratified" else np.zeros(num_rows, np.int64)
    return by_stratum(strata, np.array(SHARES), rng)


def by_stratum(strata: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows of each stratum dealt in the given shares; with fewer rows than parts they all train.

    What rounding leaves over goes to the part that is furthest below its share of everything dealt so far.
    """
    part = np.zeros(len(strata), np.int64)
    owed = np.zeros(len(shares))
    for code in np.unique(strata):
        rows = rng.permutation(np.flatnonzero(strata == code))
        if len(rows) < np.count_nonzero(shares):
            continue
        exact = shares * len(rows)
        counts = np.floor(exact).astype(int)
        owed += exact - counts
        for _ in range(len(rows) - int(counts.sum())):
            neediest = int(np.argmax(np.where(shares > 0, owed, -np.inf)))
            counts[neediest] += 1
            owed[neediest] -= 1
        if counts[0] == 0:  # every class must be learned from at least one row
            counts[int(counts.argmax())] -= 1
            counts[0] = 1
        part[rows] = np.repeat(np.arange(len(shares)), counts)
    return part


def by_group(
    group: np.ndarray,
    strata: np.ndarray,
    shares: np.ndarray,
    rng: np.random.Generator,
    *,
    largest: float = LARGEST_FREE_GROUP,
) -> np.ndarray:
    """Whole groups to parts, largest first, each where the class counts are furthest below their target.

    largest: a group with more than this share of the rows goes to the first part.
    """
    num_rows, num_groups = len(group), int(group.max()) + 1
    counts = np.zeros((num_groups, int(strata.max()) + 1))
    np.add.at(counts, (group, strata), 1)
    sizes = counts.sum(axis=1)
    # Each stratum weighs the same per row of its own: rare classes are spread as carefully as frequent ones.
    weight = 1 / np.maximum(counts.sum(axis=0), 1)
    target = shares[:, None] * counts.sum(axis=0)
    filled = np.zeros_like(target)
    home = np.zeros(num_groups, np.int64)
    shuffled = rng.permutation(num_groups)
    for g in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        if sizes[g] > largest * num_rows:
            best = 0
        else:
            room = target - filled
            gain = ((room - counts[g] / 2) * counts[g] * weight / np.maximum(shares, 1e-9)[:, None]).sum(axis=1)
            best = int(np.argmax(np.where(shares > 0, gain, -np.inf)))
        home[g] = best
        filled[best] += counts[g]
    return np.asarray(home[group])


def _by_time(order: np.ndarray) -> np.ndarray:
    """Train, then valid, then test; rows of the same moment stay on one side."""
    ranked = np.argsort(order, kind="stable")
    part = np.zeros(len(order), np.int64)
    first_valid = _first_of_moment(order[ranked], round(SHARES[0] * len(order)))
    first_test = _first_of_moment(order[ranked], round((SHARES[0] + SHARES[1]) * len(order)))
    part[ranked[first_valid:]] = 1
    part[ranked[first_test:]] = 2
    return part


def _first_of_moment(ordered: np.ndarray, position: int) -> int:
    while 0 < position < len(ordered) and ordered[position] == ordered[position - 1]:
        position += 1
    return position


def sortable(order: Any) -> np.ndarray:
    """Numbers in whose order the rows are, of numbers or dates. Raises DataError for text, which has no order in time:
    01/02/2020 comes before 31/12/2019 there; and for rows without a value."""
    values = _dates(np.asarray(order))
    if values.dtype.kind == "M":
        missing, values = np.isnat(values), values.astype("datetime64[ns]").astype(np.int64)
    elif values.dtype.kind in "biuf":
        missing = np.isnan(values.astype(np.float64))
    else:
        raise DataError(
            f"The order column holds text ({str(values[0])!r} for one), and text has no order in time. Write dates as "
            "2020-01-31, or give numbers."
        )
    if missing.any():
        raise DataError(
            f"{int(missing.sum()):,} rows have no value in the order column. Fill them in, or leave the rows out."
        )
    return values


def _dates(values: np.ndarray) -> np.ndarray:
    """Texts that are all ISO 8601 dates, or missing, as dates; anything else as it is."""
    if values.dtype.kind not in "OUS" or not len(values):
        return values
    import pandas as pd

    texts = pd.Series(values.astype(object)).replace("", None)
    found = pd.to_datetime(texts, format="ISO8601", errors="coerce", utc=True).dt.tz_localize(None)
    is_all = found.notna().any() and bool((found.notna() | texts.isna()).all())
    return found.to_numpy("datetime64[ns]") if is_all else values


def _as_given(keys: Keys, num_rows: int, rng: np.random.Generator) -> np.ndarray:
    """The user's parts; a missing valid (or test) is carved from train, by group and stratum."""
    given = np.asarray(keys.given, dtype=object)
    part = np.full(num_rows, -1, np.int64)
    for code, name in enumerate(_PARTS):
        part[given == name] = code
    for code in (2, 1):
        train = np.flatnonzero(part == 0)
        if len(train) and not (part == code).any():
            shares = np.zeros(3)
            shares[code] = SHARES[code] / (SHARES[0] + SHARES[code])
            shares[0] = 1 - shares[code]
            strata = strata_of(keys, num_rows)[train]
            if keys.group is not None:
                part[train] = by_group(codes(np.asarray(keys.group, dtype=object)[train]), strata, shares, rng)
            else:
                part[train] = by_stratum(strata, shares, rng)
    return part


def move_leaks(keys: Keys, part: np.ndarray, group: np.ndarray) -> JSON:
    """Move what is still similar across sides, whole groups at a time: to train, then from test to valid. In place."""
    if keys.links is None:
        return {}
    moved, left = 0, 0.0
    for home, away in ((0, (1, 2)), (1, (2,))):
        fresh = np.flatnonzero(part == home)
        for _ in range(_MOST_ROUNDS):  # what moves may pull others after it
            others = np.flatnonzero(np.isin(part, away))
            nearness = keys.links(others, fresh) if len(others) and len(fresh) else np.zeros(len(others))
            hits = others[nearness >= keys.near]
            if not len(hits):
                left = max(left, float(nearness.max(initial=0.0)))
                break
            fresh = np.flatnonzero(np.isin(group, group[hits]) & np.isin(part, away))
            part[fresh] = home
            moved += len(fresh)
    return {"rows_moved": moved, "highest_similarity_across": left}


def evidence_of(keys: Keys, part: np.ndarray, group: np.ndarray) -> JSON:
    """The proof of a split. part, group: (rows,) numbers, part as in `_assign`."""
    sizes = {name: int((part == code).sum()) for code, name in enumerate(_PARTS)}
    groups = {name: len(np.unique(group[part == code])) for code, name in enumerate(_PARTS)}
    shares = _class_shares(keys, part)
    absent = sorted(shares.get("train", {}).keys() - shares.get("test", {}).keys())
    rare = [f"class {name!r} has no row in the test: its few rows train" for name in absent]
    return {
        "because": keys.because,
        "warnings": rare,
        "num_rows": {**sizes, "unused": int((part < 0).sum())},
        "num_groups": groups,
        "class_shares": shares,
        **keys.evidence,
    }


def _class_shares(keys: Keys, part: np.ndarray) -> JSON:
    if keys.stratum is None:
        return {}
    labels = np.asarray(keys.stratum).astype(str)
    shares = {}
    for code, name in enumerate(_PARTS):
        found, counts = np.unique(labels[part == code], return_counts=True)
        shares[name] = {
            str(label): round(int(n) / int(counts.sum()), 4) for label, n in zip(found, counts, strict=True)
        }
    return shares
