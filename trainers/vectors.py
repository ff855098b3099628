"""Vectors that outlive a run: each is made once for its content and kept in an SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

# How many vectors one query asks for: SQLite allows 32,766 variables in a statement.
_ASKED_AT_ONCE = 10_000
_WAIT_SECONDS = 60.0


def key_of(identity: str, content: str) -> bytes:
    """The key of `content`'s vector. identity: all else that the vector depends on."""
    return sha256(identity.encode() + b"\0" + content.encode()).digest()


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
    contents: Sequence[str],
    make: Callable[[str], np.ndarray],
    cache: VectorCache,
    *,
    identity: str,
    width: int,
    kept_at_once: int = 500,
) -> np.ndarray:
    """(contents, width) float32: what the cache does not know is made, each but once, and kept every `kept_at_once`."""
    keys = [key_of(identity, content) for content in contents]
    known = cache.get(list(dict.fromkeys(keys)), width)
    new = {key: content for key, content in zip(keys, contents, strict=True) if key not in known}
    names = list(new)
    for start in range(0, len(names), kept_at_once):
        part = names[start : start + kept_at_once]
        made = np.stack([make(new[key]) for key in part])
        cache.put(part, made)
        known.update(zip(part, made, strict=True))
    return np.stack([known[key] for key in keys]) if keys else np.empty((0, width), np.float32)
