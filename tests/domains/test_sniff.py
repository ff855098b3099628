"""What a file seems to be, from its head."""

import pytest

from domains.sniff import sniff
from trainers.errors import DataError


@pytest.mark.parametrize(
    ("name", "text", "kind", "num_rows"),
    [
        ("a.csv", "x,y\n1,2\n3,4\n", "tabular", 2),
        ("a.csv", "seq,y\nMKTAYIAKQRQISFVK,1\nMKLVVVGAGGVGKSAL,0\n", "proteins", 2),
        ("a.csv", "dna,y\nACGTACGTACGTAA,1\n", "genomics", 1),
        ("a.csv", "smiles,y\nCCO,1\nc1ccccc1O,0\n", "molecules", 2),
        ("a.csv", "path,label\nx/1.png,1\nx/2.jpg,0\n", "images", 2),
        ("a.csv", "\ufeffgr\u00f6\u00dfe;farbe\n1,5;rot\n", "tabular", 1),
        ("a.fasta", ">a\nMKTAYIAKQR\nQISFVK\n>b\nMKL\n", "proteins", 2),
        ("a.fa", ">a\nACGTACGTACGT\n", "genomics", 1),
        ("a.jsonl", '{"text": "x"}\n{"text": "y"}\n', "text", 2),
        ("a.conll", "Anna\tB-per\nruns\tO\n\t\n\nBob\tB-per\n", "text", 2),
    ],
)
def test_the_type_and_the_number_of_rows_are_read_from_the_file(tmp_path, name, text, kind, num_rows):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    found = sniff(path)
    assert (found.type, found.num_rows) == (kind, num_rows)


def test_the_task_of_json_lines_comes_from_the_target_too(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x", "stars": 1.5, "label": "p"}\n\n{"text": "y", "stars": 2, "label": "q"}\nbroken\n')
    assert [sniff(path, target=name).task for name in ("stars", "label", None)] == [
        "regression",
        "classification",
        None,
    ]
    with pytest.raises(DataError, match="no line has a key 'nonsense'"):
        sniff(path, target="nonsense")


def test_the_task_comes_from_the_target(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,label,value\n" + "".join(f"{i},{'ab'[i % 2]},{i / 7}\n" for i in range(30)))
    assert sniff(path, target="label").task == "classification"
    assert sniff(path, target="value").task == "regression"
    assert sniff(path).task is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "x,patient\n1,p1\n2,p1\n3,p2\n"),
        ("a.jsonl", '{"text": "x", "patient": "p1"}\n{"text": "y", "patient": "p2"}\n{"text": "z", "patient": "p1"}\n'),
    ],
)
def test_a_named_group_is_counted_and_a_column_that_is_not_there_is_named(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    assert sniff(path, group="patient").num_groups == 2
    assert sniff(path).num_groups is None
    with pytest.raises(DataError, match="speaker"):
        sniff(path, group="speaker")
    (tmp_path / "a.fasta").write_text(">a\nMKV\n")
    with pytest.raises(DataError, match="--groups"):
        sniff(tmp_path / "a.fasta", group="patient")


@pytest.mark.parametrize(("code", "has_positions"), [("3D", True), ("2D", None)])
def test_an_sdf_tells_positions_and_the_task_of_a_property(tmp_path, code, has_positions):
    path = tmp_path / "a.sdf"
    record = f"mol\n     RDKit          {code}\n\n  0  0  0\nM  END\n>  <energy>\n-1.25\n\n$$$$\n"
    path.write_text(record * 2)
    found = sniff(path, target="energy")
    assert (found.num_rows, found.task, found.has_positions) == (2, "regression", has_positions)
    with pytest.raises(DataError, match="no record has a property"):
        sniff(path, target="gap")


def test_several_targets_are_labels_or_numbers(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("smiles,a,b,y\n" + "".join(f"CCO,{i % 2},{'' if i % 3 else 1},{i / 7}\n" for i in range(30)))
    assert sniff(path, target="a,b").task == "multilabel"
    assert sniff(path, target="a,y").task == "multiregression"
    with pytest.raises(DataError, match="no column 'c'"):
        sniff(path, target="a,c")


def test_class_folders_of_pictures_are_images_to_classify(tmp_path):
    for name in ("cat/1.png", "dog/2.JPG", "dog/.DS_Store"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = sniff(tmp_path)
    assert (found.type, found.num_rows, found.task) == ("images", 2, "classification")


def test_a_missing_or_empty_file_is_named(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        sniff(tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(DataError, match="empty"):
        sniff(tmp_path / "empty.csv")


def test_a_folder_of_conll_files_asks_for_tags(tmp_path):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conll").write_text("Anna B-per\n\nBob B-per\nruns O\n")
    found = sniff(tmp_path)
    assert (found.type, found.num_rows, found.task) == ("text", 4, "ner")


def test_a_header_alone_and_a_broken_parquet_file_are_refused(tmp_path):
    (tmp_path / "head.csv").write_text("a,b\n")
    (tmp_path / "bad.parquet").write_text("PAR1 junk")
    with pytest.raises(DataError, match="no row in it"):
        sniff(tmp_path / "head.csv")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        sniff(tmp_path / "bad.parquet")


def test_cases_of_scans_are_counted_without_their_masks_channels_and_the_test_set(tmp_path):
    def put(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()

    put("nnunet/dataset.json", "nnunet/imagesTs/z_0000.nii.gz")
    put(*(f"nnunet/imagesTr/c{n}_{k:04d}.nii.gz" for n in range(3) for k in range(2)))
    put(*(f"nnunet/labelsTr/c{n}.nii.gz" for n in range(3)))
    put(*(f"plain/{kind}/sub-1/scan_{n:04d}.nii" for kind in ("images", "masks") for n in range(4)))
    put(*(f"dicom/{label}/p{n}/{k}.dcm" for label in "ab" for n in range(2) for k in range(5)))
    put(*(f"new/p{n}/{k}.IMA" for n in range(2) for k in range(5)))
    found = [sniff(tmp_path / name) for name in ("nnunet", "plain", "dicom", "new")]
    assert [(each.type, each.num_rows, each.task) for each in found] == [
        ("medical", 3, "segmentation"),
        ("medical", 4, "segmentation"),
        ("medical", 4, "classification"),
        ("medical", 2, None),
    ]
