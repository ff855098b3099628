"""Scans with labels: what is read, patients, slices in true proportions, views that anatomy allows, and the network."""

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from domains.contract import Facts, Request
from domains.medical import cnn, data
from domains.medical.demo import labelled_phantoms
from domains.medical.scans import Scan, read_scan, slices_of
from domains.medical.slice_views import Changes, slice_view
from domains.splits import make_split
from tests.domains.dicom_files import write_series
from trainers.errors import DataError, UsageError


def save(path, array, affine=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(np.asarray(array, np.float32), np.eye(4) if affine is None else affine), path)


def noise(number, shape=(8, 9, 5)):
    return np.random.default_rng(number).normal(100, 20, shape)


@pytest.fixture
def table(tmp_path):
    """24 scans of 12 patients."""
    for number in range(24):
        save(tmp_path / "vol" / f"v{number}.nii.gz", noise(number))
    rows = [{"image": f"vol/v{i}.nii.gz", "patient": f"P{i // 2}", "label": "ab"[i // 2 % 2]} for i in range(24)]
    pd.DataFrame(rows).to_csv(tmp_path / "train.csv", index=False)
    return tmp_path / "train.csv"


def test_the_scans_of_a_patient_stay_on_one_side_and_it_is_said(table):
    reading = data.read(table, Request())
    assert (reading.task, reading.target, reading.bad) == ("classification", "label", ())
    assert any("'patient'" in notice and "--group" in notice for notice in reading.notices)
    keys = data.keys(reading.table, reading.task, Request(), fast=False)
    split = make_split(keys, 24, seed=0)
    parts = [{row // 2 for row in part.tolist()} for part in (split.train, split.valid, split.test)]
    assert all(parts)
    assert sum(len(part) for part in parts) == len(set.union(*parts))


def test_a_column_called_split_says_the_part_of_each_scan_and_patients_across_parts_are_told(table):
    frame = pd.read_csv(table)
    said = ["train"] * 16 + ["val"] * 3 + ["test"] * 5
    frame.rename(columns={"label": "outcome"}).assign(Split=said).to_csv(table, index=False)
    reading = data.read(table, Request())
    assert reading.target == "outcome", "the column of parts is not what is predicted"
    keys = data.keys(reading.table, "classification", Request(), fast=False)
    split = make_split(keys, 24, seed=0)
    assert (split.rule, split.train.tolist()) == ("given", list(range(16)))
    assert (split.valid.tolist(), split.test.tolist()) == (list(range(16, 19)), list(range(19, 24)))
    assert any("1 patients into more than one part" in note and "P9" in note for note in reading.notices)
    half = data.keys(reading.table.take(np.arange(0, 24, 2)), "classification", Request(), fast=False)
    assert list(half.given) == ["train"] * 8 + ["valid"] * 2 + ["test"] * 2
    assert make_split(keys, 24, seed=0, rule="grouped").rule == "grouped"


def test_without_a_validation_part_whole_patients_of_the_training_part_become_one(table):
    pd.read_csv(table).assign(split=["train"] * 18 + ["test"] * 6).to_csv(table, index=False)
    reading = data.read(table, Request())
    split = make_split(data.keys(reading.table, "classification", Request(), fast=False), 24, seed=0)
    assert split.test.tolist() == list(range(18, 24))
    assert len(split.valid)
    assert not {row // 2 for row in split.valid.tolist()} & {row // 2 for row in split.train.tolist()}
    assert not any("more than one part" in note for note in reading.notices)


def test_a_part_that_nobody_knows_and_a_scan_in_two_parts_are_refused_and_a_target_called_split_is_no_part(table):
    frame = pd.read_csv(table)
    frame.assign(split=["train"] * 20 + ["test"] * 3 + ["later"]).to_csv(table, index=False)
    with pytest.raises(DataError, match=r"column 'split' names parts, but says 'later' in 1 of 24 rows"):
        data.read(table, Request())
    twice = frame.assign(split=["train"] * 20 + ["test"] * 4)
    twice.loc[23, "image"] = twice.loc[0, "image"]
    twice.to_csv(table, index=False)
    with pytest.raises(DataError, match=r"column 'split' puts vol/v0\.nii\.gz into train and into test"):
        data.read(table, Request())
    frame.assign(split=["train", "test"] * 12).to_csv(table, index=False)
    rows = data.read(table, Request(target="split")).table
    assert data.keys(rows, "classification", Request(target="split"), fast=False).given is None


def test_copies_of_a_scan_stay_together_whoever_they_are_said_to_be_of(table):
    save(table.parent / "vol" / "v23.nii.gz", noise(0))
    rows = data.read(table, Request()).table
    group = data.keys(rows, "classification", Request(), fast=False).group
    assert group[0] == group[23] == group[22]
    assert group[0] != group[2]


def test_class_folders_hold_pictures_volumes_and_series_and_their_folders_name_patients(tmp_path):
    for number, name in enumerate(["sick", "well", "sick", "well"]):
        save(tmp_path / name / f"p{number}" / "t1.nii.gz", noise(number))
        save(tmp_path / name / f"p{number}" / "t2.nii.gz", noise(number + 10))
    write_series(tmp_path / "well" / "ct", np.random.default_rng(0).integers(0, 4000, (4, 6, 7)))
    Image.fromarray(np.zeros((5, 6), np.uint8)).save(tmp_path / "sick" / "x.png")
    (tmp_path / "sick" / "._x.png").write_bytes(b"junk")
    reading = data.read(tmp_path, Request())
    assert not reading.bad
    assert len(reading.table) == 10
    patients = dict(zip(reading.table.ids, reading.table.column("patient"), strict=True))
    assert patients["sick/p0/t1.nii.gz"] == patients["sick/p0/t2.nii.gz"] != patients["sick/p2/t1.nii.gz"]
    assert dict(zip(reading.table.ids, reading.table.target(), strict=True))["well/ct"] == "well"


def test_every_scan_that_cannot_be_used_is_named_with_its_fault(table):
    root = table.parent / "vol"
    (root / "v0.nii.gz").write_bytes(b"none")
    broken = noise(1)
    broken[0, 0, 0] = np.nan
    save(root / "v1.nii.gz", broken)
    save(root / "v2.nii.gz", noise(2, (6, 6, 4, 5)))
    (root / "v3.nii.gz").unlink()
    reading = data.read(table, Request())
    reasons = {row.position: row.reason for row in reading.bad}
    assert reasons.keys() == {0, 1, 2, 3}
    assert "no number" in reasons[1]
    assert "5 channels" in reasons[2]
    assert "no such file" in reasons[3]


def test_a_folder_without_classes_or_with_one_says_what_to_bring(tmp_path):
    save(tmp_path / "a" / "x.nii.gz", noise(0))
    with pytest.raises(DataError, match="CLASS"):
        data.read(tmp_path, Request(task="classification"))


def test_without_a_task_masks_are_found_by_their_folders_and_labels_by_theirs(tmp_path, table):
    assert data.kind_of(table, Request()) == "labelled"
    for name in ("images", "masks"):
        (tmp_path / "both" / name).mkdir(parents=True)
    assert data.kind_of(tmp_path / "both", Request()) == "masked"
    (tmp_path / "classes" / "a").mkdir(parents=True)
    (tmp_path / "classes" / "b").mkdir()
    assert data.kind_of(tmp_path / "classes", Request()) == "labelled"


def test_twins_of_any_orientation_give_the_same_slices(tmp_path):
    """The right third is bright: columns run from left to right, whatever the order of the file."""
    array = np.zeros((12, 8, 6))
    array[8:] = 100
    save(tmp_path / "ras.nii.gz", array)
    save(tmp_path / "las.nii.gz", array[::-1], np.diag([-1.0, 1, 1, 1]))
    permuted = np.array([[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1.0]])
    save(tmp_path / "permuted.nii.gz", array.transpose(1, 2, 0), permuted)
    found = [read_scan(tmp_path / f"{name}.nii.gz").array for name in ("ras", "las", "permuted")]
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()
    assert (found[0][:, :, 8:] == 100).all()
    assert (found[0][:, :, :8] == 0).all()


def test_slices_are_even_keep_their_proportions_and_have_their_neighbours_as_colours():
    array = np.zeros((10, 8, 8, 1), np.float32) + np.arange(10)[:, None, None, None]
    found = slices_of(Scan(array, (1.0, 1.0, 2.0)), num=5, side=16, window=(0, 9))
    assert found.shape == (5, 16, 16, 3)
    assert (found[:, :4] == 0).all()  # 8 mm high and 16 mm wide: padded above and below
    assert (found[:, 12:] == 0).all()
    levels = found[:, 8, 8] / 255 * 9  # slices 0.5, 2.5, ... to the nearest even, with the ones below and above
    assert np.allclose(levels[:, 1], [0, 2, 4, 6, 8], atol=0.05)
    assert np.allclose(levels[2], [3, 4, 5], atol=0.05)


def test_a_picture_of_sixteen_bits_keeps_its_intensities(tmp_path):
    values = np.arange(48, dtype=np.uint16).reshape(6, 8) * 1300
    Image.fromarray(values).save(tmp_path / "x.tif")
    assert (read_scan(tmp_path / "x.tif").array[0, ..., 0] == values).all()


def test_views_are_not_mirrored_unless_asked_and_the_same_generator_gives_the_same():
    rng = np.random.default_rng(0)
    scan = rng.integers(1, 255, (2, 16, 16, 3), dtype=np.uint8)
    still = Changes(0, 0, 0, 0, ())
    assert all((slice_view(scan, still, np.random.default_rng(i)) == scan).all() for i in range(8))
    mirrored = [slice_view(scan, still._replace(flip=("x",)), np.random.default_rng(i)) for i in range(20)]
    assert {(each == scan[:, :, ::-1]).all() or (each == scan).all() for each in mirrored} == {True}
    assert 0 < sum((each == scan[:, :, ::-1]).all() for each in mirrored) < 20
    one, other = (slice_view(scan, Changes(), np.random.default_rng(3)) for _ in range(2))
    assert (one == other).all()
    assert (one != scan).any()


def test_a_view_is_turned_about_its_middle_by_at_most_the_degrees():
    scan = np.zeros((1, 65, 65, 3), np.uint8)
    scan[0, 32, 50] = 255
    for seed in range(10):
        view = slice_view(scan, Changes(20.0, 0, 0, 0, ()), np.random.default_rng(seed))
        row, column = np.argwhere(view[0, ..., 0] == view[0, ..., 0].max())[0]
        assert np.hypot(row - 32, column - 32) == pytest.approx(18, abs=1.5)
        assert abs(np.degrees(np.arctan2(row - 32, column - 32))) <= 22


FACTS = Facts("medical", "classification", "y", 40, ("a", "b"), {"median_slices": 9.0, "median_long_side": 40.0})


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_the_answer_for_a_scan_pools_what_the_network_says_of_each_slice(pool):
    backbone = {"network": "test_efficientnet", "args": {}, "weights": None}
    model = cnn.SliceNetwork(backbone, 2, num=3, pool=pool, weights=None).eval()
    x = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    features = torch.stack([model.encoder(x[i : i + 1])[0] for i in range(6)]).reshape(2, 3, -1)
    pooled = features.mean(dim=1) if pool == "mean" else features.max(dim=1).values
    assert torch.allclose(model(x), model.head(pooled), atol=1e-5)


def test_the_plan_takes_no_more_slices_than_there_are_and_enlarges_twice_at_most():
    assert cnn.num_slices(FACTS, cnn.Options()) == 9
    found = cnn.nets.find_backbone("tf_efficientnet_lite0", "none")
    assert cnn.input_side(FACTS, found, cnn.Options()) == 96


def test_a_folder_takes_no_column_names(tmp_path):
    for name in "ab":
        save(tmp_path / name / "x.nii.gz", noise(0))
    with pytest.raises(UsageError, match="names a column"):
        data.read(tmp_path, Request(task="classification", group="patient"))


def test_in_the_demos_scans_neither_class_is_the_brighter_one(tmp_path):
    folder = labelled_phantoms(tmp_path / "demo", num_cases=16, shape=(24, 28, 24))
    for name in ("solid", "hollow"):
        scans = [np.asarray(nib.load(path).dataobj) for path in sorted((folder / name).iterdir())]
        assert len(scans) == 8
        excess = [scan.mean() - 300 for scan in scans]
        assert min(excess) < -5 < 5 < max(excess)


def test_folders_of_the_parts_hold_classes_and_are_none(tmp_path):
    for number, (part, label) in enumerate([("train", "a"), ("train", "b"), ("Test", "a"), ("Test", "b")] * 3):
        save(tmp_path / part / label / f"s{number}.nii.gz", noise(number))
    reading = data.read(tmp_path, Request())
    assert set(reading.table.target()) == {"a", "b"}
    keys = data.keys(reading.table, reading.task, Request(), fast=False)
    assert (keys.rule, list(keys.given)) == ("given", ["test"] * 6 + ["train"] * 6)
    for label, name in (("a", "images"), ("b", "masks")):
        for part in ("train", "Test"):
            (tmp_path / part / label).rename(tmp_path / part / name)
    with pytest.raises(DataError, match="folder of scans with masks and no class"):
        data.read(tmp_path, Request(task="classification"))


def test_copies_with_another_label_and_patients_without_a_name_are_told(table):
    frame = pd.read_csv(table)
    save(table.parent / "vol" / "copy.nii.gz", noise(0))
    frame.loc[len(frame)] = ["vol/copy.nii.gz", None, "b"]
    frame.to_csv(table, index=False)
    said = " ".join(data.read(table, Request()).notices)
    assert "1 scans are copies of one with another label" in said
    assert "1 of 25 rows have no value in column 'patient'" in said


def test_single_slices_for_a_run_on_volumes_are_told(table, tmp_path):
    reading = data.read(table, Request())
    facts = data.describe(reading.table, "classification", Request())
    Image.fromarray(np.arange(72, dtype=np.uint8).reshape(8, 9)).save(tmp_path / "vol" / "flat.png")
    found = data.read(tmp_path / "vol", Request(facts=facts)).notices
    assert any("1 of 25 scans are single slices, and this run learned from volumes" in notice for notice in found)
