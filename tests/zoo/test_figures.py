"""Pictures of a run: curves, the confusion matrix, answers against the truth. What is drawn is read from the figure itself."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.metrics import confusion_matrix

import zoo
from trainers.contract import Predictions
from zoo import figures

pytest.importorskip("matplotlib")


def labels(num_rows: int = 40) -> tuple[Predictions, np.ndarray]:
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.ones(3), num_rows)
    return Predictions.of_labels(scores, ("a", "b", "c")), rng.choice(["a", "b", "c"], num_rows).astype(object)


def test_the_numbers_in_the_matrix_are_those_of_scikit_learn():
    predictions, truth = labels()
    _, _, figure = figures._answers(predictions, truth)
    shown = np.array([int(text.get_text()) for text in figure.axes[0].texts]).reshape(3, 3)
    assert (shown == confusion_matrix(truth.astype(str), predictions.values.astype(str), labels=["a", "b", "c"])).all()


def test_curves_show_what_was_said_last_of_a_step(tmp_path):
    events = [
        {"kind": "step", "time": time, "step": step, "loss": loss}
        for time, step, loss in ((1, 1, 5.0), (2, 2, 4.0), (3, 2, 3.5))
    ]
    events += [
        {"kind": "eval", "time": 4, "step": step, "metric": "auc", "score": score}
        for step, score in ((1, 0.5), (2, 0.7))
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    _, caption, figure = figures._curves(list(figures._events(tmp_path / "events.jsonl")))
    (loss,), (score,) = (axis.lines for axis in figure.axes)
    assert list(loss.get_ydata()) == [5.0, 3.5]
    assert list(score.get_ydata()) == [0.5, 0.7]
    assert caption == "Training: loss, validation auc"


def test_rows_without_an_answer_are_left_out(tmp_path):
    numbers = Predictions("number", np.array([1.0, np.nan, 3.0]), None, (), ("", "broken", ""))
    _, _, figure = figures._answers(numbers, np.array([1.5, 2.0, 2.5]))
    assert figure.axes[0].collections[0].get_offsets().tolist() == [[1.5, 1.0], [2.5, 3.0]]
    none = Predictions("number", np.array([np.nan]), None, (), ("broken",))
    assert figures.draw(tmp_path, none, np.array([1.0]), tmp_path / "plots") == {}
    assert not (tmp_path / "plots").exists()


def test_a_run_has_its_pictures_on_its_card_and_under_its_seal(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=120)}).assign(y=lambda rows: np.where(rows["a"] > 0, "yes", "no"))
    zoo.train("tabular/xgboost", frame, target="y", set={"train.rounds": 10}, out=tmp_path / "run")
    card = (tmp_path / "run" / "README.md").read_text()
    sealed = json.loads((tmp_path / "run" / "complete.json").read_text())["sha256"]
    name = "plots/confusion.png"
    assert f"({name})" in card
    assert name in sealed
    Image.open(tmp_path / "run" / name).verify()
