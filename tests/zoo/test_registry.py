"""registry.yaml is read strictly, and `zoo check` finds what is wrong with it as a whole."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainers.errors import UsageError
from zoo.check import check_registry, structure_problems
from zoo.registry import load_registry, read_registry, registry_from_tree, registry_path
from zoo.registry_yaml import checked_tree

SMALL = """
types:
  beans: {unit: bean, about: beans, tasks: [sorting]}
cells:
  beans:
    - {task: any, below: 10, recipe: beans/slow, runner_up: beans/fast, choose_runner_up_if: hurried, because: few,
       evidence: [{source: bean2020, where: abstract, says: "slow is fine"}]}
    - {task: any, recipe: beans/fast, because: many, evidence: [{source: bean2020, where: abstract, says: "fast is fine"}]}
recipes:
  _base: {train: {trainer: trees, depth: 3, deep: {a: 1, b: 2}}}
  beans/slow: {extends: _base, status: planned, about: slow, tasks: [sorting], train: {deep: {b: 3}}}
  beans/fast: {extends: beans/slow, status: planned, about: fast, tasks: [sorting], train: {depth: 4}}
sources:
  bean2020: {title: "Beans, sorted", url: "https://example.org/beans", year: 2020}
"""


def read(text: str) -> Any:
    return registry_from_tree(checked_tree(text.encode(), "beans.yaml"))


def small(**changes: Any) -> dict[str, Any]:
    """SMALL as plain values, a dotted path of it changed (dots written as __)."""
    tree = copy.deepcopy(yaml.safe_load(SMALL))
    for path, value in changes.items():
        *parents, last = path.split("__")
        node = tree
        for step in parents:
            node = node[int(step)] if step.isdigit() else node[step]
        if value is None:
            del node[last]
        else:
            node[last] = value
    return tree


def problems(tree: dict[str, Any]) -> str:
    return "\n".join(structure_problems(read(yaml.safe_dump(tree))))


def test_the_registry_of_this_project_has_no_problem() -> None:
    registry = load_registry()
    assert [*structure_problems(registry)] == []
    assert len(registry.types) >= 12


def test_check_counts_everything_and_looks_into_every_ready_recipe() -> None:
    report = check_registry(load_registry())
    assert report.problems == ()
    assert report.counts["recipes_ready"] == report.counts["options_checked"] + len(report.not_checked) >= 5


def test_settings_are_inherited_through_every_parent_and_merged_deeply() -> None:
    registry = read(SMALL)
    assert registry.get("beans/slow").train == {"trainer": "trees", "depth": 3, "deep": {"a": 1, "b": 3}}
    assert registry.get("beans/fast").train == {"trainer": "trees", "depth": 4, "deep": {"a": 1, "b": 3}}


def test_bases_are_no_recipes() -> None:
    with pytest.raises(UsageError, match="unknown recipe '_base'"):
        read(SMALL).get("_base")


def test_training_a_planned_recipe_names_the_nearest_ready_one() -> None:
    with pytest.raises(UsageError, match=r"planned, not built yet\. The nearest ready recipe is genomics/nucleotide"):
        load_registry().ready("genomics/dnabert2-finetune")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("depth: 3", "depth: 3e-4", r"line 10, recipes._base.train.depth: YAML reads 3e-4 as text. Write 0.0003"),
        ("depth: 3", "depth: 2e-5", r"Write 2.0e-5"),
        ("depth: 3", "depth: 1e30", r"Write 1.0e\+30"),
        ("depth: 3", "depth: no", "as a truth value"),
        ("depth: 3", "depth: 017", "another base"),
        ("depth: 3", "depth: 1:30", "another base"),
        ("depth: 3", "depth: .nan", "no finite decimal number"),
        ("depth: 3", "depth: ~", "is read as null"),
        ("depth: 3", "depth: 2020-01-01", "is read as timestamp"),
        ("depth: 3", "depth: 3, depth: 4", "this key occurs twice"),
        ("depth: 3", "depth: &a 3, width: *a", "an alias"),
        ("depth: 3", "depth: !!python/name:os.system ''", "is read as"),
        ("depth: 3", "depth: !secret 3", "is read as"),
        ("deep: {a: 1, b: 2}", "<<: {a: 1}", "is not text"),
        ("depth: 3", "3: 4", "the key '3' is not text"),
        ("year: 2020", "year: '2020'", "sources.bean2020.year: Input should be a valid integer"),
        ("about: slow", "abuot: slow", "abuot: unknown key. Did you mean about"),
        ("status: planned, about: slow", "status: redy, about: slow", "Input should be 'ready' or 'planned'"),
        ("status: planned, about: slow", "status: ready, about: slow", "ready, but names no module"),
        ("about: slow", "about: slow, module: os.path", "does not lie in `domains.`"),
        ("about: slow", "about: slow, module: domains.x;y", "is no module name"),
        ("extends: _base", "extends: _bsae", "no entry '_bsae'. Did you mean _base"),
        ("extends: _base", "extends: beans/fast", "goes round in a circle"),
        ("{train: {trainer", "{status: ready, train: {trainer", "recipes._base.status: unknown key"),
        ("types:", "typos:", "types: missing"),
    ],
)
def test_traps_of_yaml_and_typos_are_errors_that_name_the_key(old: str, new: str, says: str) -> None:
    assert old in SMALL
    with pytest.raises(UsageError, match=says):
        read(SMALL.replace(old, new, 1))


@pytest.mark.parametrize("content", [b"", b"a: [", b"\xff\xfe", b"- 1", b"a: b\n---\nc: d", b"{}", b"a: \x00"])
def test_files_that_are_no_registry_are_refused_with_their_name(content: bytes) -> None:
    with pytest.raises(UsageError, match=r"beans\.yaml: "):
        checked_tree(content, "beans.yaml")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_number_that_an_error_proposes_is_read_as_that_number(number: float) -> None:
    from zoo.registry_yaml import _yaml_float

    assert yaml.safe_load(_yaml_float(number)) == number


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cells__beans__1__below": 20}, "no cell for n = 20 and task sorting"),
        ({"cells__beans__0__below": None}, r"cells.beans\[1\] .*can never fire"),
        ({"cells__beans__1__recipe": "beans/fats"}, "no recipe 'beans/fats'"),
        ({"cells__beans__1__evidence": []}, "no evidence"),
        ({"cells__beans__0__choose_runner_up_if": None}, "belong together"),
        ({"cells__beans__0__task": ["cooking"]}, "'cooking' is no task"),
        ({"cells__bones": []}, "cells.bones: missing in types"),
        ({"recipes__beans/fast__tasks": ["counting"]}, "beans/fast does not do sorting"),
        ({"recipes___idle": {"train": {}}}, "recipes._idle: a base that nothing extends"),
        ({"sources__bean2021": {"title": "More beans", "url": "https://example.org", "year": 2021}}, "nobody cites it"),
        ({"sources__bean2020__url": None}, "a paper needs a url"),
        ({"cells__beans__0__evidence__0__source": "bean1999"}, "no source 'bean1999'"),
    ],
)
def test_check_finds_what_only_the_whole_shows(changes: dict, says: str) -> None:
    import re

    assert problems(small()) == ""
    assert re.search(says, problems(small(**changes)))


def test_a_cache_gives_the_same_registry_as_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    written, cached = (read_registry(registry_path(), cache=True) for _ in range(2))
    assert len(list(tmp_path.rglob("*.json"))) == 1
    assert written == cached == read_registry(registry_path())


def test_a_damaged_cache_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "beans.yaml"
    file.write_text(SMALL)
    whole = read_registry(file, cache=True)
    (cached,) = (tmp_path / "cache").rglob("*.json")
    content = cached.read_bytes()
    for position in range(0, len(content), 7):
        cached.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        assert read_registry(file, cache=True) == whole
    cached.write_bytes(b"")
    assert read_registry(file, cache=True) == whole


def test_a_changed_file_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "beans.yaml"
    file.write_text(SMALL)
    read_registry(file, cache=True)
    file.write_text(SMALL.replace("about: slow", "about: slower"))
    assert read_registry(file, cache=True).get("beans/slow").about == "slower"


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert read_registry(registry_path(), cache=True).recipes
