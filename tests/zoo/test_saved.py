"""The run folder: never overwritten, sealed with hashes, verified before it is trusted."""

import json
import os
import pickle
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainers.errors import DataError, UsageError
from zoo import run, saved


def sealed(folder):
    saved.write_json(folder / "plan.json", {"recipe": "tabular/xgboost"})
    saved.write_text(folder / "model" / "weights.txt", "1 2 3")
    saved.seal(folder)
    return folder


def test_a_sealed_folder_verifies(tmp_path):
    saved.verify(sealed(tmp_path))


def test_every_flipped_byte_in_any_file_is_detected(tmp_path):
    folder, rng = sealed(tmp_path), random.Random(0)
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        good = path.read_bytes()
        for _ in range(100):
            bad = bytearray(good)
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
            path.write_bytes(bytes(bad))
            try:
                saved.verify(folder)
            except (DataError, UsageError):
                continue
            # Harmless: white space or escapes that mean the same JSON.
            assert path.name == saved.COMPLETE
            assert json.loads(bytes(bad)) == json.loads(good)
        path.write_bytes(good)


def test_a_missing_file_is_named(tmp_path):
    sealed(tmp_path)
    (tmp_path / "model" / "weights.txt").unlink()
    with pytest.raises(DataError, match=r"weights\.txt: changed or missing"):
        saved.verify(tmp_path)


def test_an_unfinished_run_says_how_to_go_on(tmp_path):
    saved.write_json(tmp_path / "plan.json", {})
    with pytest.raises(UsageError, match="zoo resume"):
        saved.verify(tmp_path)


def test_a_folder_with_content_is_never_overwritten(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UsageError, match="never overwritten"):
        saved.new_folder("tabular/xgboost", tmp_path)


def test_of_two_runs_that_begin_in_one_folder_the_second_is_refused_and_the_first_untouched(tmp_path):
    (tmp_path / "run").mkdir()  # empty, as a user may have made it
    first = saved.new_folder("tabular/xgboost", tmp_path / "run")
    with pytest.raises(UsageError, match="Choose another --out"):
        saved.new_folder("tabular/xgboost", tmp_path / "run")
    assert first.is_dir()


def test_of_two_runs_that_both_saw_an_empty_folder_one_gets_it(tmp_path, monkeypatch):
    saved.new_folder("tabular/xgboost", tmp_path / "run")
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(()))  # what the second saw a moment earlier
    with pytest.raises(UsageError, match="has just begun there"):
        saved.new_folder("tabular/xgboost", tmp_path / "run")


def test_runs_started_at_the_same_moment_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: saved.new_folder("tabular/xgboost", None), range(16)))
    assert len(set(folders)) == 16


def test_a_second_process_in_the_same_run_is_refused(tmp_path):
    code = f"from pathlib import Path; from zoo import saved\nwith saved.locked(Path({str(tmp_path)!r})): print('in')"
    with saved.locked(tmp_path):
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "another process" in found.stderr


def test_who_is_refused_a_new_run_leaves_the_folder_to_the_process_that_trains_in_it(tmp_path):
    folder = saved.new_folder("tabular/xgboost", tmp_path / "run")
    with saved.locked(folder), pytest.raises(UsageError, match="another process"), run._locked(folder, is_new=True):
        pass
    assert folder.is_dir()


def test_nan_is_never_written_as_json(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        saved.write_json(tmp_path / "x.json", {"auc": float("nan")})
    assert not list(tmp_path.iterdir())


def test_runs_that_end_at_once_write_one_header_and_a_line_each(tmp_path):
    together = threading.Barrier(8)

    def end(name):
        together.wait()
        saved.append_experiment(tmp_path / name, {"run": name, "note": f"two\nlines {name}"})

    threads = [threading.Thread(target=end, args=(f"r{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    header, *lines = (tmp_path / "experiments.tsv").read_text().splitlines()
    assert header == "run\tnote"
    assert sorted(lines) == [f"r{i}\ttwo lines r{i}" for i in range(8)]


class Canary:
    """Makes a folder where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("CANARY",)


def test_a_folder_of_pickles_is_no_run_and_nothing_in_it_is_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for name in ("checkpoint.pkl", "model.pt", "encoder.joblib"):
        (tmp_path / "run" / name).write_bytes(pickle.dumps(Canary()))
    for act in (run.load, run.resume):
        for place in ("run", "run/model.pt"):
            with pytest.raises(UsageError, match=r"run"):
                act(tmp_path / place)
    assert not (tmp_path / "CANARY").exists()


@pytest.mark.parametrize("text", ["[" * 200_000, "{", "\xff"])
def test_json_of_a_run_that_cannot_be_read_is_named(text, tmp_path):
    (tmp_path / "complete.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"complete\.json: not readable as JSON"):
        saved.read_json(tmp_path / "complete.json")
