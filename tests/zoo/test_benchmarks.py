"""The scripts in benchmarks/ take from the packages only what is there: nothing runs them between two releases."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))
OURS = ("domains", "trainers", "zoo")


def taken_from_us(script: Path) -> list[tuple[str, str]]:
    """(module, name) of every import from one of our packages."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return [(node.module, name.name) for node in imports if node.module.split(".")[0] in OURS for name in node.names]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_a_script_imports_from_us_exists(script):
    for module, name in taken_from_us(script):
        found = importlib.import_module(module)
        assert hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}"), f"{module} has no {name}"


def test_there_are_scripts_to_look_at():
    assert sum(len(taken_from_us(script)) for script in SCRIPTS) > 20
