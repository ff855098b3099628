"""Weights are found by folder or file, never unpickled freely, and a missing one names the command that fetches it."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from domains.shared.weights import looks_like_path, read_tensors, resolve, resolve_reference
from trainers.errors import DataError, MissingError, UsageError


class Evil:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return (os.mkdir, (str(self.canary),))


@pytest.fixture
def folder(tmp_path):
    save_file({"a": torch.arange(3.0)}, tmp_path / "model.safetensors")
    return tmp_path


def test_a_folder_gives_its_safetensors_even_beside_pickled_ones(folder):
    torch.save({"a": torch.zeros(3)}, folder / "pytorch_model.bin")
    assert [file.name for file in resolve(str(folder)).files] == ["model.safetensors"]


def test_the_hash_is_that_of_the_file(folder):
    import hashlib

    expected = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert resolve(str(folder)).sha256 == resolve(str(folder / "model.safetensors")).sha256 == expected


def test_a_misspelt_path_is_offered_its_neighbour(folder):
    with pytest.raises(
        MissingError, match=r"model\.safetensor: no such file.*Did you mean model\.safetensors"
    ) as error:
        resolve(str(folder / "model.safetensor"))
    assert error.value.exit_code == 6


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(MissingError, match=r"no \*\.safetensors"):
        resolve(str(tmp_path))


def test_a_hub_id_that_cannot_be_fetched_names_the_command(monkeypatch):
    import huggingface_hub

    def offline(*_, **__):
        raise huggingface_hub.errors.LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(MissingError, match="hf download owner/name"):
        resolve("owner/name")


def test_a_hub_id_in_the_cache_is_not_asked_for_over_the_network(folder, monkeypatch):
    import huggingface_hub

    asked = []

    def cached(spec, **options):
        asked.append(options["local_files_only"])
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    weights = resolve("owner/name")
    assert (weights.path, weights.revision, asked) == (folder, folder.name, [True])


def test_text_that_is_neither_id_nor_path_is_a_usage_error():
    with pytest.raises(UsageError, match="no hub id"):
        resolve("not an id")


@pytest.mark.parametrize("spec", ["./x", "~/x", "/x", "a/b/c", "x.pt"])
def test_what_can_only_be_a_path_is_not_looked_for_on_the_hub(spec):
    assert looks_like_path(spec)


def test_a_pickle_that_wants_to_run_code_is_refused_and_does_not_run(tmp_path):
    canary, path = tmp_path / "canary", tmp_path / "evil.pt"
    torch.save({"model": Evil(canary)}, path)
    plain = tmp_path / "plain.pt"
    plain.write_bytes(pickle.dumps(Evil(canary)))
    for file in (path, plain):
        with pytest.raises(DataError, match=file.name) as caught:
            read_tensors(file)
        assert "weights_only" not in str(caught.value)  # torch's advice is to run the code
    assert not canary.exists()


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8, (10**12).to_bytes(8, "little") + b"{}", (4).to_bytes(8, "little") + b"{}  "]
)
def test_a_safetensors_file_that_lies_is_named(tmp_path, content):
    path = tmp_path / "lies.safetensors"
    path.write_bytes(content + (b"" if content[8:] == b"{}  " else b"x"))
    if content[8:] == b"{}  ":
        assert read_tensors(path) == {}
        return
    with pytest.raises(DataError, match=r"lies\.safetensors"):
        read_tensors(path)


def test_tensors_come_back_from_both_formats(folder):
    torch.save({"state_dict": {"a": torch.arange(3.0)}}, folder / "old.pt")
    assert torch.equal(read_tensors(folder / "old.pt")["a"], read_tensors(folder / "model.safetensors")["a"])


def test_a_reference_to_weights_that_changed_is_refused(folder):
    reference = resolve(str(folder)).reference()
    assert resolve_reference(reference).path == folder.resolve()
    save_file({"a": torch.ones(3)}, folder / "model.safetensors")
    with pytest.raises(MissingError, match="not the weights"):
        resolve_reference(reference)


def test_an_empty_file_of_weights_is_named(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.pt: not a readable PyTorch file"):
        read_tensors(tmp_path / "a.pt")


def test_tensors_without_names_are_no_weights(tmp_path):
    torch.save({1: torch.zeros(2)}, tmp_path / "a.pt")
    with pytest.raises(DataError, match="no table of named tensors"):
        read_tensors(tmp_path / "a.pt")
