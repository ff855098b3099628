"""Flow matching: paths with known directions, the best rival in closed form, guidance, and pictures for orders."""

import json

import numpy as np
import pandas as pd
import pytest
import timm
import torch
from PIL import Image

import zoo
from domains.contract import Request
from domains.images import data, diffusion, flow, frechet
from domains.images.flow_network import FlowNetwork
from domains.shared import timm_backbone

TASK = Request(task="generation")
SETS = {"options.image_size": 8, "options.widths": [16, 16], "options.steps": 2, "options.flip": False}
SETS |= {"train.batch_size": 16, "train.epochs": 1, "train.ema": None, "train.compile": "off"}


@pytest.fixture
def folder(tmp_path):
    for number in range(40):
        name = "red" if number % 2 else "blue"
        pixels = np.random.default_rng(number).integers(0, 100, (12, 10, 3))
        pixels[..., 0 if name == "red" else 2] += 150
        (tmp_path / "pictures" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"


def test_the_true_direction_has_no_error_and_leads_to_the_picture():
    rng = torch.Generator().manual_seed(0)
    picture, noise = torch.rand(2, 3, 8, 8, generator=rng) * 2 - 1, torch.randn(2, 4, 3, 8, 8, generator=rng)
    nobody = torch.zeros(2, dtype=torch.long)

    def true(x, times, classes):
        return (picture - x) / (1 - times.view(-1, 1, 1, 1))

    assert torch.allclose(flow.flow_errors(true, picture, noise, nobody), torch.zeros(2), atol=1e-8)
    assert torch.allclose(flow.drawn(true, noise[:, 0], nobody, steps=3), picture, atol=1e-5)


def test_the_error_is_the_mean_over_pixels_and_times_of_squared_steps():
    picture, noise = torch.zeros(1, 3, 2, 2), torch.zeros(1, 4, 3, 2, 2)
    found = flow.flow_errors(lambda x, t, c: torch.full_like(x, 3.0), picture, noise, torch.zeros(1, dtype=torch.long))
    assert float(found[0]) == pytest.approx(9.0)


def test_the_rival_of_single_pixels_is_the_regression_of_the_direction_on_the_value():
    """Least squares on draws of a normal pixel gives the same line."""
    rng = np.random.default_rng(0)
    mean, deviation, t = 0.3, 0.5, 0.625
    x1, x0 = rng.normal(mean, deviation, 200_000), rng.standard_normal(200_000)
    slope, start = np.polyfit((1 - t) * x0 + t * x1, x1 - x0, 1)
    rival = flow._best_linear(torch.full((1, 1, 1), mean), torch.full((1, 1, 1), deviation**2))
    values = torch.tensor([-1.0, 0.0, 2.0]).view(3, 1, 1, 1)
    found = rival(values, torch.full((3,), t), torch.zeros(3))
    assert np.allclose(found.flatten().numpy(), start + slope * values.flatten().numpy(), atol=0.03)


def test_guidance_counts_what_the_class_adds():
    def velocity(x, times, classes):
        return x + classes.view(-1, 1, 1, 1).float()

    found = flow.guided(velocity, 3.0, no_class=10)(torch.zeros(1, 1, 1, 1), torch.zeros(1), torch.tensor([4]))
    assert float(found) == 10 + 3 * (4 - 10)


def test_the_network_hears_time_and_class_and_gives_all_its_parameters_a_gradient():
    torch.manual_seed(0)
    network = FlowNetwork(2, (8, 16))
    torch.nn.init.normal_(network.last.weight)
    x = torch.randn(3, 3, 8, 8)
    one = network(x, torch.tensor([0.1, 0.1, 0.1]), torch.tensor([0, 1, 2]))
    other = network(x, torch.tensor([0.9, 0.1, 0.1]), torch.tensor([0, 0, 2]))
    assert one.shape == x.shape
    changed = (one - other).abs().flatten(1).max(dim=1).values > 1e-4
    assert changed.tolist() == [True, True, False]
    one.square().sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_classes_come_from_folders_and_pictures_alone_have_none(folder):
    rows = data.read(folder, TASK).table
    assert data.describe(rows, "generation", TASK).classes == ("blue", "red")
    alone = data.read(folder / "red", TASK).table
    assert data.describe(alone, "generation", TASK).classes == ()


def test_a_run_scores_pictures_draws_for_orders_and_keeps_a_sheet(folder, tmp_path):
    run = zoo.train(
        "images/diffusion", data=folder, task="generation", set=SETS, precision="fp32", out=tmp_path / "run"
    )
    assert list(run.metrics["baseline"]) == ["mean picture", "gaussian pixels"]
    with Image.open(tmp_path / "run" / "model" / diffusion.SHEET) as sheet:
        assert sheet.size == (8 * 9 - 1, 3 * 9 - 1)
    found = run.predict(pd.DataFrame({"class": ["red", "blue", "green"]}))
    assert found["problem"].tolist()[:2] == ["", ""]
    assert "'green'" in found["problem"].iloc[2]
    again = run.predict(pd.DataFrame({"class": ["red", "blue", "green"]}))
    assert found.equals(again)


def test_the_distance_of_two_normal_distributions_is_the_closed_form():
    """Features with exactly known means and covariances that commute: |m1 - m2|^2 + sum (s1 - s2)^2 over their axes."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((50, 6))
    white = np.linalg.qr(values - values.mean(axis=0))[0] * np.sqrt(49)  # mean 0 and covariance 1, exactly
    turn, first, second = np.linalg.qr(rng.standard_normal((6, 6)))[0], np.arange(1.0, 7), np.arange(6.0, 0, -1)
    one, other = (white * first) @ turn, (white * second) @ turn + 0.5
    assert frechet.frechet_distance(one, other) == pytest.approx(6 * 0.25 + np.square(first - second).sum(), rel=1e-10)
    assert frechet.frechet_distance(one, one) == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("num", [40, 12])
def test_the_distance_is_that_of_matrix_roots_also_without_full_rank(num):
    linalg = pytest.importorskip("scipy.linalg")
    rng = np.random.default_rng(1)
    ones, others = rng.standard_normal((num, 20)), rng.standard_normal((30, 20)) @ rng.standard_normal((20, 20)) + 0.3
    first, second = np.cov(ones.T), np.cov(others.T)
    half = linalg.sqrtm(first + 1e-12 * np.eye(20)).real
    root = linalg.sqrtm(half @ second @ half).real
    expected = np.square(ones.mean(0) - others.mean(0)).sum() + np.trace(first + second - 2 * root)
    assert frechet.frechet_distance(ones, others) == pytest.approx(expected, rel=1e-5)


def test_too_few_pictures_for_the_features_give_no_distance_and_the_reason():
    assert "2,048 pictures do not tell the spread of 2,048 features" in frechet.why_not(2048, 2048)
    assert frechet.why_not(2049, 2048) == ""


class Colours:
    """Three features of a picture: its mean colour."""

    name, width = "colours", 3

    def __call__(self, pictures):
        return pictures.mean(axis=(1, 2))


def test_drawn_pictures_are_compared_with_as_many_real_ones_of_their_classes(folder):
    rows, seen = data.read(folder, TASK).table, []
    pictures = flow.squares(rows, 8).transpose(0, 2, 3, 1)

    def copies(numbers, which):
        seen.extend(numbers)
        return pictures[which]

    how = {"side": 8, "seed": 0, "log": lambda **event: None}
    same = frechet.compared(copies, rows, Colours(), most=1000, **how)
    assert same["frechet"]["num_pictures"] == 40
    assert seen == list(range(40))
    assert same["frechet"]["distance"] == pytest.approx(0, abs=1e-6)
    # Pixels drawn one by one lose what makes a picture red or blue: their mean colours hardly vary.
    truth = pictures.mean(axis=(1, 2))
    assert same["frechet"]["of_pixels"] == pytest.approx(np.trace(np.cov(truth.T)), rel=0.2)
    grey = frechet.compared(lambda numbers, which: 0 * pictures[which], rows, Colours(), most=20, **how)
    assert grey["frechet"]["num_pictures"] == 20
    assert grey["frechet"]["distance"] > np.square(truth.mean(axis=0)).sum()
    few = frechet.compared(copies, rows, Colours(), most=3, **how)
    assert list(few) == ["notes"]


def test_a_run_tells_the_distance_on_the_features_of_a_network_by_its_name(folder, tmp_path, monkeypatch):
    network = timm.create_model("test_efficientnet", num_classes=0)
    monkeypatch.setattr(frechet.Features, "__init__", lambda self, weights, device: _with(self, network))
    run = zoo.train(
        "images/diffusion",
        data=folder,
        task="generation",
        set={**SETS, "options.frechet": "demo", "train.epochs": 1},
        precision="fp32",
        out=tmp_path / "run",
    )
    found = json.loads((run.folder / "actual.json").read_text())
    assert found["frechet"]["network"] == "four of its features"
    assert 0 < found["frechet"]["distance"] < float("inf")
    assert "is not the FID of the literature" in (run.folder / "README.md").read_text()


def _with(features, network):
    """A small network of timm without weights, of whose features four count: there are few pictures."""
    features.name, features.width, features.side, features.device = "four of its features", 4, 32, torch.device("cpu")
    features.config, features._normalised = {"mean": [0.5] * 3, "std": [0.5] * 3}, timm_backbone.normalised
    features.model = torch.nn.Sequential(network.eval(), torch.nn.AdaptiveAvgPool1d(4))
