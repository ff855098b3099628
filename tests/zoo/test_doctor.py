"""What `zoo doctor` finds: the same in the metadata as pip's own reader, and a command for whatever is missing."""

import importlib.metadata
import json

import pytest

from trainers.contract import Machine
from zoo import cli, doctor, hardware

LINES = [
    "typer<0.29,>=0.20",
    'domain-model-zoo[core,data]; extra == "trees"',
    'here>=1.5; extra == "data"',
    'gone; extra == "core"',
    'old_one<3,>=2; extra == "core"',
    'never-shown; extra == "test"',
]
VERSIONS = {"typer": "0.28.0", "here": "1.6", "old-one": "1.9"}


@pytest.fixture
def a_small_world(monkeypatch):
    monkeypatch.setattr(doctor, "own_requirements", lambda: LINES)
    monkeypatch.setattr(doctor, "version", VERSIONS.get)


def test_the_metadata_reads_as_packaging_reads_it():
    packaging = pytest.importorskip("packaging.requirements")
    lines = importlib.metadata.requires("domain-model-zoo")
    assert len(lines) > 20
    for line, found in zip(lines, doctor.requirements(lines), strict=True):
        expected = packaging.Requirement(line)
        assert (found.name, set(found.extras)) == (expected.name.lower(), expected.extras)
        assert packaging.SpecifierSet(found.versions) == expected.specifier
        for extra in ("", found.extra):
            assert (expected.marker is None or expected.marker.evaluate({"extra": extra})) == (extra == found.extra)


def test_an_extra_lacks_what_the_extras_it_is_made_of_lack(a_small_world):
    found = doctor.examination()
    assert found["extras"]["data"] == {"missing": [], "unfit": [], "install": ""}
    assert found["extras"]["trees"] == {
        "missing": ["gone"],
        "unfit": ["old-one 1.9 (<3,>=2)"],
        "install": "pip install 'domain-model-zoo[trees]'",
    }
    assert sorted(found["extras"]) == ["core", "data", "trees"]
    assert found["packages"] == {"gone": None, "here": "1.6", "old-one": "1.9", "typer": "0.28.0"}


def test_the_table_names_machine_versions_and_the_line_that_mends(a_small_world, capsys):
    assert cli._exit_code(["doctor"]) == 0
    out = capsys.readouterr().out
    for part in ("machine", "cores", "here", "1.6", "[trees]", "lacks gone, old-one 1.9 (<3,>=2): pip install"):
        assert part in out
    assert "never-shown" not in out


def test_json_is_one_object_and_here_nothing_is_unknown(capsys):
    assert cli._exit_code(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == 1
    assert found["machine"]["cores"] >= 1
    assert found["packages"]["pydantic"] == importlib.metadata.version("pydantic")


def test_a_package_that_runs_from_a_folder_says_so(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGE", "no-such-package")
    found = doctor.examination()
    assert found["extras"] == {}
    assert "not installed" in found["problem"]


@pytest.mark.parametrize(
    ("program", "device", "says"),
    [
        ("import json; print('chatter'); print(json.dumps({'device': 'cuda', 'name': 'H200'}))", "cuda", ""),
        ("import json; print(json.dumps({'device': 'cpu'}))", "cpu", "that can use it"),
        ("raise SystemExit(3)", "cpu", "failed"),
        ("", "cpu", "failed"),
    ],
)
def test_torch_is_asked_about_a_gpu_in_another_process(monkeypatch, program, device, says):
    monkeypatch.setattr(hardware, "has_gpu_driver", lambda: True)
    monkeypatch.setattr(hardware, "detect", lambda device: Machine(device))
    monkeypatch.setattr(doctor, "_ASK", program)
    machine, problem = doctor.machine_here()
    assert machine.device == device
    assert says in problem
    assert bool(problem) == bool(says)
