"""Forests as arrays answer as scikit-learn's own do."""

import numpy as np
import pytest
from safetensors.numpy import load, save
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from trainers.forest import Forest, grow


def rows(num_classes):
    rng = np.random.default_rng(0)
    x = np.hstack([rng.integers(0, 4, (200, 5)), rng.normal(size=(200, 3))]).astype(np.float32)
    signal = x[:, 0] + x[:, 5]
    return x, (
        np.digitize(signal, np.quantile(signal, np.arange(1, num_classes) / num_classes)) if num_classes else signal
    )


@pytest.mark.parametrize("num_classes", [0, 2, 3])
def test_the_answers_are_those_of_scikit_learn_also_after_writing_and_reading(num_classes):
    x, y = rows(num_classes)
    kind = RandomForestClassifier if num_classes else RandomForestRegressor
    theirs = kind(12, random_state=3, max_features=0.5).fit(x[:150], y[:150])
    ours = grow(x[:150], y[:150], is_class=bool(num_classes), num_trees=12, seed=3, max_features=0.5)
    ours = Forest.of_arrays(load(save(ours.arrays("a."))), "a.")
    expected = theirs.predict_proba(x) if num_classes else theirs.predict(x)[:, None]
    assert ours.predict(x) == pytest.approx(expected, abs=1e-6)
    assert ours.predict(x[:0]).shape == (0, max(1, num_classes))
