"""Boxes around structures, and the SAM that is shown them, against closed forms, SciPy and transformers."""

import json

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.ndimage import find_objects
from torch.nn import functional as F

from domains.contract import Facts, Request
from domains.medical import data, medsam, sam
from domains.medical.box_baselines import otsu
from domains.medical.boxes import Box, boxes_around, hand, loosely, on_grid, read_boxes, slices_of
from domains.medical.configure import Configuration
from domains.medical.demo import phantoms
from domains.medical.medsam import Boxed, BoxTask, Options, as_picture, pixels_of
from domains.medical.prepare import prepare, prepare_mask
from domains.medical.prompted import BOXES, TASK
from domains.medical.shelf import StoredCase
from domains.medical.volumes import MaskFile
from domains.shared.forward_cost import forward_cost
from trainers.errors import DataError

NAMES = ("background", "liver", "left kidney")
GRID = Configuration(
    dimensions=2,
    axes=(2, 1, 0),
    spacing=(1.0, 1.0, 1.0),
    patch=(1, 8, 8),
    strides=((1, 1, 1),) * 3,
    kernels=((1, 3, 3),) * 3,
    features=(4, 4, 4),
    normalisation=("case",),
    mirror=(),
)


def test_boxes_are_read_with_both_ends_inside_and_the_class_may_have_words():
    (one, other) = read_boxes("liver 1 2 3 4 5 6; left kidney 0 0 0 9 0 0", NAMES, (10, 10, 10))
    assert one == Box(1, (1.0, 2.0, 3.0), (5.0, 6.0, 7.0))
    assert other == Box(2, (0.0, 0.0, 0.0), (10.0, 1.0, 1.0))
    assert read_boxes("1 2 3 4 5 6", NAMES[:2], (10, 10, 10)) == [one]


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("", "no box"),
        ("livr 1 2 3 4 5 6", "liver"),
        ("liver 1 2 3 4 5", "class"),
        ("liver 1 2 3 4 5 6.5", "whole numbers"),
        ("liver 1 2 3 4 5 10", "does not lie"),
        ("liver 5 2 3 4 5 6", "does not lie"),
        ("1 2 3 4 5 6", "class"),
    ],
)
def test_a_box_that_cannot_be_is_told_of(cell, told):
    assert told in read_boxes(cell, NAMES, (10, 10, 10))


def test_boxes_around_a_mask_are_those_of_scipy():
    mask = np.random.default_rng(0).choice(4, (6, 7, 8), p=[0.97, 0.01, 0, 0.02])
    found = {box.position: (box.low, box.high) for box in boxes_around(mask)}
    wanted = {at + 1: spans for at, spans in enumerate(find_objects(mask)) if spans}
    assert found.keys() == wanted.keys()
    for position, spans in wanted.items():
        assert found[position] == (tuple(float(s.start) for s in spans), tuple(float(s.stop) for s in spans))


def test_a_drawn_box_holds_its_structure_and_is_at_most_two_percent_too_large():
    box = Box(1, (10.0, 0.0, 50.0), (20.0, 90.0, 100.0))
    for seed in range(50):
        (found,) = loosely([box], (100, 100, 100), np.random.default_rng(seed))
        out = np.array([np.subtract(box.low, found.low), np.subtract(found.high, box.high)])
        assert out.min() >= 0
        assert out.max() <= 2.0
        assert min(found.low) >= 0
        assert max(found.high) <= 100
    assert loosely([box], (100,) * 3, hand("case 7")) == loosely([box], (100,) * 3, hand("case 7"))
    assert loosely([box], (100,) * 3, hand("case 7")) != loosely([box], (100,) * 3, hand("case 8"))


@pytest.mark.parametrize(
    "affine", [np.diag([1.0, 1, 2, 1]), np.array([[0, -2.0, 0, 9], [1, 0, 0, 8], [0, 0, -3, 7], [0, 0, 0, 1]])]
)
def test_a_box_lies_around_the_same_voxels_on_the_grid_of_the_network(affine, tmp_path):
    classes = np.zeros((9, 10, 11), np.uint8)
    classes[2:5, 3:9, 4:6] = 1
    for name in ("x", "m"):
        nib.save(nib.Nifti1Image(classes.astype(np.int16), affine), tmp_path / f"{name}.nii.gz")
    case = prepare([str(tmp_path / "x.nii.gz")], GRID, [{}])
    mask = prepare_mask(MaskFile(str(tmp_path / "m.nii.gz"), (0, 1)), case.geometry, GRID)
    (found,) = on_grid(boxes_around(classes), case.geometry, GRID, mask.shape)
    (wanted,) = boxes_around(mask)
    assert np.allclose(found.low, wanted.low, atol=0.51)  # a resampled mask ends at whole voxels
    assert np.allclose(found.high, wanted.high, atol=0.51)


def test_a_thin_box_still_has_a_slice_and_none_reaches_out_of_the_scan():
    assert list(slices_of(Box(1, (2.2, 0, 0), (4.9, 1, 1)), 10)) == [2, 3, 4]
    assert list(slices_of(Box(1, (3.1, 0, 0), (3.3, 1, 1)), 10)) == [3]
    assert list(slices_of(Box(1, (9.6, 0, 0), (10.0, 1, 1)), 10)) == [9]


def test_otsus_threshold_is_the_cut_with_the_least_variance_within_its_sides():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(0, 1, 400), rng.normal(6, 1, 200)])

    def within(cut):
        return sum(side.size * side.var() for side in (values[values <= cut], values[values > cut]))

    cuts = np.linspace(values.min(), values.max(), 600)[1:-1]
    assert within(otsu(values)) == pytest.approx(min(map(within, cuts)), rel=0.01)


def test_a_box_of_one_intensity_is_all_structure():
    assert (np.full((1, 1, 1), 7.0) > otsu(np.full((1, 1, 1), 7.0))).all()


def test_new_scans_without_boxes_are_refused_and_true_masks_are_boxed(tmp_path):
    folder = phantoms(tmp_path / "scans", num_cases=4, shape=(10, 11, 12))
    reading = data.read(folder, Request(task=TASK))
    assert reading.task == TASK
    assert any("drawn around their true masks" in note for note in reading.notices)
    facts = data.describe(reading.table, TASK, Request())
    boxes, truth = reading.table.column(BOXES), reading.table.target()
    for drawn, mask in zip(boxes, truth, strict=True):
        tight = boxes_around(mask.array())
        assert [box.position for box in drawn] == [box.position for box in tight]
        assert all(np.subtract(a.low, b.low).max() <= 0 for a, b in zip(drawn, tight, strict=True))
    with pytest.raises(DataError, match="no boxes"):
        data.read(folder, Request(facts=facts))
    paths = sorted(str(path) for path in (folder / "imagesTr").iterdir())
    cells = ["bright 1 1 1 5 5 5", "", "bright 1 1 1 5 5 50", "dark 0 0 0 1 1 1; bright 2 2 2 3 3 3"]
    new = data.read(pd.DataFrame({"path": paths, "boxes": cells}), Request(facts=facts))
    assert [row.position for row in new.bad] == [1, 2]
    assert [len(each) for each in new.table.column(BOXES)] == [1, 0, 0, 2]


def test_a_picture_is_scaled_padded_and_standardised_as_by_sams_own_processor():
    from PIL import Image
    from transformers import SamImageProcessor

    grey = np.random.default_rng(0).integers(0, 256, (40, 64)).astype(np.uint8)
    grey[0, 0], grey[0, 1] = 0, 255
    make = SamImageProcessor(size={"longest_edge": 64}, pad_size={"height": 64, "width": 64})
    wanted = make(Image.fromarray(grey).convert("RGB"), return_tensors="pt")["pixel_values"][0]
    low, high = np.quantile(grey, [0.005, 0.995])
    clipped = np.clip((grey - low) / (high - low), 0, 1) * 255
    found, inner = as_picture(grey[None].astype(np.float32), 64, sam.IMAGENET)
    assert inner == (40, 64)
    inside = (clipped == grey) | (np.abs(clipped - grey) < 3)  # the processor does not clip
    assert np.abs((found - wanted).numpy()[:, :40][:, inside]).max() < 0.08
    assert (found[:, 40:] == 0).all()
    assert (wanted[:, 40:] == 0).all()


def test_pixels_of_a_box_are_its_first_and_last_after_scaling():
    assert pixels_of(Box(1, (0, 2.0, 4.0), (1, 6.0, 8.0)), (8, 16), (32, 64)) == [16.0, 8.0, 31.0, 23.0]


@pytest.fixture(scope="module")
def random_folder(tmp_path_factory):
    """A random SAM in the format of the hub."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("sam")
    sam.empty(sam.config_of("random:1x32")).net.save_pretrained(folder)
    return folder


def test_a_random_folder_answers_as_transformers_loads_it_and_keeps_its_means(random_folder):
    from transformers import SamModel

    (random_folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0, 0, 0], "image_std": [1, 1, 1]})
    )
    spec = str(random_folder)
    model = sam.pretrained(spec, sam.config_of(spec)).eval()
    other = SamModel.from_pretrained(random_folder).eval()
    x, boxes = torch.randn(2, 3, 64, 64), torch.tensor([[[3.0, 4.0, 30.0, 40.0], [0.0, 0.0, 9.0, 9.0]]] * 2)
    with torch.no_grad():
        low = other(pixel_values=x, input_boxes=boxes, multimask_output=False).pred_masks[:, :, 0]
        wanted = F.interpolate(low, size=(64, 64), mode="bilinear", align_corners=False)
        assert torch.allclose(model(x, boxes), wanted, atol=1e-5)
        assert (model(x, boxes)[:, 0] - model(x, boxes)[:, 1]).abs().max() > 1e-3  # the box matters
    assert sam.pictures_of(spec) == {"mean": [0, 0, 0], "std": [1, 1, 1]}


def test_weights_as_pickled_tensors_which_the_hub_has_of_medsam_load_whole_and_by_transformers_own_class(
    random_folder, tmp_path
):
    """wanglab/medsam-vit-base is a config.json and a pytorch_model.bin, in which tied tensors stand twice."""
    from transformers import SamModel

    net = SamModel.from_pretrained(random_folder)
    (tmp_path / "config.json").write_text((random_folder / "config.json").read_text())
    torch.save(net.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"do_normalize": False, "image_mean": [0.5] * 3}))
    spec = str(tmp_path)
    found = sam.pretrained(spec, sam.config_of(spec))
    assert type(found.net) is SamModel
    wanted = net.state_dict()
    assert found.net.state_dict().keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in found.net.state_dict().items())
    assert sam.pictures_of(spec) == {"mean": [0, 0, 0], "std": [1, 1, 1]}


def test_a_folder_of_another_model_and_one_that_is_not_whole_are_refused(random_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match="bert"):
        sam.config_of(str(tmp_path))
    (tmp_path / "config.json").write_text((random_folder / "config.json").read_text())
    tensors = load_file(random_folder / "model.safetensors")
    del tensors["mask_decoder.upscale_conv1.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match="upscale_conv1"):
        sam.pretrained(str(tmp_path), sam.config_of(str(tmp_path)))


def task_of(model, grid=GRID, **options):
    fitted = {"intensities": [{}], "pictures": sam.IMAGENET, "config": sam.config_of("random:1x32")}
    return BoxTask(model, Options(weights="random:1x32", **options), grid, fitted, num_classes=3)


def test_every_parameter_that_learns_gets_a_gradient_and_the_encoder_can_be_held():
    torch.manual_seed(0)
    model = sam.empty(sam.config_of("random:1x32"))
    task, held = task_of(model), task_of(model, freeze_encoder=True)
    roles = task.roles()
    model(torch.randn(2, 3, 64, 64), torch.tensor([[[3.0, 4.0, 30.0, 40.0]]] * 2)).square().sum().backward()
    without = {n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()}
    assert not without & roles.keys()
    assert not any(name.startswith("net.prompt_encoder") for name in roles)
    assert {name for name in roles if not name.startswith("net.vision_encoder")} == held.roles().keys()


class InTheBox(torch.nn.Module):
    """Answers with the box itself: above 0 for pixels from the first to the last."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x, boxes):
        at = torch.arange(x.shape[-1], dtype=torch.float32)
        inside = [(boxes[..., a, None] <= at) & (at <= boxes[..., a + 2, None]) for a in (0, 1)]
        return self.scale * (2.0 * (inside[1][..., :, None] & inside[0][..., None, :]) - 1)


def test_a_network_that_answers_with_its_box_gives_the_box_in_the_file():
    """Through turning, scaling, padding, slices with different numbers of boxes, and back."""
    classes = np.zeros((24, 32, 10), np.uint8)
    classes[4:10, 8:16, 2:7], classes[14:20, 20:28, 5:9] = 1, 2
    model = InTheBox()
    task = task_of(model)
    boxes = on_grid(boxes_around(classes), _flat(classes.shape), GRID, (10, 32, 24))
    image = np.random.default_rng(0).normal(size=(1, 10, 32, 24)).astype(np.float32)
    (mask,) = task.predict(model, [Boxed(medsam.Prepared(image, _flat(classes.shape)), boxes)]).values
    assert (mask.array() == classes).all()


@pytest.mark.parametrize(
    ("affine", "spacing"),
    [
        (np.array([[0, -0.5, 0, 9], [0.75, 0, 0, 8], [0, 0, -2.0, 7], [0, 0, 0, 1]]), (2.0, 0.75, 0.5)),
        (np.diag([-1.0, 1, 1.2, 1]), (1.2, 1.0, 1.0)),
    ],
)
def test_boxes_in_a_table_give_a_nifti_mask_with_the_shape_and_the_affine_of_its_scan(affine, spacing, tmp_path):
    scan = np.random.default_rng(0).integers(0, 4000, (12, 9, 10)).astype(np.int16)
    nib.save(nib.Nifti1Image(scan, affine), tmp_path / "scan.nii.gz")
    schema = {"kind": "prompted", "names": NAMES, "values": (0, 1, 2), "channels": ("CT",)}
    facts = Facts("medical", TASK, "mask", 4, (), {}, schema)
    cell = "liver 1 2 3 6 5 7; left kidney 8 5 1 11 8 4"
    pd.DataFrame({"path": ["scan.nii.gz"], "boxes": [cell]}).to_csv(tmp_path / "new.csv", index=False)
    reading = data.read(tmp_path / "new.csv", Request(facts=facts))
    assert not reading.bad
    task = task_of(InTheBox(), grid=GRID.model_copy(update={"spacing": spacing}))
    (answer,) = task.predict(task.model, task.collate(reading.table)).values
    answer.write(tmp_path / "mask.nii.gz")
    written, source = nib.load(tmp_path / "mask.nii.gz"), nib.load(tmp_path / "scan.nii.gz")
    assert written.shape == source.shape
    assert np.allclose(written.affine, source.affine)
    wanted = np.zeros(scan.shape, np.uint8)
    wanted[1:7, 2:6, 3:8], wanted[8:12, 5:9, 1:5] = 1, 2
    assert (np.asarray(written.dataobj) == wanted).all()


def _flat(shape):
    from domains.medical.volumes import Geometry

    return Geometry(shape, tuple(map(tuple, np.eye(4).tolist())))


@pytest.mark.parametrize("flip", [False, True])
def test_a_training_slice_its_box_and_its_mask_stay_together(flip):
    rng = np.random.default_rng(0)
    mask = np.zeros((6, 16, 16), np.uint8)
    mask[1:5, 3:9, 2:7] = 1
    image = (mask + rng.normal(0, 0.01, mask.shape)).astype(np.float16)[None]
    task = task_of(InTheBox(), reach=0.0, flip=flip)
    sides = set()
    for seed in range(8):
        example = Boxed(StoredCase(image, mask, []), boxes_around(mask))
        batch = task.draw([example], [np.random.default_rng(seed)])
        slices, boxes, masks = batch.inputs
        inside = task.model(slices, boxes)[0, 0] > 0
        assert (inside == masks[0].bool()).all()
        assert slices[0, 0][masks[0].bool()].mean() > 1 > slices[0, 0][~masks[0].bool()].mean() + 1
        sides.add(float(boxes[0, 0, 0]))
    assert len(sides) == (2 if flip else 1)


def test_the_loss_is_dice_and_binary_cross_entropy_summed_over_slices_and_dice_skips_empty_ones():
    task = task_of(InTheBox())
    boxes = torch.tensor([[[2.0, 3.0, 9.0, 12.0]], [[0.0, 0.0, 5.0, 5.0]]])
    masks = torch.zeros(2, 16, 16, dtype=torch.uint8)
    masks[0, 4:12, 4:12] = 1
    x = torch.zeros(2, 3, 16, 16)
    found = task.loss(task.model, (x, boxes, masks))
    logits = task.model(x, boxes)[:, 0].detach().double()
    p, y = logits.sigmoid(), masks.double()
    entropy = F.binary_cross_entropy(p, y, reduction="none").flatten(1).mean(dim=1).sum()
    assert float(found["cross_entropy"].detach()) == pytest.approx(float(entropy), rel=1e-5)
    assert float(found["dice"].detach()) == pytest.approx(
        float(1 - 2 * (p[0] * y[0]).sum() / (p[0].sum() + y[0].sum())), rel=1e-5
    )


def test_the_config_that_the_hub_has_for_sams_base_size_makes_the_network_of_the_paper(tmp_path):
    """94M parameters; 486 G multiply-adds of the image encoder (the card of timm/samvit_base_patch16.sa1b), two FLOPs each."""
    parts = {"mask_decoder_config": {"model_type": ""}, "prompt_encoder_config": {"model_type": ""}}
    vision = {
        "dropout": 0.0,
        "initializer_factor": 1.0,
        "intermediate_size": 6144,
        "model_type": "",
        "projection_dim": 512,
    }
    config = {"architectures": ["SamModel"], "model_type": "sam", **parts, "vision_config": vision}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save({}, tmp_path / "pytorch_model.bin")
    found = sam.config_of(str(tmp_path))
    cost = forward_cost(lambda: sam.empty(found), sam.side_of(found))
    assert cost.num_parameters / 1e6 == pytest.approx(93.7, abs=0.1)
    assert cost.flops / 2e9 == pytest.approx(486, rel=0.01)
