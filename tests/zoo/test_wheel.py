"""A wheel in an empty environment recommends from any folder."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(_ROOT)], out)
    (found,) = out.glob("*.whl")
    return found


def run(command: list[str], folder: Path) -> str:
    """Run a command away from the repository, with no path into it."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_wheel_holds_the_three_packages_and_the_registry(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "zoo/registry.yaml" in names
    assert {"zoo", "domains", "trainers"} <= {name.partition("/")[0] for name in names}
    assert not [name for name in names if name.startswith(("tests", "benchmarks"))]


def test_an_installed_wheel_recommends_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    run([sys.executable, "-m", "venv", str(tmp_path / "env")], tmp_path)
    binaries = tmp_path / "env" / ("Scripts" if sys.platform == "win32" else "bin")
    run([str(binaries / "python"), "-m", "pip", "install", "--quiet", str(wheel)], tmp_path)
    answer = json.loads(
        run([str(binaries / "zoo"), "recommend", "--type", "proteins", "--n", "20000", "--json"], tmp_path)
    )
    assert answer["recipe"] == "proteins/esm2-finetune"
    assert run([str(binaries / "zoo"), "list", "--status", "ready"], tmp_path)
