"""Two trainers in two processes, of which one works while the other waits: steps per CPU-second of each, block by block."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class Side:
    """A process that trains a block, or to the end, for every line it gets, and answers each with a line of JSON."""

    def __init__(self, name: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(words, env={**os.environ, **THREADS, **environment}, **pipes)
        print(json.dumps({"side": name, **self.answer()}), flush=True)

    def told(self, word: str) -> dict[str, Any]:
        """Send a line and wait for what it says."""
        self.tell(word)
        return self.answer()

    def tell(self, word: str) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next line of JSON; what libraries print is passed over."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError(f"a side ended: {self.process.wait()}")


class Blocks:
    """Called before every step: answers after each block, then waits for the next line."""

    def __init__(self, block: int, pairs: int, steps: int) -> None:
        assert steps > block * (pairs + 1), "--steps must be more than all blocks with the warm-up"
        self.block, self.last = block, block * (pairs + 1)
        self.step, self.began, self.facts = -1, time.process_time(), {}

    def __call__(self) -> None:
        self.step += 1
        if self.step == 0 or self.step % self.block or self.step > self.last:
            return
        seconds = time.process_time() - self.began
        say({"rate": round(self.block / seconds, 4), "step": self.step, "cpu_seconds": round(seconds, 2), **self.facts})
        self.began = time.process_time()  # what threads do ahead while the other side works counts as well
        sys.stdin.readline()


def say(line: dict[str, Any]) -> None:
    """One line of JSON for the other process."""
    print(json.dumps(line), flush=True)


class Watch:
    """Says nothing, and lets `blocks` look in before every step."""

    metric, higher_is_better, rank, world = "score", True, 0, 1

    def __init__(self, folder: Path, blocks: Blocks) -> None:
        self.folder = self.cache = folder
        self.should_stop: Callable[[], None] = blocks

    def score(self, rows: Any, predictions: Any) -> None: ...
    def log(self, **event: Any) -> None: ...
