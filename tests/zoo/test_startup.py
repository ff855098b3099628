"""Verbs that only look things up start fast: nothing heavy is imported, and CPU time is bounded."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_RECOMMEND = ["recommend", "--type", "proteins", "--n", "20000"]
_HEAVY = ("torch", "numpy", "pandas", "sklearn", "transformers", "xgboost")
# 0.30 is the goal on an idle machine (see the benchmark in the README); twice that here, as test machines are noisy.
_CPU_SECONDS = 0.6
_STARTS = 10

_SPY = f"""
import sys
from zoo.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert stop.code == 0, stop.code
print([name for name in {_HEAVY!r} if name in sys.modules], [n for n in ("yaml", "pydantic") if n in sys.modules])
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment whose cache is empty, and where the package is found without being installed."""
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(_ROOT)}


def run(arguments: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["list"], ["show", "proteins/esm2-finetune"], ["doctor"], _RECOMMEND, [*_RECOMMEND, "--json"]],
)
def test_looking_things_up_never_imports_torch_numpy_or_pandas(
    arguments: list[str], environment: dict[str, str]
) -> None:
    for _ in range(2):  # without and with the cache
        assert run(["-c", _SPY, *arguments], environment).splitlines()[-1].startswith("[] ")


def test_recommending_from_python_imports_nothing_heavy_either(environment: dict[str, str]) -> None:
    spy = f"import sys, zoo; zoo.recommend('proteins', n=1); print([n for n in {_HEAVY!r} if n in sys.modules])"
    assert run(["-c", spy], environment).strip() == "[]"


def test_ten_starts_of_recommend_stay_within_their_cpu_time(environment: dict[str, str], record_property: Any) -> None:
    command = ["-m", "zoo.cli", *_RECOMMEND]
    run(command, environment)  # fills the cache
    spent = []
    for _ in range(_STARTS):
        before = os.times()
        run(command, environment)
        after = os.times()
        spent.append(after.children_user + after.children_system - before.children_user - before.children_system)
    median = statistics.median(spent)
    record_property("median_cpu_seconds", median)
    print(f"median of {_STARTS} starts: {median:.2f} CPU-seconds ({min(spent):.2f} to {max(spent):.2f})")
    assert median <= _CPU_SECONDS


_BAD_DATA = """
import sys
import zoo
from trainers.errors import DataError
for recipe, data, target in json.loads(sys.argv[1]):
    try:
        zoo.train(recipe, data, target=target, out=sys.argv[2])
    except DataError as error:
        assert "1 of 3 rows cannot be used" in str(error), error
    else:
        raise SystemExit(f"{recipe} accepted it")
print([name for name in ("torch", "timm", "monai", "transformers", "xgboost") if name in sys.modules])
"""


def test_data_that_cannot_be_used_are_refused_before_anything_heavy_is_imported(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Half a second and 200 MiB instead of seconds and a gigabyte, for what is wrong most often."""
    rows = {
        "tabular/mlp": ["x,y", "1,2", "3,4", "5,"],
        "molecules/gnn-scratch": ["smiles,y", "C,1", "CC,2", "((,3"],
        "proteins/esm2-finetune": ["sequence,y", "MKV,1", "MKW,2", ",3"],
        "genomics/scratch": ["sequence,y", "ACGT,1", "AAGT,2", ",3"],
        "text/encoder-classify": ["text,y", "good,1", "bad,0", ",1"],
    }
    given = []
    for recipe, lines in rows.items():
        path = tmp_path / f"{recipe.split('/')[0]}.csv"
        path.write_text("\n".join(lines) + "\n")
        given.append((recipe, str(path), "y"))
    given.append(("images/cnn-finetune", str(_pictures(tmp_path / "pictures")), None))
    words = ["-c", f"import json{_BAD_DATA}", json.dumps(given), str(tmp_path / "run")]
    assert run(words, environment).splitlines()[-1] == "[]"


def _pictures(folder: Path) -> Path:
    """Two pictures and a broken one."""
    from PIL import Image

    folder.mkdir()
    for at, name in enumerate(("a_1.png", "b_1.png", "b_2.png")):
        (folder / name[0]).mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (at * 40, 0, 0)).save(folder / name[0] / name)
    (folder / "b" / "b_2.png").write_bytes(b"no picture")
    return folder
