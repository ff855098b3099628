"""Every type measures how like rows are across a split: copies are found and pointed at, strangers are not near."""

import importlib

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from domains.contract import Request
from domains.shared.proteins import similarity
from trainers.errors import MissingError


def letters(alphabet, length):
    def row(number):
        return "".join(np.random.default_rng([number, length]).choice(list(alphabet), length))

    return row


SMILES = ["CCO", "c1ccccc1C(=O)O", "C1CCNCC1", "CC(C)CC#N", "O=C1CCCN1", "FC(F)(F)c1ccncc1"]
ROWS = {
    "tabular": ("x", lambda i: i * 1.5),
    "text": ("text", lambda i: " ".join(letters("abcdefgh", 6)(100 * i + k) for k in range(20))),
    "molecules": ("smiles", lambda i: SMILES[i]),
    "genomics": ("sequence", letters("ACGT", 150)),
    "proteins": ("sequence", letters("ACDEFGHIKLMNPQRSTVWY", 80)),
}


def has_mmseqs():
    try:
        return bool(similarity.mmseqs())
    except MissingError:
        return False


@pytest.mark.parametrize("kind", ROWS)
def test_the_copy_is_found_among_strangers_and_counted(kind):
    if kind == "proteins" and not has_mmseqs():
        pytest.skip("MMseqs2 is not installed")
    name, row = ROWS[kind]
    order = [0, 1, 2, 3, 4, 0]
    frame = pd.DataFrame({name: [row(i) for i in order], "label": ["a", "b", "a", "b", "a", "a"]})
    data = importlib.import_module(f"domains.{kind}.data")
    request = Request("label", task="classification")
    reading = data.read(frame, request)
    these, those = np.array([0, 1]), np.array([2, 3, 4, 5])
    found = data.likeness(reading.table, these, those, request)
    assert found.highest[0] == pytest.approx(1.0)
    assert found.position[0] == 3
    assert found.highest[1] < found.near
    assert data.profile(reading.table, "classification", request).num_copies == 1
    nobody = data.likeness(reading.table, these, np.array([], np.int64), request)
    assert nobody.highest.tolist() == [0.0, 0.0]
    assert nobody.position.tolist() == [-1, -1]


def test_the_other_strand_is_a_copy():
    row = letters("ACGT", 150)
    other = row(0)[::-1].translate(str.maketrans("ACGT", "TGCA"))
    frame = pd.DataFrame({"sequence": [row(0), row(1), row(2), other], "label": list("abaa")})
    data = importlib.import_module("domains.genomics.data")
    table = data.read(frame, Request("label")).table
    found = data.likeness(table, np.array([0]), np.array([1, 2, 3]), Request("label"))
    assert (found.highest[0], found.position[0]) == (1.0, 2)


def test_the_jaccard_index_of_edited_texts_is_that_of_their_runs_of_words():
    words = [f"w{i}" for i in range(30)]
    edited = [*words[:15], "other", *words[16:]]
    frame = pd.DataFrame(
        {"text": [" ".join(words), "nothing like it at all here", " ".join(edited)], "label": list("aba")}
    )
    data = importlib.import_module("domains.text.data")
    found = data.likeness(data.read(frame, Request("label")).table, np.array([0]), np.array([1, 2]), Request("label"))
    runs = [{tuple(each[i : i + 3]) for i in range(28)} for each in (words, edited)]
    assert found.highest[0] == pytest.approx(len(runs[0] & runs[1]) / len(runs[0] | runs[1]))
    assert found.position[0] == 1


def test_a_recompressed_picture_is_near_and_another_is_not(tmp_path):
    rng = np.random.default_rng(0)
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(2):
            pixels = rng.integers(60, 200, (4, 4, 3)).repeat(16, axis=0).repeat(16, axis=1).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    Image.open(tmp_path / "a" / "0.png").save(tmp_path / "a" / "z.jpg", quality=95, subsampling=0)
    data = importlib.import_module("domains.images.data")
    table = data.read(tmp_path, Request()).table
    files = list(table.column("picture_file"))
    one, copy = files.index("a/0.png"), files.index("a/z.jpg")
    others = np.array([i for i in range(len(files)) if i not in (one, copy)])
    assert data.likeness(table, np.array([one]), np.array([copy]), Request()).highest[0] >= 1 - 2 / 255
    assert data.likeness(table, np.array([one]), others, Request()).highest[0] < 1 - 2 / 255


def test_scans_of_one_patient_and_scans_with_the_same_bytes_are_alike(tmp_path):
    nib = pytest.importorskip("nibabel")
    rng = np.random.default_rng(0)
    for folder in ("imagesTr", "labelsTr"):
        (tmp_path / folder).mkdir()
    mask = np.zeros((8, 8, 8), np.uint8)
    mask[2:5, 2:5, 2:5] = 1
    for name in ("patient1_0", "patient1_1", "patient2_0", "patient3_0"):
        if name != "patient3_0":
            image = rng.normal(size=mask.shape).astype(np.float32)
        nib.save(nib.Nifti1Image(image, np.eye(4)), tmp_path / "imagesTr" / f"{name}.nii")
        nib.save(nib.Nifti1Image(mask, np.eye(4)), tmp_path / "labelsTr" / f"{name}.nii")
    data = importlib.import_module("domains.medical.data")
    table = data.read(tmp_path, Request()).table
    found = data.likeness(table, np.array([0, 2]), np.array([1, 3]), Request())
    assert found.highest.tolist() == [1.0, 1.0]
    assert found.position.tolist() == [0, 1]
    assert data.likeness(table, np.array([0]), np.array([2]), Request()).highest.tolist() == [0.0]
