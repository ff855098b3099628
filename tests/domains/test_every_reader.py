"""Faults that were seen in one type, in the others: ids that look like numbers, hidden copies, files of one name, paths that
leave the folder, other encodings."""

import importlib
import os

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from domains.contract import Doubt, Request
from domains.sniff import sniff
from domains.text import corpus
from trainers.errors import DataError

CODES = ["1e5", "1.10", "1.1", "007", "10.0", "12345678901234567890"]
SHAPES = {
    "labelled": ("text", "text", "a film"),
    "pairs": ("text", "prompt", "why?"),
    "parallel": ("text", "source", "ein Haus"),
    "proteins": ("proteins", "sequence", "MKTAYIAKQRQISFVK"),
    "genomics": ("genomics", "sequence", "ACGTTGCATTGCACGT"),
    "molecules": ("molecules", "smiles", "CCCO"),
    "tabular": ("tabular", "x", "0.5"),
}
TARGETS = {"pairs": "answer", "parallel": "target"}


@pytest.mark.parametrize("shape", SHAPES)
def test_ids_that_look_like_numbers_come_back_letter_for_letter(shape, tmp_path):
    kind, column, value = SHAPES[shape]
    data, target = importlib.import_module(f"domains.{kind}.data"), TARGETS.get(shape, "label")
    lines = [f"{code},{value},{'ab'[i % 2]}" for i, code in enumerate(CODES)]
    path = tmp_path / "t.csv"
    path.write_text(f"id,{column},{target}\n" + "\n".join(lines) + "\n")
    task = {"pairs": "generation", "parallel": "seq2seq"}.get(shape)
    assert list(data.read(path, Request(target, task)).table.ids) == CODES
    path.write_text(path.read_text().replace("id,", "key,", 1))
    assert list(data.read(path, Request(target, task, id_column="key")).table.ids) == CODES


@pytest.mark.parametrize("kind", ["text", "proteins", "genomics", "molecules", "tabular"])
def test_another_encoding_is_refused_until_it_is_named(kind, tmp_path):
    _, column, value = SHAPES["labelled" if kind == "text" else kind]
    data, path = importlib.import_module(f"domains.{kind}.data"), tmp_path / "t.csv"
    path.write_bytes(f"{column},label\n{value},café\n{value},thé\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"t\.csv line 2: byte 0xe9 .*--encoding cp1252"):
        data.read(path, Request("label"))
    found = data.read(path, Request("label", encoding="cp1252"))
    assert set(found.table.target()) == {"café", "thé"}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_header_in_the_middle_of_joined_files_is_a_bad_row_and_never_a_value(shape, tmp_path):
    """ "sequence" is a protein by its letters, and one word makes text of a column of numbers."""
    kind, column, value = SHAPES[shape]
    target, path = TARGETS.get(shape, "label"), tmp_path / "t.csv"
    header, lines = f"id,{column},{target}\n", [f"{i},{value},{'ab'[i % 2]}\n" for i in range(4)]
    path.write_text(header + "".join(lines[:2]) + header + "".join(lines[2:]))
    task = {"pairs": "generation", "parallel": "seq2seq"}.get(shape)
    found = importlib.import_module(f"domains.{kind}.data").read(path, Request(target, task))
    assert len(found.table) == 5
    (row,) = found.bad
    assert (row.position, row.place) == (2, "t.csv line 4")
    assert row.reason.startswith("repeats the header")
    if kind == "tabular":
        assert found.table.column("x").dtype == np.float64


@pytest.mark.parametrize(
    ("kind", "task"),
    [("text", None), ("proteins", None), ("proteins", "multilabel"), ("genomics", None), ("molecules", None)],
)
def test_a_target_never_takes_the_place_of_what_the_model_sees(kind, task, tmp_path):
    """Else a model would read the answers: the column has the name that readers give to sequences and texts."""
    _, column, value = SHAPES["labelled" if kind == "text" else kind]
    other, path = {"smiles": "mol", "text": "body"}.get(column, "chain"), tmp_path / "t.csv"
    path.write_text(f"{other},{column}\n" + "".join(f"{value},{'ab'[i % 2]}\n" for i in range(6)))
    request = Request(column, task, columns={column: other})
    with pytest.raises(DataError, match=f"the target cannot be called '{column}'"):
        importlib.import_module(f"domains.{kind}.data").read(path, request)


@pytest.mark.parametrize(("kind", "mark"), [("proteins", "null"), ("proteins", "NA"), ("genomics", "NaN")])
def test_marks_of_a_missing_value_that_are_sequences_by_their_letters_are_no_secret(kind, mark, tmp_path):
    value, path = SHAPES[kind][2], tmp_path / "t.csv"
    path.write_text(f"sequence,label\n{value},a\n{mark},b\n{value},a\n")
    found = importlib.import_module(f"domains.{kind}.data").read(path, Request("label"))
    (said,) = [notice for notice in found.notices if isinstance(notice, Doubt)]
    assert "1 sequences look like marks of a missing value" in said
    assert f"'{mark}' in t.csv line 3" in said


def test_an_sdf_in_another_encoding_too(tmp_path):
    Chem = pytest.importorskip("rdkit.Chem")
    from domains.molecules import data

    block = Chem.MolToMolBlock(Chem.MolFromSmiles("CCO"))
    records = "".join(f"{block}>  <taste>\n{taste}\n\n$$$$\n" for taste in ("sucré", "amer"))
    (tmp_path / "m.sdf").write_bytes(records.encode("cp1252"))
    with pytest.raises(DataError, match="not UTF-8"):
        data.read(tmp_path / "m.sdf", Request("taste"))
    found = data.read(tmp_path / "m.sdf", Request("taste", encoding="cp1252"))
    assert set(found.table.target()) == {"sucré", "amer"}


# --- folders -----------------------------------------------------------------------------------------------------------


def scan(path, value=1):
    import nibabel as nib

    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.zeros((6, 6, 6), np.uint8)
    array[2:4, 2:4, 2:4] = value
    nib.save(nib.Nifti1Image(array, np.eye(4)), path)


@pytest.fixture
def scans(tmp_path):
    for i in range(3):
        scan(tmp_path / f"images/c{i}.nii.gz", 9)
        scan(tmp_path / f"labels/c{i}.nii.gz")
    return tmp_path


def test_copies_in_hidden_folders_are_no_channels_of_a_scan(scans):
    from domains.medical import data

    for folder in (".ipynb_checkpoints", "__MACOSX"):
        scan(scans / "images" / folder / "c0.nii.gz", 200)
    found = data.read(scans, Request())
    assert list(found.table.ids) == ["c0", "c1", "c2"]
    assert {look.num_channels for look in found.table.context["looks"].values()} == {1}
    assert sniff(scans).num_rows == 3


def test_texts_in_hidden_folders_are_no_part_of_a_corpus(tmp_path):
    for name in ("a.txt", ".ipynb_checkpoints/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"this stands in {name} " * 50)
    table = corpus.read(tmp_path, Request(task="generation")).table
    texts = "".join(text for row in range(len(table)) for text in table.documents(row))
    assert "checkpoints" not in texts


def test_scans_of_one_name_in_several_folders_are_cases_of_their_own(tmp_path):
    from domains.medical import data

    for patient, value in (("p1", 50), ("p2", 100), ("p3", 150)):
        scan(tmp_path / f"images/{patient}/ct.nii.gz", value)
        scan(tmp_path / f"labels/{patient}/ct.nii.gz")
    found = data.read(tmp_path, Request())
    assert list(found.table.ids) == ["p1/ct", "p2/ct", "p3/ct"]
    assert [files[0].split("/")[-2] for files in found.table.column("images")] == ["p1", "p2", "p3"]
    facts = data.describe(found.table, found.task, Request())
    assert list(data.read(tmp_path / "images", Request(facts=facts)).table.ids) == ["p1/ct", "p2/ct", "p3/ct"]


# --- tables of scans ---------------------------------------------------------------------------------------------------


def table(folder, *lines):
    path = folder / "t.csv"
    path.write_text("image,mask\n" + "".join(f"{line}\n" for line in lines))
    return path


def test_a_table_of_scans_names_every_path_that_cannot_be_used(scans, tmp_path_factory):
    from domains.medical import data

    outside = tmp_path_factory.mktemp("outside") / "x.nii.gz"
    scan(outside)
    good = [f"images/c{i}.nii.gz,labels/c{i}.nii.gz" for i in range(3)]
    bad = [
        f"{outside},labels/c0.nii.gz",
        "images/../../y.nii.gz,labels/c0.nii.gz",
        ",labels/c0.nii.gz",
        "images/c9.nii.gz,",
    ]
    bad += ["images/c0.nii.gz", "http://127.0.0.1:9/z.nii.gz,labels/c0.nii.gz"]
    found = data.read(table(scans, *good, *bad), Request())
    assert [row.position for row in found.bad] == [3, 4, 5, 6, 7, 8]
    reasons = " ".join(row.reason for row in found.bad)
    for text in (
        "leads outside",
        "no path in column 'image'",
        "no path of a file",
        "1 cells, but the header has 2",
        "line 5",
    ):
        assert text in reasons


def test_the_frame_of_a_program_may_name_scans_anywhere(scans):
    from domains.medical import data

    rows = [{"image": str(scans / f"images/c{i}.nii.gz"), "mask": str(scans / f"labels/c{i}.nii.gz")} for i in range(3)]
    assert data.read(pd.DataFrame(rows), Request()).bad == ()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_among_pictures_is_a_bad_row_and_nobody_waits_for_it(tmp_path):
    from domains.images import data

    for i in range(4):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 40 * i, np.uint8)).save(tmp_path / "ab"[i % 2] / f"{i}.png")
    os.mkfifo(tmp_path / "a" / "pipe.png")
    (tmp_path / "t.csv").write_text("path,label\na/0.png,a\nb/1.png,b\na/pipe.png,a\nb/3.png,b\n")
    for place, request in ((tmp_path / "t.csv", Request("label")), (tmp_path, Request())):
        (row,) = data.read(place, request).bad
        assert "pipe.png" in row.place + row.reason
        assert "a pipe or a device" in row.reason
