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


def write_shard(path, names, *, labels=".cls", start=0):
    with tarfile.open(path, "w") as bundle:
        for i, colour in enumerate(names):
            beside = colour if labels == ".cls" else json.dumps({"colour": colour, "size": i})
            for name, content in (
                (f"{start + i:06d}.png", picture(colour, i)),
                (f"{start + i:06d}{labels}", beside.encode()),
            ):
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


@pytest.mark.parametrize(("labels", "target"), [(".cls", "label"), (".json", "colour")])
def test_a_webdataset_shard_reads_its_labels_from_beside_the_pictures(labels, target, tmp_path):
    colours = ["red", "blue", "blue", "red"]
    path = write_shard(tmp_path / "a.tar", colours, labels=labels)
    reading = data.read(path, Request(target=target))
    assert reading.table.target().tolist() == colours
    assert list(reading.table.ids) == [f"{i:06d}.png" for i in range(4)]


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
