"""Progressive resizing: the sizes of each stage, on networks that can and cannot, and that without it nothing changed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_images_cnn import LABELS
from test_images_vit import SMALL, examples, options, picture, task

from domains.contract import Request
from domains.images import cnn, data
from domains.images.augment import mixed, training_view
from domains.images.growing import NUM_STAGES, growing_sides
from domains.images.shelf import Shelf, shelve
from trainers.contract import Machine, Plan
from trainers.errors import StoppedError, UsageError
from trainers.parts import make_feed
from trainers.settings import Gradient


def rngs(num: int = 6, seed: int = 0) -> list[np.random.Generator]:
    return [np.random.default_rng([seed, i]) for i in range(num)]


def test_sides_grow_evenly_as_efficientnetv2_has_them():
    # Table 6: from 128 to 300 pixels; algorithm 1: S_i = S_0 + (S_e - S_0) i / (M - 1).
    assert growing_sides(300, 128 / 300, 1) == [128, 185, 243, 300]
    assert growing_sides(224, 0.5, 16) == [112, 144, 192, 224]
    assert growing_sides(518, 0.5, 14) == [252, 350, 434, 518]
    for full, first, step in ((128, 0.5, 32), (225, 0.1, 32), (64, 0.9, 32)):
        sides = growing_sides(full, first, step)
        assert sides == sorted(sides)
        assert sides[-1] == full
        assert all(side % step == 0 for side in sides[:-1])


def test_each_stage_has_views_of_its_side_and_the_network_takes_them():
    made = task(image_size=64, progressive=0.25, randaug=5)
    assert [made.draw(examples(), rngs(), at).inputs[0].shape[-1] for at in range(NUM_STAGES)] == [16, 32, 48, 64]
    assert [stage.until for stage in made.stages] == [0.25, 0.5, 0.75, 1.0]
    assert [stage.cost for stage in made.stages] == [1 / 16, 1 / 4, 9 / 16, 1]
    for at in range(NUM_STAGES):
        batch = made.draw(examples(), rngs(), at)
        made.loss(made.model, batch.inputs)["cross_entropy"].backward()
    assert all(torch.isfinite(p.grad).all() for p in made.model.parameters())


def test_a_view_of_a_stage_is_the_same_box_at_another_size():
    made = task(image_size=64, progressive=0.5)
    small, large = (made.draw(examples(), rngs(), at).inputs[0].float() for at in (0, -1))
    shrunk = torch.nn.functional.interpolate(large, size=32, mode="area")
    assert (shrunk - small).abs().mean() < (shrunk - small.flip(-1)).abs().mean() / 3


@pytest.mark.parametrize("more", [{}, {"randaug": 5.3}, {"mixup": 0.8, "cutmix": 1.0}, {"scale": 1.0, "flip": False}])
def test_without_the_option_batches_are_bitwise_what_they_were(more):
    made = task(**more)
    assert made.stages == ()
    chosen, given = options(**more), rngs()
    how = {"scale": chosen.scale, "flip": chosen.flip, "randaug": chosen.randaug}
    how["interpolation"] = made.config["interpolation"]
    views = np.stack([training_view(x, 32, rng=given[i], **how) for i, (x, _) in enumerate(examples())])
    if more.get("mixup"):
        views, _ = mixed(views, mixup=0.8, cutmix=1.0, rng=given[0])
    assert np.array_equal(made.draw(examples(), rngs()).inputs[0].permute(0, 2, 3, 1).numpy(), views)
    assert "dynamic_img_size" not in cnn.backbone_of(chosen, SMALL).args


def test_pictures_from_the_cache_and_decoded_each_time_give_the_same_small_views(tmp_path):
    paths = []
    for i, (pixels, _) in enumerate(examples()):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(pixels).save(paths[-1])
    made = task(image_size=64, progressive=0.5)
    cached, fresh = shelve(paths, 73, tmp_path / "shelf", num_bytes=1), Shelf(paths, 73, None)
    assert cached.folder is not None
    for stage in range(NUM_STAGES):
        one, other = (made.draw([(x, 0) for x in shelf], rngs(), stage).inputs[0] for shelf in (cached, fresh))
        assert torch.equal(one, other)


def test_at_full_size_a_vit_that_takes_all_sizes_answers_with_the_same_bits():
    growing, plain = task(image_size=64, progressive=0.5), task(image_size=64)
    growing.model.load_state_dict(plain.model.state_dict())
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(growing.model.eval()(x), plain.model.eval()(x))


@pytest.mark.parametrize("network", ["test_efficientnet", "test_resnet", "test_convnext"])
def test_convolutional_networks_grow_and_the_plan_says_how(network):
    found = cnn.plan(LABELS, options(network=network, image_size=128, progressive=0.5), Gradient(), Machine())
    whole = cnn.plan(LABELS, options(network=network, image_size=128), Gradient(), Machine())
    assert "training pictures grow: 64, 96, 96, 128 pixels, equal shares of the steps" in found["notes"]
    share = np.mean([(side / 128) ** 2 for side in (64, 96, 96, 128)])
    assert found["flops_per_example"] == pytest.approx(share * whole["flops_per_example"], rel=1e-6)
    assert found["memory_bytes"] == whole["memory_bytes"]


@pytest.mark.parametrize("network", ["beit_base_patch16_224", "mixer_s32_224", "coatnet_nano_rw_224"])
def test_a_network_of_one_size_only_is_refused(network):
    chosen = options(network=network, image_size=None, progressive=0.5)
    with pytest.raises(UsageError, match=f"options.progressive: {network} does not take pictures of several sizes"):
        cnn.plan(LABELS, chosen, Gradient(), Machine())


def test_a_picture_that_cannot_be_smaller_is_refused():
    with pytest.raises(UsageError, match="cannot begin with less than 32 pixels"):
        cnn.plan(LABELS, options(network="test_efficientnet", progressive=0.5), Gradient(), Machine())


class Watch:
    """A run in `folder` that is told to stop before its step `stop_at`."""

    metric, higher_is_better, rank, world = "accuracy", True, 0, 1

    def __init__(self, folder: Path, stop_at: int | None = None) -> None:
        self.folder, self.cache, self.stop_at, self.num_asked = folder, folder, stop_at, 0
        self.log = lambda **event: None

    def should_stop(self) -> str | None:
        self.num_asked += 1
        return "signal" if self.stop_at is not None and self.num_asked > self.stop_at else None


def test_the_feed_gives_pictures_of_each_epochs_size(tmp_path, monkeypatch):
    made = task(image_size=64, progressive=0.25)
    monkeypatch.setattr(made, "examples", lambda rows, folder: examples(10))
    feed = make_feed(made, None, Gradient(epochs=8, batch_size=4), seed=0, watch=Watch(tmp_path))
    sides = [[batch.inputs[0].shape[-1] for batch in feed.drawn(step).batches] for step in range(24)]
    assert sides == [[16]] * 6 + [[32]] * 6 + [[48]] * 6 + [[64]] * 6
    step, share = feed.largest_step()
    assert (feed.drawn(step).batches[0].inputs[0].shape, share) == ((4, 3, 64, 64), (1 / 4 + 9 / 16) / 2)


@pytest.mark.parametrize("network", ["test_efficientnet", "test_vit"])
def test_a_growing_training_that_was_stopped_and_resumed_ends_with_the_same_bits(tmp_path, network):
    paths = []
    for i in range(12):
        paths.append(tmp_path / "abc"[i % 3] / f"{i}.png")
        paths[-1].parent.mkdir(exist_ok=True)
        Image.fromarray(picture(i)).save(paths[-1])
    rows = data.read(tmp_path, Request()).table
    settings = Gradient(epochs=4, batch_size=4, precision="fp32", compile="off", save_steps=1)
    chosen = options(network=network, image_size=128, progressive=0.25, randaug=5).model_dump()
    facts = data.describe(rows, "classification", Request())
    plan = Plan("", "images", facts.task, "", chosen, settings.model_dump(mode="json"), facts.as_json())

    def weights(folder: Path, stop_at: int | None = None) -> dict[str, torch.Tensor]:
        learner = cnn.build(plan)
        learner.fit(rows, None, Watch(folder, stop_at))
        return learner.task.model.state_dict()

    whole = weights(tmp_path / "whole")
    with pytest.raises(StoppedError):
        weights(tmp_path / "cut", stop_at=5)
    resumed = weights(tmp_path / "cut")
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())
