"""Arguments of a wrong type or for nothing: refused where they come in, with the argument named."""

import importlib

import numpy as np
import pandas as pd
import pytest

import zoo
from trainers.errors import UsageError
from zoo.cli_runs import PURPOSES
from zoo.registry import load_registry


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame({"x": rng.normal(size=60), "y": ["no", "yes"] * 30})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"epochs": "many"}, r"epochs='many'\): .*number"),
        ({"set": "train.rounds=3"}, r"set='train.rounds=3'\): .*dictionary"),
        ({"seed": "x"}, r"seed='x'\): .*integer"),
        ({"split": ["random"]}, r"split=\['random'\]\): .*string"),
        ({"columns": "text=body"}, r"columns='text=body'\): .*dictionary"),
        ({"sed": 3}, r"no argument 'sed'\. Did you mean seed"),
    ],
)
@pytest.mark.parametrize("verb", ["train", "plan"])
def test_an_argument_of_a_wrong_type_is_named_with_its_value(verb, given, says, frame):
    with pytest.raises(UsageError, match=rf"zoo\.{verb}\(.*{says}"):
        getattr(zoo, verb)("tabular/xgboost", frame, target="y", **given)


@pytest.mark.parametrize(
    "call",
    [
        lambda: zoo.get(3),
        lambda: zoo.recommend(3, 100),
        lambda: zoo.load(3),
        lambda: zoo.resume(None),
        lambda: zoo.train(3),
    ],
)
def test_no_function_of_the_package_breaks_at_a_value_of_another_type(call):
    with pytest.raises(UsageError):
        call()


def test_numbers_of_numpy_and_columns_called_by_numbers_are_fine(frame):
    plan = zoo.plan("tabular/xgboost", frame.rename(columns={"y": 7}), target=7, seed=np.int64(3))
    assert plan.seed == 3
    assert plan.facts["target"] == "7"


def test_a_column_for_a_purpose_that_the_type_has_none_for_is_refused(frame):
    with pytest.raises(UsageError, match="--column text=x: means nothing to the type tabular"):
        zoo.plan("tabular/xgboost", frame, target="y", columns={"text": "x"})


def test_every_purpose_of_the_command_line_is_one_of_a_type_and_the_other_way_round():
    types = {recipe.type for recipe in load_registry().recipes.values() if recipe.status == "ready"}
    read = {name for each in types for name in importlib.import_module(f"domains.{each}.data").COLUMNS}
    assert read == set(PURPOSES)
    assert len(types) >= 7
