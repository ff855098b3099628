"""Folders, given parts and tables of pictures: classes by name, junk said aloud, bad files named before training."""

import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from domains.contract import Doubt, Request
from domains.images import data
from domains.splits import make_split
from trainers.errors import DataError, UsageError


def picture(path: Path, seed: int, size: tuple[int, int] = (12, 10), **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return path


def classes(root: Path, names: str, each: int = 8, seed: int = 0) -> Path:
    for k, name in enumerate(names):
        for i in range(each):
            picture(root / name / f"{i}.png", seed * 10_000 + k * 100 + i)
    return root


def facts_of(reading):
    return data.describe(reading.table, reading.task, Request())


def test_junk_is_no_class_and_no_picture_and_is_listed_once(tmp_path):
    root = classes(tmp_path, "ab")
    for name in (".DS_Store", "a/Thumbs.db", "a/._0.png", "__MACOSX/a/._1.png", ".ipynb_checkpoints/0-checkpoint.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"junk")
    reading = data.read(root, Request())
    assert len(reading.table) == 16
    assert not reading.bad
    assert facts_of(reading).classes == ("a", "b")
    told = "\n".join(reading.notices)
    for name in (".DS_Store", "a/Thumbs.db", "a/._0.png", "__MACOSX/a/._1.png", ".ipynb_checkpoints/0-checkpoint.png"):
        assert told.count(name) == 1


def test_unreadable_pictures_are_all_named_and_a_wrong_suffix_is_fine(tmp_path):
    root = classes(tmp_path, "xy", each=3)
    whole = picture(root / "x" / "whole.jpg", 1, (80, 80)).read_bytes()
    (root / "x" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "y" / "empty.png").write_bytes(b"")
    (root / "y" / "page.jpg").write_text("<html>not found</html>")
    Image.new("RGB", (9, 9)).save(root / "y" / "png_inside.jpg", format="PNG")
    reading = data.read(root, Request())
    assert sorted(Path(row.place).name for row in reading.bad) == ["cut.jpg", "empty.png", "page.jpg"]
    assert all(row.reason for row in reading.bad)


def test_a_bomb_is_refused_by_its_declared_size_before_a_pixel_is_decoded(tmp_path):
    root = classes(tmp_path, "ab", each=2)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    for name, side in (("huge.png", 20_000), ("large.png", 11_000)):
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        (root / "a" / name).write_bytes(
            b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
        )
    with pytest.warns(Image.DecompressionBombWarning):
        reading = data.read(root, Request())
    reasons = {Path(row.place).name: row.reason for row in reading.bad}
    assert "400000000 pixels" in reasons["huge.png"]
    assert "11000 x 11000 pixels" in reasons["large.png"]


def test_suffixes_of_any_case_and_names_in_any_script_are_used(tmp_path):
    names = ["a.JPG", "b.Jpeg", "c.PNG", "Ünïcödé 漢字.png", "with space #1 100%.jpg", "e.webp"]
    for k, label in enumerate("pq"):
        for i, name in enumerate(names):
            picture(tmp_path / label / name, 10 * k + i)
    reading = data.read(tmp_path, Request())
    assert set(reading.table.ids) == {f"{label}/{name}" for label in "pq" for name in names}
    assert not reading.bad


def test_names_that_are_no_text_are_read_and_get_printable_ids(tmp_path):
    classes(tmp_path, "ab", each=2)
    source = (tmp_path / "a" / "0.png").read_bytes()
    try:
        Path(str(tmp_path) + "/a/caf\udce9.png").write_bytes(source)
    except OSError:
        pytest.skip("this file system has only text names")
    reading = data.read(tmp_path, Request())
    assert not reading.bad
    assert "a/caf\\xe9.png" in reading.table.ids


def test_numeric_folder_names_stay_names(tmp_path):
    for k, name in enumerate(("10", "2", "0", "1", "11")):
        picture(tmp_path / name / "x.png", k)
        picture(tmp_path / name / "y.png", 50 + k)
    reading = data.read(tmp_path, Request())
    assert facts_of(reading).classes == ("0", "1", "2", "10", "11")
    by_id = dict(zip(reading.table.ids, reading.table.target(), strict=True))
    assert by_id["10/x.png"] == "10"
    assert by_id["2/y.png"] == "2"


def test_given_parts_are_kept_and_valid_is_carved_from_train(tmp_path):
    classes(tmp_path / "train", "abc", each=20)
    classes(tmp_path / "test", "abc", each=5, seed=1)
    reading = data.read(tmp_path, Request())
    keys = data.keys(reading.table, reading.task, Request(), fast=False)
    split = make_split(keys, len(reading.table), seed=0)
    ids = np.array(reading.table.ids)
    assert split.rule == "given"
    assert all(name.startswith("test/") for name in ids[split.test])
    assert len(split.test) == 15
    assert all(name.startswith("train/") for name in ids[[*split.train, *split.valid]])
    assert len(split.valid) > 0


def test_a_column_called_split_says_the_part_of_each_row_of_a_table(tmp_path):
    places = [picture(tmp_path / f"{i}.png", i).name for i in range(24)]
    said = ["Train"] * 12 + ["val"] * 4 + ["test"] * 8
    frame = pd.DataFrame({"path": places, "label": list("ab") * 12, "split": said})
    frame.to_csv(tmp_path / "t.csv", index=False)
    reading = data.read(tmp_path / "t.csv", Request())
    keys = data.keys(reading.table, "classification", Request(), fast=True)
    split = make_split(keys, 24, seed=0)
    assert (split.rule, split.train.tolist()) == ("given", list(range(12)))
    assert (split.valid.tolist(), split.test.tolist()) == (list(range(12, 16)), list(range(16, 24)))
    assert "column 'split'" in keys.because
    frame.assign(split=["train"] * 23 + [""]).to_csv(tmp_path / "gap.csv", index=False)
    with pytest.raises(DataError, match="says nothing in 1 of 24 rows"):
        data.read(tmp_path / "gap.csv", Request())
    frame.assign(split="train").to_csv(tmp_path / "one.csv", index=False)
    assert not data.read(tmp_path / "one.csv", Request()).table.context["parts"], "one part alone is no split"
    frame.assign(split=[*said[:-1], "later"]).to_csv(tmp_path / "odd.csv", index=False)
    with pytest.raises(DataError, match=r"column 'split' names parts, but says 'later' in 1 of 24 rows"):
        data.read(tmp_path / "odd.csv", Request())
    frame.assign(path=[places[-1], *places[1:]]).to_csv(tmp_path / "twice.csv", index=False)
    with pytest.raises(DataError, match=r"puts 23.png into train and into test"):
        data.read(tmp_path / "twice.csv", Request())


def test_a_class_missing_in_valid_is_said_and_does_not_shift_the_others(tmp_path):
    classes(tmp_path / "train", "abc")
    classes(tmp_path / "val", "ac", each=3, seed=1)
    reading = data.read(tmp_path, Request())
    assert "classes of train without a picture in valid: b" in reading.notices
    by_id = dict(zip(reading.table.ids, reading.table.target(), strict=True))
    assert by_id["val/c/0.png"] == "c"


def test_evaluating_a_folder_maps_classes_by_name_and_reports_support_zero(tmp_path):
    facts = facts_of(data.read(classes(tmp_path / "train", "abc"), Request()))
    classes(tmp_path / "new", "ac", each=2, seed=3)
    picture(tmp_path / "new" / "zebra" / "0.png", 99)
    reading = data.read(tmp_path / "new", Request(target="class", facts=facts))
    assert "no picture of class 'b' here (support 0)" in reading.notices
    assert [row.reason.split(".")[0] for row in reading.bad] == ["class 'zebra' was not in the training data"]


def test_predicting_reads_any_depth_and_one_picture_and_keeps_unreadable_rows(tmp_path):
    facts = facts_of(data.read(classes(tmp_path / "train", "ab"), Request()))
    picture(tmp_path / "new" / "deep" / "er" / "1.png", 1)
    picture(tmp_path / "new" / "2.png", 2)
    (tmp_path / "new" / "3.png").write_bytes(b"")
    reading = data.read(tmp_path / "new", Request(facts=facts))
    assert list(reading.table.ids) == ["2.png", "3.png", "deep/er/1.png"]
    assert [row.position for row in reading.bad] == [1]
    one = data.read(tmp_path / "new" / "2.png", Request(facts=facts))
    assert list(one.table.ids) == ["2.png"]


def test_a_folder_called_train_beside_other_classes_is_a_class(tmp_path):
    for k, name in enumerate(("train", "car", "plane")):
        picture(tmp_path / name / "sub" / "0.png", k)
        picture(tmp_path / name / "1.png", k + 50)
    assert facts_of(data.read(tmp_path, Request())).classes == ("car", "plane", "train")


@pytest.mark.parametrize("names", ["training_set test_set", "train dev holdout", "Training Testing"])
def test_usual_words_for_parts_are_parts(tmp_path, names):
    for seed, name in enumerate(names.split()):
        classes(tmp_path / name, "rgb", each=2, seed=seed)
    reading = data.read(tmp_path, Request())
    assert set(reading.table.target()) == {"r", "g", "b"}
    assert set(reading.table.context["parts"].values()) >= {"train", "test"}


@pytest.mark.parametrize(
    ("names", "said"), [("dev holdout", "not like classes"), ("train later", "'later'|later is not")]
)
def test_folders_named_like_parts_never_become_classes(tmp_path, names, said):
    for seed, name in enumerate(names.split()):
        classes(tmp_path / name, "rgb", each=2, seed=seed)
    with pytest.raises(DataError, match=said):
        data.read(tmp_path, Request())
    for name in ("train", "test"):
        picture(tmp_path / "flat" / name / "x.png", len(name))
    with pytest.raises(DataError, match="test, train are named like parts"):
        data.read(tmp_path / "flat", Request())


def test_a_picture_outside_every_class_folder_is_a_bad_row(tmp_path):
    classes(tmp_path, "ab")
    picture(tmp_path / "stray.png", 77)
    (row,) = data.read(tmp_path, Request()).bad
    assert row.place.endswith("stray.png")
    assert "class" in row.reason


def test_a_table_may_not_leave_its_folder_not_even_by_a_link(tmp_path):
    folder = tmp_path / "data"
    inside = picture(folder / "img" / "0.png", 0)
    secret = picture(tmp_path / "secret.png", 1)
    (folder / "img" / "link.png").symlink_to(secret)
    paths = [
        "img/0.png",
        str(inside),
        "../secret.png",
        str(secret),
        "img/link.png",
        "http://127.0.0.1:9/x.png",
        "gone.png",
    ]
    table = pd.DataFrame({"image": paths, "label": list("abababa")})
    table.to_csv(folder / "train.csv", index=False)
    reading = data.read(folder / "train.csv", Request(target="label"))
    assert [row.position for row in reading.bad] == [2, 3, 4, 5, 6]
    assert reading.bad[0].place == "train.csv line 4"
    assert "../secret.png" in reading.bad[0].reason
    assert reading.bad[-1].reason == f"no such file below {folder}"


def test_several_target_columns_ask_for_the_task_that_takes_them(tmp_path):
    root = classes(tmp_path, "a")
    frame = pd.DataFrame({"path": [f"a/{i}.png" for i in range(8)], "r": [0, 1] * 4, "g": [1, 1, 0, 0] * 2})
    frame.to_csv(root / "t.csv", index=False)
    with pytest.raises(DataError, match="names 2 columns of labels: say --task multilabel"):
        data.read(root / "t.csv", Request("r,g"))


def test_a_few_labelled_pictures_are_enough_for_a_score(tmp_path):
    facts = facts_of(data.read(classes(tmp_path, "rgb"), Request()))
    pd.DataFrame({"path": ["r/0.png", "g/0.png", "b/0.png"], "class": list("rgb")}).to_csv(
        tmp_path / "t.csv", index=False
    )
    reading = data.read(tmp_path / "t.csv", Request("class", facts=facts))
    assert (reading.bad, list(reading.table.target())) == ((), ["r", "g", "b"])


def test_paths_that_lead_nowhere_say_where_was_looked_and_what_to_write(tmp_path):
    classes(tmp_path, "ab")
    pd.DataFrame({"path": ["a/0.png", "0.png", r"a\1.png"], "class": list("aba")}).to_csv(
        tmp_path / "t.csv", index=False
    )
    backslash, nowhere = sorted(
        (row.reason for row in data.read(tmp_path / "t.csv", Request(task="classification")).bad), reverse=True
    )
    assert nowhere == f"no such file below {tmp_path}"
    assert "write / for" in backslash


def test_a_table_of_paths_and_numbers_is_regression_and_ids_may_be_named(tmp_path):
    for i in range(30):
        picture(tmp_path / f"{i}.png", i)
    frame = pd.DataFrame({"file": [f"{i}.png" for i in range(30)], "age": np.linspace(0, 1, 30), "who": range(30)})
    frame.to_csv(tmp_path / "list.csv", index=False)
    reading = data.read(tmp_path / "list.csv", Request(target="age", id_column="who"))
    assert reading.task == "regression"
    assert list(reading.table.ids[:2]) == ["0", "1"]
    np.testing.assert_allclose(reading.table.target(), frame["age"])
    facts = facts_of(reading)
    again = data.read(tmp_path / "list.csv", Request(facts=facts))
    assert again.target is None
    assert again.task == "regression"


def test_a_missing_target_column_offers_the_nearest_names(tmp_path):
    picture(tmp_path / "0.png", 0)
    pd.DataFrame({"path": ["0.png"], "colour": ["red"]}).to_csv(tmp_path / "l.csv", index=False)
    with pytest.raises(DataError, match="colour"):
        data.read(tmp_path / "l.csv", Request(target="color"))


def test_copies_stay_on_one_side_and_so_does_a_recompressed_one(tmp_path):
    root = classes(tmp_path, "ab", each=20)
    rng = np.random.default_rng(5)
    smooth = Image.fromarray(rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)).resize((96, 96), Image.Resampling.BICUBIC)
    smooth.save(root / "a" / "photo.png")
    smooth.save(root / "b" / "photo.jpg", quality=90)
    (root / "a" / "copy.png").write_bytes((root / "a" / "3.png").read_bytes())
    reading = data.read(root, Request())
    keys = data.keys(reading.table, reading.task, Request(), fast=False)
    group = dict(zip(reading.table.ids, keys.group, strict=True))
    assert keys.rule == "grouped"
    assert group["a/copy.png"] == group["a/3.png"]
    assert group["a/photo.png"] == group["b/photo.jpg"]
    assert len(set(group.values())) == len(group) - 2
    assert any("copies with another target" in notice for notice in reading.notices)


def test_without_copies_the_split_is_stratified(tmp_path):
    reading = data.read(classes(tmp_path, "ab"), Request())
    keys = data.keys(reading.table, reading.task, Request(), fast=False)
    assert keys.rule == "stratified"
    assert keys.group is None


def test_copies_across_given_parts_are_reported_and_not_moved(tmp_path):
    classes(tmp_path / "train", "ab")
    classes(tmp_path / "test", "ab", seed=2)
    for copy in ("train/a/01.png", "train/a/02.png", "test/a/leak.png", "test/b/leak.png"):
        (tmp_path / copy).write_bytes((tmp_path / "train" / "a" / "0.png").read_bytes())
    picture(tmp_path / "stray.png", 99)
    reading = data.read(tmp_path, Request())
    said = " | ".join(reading.notices)
    assert "1 pictures are in more than one given part" in said
    assert "test/a/leak.png (test) = train/a/0.png (train)" in said
    assert "test/a/leak.png (a) = test/b/leak.png (b)" in said
    assert "pictures outside of every folder are not used (1)" in said
    keys = data.keys(reading.table, reading.task, Request(), fast=False)
    split = make_split(keys, len(reading.table), seed=0)
    assert "test/a/leak.png" in np.array(reading.table.ids)[split.test]


def test_a_group_column_keeps_its_rows_together(tmp_path):
    for i in range(20):
        picture(tmp_path / f"{i}.png", i)
    frame = pd.DataFrame(
        {"path": [f"{i}.png" for i in range(20)], "y": list("ab") * 10, "site": [i // 2 for i in range(20)]}
    )
    frame.to_csv(tmp_path / "l.csv", index=False)
    request = Request(target="y", group="site")
    reading = data.read(tmp_path / "l.csv", request)
    keys = data.keys(reading.table, reading.task, request, fast=False)
    assert keys.rule == "grouped"
    assert len(set(keys.group)) == 10
    facts = data.describe(reading.table, reading.task, request)
    frame[["path"]].to_csv(tmp_path / "new.csv", index=False)
    assert len(data.read(tmp_path / "new.csv", replace(request, target=None, facts=facts)).table) == 20


@pytest.mark.parametrize(
    ("request_", "error"), [(Request(task="regression"), UsageError), (Request(target="colour"), UsageError)]
)
def test_a_folder_has_no_columns_and_no_numbers(tmp_path, request_, error):
    with pytest.raises(error):
        data.read(classes(tmp_path, "ab", each=2), request_)


def test_one_class_an_empty_folder_and_a_missing_one_are_errors(tmp_path):
    with pytest.raises(DataError, match="only one class"):
        data.read(classes(tmp_path / "one", "a"), Request())
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="no picture"):
        data.read(tmp_path / "none", Request())
    with pytest.raises(DataError, match="Did you mean one"):
        data.read(tmp_path / "onee", Request())


def test_facts_survive_json_and_tables_of_them_predict(tmp_path):
    facts = facts_of(data.read(classes(tmp_path, "ab"), Request()))
    assert facts.sizes["median_short_side"] == 10
    assert type(facts).from_json(facts.as_json()) == replace(facts)


def test_folders_inside_class_folders_are_told_and_flat_folders_say_what_is_expected(tmp_path):
    for season in ("spring", "autumn"):
        for animal in ("cat", "dog"):
            (tmp_path / "nested" / season / animal).mkdir(parents=True)
            for number in range(2):
                picture(tmp_path / "nested" / season / animal / f"{number}.png", number)
    said = " ".join(data.read(tmp_path / "nested", Request()).notices)
    assert "folders inside them mean nothing (cat, dog)" in said
    assert "'cat' is in several classes" in said
    assert any(isinstance(notice, Doubt) for notice in data.read(tmp_path / "nested", Request()).notices)
    (tmp_path / "flat").mkdir()
    picture(tmp_path / "flat" / "a.png", 0)
    with pytest.raises(DataError, match=r"flat/CLASS/x\.png"):
        data.read(tmp_path / "flat", Request())
