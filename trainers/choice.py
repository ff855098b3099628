"""Which weights a run ends with: the best by the validation metric or the last, the trained or the averaged ones."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from trainers.averages import Averages, carrying, set_weights
from trainers.checkpoint import Snapshots, damage
from trainers.contract import Watch
from trainers.errors import ZooError
from trainers.settings import Gradient
from trainers.state import State

Evaluate = Callable[[], float | None]


def judge(
    state: State, evaluate: Evaluate | None, watch: Watch, model: torch.nn.Module, averages: Averages | None
) -> None:
    """Score the model, and note whether it is the best so far.

    Beside a moving average both its weights and the trained ones are scored, at twice the time, and the better count.
    """
    if evaluate is None:
        return
    began = time.perf_counter()
    scores = candidates(evaluate, model, averages)
    state.seconds_evaluating += time.perf_counter() - began
    state.num_evaluations += 1
    known = {name: score for name, score in scores.items() if score is not None and score == score}
    if not known:
        watch.log(kind="warning", text=f"{watch.metric} is undefined at step {state.step}: it cannot choose weights.")
        return
    name = (max if watch.higher_is_better else min)(known, key=lambda each: known[each])
    note_score(state, float(known[name]), name == "average", watch.higher_is_better)
    both = {f"{each}_score": float(score) for each, score in known.items()} if len(scores) > 1 else {}
    best = {"best": state.best_score, "best_step": state.best_step}
    watch.log(kind="eval", step=state.step, metric=watch.metric, score=float(known[name]), **best, **both)


def candidates(evaluate: Evaluate, model: torch.nn.Module, averages: Averages | None) -> dict[str, float | None]:
    """The score of the weights that can be kept: "raw", "average", or both."""
    scores = {}
    if averages is None or not averages.replaces_raw:
        scores["raw"] = evaluate()
    if averages is not None:
        with carrying(model, averages):
            scores["average"] = evaluate()
    return scores


def note_score(state: State, score: float, is_average: bool, higher_is_better: bool) -> None:
    """Keep the best score, where it was and with which weights, and count evaluations without gain."""
    best = state.best_score
    if best is None or (score > best if higher_is_better else score < best):
        state.best_step, state.best_score, state.best_is_average = state.step, score, is_average
        state.num_without_gain = 0
    else:
        state.num_without_gain += 1


def keep_best(
    state: State, settings: Gradient, model: torch.nn.Module, snapshots: Snapshots, averages: Averages | None
) -> str:
    """Give the model the weights that the settings ask for; returns "best" or "last", and "average" where it is one."""
    if settings.keep == "last" or state.best_step is None:
        if averages is None:
            return "last"
        set_weights(model, averages.tensors())
        return "last average"
    if state.best_step != state.step or state.best_is_average:
        folder = snapshots.path(state.best_step)
        if reason := damage(folder):
            raise ZooError(
                f"The best weights, in {folder}, cannot be used: {reason}. Train again, or --set train.keep=last"
            )
        snapshots.restore_model(folder, model, with_averages=state.best_is_average)
    return "best average" if state.best_is_average else "best"
