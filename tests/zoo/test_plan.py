"""Recipe, demo, flags and --set become one plan, each value with its origin."""

import importlib

import pytest
from pydantic import BaseModel, ConfigDict

from domains.contract import Facts
from trainers.contract import Machine, Plan
from trainers.errors import UsageError
from trainers.settings import Gradient, Trees
from zoo.plan import Wishes, parse_sets, plan_run, with_settings
from zoo.registry import Needs, Recipe


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    weights: str = "none"
    width: int = 8


class Family:
    Options = Options

    @staticmethod
    def plan(facts, options, settings, machine):
        return {"num_steps": 7, "notes": ["a note"]}


FACTS = Facts("tabular", "classification", "y", 100, ("a", "b"))


@pytest.fixture
def planned(monkeypatch):
    monkeypatch.setattr(importlib.import_module("zoo.plan"), "parts_of", lambda recipe: (None, Family))

    def make(train=None, demo=None, **wishes):
        recipe = Recipe(
            name="tabular/thing",
            status="ready",
            about="",
            tasks=("classification",),
            needs=Needs(),
            module="domains.tabular.thing",
            options={"width": 4},
            train=train or {"trainer": "gradient", "epochs": 10, "lr": 0.01},
        )
        return plan_run(recipe, FACTS, machine=Machine(), wishes=Wishes(**wishes), demo=demo or {})

    return make


def test_the_last_word_is_the_users_and_every_value_knows_its_origin(planned):
    made = planned(demo={"options": {"weights": "demo"}, "train": {"lr": 0.5}}, sets={"train.lr": 0.1})
    assert made.options == {"weights": "demo", "width": 4}
    assert made.settings["lr"] == 0.1
    assert made.origins["train.lr"] == "--set"
    assert made.origins["options.weights"] == "demo"
    assert made.origins["options.width"] == "recipe"


def test_one_budget_replaces_another(planned):
    made = planned(budget=60.0)
    assert (made.settings["seconds"], made.settings["epochs"]) == (60.0, None)
    made = planned(sets={"train.steps": 5})
    assert (made.settings["steps"], made.settings["epochs"]) == (5, None)


@pytest.mark.parametrize(
    "wishes",
    [
        {"epochs": 3, "sets": {"train.steps": 5}},
        {"epochs": 3, "budget": 60.0},
        {"sets": {"train.seconds": 9, "train.steps": 5}},
    ],
)
def test_two_budgets_of_the_user_are_refused_as_nobody_knows_which_ends_the_training(planned, wishes):
    with pytest.raises(UsageError, match=r"train\.\w+\) and .*train\.\w+\) are two budgets"):
        planned(**wishes)


def test_the_same_budget_twice_is_no_conflict_and_neither_is_one_taken_away(planned):
    assert planned(epochs=3, sets={"train.epochs": 5}).settings["epochs"] == 5
    assert planned(sets={"train.epochs": None, "train.steps": 5}).settings["steps"] == 5


def test_a_misspelt_path_gets_a_suggestion(planned):
    with pytest.raises(UsageError, match=r"'train\.learning_rat' of tabular/thing.*Known"):
        planned(sets={"train.learning_rat": 1})
    with pytest.raises(UsageError, match=r"Did you mean width"):
        planned(sets={"options.widht": 1})
    with pytest.raises(UsageError, match=r"paths begin with options\. or train\."):
        planned(sets={"lr": 1})


def test_a_wrong_value_is_named(planned):
    with pytest.raises(UsageError, match=r"train\.lr = -1"):
        planned(sets={"train.lr": -1})


def test_a_flag_that_means_nothing_to_the_trainer_says_so(planned):
    with pytest.raises(UsageError, match="--epochs means nothing"):
        planned(train={"trainer": "trees"}, epochs=3.0)


def test_set_values_are_json_or_text():
    found = parse_sets(["train.lr=1e-4", "options.weights=none", "train.patience=null", "a.b=x=y"])
    assert found == {"train.lr": 1e-4, "options.weights": "none", "train.patience": None, "a.b": "x=y"}
    with pytest.raises(UsageError, match="path=value"):
        parse_sets(["train.lr"])


def test_a_plan_survives_json(planned):
    made = planned()
    assert Plan.from_json(made.as_json()) == made


def test_a_finished_run_can_change_settings_but_not_options(planned):
    made = planned()
    assert with_settings(made, {"train.eval_batch_size": 1}).settings["eval_batch_size"] == 1
    with pytest.raises(UsageError, match="keeps its options"):
        with_settings(made, {"options.width": 1})


def test_settings_refuse_two_budgets_and_unknown_names():
    with pytest.raises(ValueError, match="more than one budget"):
        Gradient(epochs=1, steps=1)
    with pytest.raises(ValueError, match="Extra inputs"):
        Trees(depth=3)
