"""Encode once, fit a head: what is encoded when, what is kept, and that the head learns."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainers.contract import JSON, Machine, Plan, Predictions
from trainers.embed import CACHE_FILE, EmbedLearner, Head, VectorCache, embedded
from trainers.outcome import Outcome, fit_outcome
from trainers.settings import Embed

WIDTH = 5


class Texts:
    """Rows with a text and a target."""

    def __init__(self, texts: Sequence[str], targets: Sequence[Any] | None = None) -> None:
        self.texts, self.targets = list(texts), targets
        self.ids = [str(i) for i in range(len(self.texts))]
        self.context: Mapping[str, Any] = {}

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, position: int) -> Mapping[str, Any]:
        return {"text": self.texts[position]}

    def take(self, positions: Sequence[int]) -> Texts:
        targets = None if self.targets is None else [self.targets[i] for i in positions]
        return Texts([self.texts[i] for i in positions], targets)

    def column(self, name: str) -> Any:
        assert name == "text"
        return self.texts

    def without_target(self) -> Texts:
        return Texts(self.texts)

    def target(self) -> np.ndarray:
        assert self.targets is not None
        return np.asarray(self.targets, dtype=object if isinstance(self.targets[0], str) else np.float64)


class CountingEncoder:
    """Counts of five letters as the vector; remembers the batches it was given."""

    def __init__(self, identity: str = "counts", width: int = WIDTH) -> None:
        self.identity, self.width, self.batches = identity, width, []
        self.reference: JSON = {"id": identity}

    def keys(self, rows: Texts) -> list[bytes]:
        return [text.encode() for text in rows.texts]

    def sizes(self, rows: Texts) -> list[int]:
        return [len(text) for text in rows.texts]

    def encode(self, rows: Texts) -> np.ndarray:
        self.batches.append(rows.texts)
        return np.array([[text.count(c) for c in "abcde"[: self.width]] for text in rows.texts], np.float32)

    @property
    def num_encoded(self) -> int:
        return sum(map(len, self.batches))


@dataclass
class QuietWatch:
    folder: Path
    cache: Path
    metric: str = "mae"
    higher_is_better: bool = False
    rank: int = 0
    world: int = 1
    events: list[JSON] = field(default_factory=list)

    def score(self, rows: Any, predictions: Predictions) -> float:
        if predictions.kind == "label":
            return float(np.mean(rows.target() != predictions.values))
        return float(np.abs(rows.target() - predictions.values).mean())

    def log(self, **event: Any) -> None:
        self.events.append(event)

    def should_stop(self) -> None:
        return None


def texts(num: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("abcde"), rng.integers(5, 30))) for _ in range(num)]


def plan(classes: Sequence[str] = (), **head: Any) -> Plan:
    settings = Embed.model_validate({"head": {"epochs": 60, "batch_size": 16, "lr": 3e-2, "precision": "fp32", **head}})
    facts = {"classes": list(classes)}
    return Plan("toy", "toy", "any", "toy", {}, settings.model_dump(mode="json"), facts, Machine())


def watch(folder: Path, name: str = "run") -> QuietWatch:
    return QuietWatch(folder / name, folder / "cache")


def test_every_content_is_encoded_once_within_batches_of_like_size(tmp_path):
    rows, encoder = Texts([*texts(50), *texts(50)]), CountingEncoder()
    vectors = embedded(rows, encoder, VectorCache(tmp_path / "x.sqlite"), num_tokens=64)
    assert np.array_equal(vectors, CountingEncoder().encode(rows))
    assert encoder.num_encoded == len(set(rows.texts)) == 50
    sizes = [[len(text) for text in batch] for batch in encoder.batches]
    assert all(len(batch) * max(batch) <= 64 for batch in sizes)
    assert all(min(later_or_same) >= max(after) for later_or_same, after in pairwise(sizes))


def test_a_second_process_finds_the_vectors_and_another_encoder_does_not(tmp_path):
    rows, path = Texts(texts(20)), tmp_path / "x.sqlite"
    embedded(rows, CountingEncoder(), VectorCache(path), num_tokens=64)
    again, other = CountingEncoder(), CountingEncoder("other weights")
    found = embedded(rows, again, VectorCache(path), num_tokens=64)
    embedded(rows, other, VectorCache(path), num_tokens=64)
    assert np.array_equal(found, CountingEncoder().encode(rows))
    assert (again.num_encoded, other.num_encoded) == (0, 20)


def test_vectors_of_every_finished_batch_survive_a_crash(tmp_path):
    class Crashing(CountingEncoder):
        def encode(self, rows):
            if len(self.batches) == 3:
                raise MemoryError
            return super().encode(rows)

    rows, crashing, after = Texts(texts(40)), Crashing(), CountingEncoder()
    with pytest.raises(MemoryError):
        embedded(rows, crashing, VectorCache(tmp_path / "x.sqlite"), num_tokens=64)
    embedded(rows, after, VectorCache(tmp_path / "x.sqlite"), num_tokens=64)
    assert crashing.num_encoded + after.num_encoded == 40


def test_the_cache_is_one_sqlite_file_in_wal_mode_that_two_may_use_at_once(tmp_path):
    one, two = VectorCache(tmp_path / "x.sqlite"), VectorCache(tmp_path / "x.sqlite")
    one.put([b"k"], np.ones((1, 3), np.float32))
    two.put([b"k", b"l"], np.ones((2, 3), np.float32))
    assert set(one.get([b"k", b"l", b"m"], 3)) == {b"k", b"l"}
    assert one.get([b"k"], 4) == {}
    assert sqlite3.connect(tmp_path / "x.sqlite").execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_head_learns_a_linear_number_and_predicts_in_its_unit(tmp_path):
    rows = texts(120)
    target = [1000.0 + 20 * text.count("a") - 10 * text.count("b") for text in rows]
    learner = EmbedLearner(plan(), CountingEncoder(), Head(dropout=0.0))
    facts = learner.fit(Texts(rows[:100], target[:100]), Texts(rows[100:], target[100:]), watch(tmp_path))
    found = learner.predict(Texts(rows[100:])).values
    assert np.abs(found - target[100:]).max() < 2.0
    assert facts["num_steps"] > 0
    assert facts["seconds_encoding"] >= 0


def test_predicting_what_training_saw_encodes_nothing_and_a_loaded_learner_answers_the_same(tmp_path):
    rows = texts(60)
    labels = ["many" if text.count("a") > len(text) / 5 else "few" for text in rows]
    encoder = CountingEncoder()
    learner = EmbedLearner(plan(["few", "many"]), encoder, Head(hidden=8))
    learner.fit(Texts(rows, labels), Texts(rows, labels), watch(tmp_path))
    before = encoder.num_encoded
    first = learner.predict(Texts(rows))
    learner.save(tmp_path / "model")
    loaded = EmbedLearner.load(learner.plan, tmp_path / "model", lambda reference: CountingEncoder(), Head(hidden=8))
    assert encoder.num_encoded == before
    assert np.array_equal(loaded.predict(Texts(rows)).scores, first.scores)
    assert np.mean(first.values == labels) > 0.9
    assert {path.suffix for path in (tmp_path / "model").rglob("*") if path.is_file()} == {".json", ".safetensors"}


def test_a_second_run_with_the_same_cache_encodes_nothing(tmp_path):
    rows = Texts(texts(40), list(np.linspace(0, 1, 40)))
    encoders = [CountingEncoder(), CountingEncoder()]
    for name, encoder in zip("ab", encoders, strict=True):
        EmbedLearner(plan(), encoder, Head()).fit(rows, None, watch(tmp_path, name))
    assert [encoder.num_encoded for encoder in encoders] == [40, 0]
    assert (tmp_path / "cache" / CACHE_FILE).exists()


def test_dimensions_are_standardised_by_the_training_rows_and_dead_ones_left_alone():
    rows = texts(40)
    learner = EmbedLearner(plan(), CountingEncoder(), Head())
    vectors = CountingEncoder().encode(Texts([*rows]))
    vectors[:, 4] = 7.0
    from trainers.embed import VectorRows

    statistics = learner.head.compute_statistics(VectorRows(Texts(rows, [float(i) for i in range(40)]), vectors))
    assert np.allclose(statistics["mean"], vectors.mean(axis=0))
    assert np.allclose(statistics["std"], [*vectors.std(axis=0)[:4], 1.0])


def test_balanced_classes_weigh_as_in_scikit_learn_and_the_mean_loss_is_theirs():
    import torch
    from sklearn.utils.class_weight import compute_class_weight

    target = np.array(["a"] * 6 + ["b"] * 2, object)
    outcome = fit_outcome(target, ["a", "b"], "balanced")
    assert np.allclose(
        outcome.weights, compute_class_weight("balanced", classes=np.array(["a", "b"]), y=target.astype(str))
    )
    outputs, encoded = torch.randn(8, 2), outcome.encoded(target)
    mean = (
        outcome.totals(outputs, torch.from_numpy(encoded))["cross_entropy"] / outcome.counts(encoded)["cross_entropy"]
    )
    weight = torch.tensor(outcome.weights)
    assert torch.allclose(mean, torch.nn.functional.cross_entropy(outputs, torch.from_numpy(encoded), weight=weight))


def test_an_outcome_comes_back_from_json_and_numbers_return_to_their_unit():
    import json

    import torch

    outcome = fit_outcome(np.array([10.0, 20.0, 30.0]), ())
    assert Outcome.from_json(json.loads(json.dumps(outcome.as_json()))) == outcome
    back = outcome.predictions(torch.from_numpy(outcome.encoded(np.array([12.5])))[:, None]).values
    assert back == pytest.approx([12.5])
