"""Pictures in Parquet files as the `datasets` library writes them, and in tar shards with their labels beside them."""

import io
import json
import tarfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from domains.contract import Request
from domains.images import data
from trainers.errors import DataError
from zoo import run

COLOURS = {"red": (200, 30, 30), "blue": (30, 30, 200)}
TINY = {
    "options.network": "test_efficientnet",
    "options.weights": "none",
    "options.image_size": 32,
    "train.epochs": 1,
    "train.compile": "off",
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))


def picture(colour, seed, kind="PNG"):
    noise = np.random.default_rng(seed).integers(0, 50, (12, 12, 3))
    buffer = io.BytesIO()
    Image.fromarray((np.array(COLOURS[colour]) + noise).astype(np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def write_parquet(path, num=6, names=("red", "blue"), start=0):
    """As `datasets.Dataset.to_parquet` does: a struct of bytes and path, numbers of classes, names in the metadata."""
    labels = [i % 2 for i in range(num)]
    cells = [{"bytes": picture(names[label], start + i), "path": "../x.png"} for i, label in enumerate(labels)]
    table = pa.table({"image": cells, "label": labels, "patient": [f"p{start + i // 2}" for i in range(num)]})
    noted = {
        "info": {"features": {"label": {"names": list(names), "_type": "ClassLabel"}, "image": {"_type": "Image"}}}
    }
    parquet.write_table(table.replace_schema_metadata({"huggingface": json.dumps(noted)}), path)
    return path


def write_shard(path, samples, *, start=0):
    """samples: colours, or mappings from the ends of names to contents."""
    members = []
    for i, sample in enumerate(samples):
        parts = {".png": picture(sample, i), ".cls": sample} if isinstance(sample, str) else sample
        members += [(f"{start + i:06d}{end}", content) for end, content in parts.items()]
    return write_tar(path, members)


def write_tar(path, members):
    with tarfile.open(path, "w") as bundle:
        for name, content in members:
            content = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            bundle.addfile(entry, io.BytesIO(content))
    return path


def test_parquet_with_bytes_reads_with_the_names_of_its_classes(tmp_path):
    reading = data.read(write_parquet(tmp_path / "a.parquet"), Request(target="label"))
    assert reading.bad == ()
    assert reading.table.target().tolist() == ["red", "blue"] * 3
    assert [file.suffix for file in reading.files] == [".png"] * 6
    first = np.asarray(Image.open(reading.files[0]).convert("RGB"))
    np.testing.assert_array_equal(first, np.asarray(Image.open(io.BytesIO(picture("red", 0)))))
    assert not (tmp_path / "x.png").exists()  # what the file calls its pictures is no place to write to


def test_a_folder_of_parquet_files_keeps_the_parts_that_their_names_say(tmp_path):
    (tmp_path / "set" / "data").mkdir(parents=True)
    (tmp_path / "set" / "README.md").write_text("a card")
    for start, name in enumerate(("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001")):
        write_parquet(tmp_path / "set" / "data" / f"{name}.parquet", start=100 * start)
    table = data.read(tmp_path / "set", Request(target="label")).table
    keys = data.keys(table, "classification", Request(target="label"), fast=False)
    assert list(keys.given) == ["test"] * 6 + ["train"] * 12


def test_cells_without_a_picture_and_with_a_broken_one_are_bad_rows(tmp_path):
    cells = [{"bytes": picture("red", 0)}, {"bytes": None}, {"bytes": b"nothing"}, {"bytes": picture("blue", 1)}]
    parquet.write_table(pa.table({"image": cells, "label": ["r", "r", "b", "b"]}), tmp_path / "a.parquet")
    bad = data.read(tmp_path / "a.parquet", Request(target="label")).bad
    assert [row.position for row in bad] == [1, 2]
    assert "not a picture" in bad[1].reason


def test_two_columns_of_pictures_and_a_broken_file_are_refused(tmp_path):
    table = pa.table({"left": [picture("red", 0)], "right": [picture("red", 1)], "label": ["r"]})
    parquet.write_table(table, tmp_path / "two.parquet")
    with pytest.raises(DataError, match="left, right"):
        data.read(tmp_path / "two.parquet", Request(target="label"))
    whole = write_parquet(tmp_path / "a.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="not a readable Parquet file"):
        data.read(tmp_path / "cut.parquet", Request(target="label"))


def test_webdataset_shards_read_their_labels_from_beside_the_pictures_in_order(tmp_path):
    colours = ["red", "blue", "blue", "red"]
    reading = data.read(write_shard(tmp_path / "a.tar", colours), Request(target="label"))
    assert reading.table.target().tolist() == colours
    assert list(reading.table.ids) == [f"{i:06d}" for i in range(4)]
    members = [
        (f"{i}{end}", content)
        for i in (10, 9)
        for end, content in ((".png", picture("red", i)), (".json", f'{{"n": {i}}}'))
    ]
    reading = data.read(write_tar(tmp_path / "b.tar", members), Request(target="n"))
    assert list(reading.table.ids) == ["10", "9"]
    assert reading.table.target().tolist() == ["10", "9"]


def test_a_label_without_a_picture_is_a_bad_row_with_the_name_that_the_shard_has(tmp_path):
    path = write_shard(tmp_path / "a.tar", ["red", {".cls": "blue"}, "blue", "red"])
    (row,) = data.read(path, Request(target="label")).bad
    assert (row.position, row.place) == (1, "a.tar 000001")


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (
            {"a.png": "", "a.cls": "x", "b.png": "", "b.left.png": "", "b.cls": "y"},
            "sample 'b' has 'b.left.png' and another",
        ),
        ({"a.png": "", "a.cls": "x", "a.json": '{"label": "y"}'}, "say 'x' and 'y' for 'label'"),
        ({"a.png": "", "a.cls": "x", "a.json": "[" * 100_000}, "a.json cannot be read"),
        ({"a.png": "", "a.cls": "x" * 2_000_000}, "2,000,000 bytes are no label"),
    ],
)
def test_ambiguous_and_broken_samples_are_refused_by_name(members, said, tmp_path):
    with pytest.raises(DataError, match=said):
        data.read(write_tar(tmp_path / "a.tar", list(members.items())), Request(target="label"))


def test_a_member_that_comes_twice_is_refused(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.png", ""), ("a.cls", "x"), ("a.cls", "y")])
    with pytest.raises(DataError, match=r"'a\.cls' and another"):
        data.read(path, Request(target="label"))


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("damage", ["cut", "header", "joined"])
def test_a_tar_that_does_not_end_as_it_should_is_refused_whatever_is_in_it(damage, labelled, tmp_path):
    name = "{}.cls" if labelled else "{}/1.png"
    members = [member for i in range(20) for member in ((f"{i}.png", picture("red", i)), (name.format(i), "red"))]
    whole = write_tar(tmp_path / "a.tar", members).read_bytes()
    with tarfile.open(tmp_path / "a.tar") as bundle:
        at = bundle.getmembers()[20].offset
    broken = {"cut": whole[: at + 77], "header": whole[:at] + b"?" * 512 + whole[at + 512 :], "joined": whole + whole}
    (tmp_path / "a.tar").write_bytes(broken[damage])
    with pytest.raises(DataError, match=r"cut off at byte|damaged, or another archive follows"):
        data.read(tmp_path / "a.tar", Request(target="label" if labelled else None))


def test_folders_inside_a_shard_say_the_parts_and_names_that_are_no_text_are_read(tmp_path):
    members = [
        (f"{part}/caf\udce9{i}{end}", content)
        for part in ("train", "test")
        for i in range(3)
        for end, content in ((".png", picture("red", i)), (".cls", "red" if i else "blue"))
    ]
    table = data.read(write_tar(tmp_path / "a.tar", members), Request(target="label")).table
    assert next(iter(table.ids)) == "train/caf\\xe90"
    assert list(table.context["parts"].values()) == ["train"] * 3 + ["test"] * 3


def test_other_data_beside_packed_files_and_files_that_differ_are_refused(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.png").write_bytes(picture("red", 0))
    write_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet with pictures inside and also cat/a\.png"):
        data.read(tmp_path, Request(target="label"))
    (tmp_path / "cat" / "a.png").unlink()
    write_parquet(tmp_path / "train.parquet", names=("blue", "red"))
    with pytest.raises(DataError, match="other columns, types or classes"):
        data.read(tmp_path, Request(target="label"))


@pytest.mark.parametrize(
    ("labels", "names", "said"),
    [
        ([0, 7], ["red", "blue"], "row 1: class 7 is none of the 2"),
        ([0, 1], ["red", "red"], "two classes of column 'label'"),
    ],
)
def test_classes_that_a_parquet_file_does_not_name_or_names_twice_are_refused(labels, names, said, tmp_path):
    cells = [{"bytes": picture("red", i)} for i in range(2)]
    noted = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    table = pa.table({"image": cells, "label": labels}).replace_schema_metadata({"huggingface": json.dumps(noted)})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=said):
        data.read(tmp_path / "a.parquet", Request(target="label"))


@pytest.mark.parametrize("noted", [b"[" * 100_000, b'{"info": {"features": ["a"]}}', b'{"info": 3}', b"\xff"])
def test_notes_of_another_form_in_a_parquet_file_say_nothing(noted, tmp_path):
    table = pa.table({"image": [picture("red", 0)] * 2, "label": ["a", "b"], "path": ["x", "y"]})
    parquet.write_table(table.replace_schema_metadata({"huggingface": noted}), tmp_path / "a.parquet")
    assert data.read(tmp_path / "a.parquet", Request(target="label")).table.target().tolist() == ["a", "b"]
    assert data.read(tmp_path / "a.parquet", Request(target="path (given)")).table.target().tolist() == ["x", "y"]


def test_a_run_on_shards_predicts_a_shard_and_a_parquet_file(tmp_path):
    (tmp_path / "shards").mkdir()
    for at in range(2):
        write_shard(tmp_path / "shards" / f"part-{at}.tar", ["red", "blue"] * 8, start=100 * at)
    done = run.train(
        "images/cnn-finetune", tmp_path / "shards", target="label", set=TINY, fast=True, out=tmp_path / "run"
    )
    new = done.predict(write_shard(tmp_path / "new.tar", ["red", "blue"]))
    assert set(new["prediction"]) <= {"red", "blue"}
    others = done.predict(write_parquet(tmp_path / "new.parquet", num=2))
    assert others["prediction"].tolist() == new["prediction"].tolist()  # the same pictures
    numbers = new.select_dtypes("number").columns
    assert len(numbers) == len(COLOURS)
    np.testing.assert_allclose(others[numbers], new[numbers], atol=1e-5)


def test_a_table_of_paths_stays_one(tmp_path):
    (tmp_path / "a.png").write_bytes(picture("red", 0))
    pd.DataFrame({"path": ["a.png"] * 2, "label": ["r", "b"]}).to_parquet(tmp_path / "rows.parquet")
    reading = data.read(tmp_path / "rows.parquet", Request(target="label"))
    assert reading.table.context["root"] == str(tmp_path)


@pytest.mark.parametrize("damage", ["swapped", "gone", "rows", "about"])
def test_a_cache_that_is_no_longer_as_it_was_written_is_made_anew(damage, tmp_path):
    path = write_parquet(tmp_path / "a.parquet")
    first = data.read(path, Request(target="label"))
    one, other = first.files[0], first.files[1]
    if damage == "swapped":
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
    else:
        {"gone": one, "rows": one.parent / "rows.parquet", "about": one.parent / "rows.json"}[damage].unlink()
    again = data.read(path, Request(target="label"))
    prints = [[found.pixels for found in reading.table.context["prints"].values()] for reading in (first, again)]
    assert prints[0] == prints[1]
    assert again.bad == ()


def test_a_parquet_file_that_unpacks_to_a_multiple_of_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("domains.images.packed.FREE_UNPACKED_BYTES", 0)
    table = pa.table({"image": [picture("red", 0)] * 3000, "label": ["r", "b"] * 1500})
    parquet.write_table(table, tmp_path / "same.parquet", compression="zstd")
    with pytest.raises(DataError, match="like a bomb"):
        data.read(tmp_path / "same.parquet", Request(target="label"))
