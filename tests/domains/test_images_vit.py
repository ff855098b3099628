"""Transformers on pictures: how they are cut for small pictures, mixed pictures, random changes, runs as weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

import zoo
from domains.contract import Facts
from domains.images import augment, cnn
from domains.images.task import PictureTask
from domains.shared import timm_backbone as backbone
from domains.shared.timm_checks import stored_side
from trainers.errors import DataError, UsageError
from trainers.outcome import Outcome

CLASSES = ("a", "b", "c")
SMALL = Facts("images", "classification", "class", 40, CLASSES, {"median_short_side": 30, "megapixels": 1})


def options(**more) -> cnn.Options:
    return cnn.Options(**{"network": "test_vit", "weights": "none", "image_size": 32, **more})


def task(**more) -> PictureTask:
    chosen = options(**more)
    found = cnn.backbone_of(chosen, SMALL)
    torch.manual_seed(0)
    model = backbone.build_network(found.as_json(), 3)
    fitted = {"backbone": found.as_json(), "pictures": cnn.picture_config(SMALL, found, chosen)}
    return PictureTask(model, chosen, SMALL, {**fitted, "outcome": Outcome(CLASSES).as_json()})


def picture(seed: int = 0, side: int = 40) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8)


def examples(num: int = 6) -> list[tuple[np.ndarray, int]]:
    return [(picture(i), i % 3) for i in range(num)]


def draw(made: PictureTask, seed: int = 0):
    return made.draw(examples(), [np.random.default_rng([seed, i]) for i in range(6)])


def test_from_nothing_small_pictures_get_small_patches_and_pretrained_ones_keep_theirs():
    found = cnn.backbone_of(cnn.Options(network="vit_tiny_patch16_224", weights="none"), SMALL)
    assert found.args == {"patch_size": 4, "img_size": 32}
    model = backbone.build_network(found.as_json(), 3)
    assert model.patch_embed.num_patches == 64
    assert cnn.input_side(SMALL, found, cnn.Options(network="vit_tiny_patch16_224", weights="none"))[0] == 32


def test_the_user_has_the_last_word_on_the_networks_arguments():
    found = cnn.backbone_of(options(network_args={"patch_size": 8}, drop_path=0.2), SMALL)
    assert found.args == {"drop_path_rate": 0.2, "img_size": 32, "patch_size": 8}


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.5, 0.0), (0.0, 0.5), (0.5, 0.5)])
def test_a_mixed_batch_keeps_its_share_of_each_pixel_or_of_the_area(mixup, cutmix):
    pictures = np.stack([picture(i) for i in range(4)])
    for seed in range(20):
        found, share = augment.mixed(pictures, mixup=mixup, cutmix=cutmix, rng=np.random.default_rng(seed))
        blend = np.rint(share * pictures.astype(np.float32) + np.float32(1 - share) * pictures[::-1])
        is_own = (found == pictures).all(axis=(0, 3)).mean()
        is_blend = np.abs(found - blend).max() <= 1
        assert is_blend or is_own == pytest.approx(share, abs=0.01)
        assert found.dtype == np.uint8


def test_the_loss_of_mixed_pictures_is_the_cross_entropy_with_shared_targets():
    made = task(mixup=0.8, label_smoothing=0.0)
    batch = draw(made)
    pictures, targets, share = batch.inputs
    with torch.no_grad():
        total = made.loss(made.model.eval(), batch.inputs)["cross_entropy"]
        shared = share * functional.one_hot(targets, 3) + (1 - share) * functional.one_hot(targets.flip(0), 3)
        config = made.config
        mean, std = (torch.tensor(config[name]).view(3, 1, 1) for name in ("mean", "std"))
        logits = made.model((pictures.float() / 255 - mean) / std)
        expected = functional.cross_entropy(logits.double(), shared.double(), reduction="sum")
    assert total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert 0 < share < 1


def test_the_same_chance_draws_the_same_batch_and_another_one_does_not():
    made = task(randaug=9, mixup=0.8, cutmix=1.0)
    one, same, other = draw(made), draw(made), draw(made, seed=1)
    assert torch.equal(one.inputs[0], same.inputs[0])
    assert not torch.equal(one.inputs[0], other.inputs[0])


def test_every_change_keeps_the_size_and_none_but_the_first_three_does_nothing_at_full_strength():
    source = Image.fromarray(picture())
    for number, change in enumerate(augment.CHANGES):
        found = change(source, 1.0, 1.0)
        assert found.size == source.size
        assert number < 3 or not np.array_equal(np.asarray(found), np.asarray(source))


def test_with_flip_test_a_picture_and_its_mirror_image_get_the_same_answer():
    made = task(flip_test=True)
    pictures = torch.from_numpy(np.stack([picture(side=32)])).permute(0, 3, 1, 2)
    with torch.no_grad():
        one, mirrored = (made.predict(made.model.eval(), each) for each in (pictures, pictures.flip(-1)))
    np.testing.assert_allclose(one.scores, mirrored.scores, atol=1e-6)


@pytest.fixture(scope="module")
def run_of_transformer(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(0)
    for i in range(30):
        place = root / "pictures" / "ab"[i % 2] / f"{i}.png"
        place.parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray(rng.integers(0, 90, (32, 32, 3), dtype=np.uint8) + np.uint8(120 * (i % 2))).save(place)
    sets = {"options.network": "test_vit", "train.epochs": 1, "train.batch_size": 8, "train.compile": "off"}
    return zoo.train("images/vit-scratch", root / "pictures", set=sets, out=root / "run"), root


def test_a_run_is_weights_for_the_next_one(run_of_transformer):
    run, root = run_of_transformer
    found = backbone.find_backbone(None, str(run.folder))
    model = backbone.build_network(found.as_json(), 5, weights=found.weights)
    learned = run._learner.task.model.state_dict()
    body = {name: value for name, value in model.state_dict().items() if not name.startswith("head.")}
    assert body
    assert all(torch.equal(value, learned[name]) for name, value in body.items())
    sets = {"options.weights": str(run.folder), "train.epochs": 1, "train.batch_size": 8, "train.compile": "off"}
    tuned = zoo.train("images/vit-finetune", root / "pictures", set=sets, out=root / "tuned")
    assert "linear probe" in tuned.metrics["baseline"]


def test_a_run_of_something_else_or_of_another_network_is_refused(run_of_transformer, tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(DataError, match="no finished run of a network on pictures"):
        backbone.find_backbone(None, str(tmp_path))
    with pytest.raises(UsageError, match="holds test_vit"):
        backbone.find_backbone("resnet18", str(run_of_transformer[0].folder))


@pytest.mark.parametrize(
    "changed",
    [
        {"args": {"checkpoint_path": "x.pt"}},
        {"args": {"pretrained_cfg_overlay": {"file": "x.pt"}}},
        {"args": {"img_size": 10**9}},
        {"network": "local-dir:/x"},
        {"network": "hf-hub:a/b"},
        {"network": None},
    ],
)
def test_what_a_strange_run_says_of_its_network_never_reaches_timm(changed, monkeypatch):
    monkeypatch.setattr(backbone.timm, "create_model", lambda *_, **__: pytest.fail("timm was asked"))
    with pytest.raises(DataError, match="the stored"):
        backbone.build_network({"network": "test_vit", "args": {}, **changed}, 2)


@pytest.mark.parametrize("size", [[3, 100_000, 100_000], "x", None, [3, 0, 0]])
def test_a_stored_side_that_no_plan_would_give_is_refused(size):
    with pytest.raises(DataError, match="input_size"):
        stored_side({"input_size": size})


@pytest.mark.parametrize(
    "name", ["pretrained", "num_classes", "in_chans", "features_only", "checkpoint_path", "nonsense"]
)
def test_arguments_that_are_the_recipes_own_or_unknown_are_an_error_of_the_options(name):
    with pytest.raises(UsageError, match=f"network_args.*{name}"):
        backbone.build_network(cnn.backbone_of(options(network_args={name: 1}), SMALL).as_json(), 2)
