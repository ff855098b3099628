"""Savings of memory: the first combination that fits, arithmetic against closed forms, and one real training."""

from dataclasses import replace

import pytest
from contract import tiny

from trainers import experience
from trainers.errors import DoesNotFitError
from zoo import savings
from zoo.forecasts import forecast_of
from zoo.job import prepare
from zoo.plan import Wishes

SETTINGS = {"trainer": "gradient", "batch_size": 8, "micro_batch_size": None, "checkpoint_activations": False}


def peak(sets):
    """16 bytes a row at once, a quarter of it checkpointed, and 40 for the rest."""
    rows = sets.get("train.micro_batch_size", 8)
    return 40 + 16 * rows // (4 if sets.get("train.checkpoint_activations") else 1)


def test_the_first_combination_that_fits_is_proposed_and_it_is_the_cheapest():
    choices = savings.sets_of(SETTINGS, {})
    assert savings.first_that_fits(choices, peak, 110).how == "--set train.micro_batch_size=4"
    assert savings.first_that_fits(choices, peak, 72).how == "--set train.micro_batch_size=2"
    both = savings.first_that_fits(choices, peak, 45)
    assert both.how == "--set train.micro_batch_size=1 --set train.checkpoint_activations=true"
    assert both.peak_bytes == 44


def test_where_nothing_fits_the_nearest_is_named_with_exit_code_4():
    with pytest.raises(DoesNotFitError, match=r"Nearest: .*micro_batch_size=1") as raised:
        savings.first_that_fits(savings.sets_of(SETTINGS, {}), peak, 43)
    assert raised.value.exit_code == 4


def test_what_a_model_cannot_do_is_left_out():
    def no_checkpoints(sets):
        return None if "train.checkpoint_activations" in sets else peak(sets)

    names = [each.how for each in savings.traced(savings.sets_of(SETTINGS, {}), no_checkpoints)]
    assert names == [f"--set train.micro_batch_size={size}" for size in (4, 2, 1)]


def test_smaller_micro_batches_and_more_processes_take_less(tmp_path, monkeypatch):
    from domains.contract import Request

    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(experience, "WORTH_BYTES", 0)
    data, target = tiny.made("tabular/mlp", "classification", tmp_path)
    sets = tiny.sets("tabular/mlp", "classification", data, target, tmp_path)
    job = prepare("tabular/mlp", data, request=Request(target=target, task="classification"), wishes=Wishes(sets))
    job = replace(job, plan=replace(job.plan, settings={**job.plan.settings, "optimizer": "adamw"}))
    forecast = forecast_of(job)
    found = savings.report_of(job, forecast)
    terms = forecast["memory"]
    split = {each["name"]: each["peak_bytes"] for each in found["savings"]}["split among 2 (FSDP2), each"]
    shared = terms["weights_bytes"] + terms["gradients_bytes"] + terms["optimizer_bytes"] + terms["averages_bytes"]
    assert terms["peak_bytes"] - split == pytest.approx(shared / 2, abs=1)
    assert found["proposed"] is None
    assert any("saving" in line for line in savings.lines_of(found))
