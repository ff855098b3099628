"""Scores with their direction, and honest intervals by resampling groups.

Every metric keeps a few floats a row (`stats`), so that batches and folds concatenate and a bootstrap can resample whole
groups (patients, clusters). Values are float64; a value is NaN where it is undefined, for example an AUC with one class.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from domains.contract import Metric
from trainers.contract import JSON, Predictions, known_labels

NUM_RESAMPLES = 1000
FEWEST_GROUPS = 10
_SMALLEST_PROBABILITY = 1e-15


def classification_metrics(classes: Sequence[str], *, imbalanced: bool = False) -> tuple[Metric, ...]:
    """Accuracy, macro-F1, AUC-ROC (binary, or the mean of one class against the rest) and log loss.

    classes: names in the order of `Facts.classes`; for two classes the second is the positive one.
    imbalanced: macro-F1 decides instead of accuracy.
    A row whose true class the model does not know counts as wrong.
    """
    names = tuple(classes)
    decisions, probabilities = partial(_decisions, names), partial(_probabilities, names)
    auc = Metric(
        "auc", "", True, probabilities, _binary_auc if len(names) == 2 else _mean_auc, None, partial(_one_class, names)
    )
    accuracy = Metric("accuracy", "", True, decisions, _accuracy)
    macro_f1 = Metric("macro_f1", "", True, decisions, _macro_f1)
    log_loss = Metric("log_loss", "nats", False, probabilities, _log_loss)
    first = (macro_f1, accuracy) if imbalanced else (accuracy, macro_f1)
    return (*first, auc, log_loss)


def label_set_metrics(classes: Sequence[str], *, first: str = "micro_f1", each: bool = False) -> tuple[Metric, ...]:
    """Several labels a row: F1 over all labels of all rows, the mean F1 of the labels, the mean average precision and the
    mean ROC-AUC; `first` decides. Labels that nobody knows of in a row ("NAME?" in its truth) do not count there.

    each: also the ROC-AUC of each label, on the rows where it is known.
    """
    names = tuple(classes)
    decided, scored = partial(_label_decisions, names), partial(_label_scores, names)
    found = [
        Metric("micro_f1", "", True, decided, _label_micro_f1),
        Metric("macro_f1", "", True, decided, _label_macro_f1),
        Metric("mean_average_precision", "", True, scored, _mean_average_precision),
    ]
    if first == "mean_auc" or each:
        found.append(Metric("mean_auc", "", True, scored, _label_mean_auc))
    if each:
        found += [Metric(f"auc_{name}", "", True, partial(_label_scores, (name,)), _label_mean_auc) for name in names]
    return tuple(sorted(found, key=lambda metric: metric.name != first))


def number_row_metrics(names: Sequence[str]) -> tuple[Metric, ...]:
    """Several numbers a row: the mean over the targets of their RMSE (it decides), of their R2, and each one's RMSE. A
    number that nobody knows (NaN in the truth) does not count."""
    whole = partial(_number_rows, tuple(range(len(names))))
    return (
        Metric("mean_rmse", "", False, whole, partial(_mean_over_targets, _rmse)),
        Metric("mean_r2", "", True, whole, partial(_mean_over_targets, _r2)),
        *(
            Metric(f"rmse_{name}", "", False, partial(_number_rows, (at,)), partial(_mean_over_targets, _rmse))
            for at, name in enumerate(names)
        ),
    )


def regression_metrics(first: str = "rmse", unit: str = "") -> tuple[Metric, ...]:
    """Root mean squared error, mean absolute error, R2 and Spearman's rank correlation; `first` decides.

    unit: of the target, shown beside the errors.
    """
    found = {
        "rmse": Metric("rmse", unit, False, _numbers, _rmse),
        "mae": Metric("mae", unit, False, _numbers, _mae),
        "r2": Metric("r2", "", True, _numbers, _r2, None, _one_number),
        "spearman": Metric("spearman", "", True, _numbers, _spearman, None, _one_number),
    }
    return (found.pop(first), *found.values())


def scores(metrics: Sequence[Metric], truth: np.ndarray, predictions: Predictions, groups: np.ndarray) -> JSON:
    """{metric: {value, low, high}} with 95 % bootstrap intervals over `groups`.

    An undefined value is None with a `reason`; with fewer than ten groups low and high are None and `reason` says so.
    Rows without an answer (a `problem`) are left out. Where a metric may be undefined for a row, `num_scored` and
    `num_undefined` say for how many it is not and is.
    """
    answered, stats = row_stats(metrics, truth, predictions)
    return scores_of_stats(metrics, stats, np.asarray(groups)[answered])


def row_stats(
    metrics: Sequence[Metric], truth: np.ndarray, predictions: Predictions
) -> tuple[np.ndarray, list[np.ndarray]]:
    """What each row adds to the scores: positions of the rows with an answer, and for each distinct function of stats
    its (answered rows, k) floats. Those of several models on rows of their own can be put together."""
    truth, predictions, answered = _answered(truth, predictions, np.arange(len(truth)))
    return answered, [metric.stats(truth, predictions) for metric in _first_of_each(metrics)]


def scores_of_stats(metrics: Sequence[Metric], stats: Sequence[np.ndarray], groups: np.ndarray) -> JSON:
    """`scores` from what `row_stats` returned. groups: (answered rows,)."""
    of = {metric.stats: each for metric, each in zip(_first_of_each(metrics), stats, strict=True)}
    return {metric.name: _score(metric, of[metric.stats], groups) for metric in metrics}


def _first_of_each(metrics: Sequence[Metric]) -> list[Metric]:
    """One metric for each function of stats: distances between surfaces are not worth computing once a class."""
    return list({metric.stats: metric for metric in reversed(metrics)}.values())


def _answered(
    truth: np.ndarray, predictions: Predictions, groups: np.ndarray
) -> tuple[np.ndarray, Predictions, np.ndarray]:
    if not any(predictions.problems):
        return truth, predictions, groups
    fine = np.flatnonzero([not problem for problem in predictions.problems])
    return truth[fine], predictions.take(fine), groups[fine]


def point(metric: Metric, truth: np.ndarray, predictions: Predictions) -> float | None:
    """The value alone, over the rows that have an answer; None where it is undefined."""
    truth, predictions, _ = _answered(truth, predictions, np.arange(len(truth)))
    value = metric.value(metric.stats(truth, predictions)) if len(truth) else float("nan")
    return value if np.isfinite(value) else None


def interval(metric: Metric, stats: np.ndarray, groups: np.ndarray, *, seed: int = 0) -> tuple[float, float] | None:
    """The central 95 % of the metric over bootstrap resamples of whole groups; None under ten groups.

    Percentile bootstrap, clusters drawn with replacement (Davison & Hinkley 1997, section 3.8).
    """
    _, codes = np.unique(groups, return_inverse=True)
    num_groups = int(codes.max()) + 1 if len(codes) else 0
    if num_groups < FEWEST_GROUPS:
        return None
    members = np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])
    alone = num_groups == len(codes)
    rng = np.random.default_rng(seed)
    values = []
    for _ in range(NUM_RESAMPLES):
        drawn = rng.integers(num_groups, size=num_groups)
        rows = drawn if alone else np.concatenate([members[group] for group in drawn])
        values.append(metric.value(stats[rows]))
    finite = np.asarray(values)[np.isfinite(values)]
    if not len(finite):
        return None
    low, high = np.quantile(finite, [0.025, 0.975])
    return float(low), float(high)


def _score(metric: Metric, stats: np.ndarray, groups: np.ndarray) -> JSON:
    counts = {}
    if metric.num_scored is not None:
        counts["num_scored"] = metric.num_scored(stats)
        counts["num_undefined"] = len(stats) - counts["num_scored"]
    value = metric.value(stats) if len(stats) else float("nan")
    if not np.isfinite(value):
        why = metric.why_undefined(stats) if metric.why_undefined is not None and len(stats) else ""
        reason = f"undefined on these {len(stats)} rows{': ' if why else ''}{why}"
        return {"value": None, "low": None, "high": None, "reason": reason, **counts}
    bounds = interval(metric, stats, groups)
    if bounds is None:
        few = f"too few groups for an interval: {len(np.unique(groups))}"
        return {"value": float(value), "low": None, "high": None, "reason": few, **counts}
    return {"value": float(value), "low": bounds[0], "high": bounds[1], **counts}


# --- classification: stats are [true class, predicted class] or [true class, probability of every class] ---


def _positions(names: Sequence[str], values: np.ndarray) -> np.ndarray:
    place = {name: position for position, name in enumerate(names)}
    return np.array([place.get(value, -1) for value in values], dtype=np.float64)


def _decisions(names: tuple[str, ...], truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    return np.column_stack([_positions(names, truth), _positions(names, predictions.values)])


def _probabilities(names: tuple[str, ...], truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    """The columns follow `names`, whatever classes the predictor knew (a baseline may have seen fewer)."""
    stats = np.zeros((len(truth), 1 + len(names)))
    stats[:, 0] = _positions(names, truth)
    known: Any = predictions.scores
    for column, name in enumerate(predictions.classes):
        if name in names:
            stats[:, 1 + names.index(name)] = known[:, column]
    return stats


def _accuracy(stats: np.ndarray) -> float:
    return float(np.mean(stats[:, 0] == stats[:, 1]))


def _macro_f1(stats: np.ndarray) -> float:
    """Mean F1 over the classes that occur in the truth or the answers (scikit-learn's default)."""
    truth, answer = stats.astype(int).T + 1
    size = int(max(truth.max(), answer.max())) + 1
    hits = np.bincount(truth[truth == answer], minlength=size)
    total = np.bincount(truth, minlength=size) + np.bincount(answer, minlength=size)
    present = total > 0
    return float(np.mean(2 * hits[present] / total[present]))


def _auc(positive: np.ndarray, score: np.ndarray) -> float:
    """Mann-Whitney's statistic: the share of pairs in the right order, ties counted half."""
    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    if not num_positive or not num_negative:
        return float("nan")
    rank_sum = ranks_of(score)[positive].sum()
    return float((rank_sum - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))


def _binary_auc(stats: np.ndarray) -> float:
    return _auc(stats[:, 0] == 1, stats[:, 2])


def _one_class(names: tuple[str, ...], stats: np.ndarray) -> str:
    found = sorted({names[int(code)] for code in stats[:, 0] if code >= 0})
    return f"only one class, {found[0]!r}" if len(found) == 1 else ""


def _mean_auc(stats: np.ndarray) -> float:
    values = [_auc(stats[:, 0] == k, stats[:, 1 + k]) for k in range(stats.shape[1] - 1)]
    found = [value for value in values if np.isfinite(value)]
    return float(np.mean(found)) if found else float("nan")


def _log_loss(stats: np.ndarray) -> float:
    truth = stats[:, 0].astype(int)
    given = np.where(truth < 0, 0.0, stats[np.arange(len(stats)), 1 + truth])
    return float(-np.mean(np.log(np.clip(given, _SMALLEST_PROBABILITY, 1.0))))


# --- several labels: stats are [whether each label is there (NaN: unknown), whether it was named, or its score] ---


def _label_decisions(names: tuple[str, ...], truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    return np.hstack([known_labels(truth, names), known_labels(predictions.values, names)])


def _label_scores(names: tuple[str, ...], truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    scores, known = np.zeros((len(truth), len(names))), np.asarray(predictions.scores)
    for column, name in enumerate(predictions.classes):
        if name in names:
            scores[:, names.index(name)] = known[:, column]
    return np.hstack([known_labels(truth, names), scores])


def _label_counts(stats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(labels,) twice the hits, and labels there plus labels named."""
    truth, named = np.hsplit(stats, 2)
    named = np.where(np.isnan(truth), 0.0, named)
    return 2 * np.nansum(truth * named, axis=0), np.nansum(truth, axis=0) + named.sum(axis=0)


def _label_micro_f1(stats: np.ndarray) -> float:
    hits, total = _label_counts(stats)
    return float(hits.sum() / total.sum()) if total.sum() else float("nan")


def _label_macro_f1(stats: np.ndarray) -> float:
    """Over labels that occur in the truth or the answers."""
    hits, total = _label_counts(stats)
    return float(np.mean(hits[total > 0] / total[total > 0])) if (total > 0).any() else float("nan")


def _mean_average_precision(stats: np.ndarray) -> float:
    """Over labels that occur in the truth."""
    truth, scores = np.hsplit(stats, 2)
    found = []
    for column in range(truth.shape[1]):
        known = np.isfinite(truth[:, column])
        if truth[known, column].any():
            found.append(_average_precision(truth[known, column], scores[known, column]))
    return float(np.mean(found)) if found else float("nan")


def _label_mean_auc(stats: np.ndarray) -> float:
    """Over labels of which rows with and rows without are known."""
    truth, scores = np.hsplit(stats, 2)
    known = np.isfinite(truth)
    values = [_auc(truth[k, at] == 1, scores[k, at]) for at, k in enumerate(known.T)]
    found = [value for value in values if np.isfinite(value)]
    return float(np.mean(found)) if found else float("nan")


def _average_precision(positive: np.ndarray, score: np.ndarray) -> float:
    """Mean precision at the rank of each positive, rows of equal score at one rank (scikit-learn's definition)."""
    order = np.argsort(-score, kind="stable")
    hits = np.cumsum(positive[order])
    ends = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)
    gained = np.diff(hits[ends], prepend=0.0)
    return float((gained * hits[ends] / (ends + 1)).sum() / hits[-1])


# --- regression: stats are [truth, answer] ---


def _numbers(truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    return np.column_stack([truth.astype(np.float64), predictions.values.astype(np.float64)])


def _number_rows(places: tuple[int, ...], truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    """The true numbers at `places` of each row, then the answers."""
    known = np.array([[row[at] for at in places] for row in truth], np.float64).reshape(len(truth), len(places))
    return np.hstack([known, np.asarray(predictions.scores)[:, list(places)]])


def _mean_over_targets(score: Callable[[np.ndarray], float], stats: np.ndarray) -> float:
    """The mean of `score` over the targets for which it is defined, each on the rows where it is known."""
    truth, answers = np.hsplit(stats, 2)
    found = []
    for at in range(truth.shape[1]):
        known = np.isfinite(truth[:, at])
        if known.any():
            found.append(score(np.column_stack([truth[known, at], answers[known, at]])))
    finite = [value for value in found if np.isfinite(value)]
    return float(np.mean(finite)) if finite else float("nan")


def _one_number(stats: np.ndarray) -> str:
    for place, whose in enumerate(("truths", "answers")):
        if len(np.unique(stats[:, place])) == 1:
            return f"all {whose} are {stats[0, place]:g}"
    return ""


def _rmse(stats: np.ndarray) -> float:
    return float(np.sqrt(np.mean((stats[:, 0] - stats[:, 1]) ** 2)))


def _mae(stats: np.ndarray) -> float:
    return float(np.mean(np.abs(stats[:, 0] - stats[:, 1])))


def _r2(stats: np.ndarray) -> float:
    spread = np.sum((stats[:, 0] - stats[:, 0].mean()) ** 2)
    return float(1 - np.sum((stats[:, 0] - stats[:, 1]) ** 2) / spread) if spread > 0 else float("nan")


def ranks_of(values: np.ndarray) -> np.ndarray:
    """(N,) -> (N,): ranks from 1, the mean of their places where values are equal.

    scipy's rankdata looks at its arguments for longer than it ranks a few hundred values, a thousand times an interval.
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    found: np.ndarray = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return found


def _spearman(stats: np.ndarray) -> float:
    ranks = np.column_stack([ranks_of(stats[:, 0]), ranks_of(stats[:, 1])])
    if (ranks.std(axis=0) == 0).any():
        return float("nan")
    return float(np.corrcoef(ranks.T)[0, 1])
