"""The parts of the nnU-Net recipe against closed forms, MONAI and SciPy."""

import json
from dataclasses import replace
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest
import torch
from scipy.ndimage import rotate

from domains.contract import Facts, Request
from domains.medical import augment, data, losses, prepare, scores
from domains.medical.components import classes_that_gain, largest_only
from domains.medical.configure import Configuration, configured
from domains.medical.demo import phantoms
from domains.medical.network import Unet
from domains.medical.nnunet import Options
from domains.medical.shelf import StoredCase, shelve
from domains.medical.soft_masks import SoftMask
from domains.medical.task import MaskTask
from domains.medical.volumes import Geometry, Mask
from domains.metrics import scores as scored
from domains.shared.mask_losses import class_overlaps, pixel_losses
from tests.domains.dicom_files import write_series
from trainers.contract import Machine, Predictions
from trainers.errors import UsageError
from zoo.ensemble import mean_of


def facts(voxels, spacing, channels=("MRI",), names=("background", "organ")):
    sizes = {"num_channels": float(len(channels))}
    for name, size, mm in zip("xyz", voxels, spacing, strict=True):
        sizes |= {f"median_{name}_voxels": size, f"median_{name}_mm": mm, f"fine_{name}_mm": mm}
        sizes |= {f"median_{name}_extent_mm": size * mm}
    schema = {"kind": "masked", "names": list(names), "values": list(range(len(names))), "channels": list(channels)}
    return Facts("medical", "segmentation", "mask", 10, (), sizes, schema)


def plan_of(voxels, spacing, *, options=None, machine=None, **more):
    return configured(facts(voxels, spacing, **more), options or Options(), machine or Machine(), batch_size=2)


def geometry(shape, spacing=(1.0, 1.0, 1.0)):
    return Geometry(shape, tuple(map(tuple, np.diag([*spacing, 1.0]).tolist())))


def test_the_hippocampus_gets_the_patch_that_nnunet_plans_for_it():
    """nnU-Net: patch 40 x 56 x 40, three halvings (Isensee et al. 2021, supplementary note 7, task 4)."""
    found = plan_of((35, 50, 36), (1.0, 1.0, 1.0))
    assert found.patch == (40, 56, 40)
    assert [stride for stride in found.strides if stride != (1, 1, 1)] == [(2, 2, 2)] * 3


def test_coarse_slices_are_convolved_across_only_after_the_fine_axes_have_caught_up():
    found = plan_of((256, 256, 20), (0.6, 0.6, 3.6))
    assert found.axes[0] == 2
    assert found.kernels[0] == (1, 3, 3)
    assert found.strides[1] == (1, 2, 2)
    assert (3, 3, 3) in found.kernels


def test_thin_stacks_are_learned_slice_by_slice_and_large_cases_in_patches():
    flat = plan_of((256, 256, 3), (0.6, 0.6, 10.0))
    assert flat.dimensions == 2
    assert flat.patch[0] == 1
    large = plan_of((512, 512, 512), (1.0, 1.0, 1.0))
    assert np.prod(large.patch) <= 128**3
    small = plan_of((512, 512, 512), (1.0, 1.0, 1.0), machine=Machine(memory_bytes=2 << 30))
    assert np.prod(small.patch) < np.prod(large.patch)


def test_ct_is_clipped_and_sides_are_never_mirrored():
    found = plan_of(
        (64, 64, 64), (1, 1, 1), channels=("CT", "PET"), names=("background", "left_kidney", "right_kidney")
    )
    assert found.normalisation == ("ct", "case")
    assert found.mirror == ()


def test_a_plan_can_be_edited_and_given_back(tmp_path):
    first = plan_of((64, 64, 64), (1, 1, 1))
    edited = {**first.model_dump(mode="json"), "features": [4] * len(first.features), "mirror": ["x", "y"]}
    (tmp_path / "plan.json").write_text(json.dumps(edited))
    again = plan_of((64, 64, 64), (1, 1, 1), options=Options(plan=str(tmp_path / "plan.json")))
    assert again.features == (4,) * len(first.features)
    assert again.mirror == ("x", "y")
    printed = {"schema_version": 1, "plan": {"estimates": {"configuration": edited}}, "forecast": None}
    (tmp_path / "printed.json").write_text(json.dumps(printed))
    assert plan_of((64, 64, 64), (1, 1, 1), options=Options(plan=str(tmp_path / "printed.json"))) == again
    (tmp_path / "plan.json").write_text(json.dumps({**edited, "pach": 3}))
    with pytest.raises(UsageError, match="pach"):
        plan_of((64, 64, 64), (1, 1, 1), options=Options(plan=str(tmp_path / "plan.json")))


@pytest.mark.parametrize("flat", [False, True])
def test_the_network_is_monais_with_every_head_at_its_own_resolution(flat):
    from monai.networks.nets import DynUNet

    patch = (1, 32, 32) if flat else (16, 16, 16)
    stride = (1, 2, 2) if flat else (2, 2, 2)
    kernel = (1, 3, 3) if flat else (3, 3, 3)
    plan = Configuration(
        dimensions=2 if flat else 3,
        axes=(2, 0, 1),
        spacing=(1, 1, 1),
        patch=patch,
        strides=((1, 1, 1), stride, stride, stride),
        kernels=(kernel,) * 4,
        features=(4, 8, 16, 16),
        normalisation=("case",),
        mirror=(),
    )
    torch.manual_seed(0)
    ours = Unet(plan, 1, 3)
    torch.manual_seed(0)
    first = 3 - plan.dimensions
    strides = [each[first:] for each in plan.strides]
    theirs = DynUNet(
        plan.dimensions, 1, 3, [each[first:] for each in plan.kernels], strides, strides[1:],
        filters=plan.features, deep_supervision=True, deep_supr_num=2,
    )  # fmt: skip
    x = torch.randn(2, 1, *patch)
    answer = ours.train()(x)
    wanted = theirs.train()(x.squeeze(2) if flat else x)
    wanted = wanted.unsqueeze(3) if flat else wanted
    assert torch.allclose(answer[0], wanted[:, 0], atol=1e-4)
    for level in (1, 2):
        small = torch.nn.functional.interpolate(answer[level], size=patch)
        assert torch.allclose(small, wanted[:, level], atol=1e-4)
    assert torch.allclose(ours.eval()(x), answer[0], atol=1e-5)


def test_the_dice_term_is_the_closed_form_and_a_batch_is_the_sum_of_its_cases():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 3, 4, 5, 6, generator=rng, dtype=torch.float64)
    masks = torch.randint(0, 3, (3, 4, 5, 6), generator=rng)
    found = 1 - class_overlaps(logits, masks).mean(dim=1)
    p = logits.softmax(1)
    for row in range(3):
        each = [
            (2 * (p[row, k] * (masks[row] == k)).sum()) / (p[row, k].sum() + (masks[row] == k).sum()) for k in (1, 2)
        ]
        assert float(found[row]) == pytest.approx(1 - float(sum(each)) / 2, abs=1e-6)
    how = {"tversky_beta": 0.5, "focal_gamma": 0.0}
    whole = losses.deep_losses([logits], masks, **how)
    parts = [losses.deep_losses([logits[i : i + 1]], masks[i : i + 1], **how) for i in range(3)]
    for term in ("dice", "cross_entropy"):
        assert float(whole[term]) == pytest.approx(float(sum(part[term] for part in parts)), rel=1e-6)


def test_tversky_punishes_what_is_missed_and_focal_what_is_hard():
    masks = torch.zeros(1, 2, 2, 2, dtype=torch.long)
    masks[0, 0] = 1
    missed = torch.stack([torch.full((2, 2, 2), 1.0), torch.full((2, 2, 2), -1.0)])[None]
    assert class_overlaps(missed, masks, beta=0.8) < class_overlaps(missed, masks, beta=0.5)
    assert pixel_losses(missed, masks, gamma=2.0) < pixel_losses(missed, masks)


def test_dice_and_the_hausdorff_distance_are_those_of_monai_and_of_counting():
    from monai.metrics import compute_hausdorff_distance

    rng = np.random.default_rng(0)
    one, other = (np.zeros((14, 15, 16), np.uint8) for _ in range(2))
    one[3:9, 4:10, 5:11], other[4:11, 4:9, 3:11] = 1, 1
    other[rng.integers(0, 14, 5), rng.integers(0, 15, 5), rng.integers(0, 16, 5)] = 1
    spacing = (1.0, 2.0, 0.5)
    tensors = [torch.from_numpy(np.stack([mask == 0, mask == 1])[None].astype(np.float32)) for mask in (other, one)]
    wanted = compute_hausdorff_distance(*tensors, percentile=95, spacing=spacing)
    assert scores.hausdorff95(one == 1, other == 1, spacing) == pytest.approx(float(wanted), rel=1e-5)
    both = 2 * np.sum((one == 1) & (other == 1)) / (one.sum() + other.sum())
    assert scores.dice(one, other, 1)[0] == pytest.approx(both)


def test_a_class_that_neither_mask_holds_is_undefined_and_counted_and_a_false_positive_scores_0():
    space = geometry((2, 2, 2))
    empty, full = np.zeros((2, 2, 2), np.uint8), np.ones((2, 2, 2), np.uint8)
    truth = np.array([Mask.of(each, space) for each in (empty, empty, full)], dtype=object)
    answers = Predictions.of_files([Mask.of(each, space) for each in (empty, full, full)])
    found = scored(scores.segmentation_metrics(("organ",)), truth, answers, np.arange(3))
    assert found["dice"]["value"] == pytest.approx(0.5)
    assert (found["dice"]["num_scored"], found["dice"]["num_undefined"]) == (2, 1)
    assert (found["hd95"]["num_scored"], found["hd95"]["num_undefined"]) == (1, 2)


def test_only_the_largest_piece_is_kept_and_only_where_that_gains():
    truth = np.zeros((8, 8, 8), np.uint8)
    truth[1:4, 1:4, 1:4], truth[5:7, 5:7, 5:7], truth[1:3, 5:7, 1:3] = 1, 2, 2
    answer = truth.copy()
    answer[7, 0, 0] = 1
    space = geometry(truth.shape)
    answers = Predictions.of_files([Mask.of(answer, space)])
    classes, gains = classes_that_gain([Mask.of(truth, space)], answers, 2)
    assert classes == [1]
    assert gains[0] > 0 > gains[1]
    assert (largest_only(answer, classes) == truth).all()


@pytest.mark.parametrize(("shape", "spacing"), [((20, 24, 10), (1.0, 0.8, 2.5)), ((16, 16, 16), (2.0, 2.0, 2.0))])
def test_a_mask_that_is_resampled_and_restored_comes_back_in_its_place(shape, spacing, tmp_path):
    plan = plan_of((32, 32, 32), (1.0, 1.0, 1.0))
    labels = np.zeros(shape, np.uint8)
    labels[shape[0] // 4 : shape[0] // 2, 4:10, 2:6] = 1
    flipped = np.diag([-spacing[0], spacing[1], spacing[2], 1.0])
    nib.save(nib.Nifti1Image(labels.astype(np.int16), flipped), tmp_path / "x.nii.gz")
    case = prepare.prepare([str(tmp_path / "x.nii.gz")], plan, [{}])
    mask = SimpleNamespace(array=lambda: labels)
    small = prepare.prepare_mask(mask, case.geometry, plan)
    assert small.shape == case.image.shape[1:]
    assert case.image.shape[1:] == tuple(
        round(size * mm)
        for size, mm in zip(np.array(shape)[list(plan.axes)], np.array(spacing)[list(plan.axes)], strict=True)
    )
    onehot = torch.from_numpy(np.stack([small == 0, small == 1]).astype(np.float32))
    back = prepare.restored(onehot, case.geometry, plan)
    assert back.shape == shape
    assert scores.dice(labels, back, 1)[0] > 0.85


def stored(shape, rng):
    mask = np.zeros(shape, np.uint8)
    mask[2:6, 2:6, 2:6] = 1
    return StoredCase(rng.normal(size=(1, *shape)).astype(np.float16), mask, [np.argwhere(mask == 1)])


def test_a_patch_around_a_voxel_is_cut_from_its_place_and_filled_with_zeros_beyond_the_edge():
    array = np.arange(5 * 6 * 7).reshape(5, 6, 7)
    found = augment.cut(array, np.array([0, 3, 3]), (4, 4, 4))
    assert (found[:2] == 0).all()
    assert (found[2:] == array[0:2, 1:5, 1:5]).all()


def test_patches_stay_inside_large_cases_and_a_third_are_placed_at_foreground():
    rng = np.random.default_rng(0)
    case = stored((40, 40, 40), rng)
    centres = np.array([augment.patch_centre(case, (8, 8, 8), rng) for _ in range(2000)])
    assert centres.min() >= 4
    assert centres.max() <= 36
    near = np.mean((centres <= 6).all(axis=1))
    assert near == pytest.approx(1 / 3, abs=0.05)


def test_image_and_mask_are_rotated_alike_and_as_scipy_does():
    rng = np.random.default_rng(0)
    plan = plan_of((16, 16, 16), (1, 1, 1))
    mask = np.zeros((16, 16, 16), np.uint8)
    mask[3:9, 4:12, 5:9] = 1
    case = StoredCase(mask[None].astype(np.float16), mask, [np.argwhere(mask)])
    image, turned = augment.moved_patch(case, np.array([8, 8, 8]), plan, augment._rotation(0, 30.0))
    assert np.mean((image[0] > 0.5) == turned) > 0.97
    wanted = rotate(np.pad(mask, (0, 1)).astype(float), 30.0, axes=(1, 2), reshape=False, order=1)[:16, :16, :16]
    away = rotate(np.pad(mask, (0, 1)).astype(float), -30.0, axes=(1, 2), reshape=False, order=1)[:16, :16, :16]
    assert min(np.abs(image[0] - wanted).max(), np.abs(image[0] - away).max()) < 1e-4
    assert augment.random_matrix(plan, 0.0, rng) is None


def test_a_patch_is_the_same_for_the_same_generator():
    rng = np.random.default_rng(0)
    plan, case = plan_of((16, 16, 16), (1, 1, 1)), stored((20, 18, 16), rng)
    one, other = (augment.training_patch(case, plan, 2.0, np.random.default_rng(5)) for _ in range(2))
    assert (one[0] == other[0]).all()
    assert (one[1] == other[1]).all()
    assert one[0].shape == (1, 16, 16, 16)
    assert np.isfinite(one[0]).all()


def test_cases_are_prepared_once_for_all_runs_and_anew_for_another_plan(tmp_path):
    rows = data.read(phantoms(tmp_path / "scans", num_cases=3, shape=(12, 12, 10)), Request()).table
    plan, other = plan_of((12, 12, 10), (1, 1, 1.2)), plan_of((12, 12, 10), (1.5, 1.5, 1.5))
    first = shelve(rows, plan, [{}], tmp_path / "cache")
    assert shelve(rows, plan, [{}], tmp_path / "cache").folder == first.folder
    assert shelve(rows, other, [{}], tmp_path / "cache").folder != first.folder
    assert len(list((tmp_path / "cache" / "volumes").iterdir())) == 2
    paths, truth = rows.column("images").iloc[1], rows.target()[1].array()
    assert np.allclose(first[1].image, prepare.prepare(paths, plan, [{}]).image, atol=2e-3)
    assert (first[1].mask == np.transpose(truth, plan.axes)).all()
    for places in first[1].places:
        assert len(set(first[1].mask[tuple(places.T)].tolist())) == 1


class Brighter(torch.nn.Module):
    """Class 1 where the standardised image is above 0: brighter than the mean of its case."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(100.0))

    def forward(self, x):
        return torch.cat([torch.zeros_like(x), self.scale * x], dim=1)


def dicom_series(folder, stored):
    return write_series(folder / "series", stored.transpose(2, 1, 0))


def tilted_nifti(folder, stored):
    affine = np.array([[0, -0.5, 0, 9], [0.74, 0, 0.3, 8], [0.1, 0, -2.0, 7], [0, 0, 0, 1]])
    nib.save(nib.Nifti1Image(stored.astype(np.int16), affine), folder / "scan.nii.gz")
    return folder / "scan.nii.gz"


@pytest.mark.parametrize("write", [dicom_series, tilted_nifti])
def test_a_mask_lies_on_the_voxels_of_its_series_or_file_with_the_same_shape_and_affine(write, tmp_path):
    stored = np.random.default_rng(0).integers(0, 4000, (12, 9, 10))
    path = write(tmp_path, stored)
    rows = data.read(path, Request(facts=facts((12, 9, 10), (0.75, 0.5, 2.0)))).table
    look = rows.context["looks"][rows.ids[0]]
    plan = plan_of((12, 9, 10), look.geometry.spacing)
    task = MaskTask(Brighter(), Options(test_mirror=False), plan, {"intensities": [{}]})
    (answer,) = task.predict(Brighter(), task.collate(rows)).values
    task.is_soft = True
    (soft,) = task.predict(Brighter(), task.collate(rows)).values
    assert (SoftMask.mean([soft]).array() == answer.array()).all()
    answer.write(tmp_path / "mask.nii.gz")
    mask = nib.load(tmp_path / "mask.nii.gz")
    assert (np.asarray(mask.dataobj) == (stored > stored.mean())).all()
    if write is tilted_nifti:
        assert np.allclose(mask.affine, nib.load(path).affine)
    else:  # of the last voxel, in DICOM's coordinates: 0.75 mm to the left, 0.5 mm backwards, 2 mm up
        assert np.allclose(mask.affine @ [11, 8, 9, 1], [-(1 + 11 * 0.75), -(2 + 8 * 0.5), 18, 1])


def test_folds_answer_with_the_class_of_the_highest_mean_probability():
    rng, space = np.random.default_rng(0), geometry((9, 8, 7))
    probabilities = rng.dirichlet(np.ones(3), (3, 9, 8, 7)).transpose(0, 4, 1, 2, 3)  # of three networks
    softs = [SoftMask.of(each, space) for each in probabilities]
    (found, none) = mean_of([Predictions.of_files([soft, None]) for soft in softs]).values
    mean = probabilities.mean(axis=0)
    clear = np.sort(mean, axis=0)[2] - np.sort(mean, axis=0)[1] > 1 / 255
    assert (found.array() == mean.argmax(axis=0))[clear].all()
    assert clear.mean() > 0.95
    assert none is None
    one_missing = mean_of([Predictions.of_files([soft]) for soft in (softs[0], None, softs[1])]).values[0]
    assert (one_missing.array() == probabilities[:2].mean(axis=0).argmax(axis=0)).mean() > 0.95


def test_stray_pieces_go_where_most_networks_drop_them():
    space, certain = geometry((9, 9, 9)), np.zeros((2, 9, 9, 9))
    certain[1, :4], certain[1, 7] = 1, 1
    certain[0] = 1 - certain[1]
    softs = [replace(SoftMask.of(certain, space), pieces=pieces) for pieces in ((1,), (1,), ())]
    assert SoftMask.mean(softs).array()[7].sum() == 0
    assert SoftMask.mean(softs[1:]).array()[7].sum() == 81


def test_a_run_shows_dice_of_every_class_and_the_hausdorff_distance_with_intervals():
    space = geometry((6, 6, 6))
    rng = np.random.default_rng(0)
    truth = np.array([Mask.of(rng.integers(0, 3, (6, 6, 6)), space) for _ in range(12)], dtype=object)
    answers = Predictions.of_files([Mask.of(rng.integers(0, 3, (6, 6, 6)), space) for _ in range(12)])
    found = scored(scores.segmentation_metrics(("head", "tail")), truth, answers, np.arange(12))
    assert list(found) == ["dice", "dice_head", "dice_tail", "hd95", "hd95_head", "hd95_tail"]
    assert all(each["low"] < each["value"] < each["high"] for each in found.values())
