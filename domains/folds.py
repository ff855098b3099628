"""Cross-validation: every row is tested in exactly one fold, by the rules that would split the rows once.

A fold is a rule by name, "fold-0-of-5" (with another rule than the data type's: "random-fold-0-of-5"), so that a fold can
also be trained by itself: `zoo train ... --split fold-0-of-5`. Groups stay whole, class shares even. The validation part
of a fold is carved from its other rows by the same rule. Rows that are similar to a test row (`Keys.links`) cannot move to
train, as a single split has it, or not every row would be tested: they are left out of that fold.
"""

import re
from typing import Any

import numpy as np

from domains.contract import Keys, Split
from domains.splits import (
    GROUPS_GIVEN_UP,
    LARGEST_FREE_GROUP,
    SHARES,
    by_group,
    by_stratum,
    checked_rule,
    codes,
    evidence_of,
    make_split,
    move_leaks,
    overridden,
    strata_of,
    without_groups,
)
from trainers.contract import JSON
from trainers.errors import DataError, UsageError

_NAME = re.compile(r"(?:(.+)-)?fold-(\d+)-of-(\d+)")
_SALT = 0xF01D
_TRAIN, _VALID, _TEST, _UNUSED = 0, 1, 2, -1
_FEWEST_GROUPS = 3
"""One for each part; with fewer a single split gives the groups up too."""
_VALID_SHARE = SHARES[1] / (SHARES[0] + SHARES[1])


def name_of(fold: int, num_folds: int, rule: str | None = None) -> str:
    """What a fold is called as a rule of splitting. fold: from 0.   rule: where it is not the data type's."""
    return f"{rule + '-' if rule else ''}fold-{fold}-of-{num_folds}"


def divide(keys: Keys, num_rows: int, *, seed: int, rule: str | None = None, named: bool = False) -> Split:
    """`splits.make_split`, which also understands the names of folds."""
    found = _NAME.fullmatch(rule or "")
    if found is None:
        return make_split(keys, num_rows, seed=seed, rule=rule, named=named)
    return make_fold(keys, num_rows, int(found[2]), int(found[3]), seed=seed, rule=found[1], named=named)


def make_fold(
    keys: Keys, num_rows: int, fold: int, num_folds: int, *, seed: int, rule: str | None = None, named: bool = False
) -> Split:
    """Fold `fold` (from 0) of `num_folds`: its rows are the test. seed, rule, named: as for `splits.make_split`.

    Raises UsageError where parts are fixed, by the user or by time, and for a fold that does not exist; DataError for too
    few rows or groups.
    """
    _check_number(fold, num_folds)
    if rule and rule in keys.named and (own := keys.named[rule](seed)).rule == "grouped":
        keys, rule, named = own, None, True
    chosen = _dealable(rule or keys.rule, keys)
    group = np.arange(num_rows) if keys.group is None else codes(keys.group)
    given_up: JSON = {}
    if chosen == "grouped" and not named and group.max() + 1 < _FEWEST_GROUPS:
        chosen, given_up = without_groups(chosen, keys), {"optimistic": GROUPS_GIVEN_UP.format(keys.because)}
    strata = np.zeros(num_rows, np.int64) if chosen == "random" else strata_of(keys, num_rows)
    homes = _homes(chosen, group, strata, num_folds, np.random.default_rng([seed, _SALT, num_folds]), keys.because)
    part, leaks = np.where(homes == fold, _TEST, _TRAIN), dict[str, Any]()
    has_links = chosen == "grouped" and keys.links is not None
    if has_links:
        leaks = _leave_out(keys, part)
    _carve_validation(part, chosen, group, strata, np.random.default_rng([seed, _SALT, num_folds, 1 + fold]))
    if has_links:
        leaks = _joined(leaks, _move_within(keys, part, group))
    train, valid, test = (np.flatnonzero(part == k) for k in (_TRAIN, _VALID, _TEST))
    if not len(train):
        raise DataError(f"Fold {fold} of {num_folds} leaves no rows to train on. Give fewer --folds, or more rows.")
    evidence = {**evidence_of(keys, part, group), **overridden(keys, chosen), **given_up, **leaks}
    evidence["because"] = f"fold {fold} of {num_folds}, every row is tested in one of them; {keys.because}"
    evidence["warnings"] = [*_absent(evidence), *_of_one_group(group, test, chosen)]
    evidence["fold"] = {"number": fold, "of": num_folds, "num_rows": np.bincount(homes, minlength=num_folds).tolist()}
    return Split(chosen, train, valid, test, group, evidence)


def _check_number(fold: int, num_folds: int) -> None:
    if num_folds < 2:
        raise UsageError(f"--folds {num_folds}: give 2 or more, usually 5 to 10.")
    if fold >= num_folds:
        raise UsageError(f"--split fold-{fold}-of-{num_folds}: folds count from 0 to {num_folds - 1}.")


def _dealable(rule: str, keys: Keys) -> str:
    """The rule, where rows may change sides. Raises UsageError where they may not."""
    chosen = checked_rule(rule, keys)
    if chosen in keys.named or chosen in ("time", "given"):
        why = f" ({keys.because})" if chosen == keys.rule and keys.because else ""
        raise UsageError(
            f"Folds are not possible here: split {chosen!r} fixes which rows are the test{why}. Leave --folds out to be "
            "scored on those, vary the rest with --seeds 5, or deal all rows anew with --split "
            f"{'grouped' if keys.group is not None else 'random'}."
        )
    return chosen


def _homes(
    chosen: str, group: np.ndarray, strata: np.ndarray, num_folds: int, rng: np.random.Generator, because: str
) -> np.ndarray:
    """(rows,) the fold in which each row is tested."""
    if chosen != "grouped":
        group = np.arange(len(group))
    num_groups = int(group.max()) + 1
    if num_groups < num_folds:
        what = f"groups ({because})" if chosen == "grouped" else "rows"
        fewer = f"Give --folds {num_groups}" if num_groups > 1 else "Leave --folds out"
        raise DataError(f"--folds {num_folds}: there are {num_groups} {what}. {fewer}, or more data.")
    if chosen == "grouped":
        homes = by_group(group, strata, np.full(num_folds, 1 / num_folds), rng, largest=1.0)
        return _without_empty(homes, group, num_folds)
    return _dealt(strata, num_folds, rng)


def _without_empty(homes: np.ndarray, group: np.ndarray, num_folds: int) -> np.ndarray:
    """`homes` where every fold has a group: balance of rows alone leaves a fold empty where one group outweighs the rest.

    An empty fold takes the smallest group of the fold that has most of them.
    """
    homes = homes.copy()
    sizes = np.bincount(group)
    for empty in np.setdiff1d(np.arange(num_folds), homes):
        home_of = np.empty(len(sizes), np.int64)
        home_of[group] = homes
        donors = np.flatnonzero(home_of == np.bincount(home_of).argmax())
        homes[group == donors[np.argmin(sizes[donors])]] = empty
    return homes


def _dealt(strata: np.ndarray, num_folds: int, rng: np.random.Generator) -> np.ndarray:
    """Rows dealt like cards, one stratum after the other: folds and classes in folds differ by one row at most."""
    order = np.concatenate([rng.permutation(np.flatnonzero(strata == code)) for code in np.unique(strata)])
    homes = np.empty(len(strata), np.int64)
    homes[order] = np.arange(len(strata)) % num_folds
    return homes


def _leave_out(keys: Keys, part: np.ndarray) -> JSON:
    """Mark as unused what is similar to a test row. In place."""
    assert keys.links is not None
    others, test = np.flatnonzero(part == _TRAIN), np.flatnonzero(part == _TEST)
    nearness = keys.links(others, test)
    is_near = nearness >= keys.near
    part[others[is_near]] = _UNUSED
    left = float(nearness[~is_near].max(initial=0.0))
    return {"rows_left_out": int(is_near.sum()), "highest_similarity_across": left}


def _move_within(keys: Keys, part: np.ndarray, group: np.ndarray) -> JSON:
    """Move what is similar across train and valid to train; the test rows stay. In place."""
    is_test = part == _TEST
    part[is_test] = _UNUSED
    moved = move_leaks(keys, part, group)
    part[is_test] = _TEST
    return moved


def _joined(of_test: JSON, of_valid: JSON) -> JSON:
    name = "highest_similarity_across"
    return {**of_test, **of_valid, name: max(of_test[name], of_valid[name])}


def _carve_validation(
    part: np.ndarray, chosen: str, group: np.ndarray, strata: np.ndarray, rng: np.random.Generator
) -> None:
    """Move a share of the training rows to the validation part. In place."""
    rows = np.flatnonzero(part == _TRAIN)
    if len(rows) < 2:
        return
    units = codes(group[rows]) if chosen == "grouped" else np.arange(len(rows))
    shares = np.array([1 - _VALID_SHARE, _VALID_SHARE])
    if chosen == "grouped":
        is_valid = by_group(units, strata[rows], shares, rng) == 1
    else:
        is_valid = by_stratum(strata[rows], shares, rng) == 1
    if not is_valid.any() and units.max() > 0:  # very few rows or large groups: the smallest one
        is_valid = units == np.argmin(np.bincount(units))
    part[rows[is_valid]] = _VALID


def _absent(evidence: JSON) -> list[str]:
    shares = evidence["class_shares"]
    unknown = sorted(shares.get("test", {}).keys() - shares.get("train", {}).keys())
    return [f"class {name!r} is tested in this fold and has no row to learn from" for name in unknown]


def _of_one_group(group: np.ndarray, test: np.ndarray, chosen: str) -> list[str]:
    largest = int(np.bincount(group[test]).max())
    if chosen != "grouped" or largest <= LARGEST_FREE_GROUP * len(group):
        return []
    return [f"one group has {largest:,} of {len(group):,} rows; a single split would never test it, this fold does"]
