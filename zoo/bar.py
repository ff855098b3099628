"""The bar that a person sees on a terminal while a run trains: one line, drawn again with every event of a step.

What must not happen: a training that ends because its terminal has. Writing to a stream that is closed, full or cannot
encode a character is given up in silence; what is lost is only the picture, every event is in events.jsonl.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TextIO, cast

_GAP = "  "
_WIDEST, _NARROWEST = 24, 8
_MINUTE, _HOUR = 60, 3600


class Unbreakable:
    """A text stream on which writing never fails: what cannot be written is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # the reader has left, or the stream is closed or of another alphabet
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return is_terminal(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person watches `stream`; False for one that is missing or closed."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


@dataclass
class Seen:
    """What the events of a run have told so far. progress: 0 to 1, None while unknown; times in seconds."""

    metric: str
    step: int = 0
    progress: float | None = None
    loss: float | None = None
    best: float | None = None
    best_step: int | None = None
    speed: tuple[float, str] | None = None
    mfu: float | None = None
    doing: str = ""
    marks: list[tuple[float, float]] = field(default_factory=list)

    def take(self, event: dict[str, Any], now: float) -> None:
        """Take in one event; of kinds without a meaning here nothing is kept."""
        kind = event.get("kind")
        if kind == "step":
            self._take_step(event, now)
        elif kind == "eval":
            self.best, self.best_step = event.get("best"), event.get("best_step")
        elif kind == "encoding":
            self.doing = f"encoding {event['done']:,} of {event['of']:,}"
            self.progress = event["done"] / max(1, event["of"])

    def _take_step(self, event: dict[str, Any], now: float) -> None:
        self.doing, self.step, self.loss = "", event["step"], event.get("loss", self.loss)
        self.progress, self.mfu = event.get("progress"), event.get("mfu", self.mfu)
        for name in ("samples_per_second", "tokens_per_second"):
            if name in event:
                self.speed = (event[name], name.partition("_")[0])
        if self.progress is not None:
            if self.marks and self.progress < self.marks[-1][1]:  # went back to a snapshot
                self.marks.clear()
            self.marks = [*self.marks[-29:], (now, self.progress)]

    def seconds_left(self) -> float | None:
        """How long the rest of the budget takes at the pace of the last events; None while that is unknown."""
        if len(self.marks) < 2 or self.marks[-1][1] <= self.marks[0][1]:
            return None
        (began, first), (now, last) = self.marks[0], self.marks[-1]
        return (1 - last) * (now - began) / (last - first)


def words(seen: Seen, memory: tuple[int, int]) -> list[str]:
    """What the bar says, the most important first. memory: bytes used, bytes there are."""
    used, limit = (number / 2**30 for number in memory)
    left, speed = seen.seconds_left(), seen.speed
    best_at = "" if seen.best_step is None else f" at {seen.best_step}"
    said = [
        "" if seen.progress is None else f"{seen.progress:4.0%}",
        seen.doing or f"step {seen.step:,}",
        "" if seen.loss is None else f"loss {seen.loss:.4g}",
        "" if seen.best is None else f"best {seen.metric} {seen.best:.4g}{best_at}",
        "" if left is None else f"{clock(left)} left",
        "" if speed is None else f"{speed[0]:,.0f} {speed[1]}/s",
        f"{used:.1f} of {limit:.1f} GiB" if limit else f"{used:.1f} GiB",
        "" if seen.mfu is None else f"MFU {seen.mfu:.1%}",
    ]
    return [word for word in said if word]


def fitting(said: Sequence[str], width: int) -> str:
    """As much of `said` as goes into `width` characters: what is too long is left out, a shorter one may still go in."""
    line = ""
    for word in said:
        longer = f"{line}{_GAP}{word}" if line else word
        line = longer if len(longer) <= width else line
    return line


def clock(seconds: float) -> str:
    """A duration as people read it: 0:07, 3:20, 2:05:00."""
    whole = round(seconds)
    hours, minutes = whole // _HOUR, whole % _HOUR // _MINUTE
    return f"{hours}:{minutes:02}:{whole % _MINUTE:02}" if hours else f"{minutes}:{whole % _MINUTE:02}"


class Bar(AbstractContextManager["Bar"]):
    """The bar on `stream`. It appears with the first event that belongs into it; whatever others write to stderr
    meanwhile (warnings, log lines) is printed above it.

    memory: gives the bytes in use and the bytes there are.
    """

    def __init__(self, metric: str, memory: Callable[[], tuple[int, int]], stream: TextIO | None = None) -> None:
        self.seen, self._memory = Seen(metric), memory
        self._stream, self._live = stream or sys.stderr, cast(Any, None)

    def update(self, event: dict[str, Any]) -> None:
        """Take in an event, and draw the bar anew if it changes what the bar says."""
        self.seen.take(event, monotonic())
        if event.get("kind") in ("step", "eval", "encoding"):
            if self._live is None:
                self._live = self._started()
            self._live.update(self._drawn(), refresh=True)

    def __exit__(self, *_: object) -> None:
        """Leave the bar as it last was, and the terminal as it was before."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _started(self) -> Any:
        # 0.1 s that only a run on a terminal pays.
        from rich.console import Console
        from rich.live import Live

        console = Console(file=cast(TextIO, Unbreakable(self._stream)), highlight=False, soft_wrap=False)
        # Nobody draws but us: a thread that redraws would only burn time between steps.
        live = Live(console=console, auto_refresh=False, redirect_stdout=is_terminal(sys.stdout))
        live.start()
        return live

    def _drawn(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        # The last column stays free: some terminals wrap when it is written to.
        width = self._live.console.width - 1
        line = fitting(words(self.seen, self._memory()), width)
        room = min(_WIDEST, width - len(line) - len(_GAP))
        text = Text(line, no_wrap=True, overflow="crop")
        if room < _NARROWEST or self.seen.progress is None:
            return text
        row = Table.grid(padding=(0, len(_GAP), 0, 0))
        row.add_row(ProgressBar(total=1.0, completed=self.seen.progress, width=room), text)
        return row
