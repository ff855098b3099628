"""Vectors that outlive a run: each is made once for its content and kept in an SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

# How many vectors one query asks for: SQLite allows 32,766 variables in a statement.
_ASKED_AT_ONCE = 10_000
_WAIT_SECONDS = 60.0


class VectorCache:
    """Vectors by key in one SQLite file, for several processes at once; `path` None keeps them in memory."""

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self.connection = sqlite3.connect(path or ":memory:", timeout=_WAIT_SECONDS)
        self.connection.execute("PRAGMA journal_mode=WAL")
        # A crash of the machine may lose the last batches, never the file; they are only computed again.
        self.connection.execute("PRAGMA synchronous=NORMAL")
        self.connection.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")

    def get(self, keys: Sequence[bytes], width: int) -> dict[bytes, np.ndarray]:
        """The known vectors of `keys`; of another width than `width` are not known."""
        found = {}
        for start in range(0, len(keys), _ASKED_AT_ONCE):
            asked = keys[start : start + _ASKED_AT_ONCE]
            marks = ",".join("?" * len(asked))
            for key, vector in self.connection.execute(f"SELECT * FROM vectors WHERE key IN ({marks})", asked):
                if len(vector) == 4 * width:
                    found[key] = np.frombuffer(vector, np.float32)
        return found

    def put(self, keys: Sequence[bytes], vectors: np.ndarray) -> None:
        """Keep vectors (keys, width) at once and for good."""
        rows = [(key, vector.astype(np.float32).tobytes()) for key, vector in zip(keys, vectors, strict=True)]
        with self.connection:
            self.connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)

    def close(self) -> None:
        self.connection.close()


def vectors_of(
    contents: Sequence[bytes],
    made: Callable[[np.ndarray], Iterable[tuple[np.ndarray, np.ndarray]]],
    cache: VectorCache,
    *,
    identity: str,
    width: int,
) -> np.ndarray:
    """(contents, width) float32; only what the cache does not know is made, and each but once.

    made: gets the positions of the contents to make, and yields (some of them, their vectors), which are kept at once.
    identity: all else that a vector depends on.
    """
    keys = [sha256(identity.encode() + b"\0" + content).digest() for content in contents]
    known = cache.get(list(dict.fromkeys(keys)), width)
    first = {key: at for at, key in reversed(list(enumerate(keys))) if key not in known}
    for part, vectors in made(np.array(sorted(first.values()), dtype=np.int64)):
        names = [keys[at] for at in part]
        cache.put(names, vectors)
        known.update(zip(names, vectors, strict=True))
    return np.stack([known[key] for key in keys]) if keys else np.empty((0, width), np.float32)
