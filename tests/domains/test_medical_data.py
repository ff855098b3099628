"""Reading scans and masks: layouts, the integrity check, orientation, patients."""

import json
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest

from domains.contract import Request
from domains.medical import data
from domains.medical.patients import patients_of
from domains.medical.volumes import Geometry, Mask, MaskFile, VolumeError, read_image
from domains.splits import make_split
from tests.domains.dicom_files import write_series, write_slice
from trainers.errors import DataError, UsageError

SHAPE = (10, 12, 8)


def write(path, array, affine=None, dtype=np.uint8):
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(np.asarray(array, dtype), np.eye(4) if affine is None else affine), path)


def box(value=1):
    mask = np.zeros(SHAPE, np.uint8)
    mask[2:6, 3:8, 2:5] = value
    return mask


@pytest.fixture
def folder(tmp_path):
    """Five good cases in the layout of the Decathlon, with no dataset.json."""
    for number in range(5):
        noise = np.random.default_rng(number).integers(0, 1000, SHAPE)
        write(tmp_path / "imagesTr" / f"c{number:02d}.nii.gz", noise, dtype=np.int16)
        write(tmp_path / "labelsTr" / f"c{number:02d}.nii.gz", box())
    return tmp_path


def faults(folder, **request):
    return {row.position: row.reason for row in data.read(folder, Request(**request)).bad}


def test_good_cases_have_no_fault_and_their_classes_are_the_numbers_in_the_masks(folder):
    reading = data.read(folder, Request())
    assert not reading.bad
    assert reading.table.ids == [f"c{number:02d}" for number in range(5)]
    assert reading.table.context["values"] == (0, 1)
    assert (reading.table.target()[0].array() == box()).all()


@pytest.mark.parametrize("form", ["zip", "gztar"])
def test_scans_are_read_out_of_an_archive_as_out_of_its_folder(folder, form, tmp_path_factory, monkeypatch):
    place = tmp_path_factory.mktemp("archive")
    monkeypatch.setenv("ZOO_CACHE", str(place / "cache"))
    packed = shutil.make_archive(str(place / "scans"), form, folder)
    expected, found = data.read(folder, Request()), data.read(packed, Request())
    assert found.table.ids == expected.table.ids
    assert not found.bad
    assert (found.table.target()[3].array() == expected.table.target()[3].array()).all()


def test_intensities_that_float32_cannot_hold_are_told(folder):
    write(folder / "imagesTr" / "c01.nii.gz", np.full(SHAPE, 1e308), dtype=np.float64)
    (bad,) = data.read(folder, Request()).bad
    assert bad.position == 1
    assert "too large" in bad.reason


def test_every_case_whose_geometry_differs_is_named_with_the_difference_and_a_tenth_of_a_micrometre_is_none(folder):
    origin, spacing, flipped, close = np.eye(4), np.diag([1.0, 1, 3, 1]), np.diag([-1.0, 1, 1, 1]), np.eye(4)
    origin[:3, 3], flipped[0, 3], close[0, 3] = 7.0, 9.0, 1e-7
    for number, affine in enumerate((origin, spacing, flipped, close)):
        write(folder / "labelsTr" / f"c{number:02d}.nii.gz", box(), affine)
    write(folder / "labelsTr" / "c04.nii.gz", box()[:-1])
    found = faults(folder)
    assert "origin" in found[0]
    assert "spacing" in found[1]
    assert "orientation" in found[2]
    assert "shape" in found[4]
    assert 3 not in found


def test_a_label_beyond_a_gap_is_unexpected_and_named_with_its_file(folder):
    mask = box()
    mask[0, 0, 0] = 7
    write(folder / "labelsTr" / "c03.nii.gz", mask)
    (bad,) = data.read(folder, Request()).bad
    assert "label 7 (1 voxels)" in bad.reason
    assert bad.place.endswith("c03.nii.gz")


def test_labels_that_dataset_json_does_not_declare_are_unexpected(folder):
    (folder / "dataset.json").write_text(
        json.dumps({"labels": {"background": 0, "organ": 1}, "channel_names": {"0": "CT"}})
    )
    write(folder / "labelsTr" / "c02.nii.gz", box(2))
    reading = data.read(folder, Request())
    assert [row.position for row in reading.bad] == [2]
    assert reading.table.context["names"] == ("background", "organ")
    assert reading.table.context["channels"] == ("CT",)


def test_all_other_faults_are_listed_too(folder):
    image = np.zeros(SHAPE)
    image[0, 0, 0] = np.nan
    write(folder / "imagesTr" / "c00.nii.gz", image, dtype=np.float32)
    write(folder / "labelsTr" / "c01.nii.gz", box() * 0.5, dtype=np.float32)
    (folder / "labelsTr" / "c02.nii.gz").unlink()
    write(folder / "imagesTr" / "c03.nii.gz", np.zeros((*SHAPE, 2)), dtype=np.int16)
    (folder / "imagesTr" / "c04.nii.gz").write_bytes(b"no volume at all")
    for name in ("c05", "c06"):
        write(folder / "imagesTr" / f"{name}.nii.gz", np.ones(SHAPE))
        write(folder / "labelsTr" / f"{name}.nii.gz", box())
    found = faults(folder)
    assert "no number" in found[0]
    assert "0.5, which is no whole number" in found[1]
    assert "no mask" in found[2]
    assert "2 channels" in found[3]
    assert "no readable NIfTI" in found[4]


def test_a_truncated_file_is_a_fault(folder):
    path = folder / "imagesTr" / "c00.nii.gz"
    path.write_bytes(path.read_bytes()[:400])
    assert 0 in faults(folder)


def test_masks_without_any_foreground_are_an_error(folder):
    for path in (folder / "labelsTr").iterdir():
        write(path, np.zeros(SHAPE))
    with pytest.raises(DataError, match="every mask is background"):
        data.read(folder, Request())


def test_a_folder_without_masks_says_how_to_lay_it_out(tmp_path):
    write(tmp_path / "a.nii.gz", box())
    with pytest.raises(DataError, match="imagesTr/ and labelsTr/"):
        data.read(tmp_path, Request())


def test_channels_in_files_of_their_own_are_one_case(tmp_path):
    for number in range(3):
        for channel in range(2):
            write(tmp_path / "imagesTr" / f"x_{number}_{channel:04d}.nii.gz", np.full(SHAPE, channel), dtype=np.int16)
        write(tmp_path / "labelsTr" / f"x_{number}.nii.gz", box())
    reading = data.read(tmp_path, Request())
    assert not reading.bad
    assert reading.table.ids == ["x_0", "x_1", "x_2"]
    paths = [Path(file) for file in reading.table.column("images")[0]]
    assert read_image(paths).array.shape == (2, *SHAPE)


def test_a_table_of_paths_is_read_with_its_patients(folder):
    rows = [
        {"image": f"imagesTr/c{n:02d}.nii.gz", "mask": f"labelsTr/c{n:02d}.nii.gz", "patient": f"p{n // 2}"}
        for n in range(5)
    ]
    pd.DataFrame(rows).to_csv(folder / "list.csv", index=False)
    reading = data.read(folder / "list.csv", Request())
    keys = data.keys(reading.table, "segmentation", Request(), fast=False)
    assert keys.rule == "grouped"
    assert list(keys.group) == [0, 0, 1, 1, 2]


def test_a_column_called_split_says_the_part_of_each_case_and_patients_across_parts_are_told(folder):
    said = ["train", "train", "train", "val", "test"]
    rows = [
        {
            "image": f"imagesTr/c{n:02d}.nii.gz",
            "mask": f"labelsTr/c{n:02d}.nii.gz",
            "patient": f"p{n // 2}",
            "split": said[n],
        }
        for n in range(5)
    ]
    pd.DataFrame(rows).to_csv(folder / "cases.csv", index=False)
    for task in ("segmentation", "prompted-segmentation"):
        reading = data.read(folder / "cases.csv", Request(task=task))
        keys = data.keys(reading.table, task, Request(), fast=False)
        split = make_split(keys, 5, seed=0)
        assert (split.rule, [part.tolist() for part in (split.train, split.valid, split.test)]) == (
            "given",
            [[0, 1, 2], [3], [4]],
        )
        assert any("1 patients into more than one part" in note and "p1" in note for note in reading.notices)
    rows[0]["split"] = "later"
    pd.DataFrame(rows).to_csv(folder / "cases.csv", index=False)
    with pytest.raises(DataError, match="says 'later' in 1 of 5 rows"):
        data.read(folder / "cases.csv", Request())


@pytest.mark.parametrize(
    ("name", "patient"),
    [
        ("hippocampus_001", "hippocampus_001"),
        ("sub-12_ses-2_T1w", "sub-12"),
        ("p7_visit2", "p7"),
        ("patient001_frame12", "patient001"),
        ("Patient_7.2", "Patient_7"),
        ("patterns_3", "patterns_3"),
        ("p7-slice031", "p7"),
        ("case_scan-3_left", "case"),
        ("sessions_4", "sessions_4"),
    ],
)
def test_the_patient_of_a_name(name, patient):
    assert patients_of([name, "another"])[0][0] == patient


@pytest.mark.parametrize(
    ("paths", "patients"),
    [
        (["sub-0/ses-0/ct.nii.gz", "sub-0/ses-1/ct.nii.gz", "sub-1/ct.nii"], ["sub-0", "sub-0", "sub-1"]),
        ([f"P{i}/w{j}/ct.nii" for i in range(3) for j in range(2)], ["P0", "P0", "P1", "P1", "P2", "P2"]),
        # Twenty scans in a folder are a site's, and its first is not the first of the next.
        (
            [f"{site}/{i}.nii" for site in "abc" for i in range(20)],
            [f"{site}/{i}" for site in "abc" for i in range(20)],
        ),
        (["train/1.nii", "train/2.nii", "valid/3.nii", "test/4.nii"], ["1", "2", "3", "4"]),
        (["ct_scan_1.nii", "ct_scan_2.nii"], ["ct_scan_1", "ct_scan_2"]),
    ],
)
def test_the_patient_of_a_path(paths, patients):
    assert patients_of(paths)[0] == patients


@pytest.mark.parametrize("name", ["PatientID", "Subject", "participant_no"])
def test_a_column_called_like_one_of_patients_is_the_group(name, folder):
    rows = [
        {"image": f"imagesTr/c{n:02d}.nii.gz", "mask": f"labelsTr/c{n:02d}.nii.gz", name: f"p{n // 2}"}
        for n in range(5)
    ]
    pd.DataFrame(rows).to_csv(folder / "cases.csv", index=False)
    table = data.read(folder / "cases.csv", Request()).table
    assert list(table.column("patient")) == ["p0", "p0", "p1", "p1", "p2"]
    assert name in data.keys(table, "segmentation", Request(), fast=False).because


def test_channels_that_are_missing_and_files_that_come_twice_are_faults(folder):
    for number in range(5):
        image = folder / "imagesTr" / f"c{number:02d}.nii.gz"
        shutil.copy(image, folder / "imagesTr" / f"c{number:02d}_0001.nii.gz")
        image.rename(folder / "imagesTr" / f"c{number:02d}_0000.nii.gz")
    assert not faults(folder)
    (folder / "imagesTr" / "c01_0001.nii.gz").rename(folder / "imagesTr" / "c01_0002.nii.gz")
    (folder / "imagesTr" / "c02_0000.nii.gz").unlink()
    nib.save(nib.load(folder / "imagesTr" / "c03_0001.nii.gz"), folder / "imagesTr" / "c03_0001.nii")
    nib.save(nib.load(folder / "labelsTr" / "c04.nii.gz"), folder / "labelsTr" / "c04.nii")
    found = faults(folder)
    assert found.keys() == {1, 2, 3, 4}
    assert "lacks channel _0001" in found[1]
    assert "lacks channel _0000" in found[2]
    assert "several files of one name" in found[3]
    assert "2 masks of that name" in found[4]


def test_equal_names_that_end_in_four_digits_are_no_channels(tmp_path):
    for number in range(3):
        write(tmp_path / "images" / f"scan_{number:04d}.nii.gz", np.random.default_rng(number).integers(0, 9, SHAPE))
        write(tmp_path / "masks" / f"scan_{number:04d}.nii.gz", box())
    reading = data.read(tmp_path, Request())
    assert not reading.bad
    assert reading.table.ids == ["scan_0000", "scan_0001", "scan_0002"]
    assert len(set(reading.table.column("patient"))) == 3


def describe(folder, pairs, **more):
    training = [
        {"image": f"./imagesTr/{image}.nii.gz", "label": f"./labelsTr/{label}.nii.gz"} for image, label in pairs
    ]
    (folder / "dataset.json").write_text(
        json.dumps({"labels": {"0": "background", "1": "a"}, "training": training, **more})
    )


def test_a_list_of_cases_says_which_mask_is_whose_and_what_it_leaves_out_is_told(folder):
    write(folder / "labelsTr" / "other.nii.gz", box() * 0 + 1)
    describe(folder, [("c00", "other"), ("c01", "c01"), ("c02", "gone"), ("c03", "c03"), ("c03", "c03")], numTraining=9)
    reading = data.read(folder, Request())
    assert reading.table.target()[0].array().all()
    found = {row.position: row.reason for row in reading.bad}
    assert found.keys() == {2, 3, 4}
    assert "lists ./labelsTr/gone.nii.gz, and there is no such file" in found[2]
    assert "more than once" in found[3]
    said = " ".join(reading.notices)
    assert "1 images are not in the list" in said
    assert "speaks of 9 training cases, and 5 are here" in said


def test_masks_that_a_list_hands_around_are_told(folder):
    describe(folder, [(f"c{number:02d}", f"c{(number + 1) % 5:02d}") for number in range(5)])
    assert any("5 cases the mask that is called like another" in note for note in data.read(folder, Request()).notices)


def test_a_list_without_the_numbers_of_channels_finds_them_and_one_of_other_files_is_not_heeded(folder):
    for number in range(5):
        (folder / "imagesTr" / f"c{number:02d}.nii.gz").rename(folder / "imagesTr" / f"c{number:02d}_0000.nii.gz")
    describe(folder, [("c00", "c00"), ("c01", "c01")])
    assert data.read(folder, Request()).table.ids == ["c00", "c01"]
    shutil.copy(folder / "imagesTr" / "c01_0000.nii.gz", folder / "imagesTr" / "c01_0002.nii.gz")
    assert "lacks channel _0001" in faults(folder)[1]
    describe(folder, [("x", "x")])
    assert len(data.read(folder, Request()).table) == 5
    describe(folder, [("../../x", "x"), ("c00", "../../../etc/passwd")])
    assert "leads outside" in faults(folder)[1]


def test_headers_that_contradict_themselves_and_scans_of_one_value_are_told(folder):
    image = nib.load(folder / "imagesTr" / "c00.nii.gz")
    image.set_qform(np.diag([-1.0, 1, 1, 1]), 1)
    image.set_sform(np.eye(4), 1)
    nib.save(image, folder / "imagesTr" / "c00.nii.gz")
    write(folder / "imagesTr" / "c01.nii.gz", np.full(SHAPE, 3))
    said = " ".join(data.read(folder, Request()).notices)
    assert "qform and sform place the voxels differently" in said
    assert "every voxel has one value: in 1 of the cases" in said


def test_a_fault_is_told_of_the_file_that_has_it_and_its_case_counts_for_nothing(folder):
    mask = box() * 0
    mask[0, 0, 0] = 7
    write(folder / "labelsTr" / "c03.nii.gz", mask)
    (folder / "imagesTr" / "c04.nii.gz").write_bytes(b"no scan")
    reading = data.read(folder, Request())
    assert [Path(row.place).parent.name for row in reading.bad] == ["labelsTr", "imagesTr"]
    assert "3 cases; class 1 in 3" in reading.notices
    assert not any("without any foreground" in notice for notice in reading.notices)


def test_a_list_where_an_object_belongs_is_named(folder):
    (folder / "dataset.json").write_text(json.dumps({"labels": ["background", "a"]}))
    with pytest.raises(DataError, match="'labels' must be an object"):
        data.read(folder, Request())


def test_in_a_folder_group_is_a_pattern_and_a_name_that_does_not_match_is_an_error(folder):
    reading = data.read(folder, Request(group=r"^c(\d)"))
    assert set(reading.table.column("patient")) == {"0"}
    with pytest.raises(UsageError, match="regular expression"):
        data.read(folder, Request(group="patient"))


@pytest.mark.parametrize("axes", ["RAS", "LPS", "LAS", "PIR", "SAL"])
def test_twins_of_any_orientation_are_the_same_volume_and_masks_go_back_into_their_own(axes, tmp_path):
    array = np.random.default_rng(0).integers(0, 99, SHAPE).astype(np.int16)
    source = nib.Nifti1Image(array, np.diag([1.0, 1.5, 2.0, 1.0]))
    turned = source.as_reoriented(
        nib.orientations.ornt_transform(nib.io_orientation(source.affine), nib.orientations.axcodes2ornt(tuple(axes)))
    )
    nib.save(turned, tmp_path / "twin.nii.gz")
    volume = read_image([tmp_path / "twin.nii.gz"])
    assert (volume.array[0] == array).all()
    assert np.allclose(volume.geometry.spacing, (1.0, 1.5, 2.0))
    Mask.of(volume.geometry.from_ras(array % 3), volume.geometry).write(tmp_path / "mask.nii.gz")
    written = nib.load(tmp_path / "mask.nii.gz")
    assert np.allclose(written.affine, turned.affine)
    assert (np.asarray(written.dataobj) == np.asarray(turned.dataobj) % 3).all()


def test_labels_with_gaps_that_are_declared_become_positions(tmp_path):
    write(tmp_path / "m.nii.gz", box(5))
    assert set(np.unique(MaskFile(str(tmp_path / "m.nii.gz"), (0, 2, 5)).array())) == {0, 2}


def test_a_packed_mask_unpacks_to_what_it_was():
    labels = np.random.default_rng(0).integers(0, 4, SHAPE)
    geometry = Geometry(SHAPE, tuple(map(tuple, np.eye(4).tolist())))
    assert (Mask.of(labels, geometry).array() == labels).all()


def test_a_dicom_series_is_sorted_in_space_and_rescaled_and_its_mask_lies_on_its_grid(tmp_path):
    stack = np.random.default_rng(1).integers(0, 4000, (5, 6, 7))
    folder = write_series(tmp_path / "scan", stack, RescaleSlope=2.0, RescaleIntercept=-1024.0)
    volume = read_image([folder])
    assert np.allclose(volume.geometry.from_ras(volume.array[0]), stack.T * 2.0 - 1024.0)
    assert np.allclose(volume.geometry.spacing, (0.75, 0.5, 2.0))
    Mask.of(np.ones((7, 6, 5)), volume.geometry).write(tmp_path / "mask.nii.gz")
    affine = nib.load(tmp_path / "mask.nii.gz").affine
    # The last column and row of the first slice, in DICOM's coordinates (left, posterior) and in NIfTI's.
    assert np.allclose(affine @ [6, 5, 0, 1], [-(1 + 6 * 0.75), -(2 + 5 * 0.5), 0, 1])


def test_stored_numbers_without_rescale_tags_are_told_and_inverted_ones_turned_over(tmp_path):
    stack = np.random.default_rng(1).integers(0, 4000, (3, 4, 4))
    plain = read_image([write_series(tmp_path / "plain", stack)])
    turned = read_image([write_series(tmp_path / "turned", 4095 - stack, PhotometricInterpretation="MONOCHROME1")])
    assert (plain.array == turned.array).all()
    assert "no rescale tags" in plain.notes[0]
    assert "turned over" in turned.notes[0]


def test_two_series_in_a_folder_and_a_missing_slice_are_faults(tmp_path):
    stack = np.zeros((4, 4, 4))
    write_series(tmp_path / "both", stack)
    write_slice(tmp_path / "both" / "x.dcm", stack[0], 9.0, uid="1.2.4")
    with pytest.raises(VolumeError, match=r"2 series: 1\.2\.3 \(4 files\), 1\.2\.4"):
        read_image([tmp_path / "both"])
    write_series(tmp_path / "gap", stack)
    write_slice(tmp_path / "gap" / "x.dcm", stack[0], 10.0)
    with pytest.raises(VolumeError, match="is one missing"):
        read_image([tmp_path / "gap"])


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ({"ImageOrientationPatient": [0, 1, 0, 1, 0, 0]}, "x.dcm differs from 0.dcm in ImageOrientationPatient"),
        ({"PixelSpacing": [0.5, 0.8]}, "differs from 0.dcm in PixelSpacing"),
        ({"RescaleSlope": 0.0}, "RescaleSlope of 0"),
        ({"Rows": 2}, "x.dcm has 2 rows, 0.dcm has 4"),
    ],
)
def test_a_slice_that_is_no_layer_of_the_others_is_a_fault(tags, said, tmp_path):
    folder = write_series(tmp_path / "scan", np.zeros((1, 4, 4)))
    write_slice(folder / "x.dcm", np.zeros((4, 4)), 2.0, **tags)
    with pytest.raises(VolumeError, match=said):
        read_image([folder])


@pytest.mark.parametrize("kind", ["colours", "complex"])
def test_voxels_that_are_no_real_numbers_are_a_fault(kind, tmp_path):
    colours = np.zeros((4, 4, 4), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    values = colours if kind == "colours" else np.ones((4, 4, 4), np.complex64)
    nib.save(nib.Nifti1Image(values, np.eye(4)), tmp_path / "a.nii.gz")
    with pytest.raises(VolumeError, match="give one real number a voxel"):
        read_image([tmp_path / "a.nii.gz"])


def test_an_empty_folder_is_no_scan(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(VolumeError):
        read_image([tmp_path / "empty"])


def test_folders_of_series_with_masks_beside_them_are_cases(tmp_path):
    for number in range(3):
        folder = write_series(tmp_path / "images" / f"p{number}", np.full((5, 6, 7), number))
        geometry = read_image([folder]).geometry
        (tmp_path / "masks").mkdir(exist_ok=True)
        Mask.of(np.arange(210).reshape(7, 6, 5) % 2, geometry).write(tmp_path / "masks" / f"p{number}.nii.gz")
    reading = data.read(tmp_path, Request())
    assert not reading.bad
    assert reading.table.ids == ["p0", "p1", "p2"]
    assert "in 3 of the cases" in reading.notices[-1]


def test_where_no_case_can_be_used_each_is_named_with_its_fault(folder):
    for path in (folder / "imagesTr").iterdir():
        path.write_bytes(b"no scan")
    found = data.read(folder, Request())
    assert len(found.bad) == 5
    assert all("no readable NIfTI file" in row.reason or "cut off" in row.reason for row in found.bad)


def test_copies_of_a_scan_stay_together_also_in_another_orientation(folder):
    image, mask = (nib.load(folder / name / "c00.nii.gz") for name in ("imagesTr", "labelsTr"))
    turn = nib.orientations.ornt_transform(
        nib.io_orientation(image.affine), nib.orientations.axcodes2ornt(tuple("LPS"))
    )
    nib.save(image.as_reoriented(turn), folder / "imagesTr" / "z.nii.gz")
    nib.save(mask.as_reoriented(turn), folder / "labelsTr" / "z.nii.gz")
    table = data.read(folder, Request()).table
    keys = data.keys(table, "segmentation", Request(), fast=False)
    assert keys.rule == "grouped"
    assert "1 copies stay with their originals" in keys.because
    assert keys.group[0] == keys.group[5]
    assert len(set(keys.group)) == 5


def test_empty_cells_of_a_column_of_patients_are_one_patient_and_told(folder):
    rows = [
        {"image": f"imagesTr/c{n:02d}.nii.gz", "mask": f"labelsTr/c{n:02d}.nii.gz", "patient": "p1"} for n in range(5)
    ]
    rows[1]["patient"] = rows[4]["patient"] = ""
    pd.DataFrame(rows).to_csv(folder / "cases.csv", index=False)
    reading = data.read(folder / "cases.csv", Request())
    assert len(set(reading.table.column("patient"))) == 2
    assert any("2 of 5 rows have no value in column 'patient'" in notice for notice in reading.notices)


def test_the_patients_of_dicom_headers_are_heeded_unless_all_are_one(tmp_path):
    stack = np.random.default_rng(0).integers(0, 4000, (5, 6, 7))
    for number in range(4):
        write_series(tmp_path / "images" / f"acc{number}", stack + number, PatientID=f"id{number // 2}")
        affine = read_image([tmp_path / "images" / f"acc{number}"]).geometry.matrix
        write(tmp_path / "masks" / f"acc{number}.nii.gz", np.ones((7, 6, 5)), affine)
    table = data.read(tmp_path, Request()).table
    assert list(table.column("patient")) == ["id0", "id0", "id1", "id1"]
    for number in range(4):
        write_series(tmp_path / "images" / f"acc{number}", stack + number, PatientID="ANON")
    reading = data.read(tmp_path, Request())
    assert len(set(reading.table.column("patient"))) == 4
    assert any("'ANON'" in notice for notice in reading.notices)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"ImagePositionPatient": [51.0, 2.0, 4.0]}, "lies 50 mm beside"),
        ({"PatientID": "another"}, "one series is of one patient"),
    ],
)
def test_a_slice_beside_the_others_or_of_another_patient_is_refused(tags, message, tmp_path):
    stack = np.random.default_rng(0).integers(0, 4000, (6, 6, 7))
    for at, pixels in enumerate(stack):
        write_slice(tmp_path / f"{at}.dcm", pixels, 2.0 * at, **({} if at != 2 else tags))
    with pytest.raises(VolumeError, match=message):
        read_image([tmp_path])


def test_a_tilted_gantry_is_told(tmp_path):
    stack = np.random.default_rng(0).integers(0, 4000, (4, 6, 7))
    tilt = np.radians(20)
    for at, pixels in enumerate(stack):
        write_slice(
            tmp_path / f"{at}.dcm", pixels, 2.0 * at, ImageOrientationPatient=[1, 0, 0, 0, np.cos(tilt), np.sin(tilt)]
        )
    (note,) = (note for note in read_image([tmp_path]).notes if "gantry" in note)
    assert "20 degrees" in note


@pytest.mark.parametrize("shear", [0.0, 0.4])
def test_a_mask_is_written_in_mm_with_two_affines_that_agree(shear, tmp_path):
    matrix = np.array([[0.5, 0, shear, 3], [0, 0.5, 0, 4], [0, 0, 2, 5], [0, 0, 0, 1.0]])
    Mask.of(box(), Geometry(SHAPE, tuple(map(tuple, matrix.tolist())))).write(tmp_path / "m.nii.gz")
    image = nib.load(tmp_path / "m.nii.gz")
    assert image.header.get_xyzt_units()[0] == "mm"
    assert np.allclose(image.affine, matrix)
    assert (int(image.header["qform_code"]) == 1) == (shear == 0)
    assert shear or np.allclose(image.get_qform(), matrix)


def test_the_table_of_cases_has_scores_and_volumes(folder, tmp_path):
    from domains.medical.overlays import case_table
    from trainers.contract import Predictions, as_objects

    table = data.read(folder, Request()).table
    answer = box()
    answer[2] = 0  # one of four layers missed, of voxels of a cubic millimetre
    geometry = Geometry(SHAPE, tuple(map(tuple, np.eye(4).tolist())))
    values = as_objects([Mask.of(answer, geometry), None, *[Mask.of(box(), geometry)] * 3])
    answers = Predictions("file", values, None, (), ("", "no", "", "", ""))
    assert case_table(table, answers, ["a"], tmp_path / "plots").keys() == {"cases.csv"}
    found = pd.read_csv(tmp_path / "plots" / "cases.csv")
    assert found["case"].tolist() == ["c00", "c02", "c03", "c04"]
    assert found["dice"].round(4).tolist() == [0.8571, 1, 1, 1]
    assert found.iloc[0]["hd95_mm"] == 1.0
    assert (found.iloc[0]["true_ml"], found.iloc[0]["predicted_ml"]) == (0.06, 0.045)


def test_an_image_in_two_rows_is_a_fault_that_says_whether_the_masks_agree(folder):
    rows = [{"image": f"imagesTr/c{n:02d}.nii.gz", "mask": f"labelsTr/c{n:02d}.nii.gz"} for n in range(5)]
    rows += [rows[1], {**rows[2], "mask": "labelsTr/c03.nii.gz"}]
    pd.DataFrame(rows).to_csv(folder / "cases.csv", index=False)
    found = {row.position: row.reason for row in data.read(folder / "cases.csv", Request()).bad}
    assert found.keys() == {5, 6}
    assert "cases.csv line 3 too, with the same mask" in found[5]
    assert "too, with another mask, labelsTr/c02.nii.gz" in found[6]


def test_test_folders_of_a_data_set_are_told(folder):
    shutil.copytree(folder / "imagesTr", folder / "imagesTs")
    shutil.copytree(folder / "labelsTr", folder / "labelsTs")
    reading = data.read(folder, Request())
    assert len(reading.table) == 5
    assert any("imagesTs/ and labelsTs/ are left out" in notice for notice in reading.notices)
