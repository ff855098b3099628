"""Swin UNETR: the network and its loading against MONAI's own, patches that fit, and gradients of thin volumes."""

import pytest
import torch
from monai.networks.nets.swin_unetr import SwinUNETR

from domains.medical.demo import phantoms
from domains.medical.swin import Swin, _edges, _fitted, _tensors
from domains.shared.convolutions import keep_thin_volumes_in_float32
from trainers.errors import DataError, UsageError
from zoo import run

WIDTH = 12
SHAPE = (32, 32, 64)


def swin(channels=1, classes=3):
    return Swin(channels, classes, WIDTH).eval()


def without_labels(seed=0):
    """A file as pretraining without labels leaves it: the encoder alone, with the names that MONAI's `load_from` reads."""
    torch.manual_seed(seed)
    encoder = SwinUNETR(1, 2, feature_size=WIDTH).swinViT.state_dict()
    renamed = {
        name.replace(".linear1.", ".fc1.").replace(".linear2.", ".fc2."): value for name, value in encoder.items()
    }
    return {"state_dict": {f"module.{name}": value for name, value in renamed.items()}}


def test_the_random_network_is_monais_with_its_head_apart():
    torch.manual_seed(0)
    ours, theirs = swin(), SwinUNETR(1, 3, feature_size=WIDTH).eval()
    names = {name.removeprefix("body.").replace("heads.0.", "out."): value for name, value in ours.state_dict().items()}
    theirs.load_state_dict(names)
    x = torch.randn(1, 1, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
        (only,) = ours.train()(x)
    assert only.shape == (1, 3, *SHAPE)


def test_an_encoder_pretrained_without_labels_is_read_as_monai_reads_it(tmp_path):
    saved = without_labels()
    torch.save(saved, tmp_path / "model_swinvit.pt")
    ours, theirs = swin(), SwinUNETR(1, 3, feature_size=WIDTH)
    theirs.load_from(saved)
    taken, said = _fitted(ours.body.state_dict(), *_tensors(str(tmp_path / "model_swinvit.pt")))
    ours.body.load_state_dict(taken, strict=False)
    torch.testing.assert_close(ours.body.swinViT.state_dict(), theirs.swinViT.state_dict())
    assert said.startswith("weights of model_swinvit.pt: the whole encoder, 0 of ")


def test_a_whole_network_brings_its_way_up_and_shares_its_first_kernel_among_channels(tmp_path):
    torch.save(SwinUNETR(1, 14, feature_size=WIDTH).state_dict(), tmp_path / "btcv.pt")
    ours = swin(channels=2)
    tensors, path = _tensors(str(tmp_path / "btcv.pt"))
    taken, said = _fitted(ours.body.state_dict(), tensors, path)
    kernel = taken["swinViT.patch_embed.proj.weight"]
    torch.testing.assert_close(kernel.sum(1, keepdim=True), tensors["swinViT.patch_embed.proj.weight"])
    assert not any(name.startswith("out.") for name in taken)  # other classes
    # Only what looks at the image itself is of another shape.
    assert {name for name in ours.body.state_dict() if name not in taken and "index" not in name} == {
        "encoder1.layer.conv1.conv.weight",
        "encoder1.layer.conv3.conv.weight",
    }
    assert "the whole encoder" in said


def test_the_encoder_of_another_width_is_refused(tmp_path):
    torch.save(SwinUNETR(1, 2, feature_size=24).state_dict(), tmp_path / "wide.pt")
    with pytest.raises(DataError, match=r"\[12, 1, 2, 2, 2\] here and \[24, 1, 2, 2, 2\] there.*feature_size"):
        _fitted(swin().body.state_dict(), *_tensors(str(tmp_path / "wide.pt")))


@pytest.mark.parametrize(
    ("free", "edges"), [((35, 50, 36), (32, 64, 32)), ((128, 200, 90), (96, 96, 96)), ((16, 20, 16), (32, 64, 32))]
)
def test_patches_are_multiples_of_32_that_leave_more_than_one_voxel(free, edges):
    assert _edges(free) == edges


def test_a_patch_that_shrinks_to_one_voxel_or_does_not_halve_is_refused(tmp_path):
    data = phantoms(tmp_path / "scans", num_cases=10, shape=(16, 16, 16))
    for patch in ([32, 32, 32], [40, 64, 64]):
        with pytest.raises(UsageError, match="multiples of 32"):
            run.train("medical/swin-unetr", data, set={"options.patch": patch}, fast=True, out=tmp_path / "run")


@pytest.mark.parametrize(("kernel", "padding", "depth"), [(3, 1, 2), (5, 2, 3), (3, 1, 4)])
def test_gradients_of_thin_volumes_in_bfloat16_are_those_of_float32(kernel, padding, depth):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv3d(32, 32, kernel, padding=padding))
    keep_thin_volumes_in_float32(model)
    x = torch.randn(1, 32, depth, 4, 4)
    found = {}
    for precise in (True, False):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
            model(x).float().square().sum().backward()
        found[precise] = model[0].weight.grad.clone()
    torch.testing.assert_close(found[False], found[True], rtol=0.05, atol=0.02 * float(found[True].abs().max()))
