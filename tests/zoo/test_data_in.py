"""What is taken as data from Python, before any type reads it."""

import numpy as np
import pandas as pd
import pytest

from trainers.errors import DataError
from zoo.data_in import accepted


def test_columns_of_one_name_pass_and_are_looked_at_each():
    frame = pd.DataFrame([[1, "x"], [2, "y"]], columns=["a", "a"])
    assert list(accepted(frame).columns) == ["a", "a"]
    with pytest.raises(DataError, match="'a' holds lists"):
        accepted(pd.DataFrame({"a": [1, 2], "b": [[1], [2]]}).rename(columns={"b": "a"}))


def test_complex_numbers_are_refused():
    with pytest.raises(DataError, match="'z' holds complex numbers"):
        accepted(pd.DataFrame({"z": np.array([1 + 2j, 3j])}))
    accepted(pd.DataFrame({"z": pd.array([1, None], dtype="Int64"), "k": pd.Categorical(["a", "b"])}))
