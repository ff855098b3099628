"""SimCLR: its loss against a plain loop, its score, its views, and that the fine-tune recipes read what it learned."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

import zoo
from domains.contract import Request
from domains.images import contrastive, data
from domains.images.unlabelled import match_stats
from domains.shared import timm_backbone
from trainers.contract import Predictions
from trainers.errors import UsageError

TASK = Request(task="representation")


@pytest.fixture
def folder(tmp_path):
    for number in range(40):
        colour = np.random.default_rng(number).integers(0, 256, 3)
        place = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.broadcast_to(colour, (20, 20, 3)).astype(np.uint8)).save(place)
    return tmp_path / "pictures"


def test_the_loss_is_that_of_equation_1():
    z = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = 0.0
    likeness = [[float(torch.cosine_similarity(z[i], z[j], dim=0)) / 0.5 for j in range(6)] for i in range(6)]
    for i in range(6):
        partner = (i + 3) % 6
        others = sum(math.exp(likeness[i][k]) for k in range(6) if k != i)
        wanted -= math.log(math.exp(likeness[i][partner]) / others)
    assert float(contrastive.nt_xent(z, 0.5)) == pytest.approx(wanted)


def test_the_score_counts_pictures_whose_views_find_each_other_and_ties_as_chance():
    one = np.eye(4)
    other = np.eye(4)[[0, 1, 3, 2]]
    stats = match_stats(np.ones(4), Predictions.of_number_rows(np.hstack([one, other]), list("abcdefgh")))
    assert stats[:, 0].tolist() == [1, 1, 0, 0]
    alike = match_stats(np.ones(4), Predictions.of_number_rows(np.ones((4, 2)), ["a", "b"]))
    assert alike[:, 0].mean() == pytest.approx(0.25)
    assert alike[:, 1].mean() == pytest.approx(2.5)


def test_folders_mean_nothing_and_a_target_is_refused(folder):
    reading = data.read(folder, TASK)
    assert (len(reading.table), reading.bad, reading.task) == (40, (), "representation")
    with pytest.raises(UsageError, match="label"):
        data.read(folder, Request(task="representation", target="label"))


def test_the_fixed_view_of_a_picture_is_always_the_same_and_not_the_plain_one(folder):
    rows = data.read(folder, TASK).table
    fitted = {"backbone": {"network": "test_efficientnet", "args": {}, "weights": None}}
    fitted["pictures"] = timm_backbone.picture_config(
        timm_backbone.find_backbone("test_efficientnet", "none"), side=32, crop_pct=1.0
    )
    facts = data.describe(rows, "representation", TASK)
    options = contrastive.Options(network="test_efficientnet", weights="none")
    task = contrastive.ContrastiveTask(contrastive.Projected(fitted["backbone"], 8, None), options, facts, fitted)
    whole, part = task.collate(rows.take(range(6))), task.collate(rows.take([4, 2]))
    assert torch.equal(whole[[4, 2, 10, 8]], part)
    assert not torch.equal(whole[:6], whole[6:])


def test_the_fine_tune_recipe_starts_from_what_was_learned(folder, tmp_path):
    sets = {"options.network": "test_efficientnet", "options.image_size": 32, "train.batch_size": 16, "train.epochs": 1}
    how = {"task": "representation", "fast": True, "precision": "fp32"}
    zoo.train("images/contrastive", data=folder, set=sets, out=tmp_path / "first", **how)
    found = timm_backbone.find_backbone(None, str(tmp_path / "first"))
    assert found.network == "test_efficientnet"
    model = timm_backbone.build_network(found.as_json(), 2, weights=found.weights)
    learned = timm_backbone.read_tensors(found.weights.path)
    for name, value in model.state_dict().items():
        if not name.startswith("classifier"):
            assert torch.equal(value, learned[f"encoder.{name}"]), name


def test_outermost_folders_called_train_and_test_are_the_parts(folder):
    for number, path in enumerate(sorted(folder.rglob("*.png"))):
        place = folder / ("Test" if number % 5 == 0 else "train") / path.name
        place.parent.mkdir(exist_ok=True)
        path.rename(place)
    table = data.read(folder, TASK).table
    keys = data.keys(table, "representation", TASK, fast=False)
    assert keys.rule == "given"
    assert list(keys.given).count("test") == 8
    (folder / "other").mkdir()
    next((folder / "train").iterdir()).rename(folder / "other" / "x.png")
    table = data.read(folder, TASK).table
    assert data.keys(table, "representation", TASK, fast=False).rule != "given"
