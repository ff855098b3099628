"""Files that declare or unpack to more than fits: refused by what they say, before the memory is taken."""

import gzip
import importlib
import json
import struct
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from domains.medical import dicom
from domains.medical.volumes import VolumeError, read_image
from domains.shared import frames
from domains.shared.weights import read_tensors
from domains.sniff import sniff
from domains.text import conll
from trainers.errors import DataError

nib = pytest.importorskip("nibabel")


def with_shape(source, target, shape, packed):
    """The NIfTI file `source` with another shape in its header."""
    raw = bytearray(source.read_bytes())
    struct.pack_into("<8h", raw, 40, len(shape), *shape, *[1] * (7 - len(shape)))
    target.write_bytes(gzip.compress(bytes(raw)) if packed else bytes(raw))
    return target


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("shape", [(32767, 32767, 32767), (2000, 2000, 500)])
def test_a_scan_whose_file_cannot_hold_its_voxels_is_named_with_what_it_declares(shape, packed, tmp_path):
    plain = tmp_path / "plain.nii"
    nib.save(nib.Nifti1Image(np.zeros((4, 4, 4), np.float32), np.eye(4)), plain)
    path = with_shape(plain, tmp_path / ("c.nii.gz" if packed else "c.nii"), shape, packed)
    tracemalloc.start()
    with pytest.raises(VolumeError, match=f"declares {' x '.join(map(str, shape))} voxels, .* cannot hold them"):
        read_image([path])
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def test_a_scan_of_zeros_that_packs_a_thousandfold_is_read(tmp_path):
    path = tmp_path / "zeros.nii.gz"
    nib.save(nib.Nifti1Image(np.zeros((160, 160, 160), np.uint8), np.eye(4)), tmp_path / "zeros.nii")
    path.write_bytes(gzip.compress((tmp_path / "zeros.nii").read_bytes(), compresslevel=9))
    assert path.stat().st_size * 500 < 160**3
    assert read_image([path]).array.shape == (1, 160, 160, 160)


def test_a_slice_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path):
    pydicom = pytest.importorskip("pydicom")
    found = pydicom.Dataset()
    found.file_meta = pydicom.dataset.FileMetaDataset()
    found.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    found.file_meta.MediaStorageSOPClassUID = found.SOPClassUID = pydicom.uid.CTImageStorage
    found.file_meta.MediaStorageSOPInstanceUID = found.SOPInstanceUID = "1.2.4"
    found.SeriesInstanceUID, found.Rows, found.Columns = "1.2.3", 60_000, 60_000
    found.ImagePositionPatient, found.ImageOrientationPatient = [0, 0, 0], [1, 0, 0, 0, 1, 0]
    found.PixelSpacing, found.PixelData = [1, 1], b"\0\0"
    found["PixelData"].VR = "OW"
    found.save_as(tmp_path / "x.dcm", enforce_file_format=True)
    with pytest.raises(dicom.SeriesError, match=r"x\.dcm declares 60000 x 60000"):
        dicom.read_series(tmp_path)


def test_a_parquet_file_of_more_cells_than_memory_is_refused_by_its_own_count(tmp_path, monkeypatch):
    pd.DataFrame({"a": np.zeros(100_000), "b": np.zeros(100_000)}).to_parquet(tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 100_000
    assert len(frames.read_frame(tmp_path / "t.parquet").frame) == 100_000
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 300}.get)
    with pytest.raises(DataError, match=r"declares 100,000 rows of 2 columns, at least .* GiB"):
        frames.read_frame(tmp_path / "t.parquet")


def test_the_head_of_a_packed_file_without_line_ends_is_looked_at_in_pieces(tmp_path, monkeypatch):
    path = tmp_path / "train.txt.gz"
    path.write_bytes(gzip.compress(b"a" * (64 << 20), compresslevel=1))
    monkeypatch.setattr("domains.sniff._LONGEST_LINE", 1 << 20)
    tracemalloc.start()
    assert not conll._looks_tagged(path)
    sniff(path)
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()


def test_fasta_and_sentences_are_counted_as_they_pass(tmp_path):
    (tmp_path / "s.fasta").write_text(">a\nMKTAYIAKQR\n>b\nMKTAYIAKQRA\nCD\n")
    (tmp_path / "s.conll").write_text("\n\nEU B-ORG\nrejects O\n\n\nPeter B-PER\n")
    assert sniff(tmp_path / "s.fasta").num_rows == 2
    assert sniff(tmp_path / "s.fasta").type == "proteins"
    assert sniff(tmp_path / "s.conll").num_rows == 2


def lying(kind):
    """Bytes of a safetensors file whose header promises what the file does not hold."""
    where = {"overlap": [[0, 16], [8, 24]], "outside": [[0, 16], [16, 1 << 40]], "reversed": [[0, 16], [32, 16]]}
    if kind == "huge header":
        return struct.pack("<Q", 1 << 62) + b"{}"
    entries = {
        name: {"dtype": "F32", "shape": [4], "data_offsets": at} for name, at in zip("ab", where[kind], strict=True)
    }
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 32


@pytest.mark.parametrize("kind", ["huge header", "overlap", "outside", "reversed"])
def test_a_safetensors_file_that_lies_is_named_and_takes_no_memory(kind, tmp_path):
    path = tmp_path / "lie.safetensors"
    path.write_bytes(lying(kind))
    importlib.import_module("safetensors.torch")  # or its import would be counted
    tracemalloc.start()
    with pytest.raises(DataError, match=r"lie\.safetensors: not a readable safetensors file"):
        read_tensors(path)
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()
