"""Packed folders: read like folders, and refused by name where a member is anything but a file inside."""

import io
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from domains.contract import Request
from domains.images import data
from domains.shared import archives
from trainers.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))


def picture(seed):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (12, 12, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def packed(path, members):
    """Write {name: bytes} as tar or zip."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("name", ["p.tar", "p.tgz", "p.zip"])
def test_class_folders_in_an_archive_are_read_with_their_given_parts(tmp_path, name):
    members = {f"all/{part}/{kind}/{i}.png": picture([len(part), ord(kind), i])
               for part in ("train", "test") for kind in "ab" for i in range(3)}  # fmt: skip
    reading = data.read(packed(tmp_path / name, members), Request())
    assert len(reading.table) == 12
    assert sorted(set(reading.table.target())) == ["a", "b"]
    assert data.keys(reading.table, "classification", Request(), fast=False).rule == "given"
    assert data.read(tmp_path / name, Request()).table.context["root"] == reading.table.context["root"]


def test_a_file_that_was_lost_from_the_cache_is_unpacked_again(tmp_path):
    path = packed(tmp_path / "p.tar", {"a/1.png": picture(1), "b/1.png": picture(2)})
    lost = archives.unpacked(path) / "a" / "1.png"
    lost.write_bytes(b"")
    assert (archives.unpacked(path) / "a" / "1.png").read_bytes() == picture(1)


@pytest.mark.parametrize("name", ["../../out.png", "/tmp/out.png", "a/../../out.png", "..\\out.png"])
@pytest.mark.parametrize("suffix", ["tar", "zip"])
def test_a_member_that_leads_out_is_named_and_nothing_is_unpacked(tmp_path, name, suffix):
    path = packed(tmp_path / f"p.{suffix}", {"a/1.png": picture(1), name: b"x"})
    with pytest.raises(DataError, match=r"out\.png' leads out of the folder. Nothing was unpacked"):
        data.read(path, Request())
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == [path.name]


@pytest.mark.parametrize(
    ("kind", "says"), [(tarfile.SYMTYPE, "link"), (tarfile.LNKTYPE, "link"), (tarfile.FIFOTYPE, "file")]
)
def test_links_and_devices_are_refused(tmp_path, kind, says):
    with tarfile.open(tmp_path / "p.tar", "w") as archive:
        info = tarfile.TarInfo("a/odd")
        info.type, info.linkname = kind, "../.."
        archive.addfile(info)
    with pytest.raises(DataError, match=f"'a/odd' is (a|no) {says}"):
        archives.unpacked(tmp_path / "p.tar")


def test_a_link_in_a_zip_is_refused(tmp_path):
    info = zipfile.ZipInfo("a/link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        archive.writestr(info, "../..")
    with pytest.raises(DataError, match="'a/link' is a link"):
        archives.unpacked(tmp_path / "p.zip")


def test_a_bomb_is_refused_by_its_declared_size(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "FREE_UNPACKED_BYTES", 1000)
    path = tmp_path / "p.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/1.png", b"\0" * 5_000_000)
    with pytest.raises(DataError, match="like a bomb"):
        archives.unpacked(path)
    assert not (tmp_path / "cache").exists()


def test_a_broken_or_empty_archive_is_said_to_be_one(tmp_path):
    (tmp_path / "p.tar").write_bytes(b"no tar at all")
    with pytest.raises(DataError, match="cannot be unpacked"):
        archives.unpacked(tmp_path / "p.tar")
    with pytest.raises(DataError, match="no file in this archive"):
        archives.unpacked(packed(tmp_path / "q.tar", {}))
