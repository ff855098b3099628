"""What a learner sees of its run, and what a person sees of the learner: events, progress, scores, requests to stop."""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from domains.contract import Metric
from domains.metrics import point
from domains.shared.folders import cache_folder
from trainers.contract import Machine, Predictions
from zoo import hardware, saved
from zoo.bar import Bar, is_terminal
from zoo.writers import Curves, values_of

_LINE_EVERY_SECONDS = 30.0
# The bar tells these; without one they are lines like all others.
_BARRED = ("step", "encoding")
_WANTED = {signal.SIGTERM: "signal", signal.SIGUSR1: "signal", signal.SIGINT: "interrupt"}


def bar_for(metric: str, machine: Machine) -> Bar | None:
    """A bar on stderr; None where that is no terminal that can move its cursor."""
    if not is_terminal(sys.stderr) or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return None
    return Bar(metric, lambda: (hardware.memory_used(machine.device), machine.memory_bytes))


class RunWatch:
    """`trainers.contract.Watch` of one run: writes events.jsonl, shows progress on stderr, hears signals.

    say: prints one line for a person; None is silent.   bar: takes the place of the lines about single steps.
    curves: the writers of other viewers. Of several processes the first one alone writes and shows.
    """

    def __init__(
        self,
        folder: Path,
        metric: Metric,
        say: Callable[[str], None] | None,
        *,
        bar: Bar | None = None,
        curves: Curves | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.folder, self.rank, self.world = folder, rank, world
        self.cache = cache_folder()
        self.metric = metric.name
        self.higher_is_better = metric.higher_is_better
        self._deciding = metric
        self._say, self._bar, self._curves = say, bar, curves
        self._stops = (folder, folder.parent) if saved.is_parent(folder.parent) else (folder,)
        self._asked: str | None = None
        self._shown_at = time.monotonic()

    def score(self, rows: Any, predictions: Predictions) -> float | None:
        """The deciding metric on `rows`; None where it is undefined."""
        return point(self._deciding, rows.target(), predictions)

    def log(self, **event: Any) -> None:
        """Append the event to events.jsonl and show it: steps in the bar or every 30 seconds, all else at once."""
        if self.rank > 0:
            return
        line = json.dumps({"time": round(time.time(), 3), **_finite(event)}, default=_number, allow_nan=False)
        with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._show(event)
        if self._curves is not None and "step" in event:
            for problem in self._curves.write(event["step"], values_of(event)):
                self.log(kind="warning", text=problem)

    def should_stop(self) -> str | None:
        """ "signal", "interrupt" or "file" (a file named STOP in the run folder, or in that of several runs), else None."""
        if self._asked is None and any((place / "STOP").exists() for place in self._stops):
            self._asked = "file"
        return self._asked

    @contextmanager
    def hearing_signals(self) -> Iterator[None]:
        """Turn SIGTERM, SIGUSR1 and Ctrl-C into requests to save and stop; a second Ctrl-C ends at once."""
        before = {number: signal.getsignal(number) for number in _WANTED}
        try:
            for number in _WANTED:
                signal.signal(number, self._hear)
        except ValueError:  # not the main thread (a notebook's worker): signals go elsewhere
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if self._asked == "interrupt" and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._asked = _WANTED[signal.Signals(number)]

    def _show(self, event: dict[str, Any]) -> None:
        kind = event.get("kind")
        if self._bar is not None:
            self._bar.update(event)
        if self._say is None or kind == "save" or (self._bar is not None and kind in _BARRED):
            return
        now = time.monotonic()
        steady = kind in ("step", "encoding") and "last" not in event
        if steady and now - self._shown_at < _LINE_EVERY_SECONDS:
            return
        self._shown_at = now
        self._say(_line(event))


def _finite(event: dict[str, Any]) -> dict[str, Any]:
    """The event with None for numbers that are not finite: JSON has no word for them."""
    return {name: _number(value) if isinstance(value, float) else value for name, value in event.items()}


def _number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _line(event: dict[str, Any]) -> str:
    """One event for a person: `eval  step 200  score 0.91`."""
    words = [f"{name} {_short(value)}" for name, value in event.items() if name not in ("kind", "text", "last")]
    head = f"{event.get('kind', '')}: {event['text']}" if "text" in event else str(event.get("kind", ""))
    return "  ".join([head, *words])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
