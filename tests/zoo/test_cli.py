"""The command line: results on stdout, all else on stderr, exit codes as promised."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from trainers.errors import DivergedError, DoesNotFitError, InterruptedByUser, MissingError, StoppedError, UsageError
from zoo import cli, cli_runs


@pytest.fixture
def zoo(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command line; returns (exit code, stdout, stderr)."""

    def run(line: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as stop:
            cli.main(line.split())
        return (stop.value.code, *capsys.readouterr())

    return run


def test_recommend_prints_the_answer_and_nothing_on_stderr(zoo: Any) -> None:
    code, out, err = zoo("recommend --type proteins --n 20000")
    assert (code, err) == (0, "")
    assert out.startswith("proteins/esm2-finetune  (ready)")


@pytest.mark.parametrize(
    "line",
    [
        "recommend --type proteins --n 20000 --json",
        "list --json",
        "show proteins/esm2-finetune --json",
        "show text/distil-tag --json",
    ],
)
def test_json_is_one_object_with_a_schema_version(zoo: Any, line: str) -> None:
    code, out, _ = zoo(line)
    assert code == 0
    assert json.loads(out)["schema_version"] == 1
    assert out.count("\n") == 1


def test_every_option_of_recommend_reaches_the_question(zoo: Any) -> None:
    line = "recommend --type text --n 5 --task ner --length 7 --device cpu --latency relaxed --series 2 --channels 3"
    code, out, err = zoo(f"{line} --audio-hours 1.5 --no-pretrained --coordinates --json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["recipe"] == "text/few-shot-tag"
    assert len(found["unused"]) == 4  # series, channels, audio hours and coordinates say nothing about text


def test_list_filters_by_type_and_status(zoo: Any) -> None:
    _, out, _ = zoo("list --type proteins --status ready")
    listed = [line.split()[0] for line in out.splitlines()]
    assert {"proteins/esm2-embed-head", "proteins/esm2-finetune", "proteins/kernel"} <= set(listed)
    _, out, _ = zoo("list --json")
    every = [(entry["recipe"], entry["status"]) for entry in json.loads(out)["recipes"]]
    assert listed == [name for name, status in every if name.startswith("proteins/") and status == "ready"]


def test_list_and_show_know_every_recipe(zoo: Any) -> None:
    _, out, _ = zoo("list --json")
    for entry in json.loads(out)["recipes"]:
        code, shown, _ = zoo(f"show {entry['recipe']}")
        assert code == 0
        assert entry["about"] in " ".join(shown.split())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("recommend --type protein --n 5", "Did you mean proteins"),
        ("recommend --type proteins --n five", "--n"),
        ("recommend --type proteins", "--n"),
        ("recommend --type proteins --n 5 --tsk x", "--tsk"),
        ("recommend --type proteins --n 5 --device egde", "Did you mean edge"),
        ("show protein/esm2-finetune", "Did you mean proteins/esm2-finetune"),
        ("list --type tabluar", "Did you mean tabular"),
        ("list --status redy", "Did you mean ready"),
        ("recomend --type proteins --n 5", "recommend"),
        ("train genomics/dnabert2-finetune --data x.csv", "planned, not built yet"),
    ],
)
def test_wrong_usage_exits_2_with_one_clean_line(zoo: Any, line: str, says: str) -> None:
    code, out, err = zoo(line)
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
    assert err.startswith("zoo: ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (DoesNotFitError("x"), 4),
        (DivergedError("x"), 5),
        (MissingError("x"), 6),
        (StoppedError("x"), 75),
        (InterruptedByUser("x"), 130),
        (KeyboardInterrupt(), 130),
        (RuntimeError("x"), 1),
    ],
)
def test_errors_have_the_promised_exit_codes(
    zoo: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def broken() -> None:
        """Fail."""
        raise error

    monkeypatch.setitem(cli._VERBS, "list", broken)
    found, out, err = zoo("list")
    assert (found, out) == (code, "")
    assert "Traceback" not in err


def test_an_internal_error_says_whose_fault_it_is_and_shows_where_on_request(
    zoo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        """Fail."""
        raise RuntimeError("oh")

    monkeypatch.setitem(cli._VERBS, "list", broken)
    assert "internal error: RuntimeError: oh. This is a fault of the zoo" in zoo("list")[2]
    monkeypatch.setenv("ZOO_TRACEBACK", "1")
    assert "Traceback" in zoo("list")[2]


@pytest.mark.parametrize("line", ["", "--help", "recommend --help", "train --help", "list --help"])
def test_help_exits_0_and_goes_to_stdout(zoo: Any, line: str) -> None:
    code, out, err = zoo(line)
    assert (code, err) == (0, "")
    assert "Usage: zoo" in out


def test_help_lists_the_verbs_of_both_modules(zoo: Any) -> None:
    out = zoo("--help")[1]
    for verb in ("list", "show", "recommend", "check", "train", "predict"):
        assert f"\n  {verb} " in out


def test_check_prints_counts_and_fails_with_exit_2_when_something_is_wrong(
    zoo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zoo import check

    monkeypatch.setattr(check, "structure_problems", lambda registry: iter(["cells.beans: cold"]))
    code, out, err = zoo("check --json")
    assert code == 2
    assert json.loads(out)["ok"] is False
    assert "cells.beans: cold" in err
    assert "recipes planned" in zoo("check")[1]


def test_recommend_reads_type_size_and_task_from_a_file(tmp_path, capsys):
    rows = [f"MKTAYIAKQRQISFVK{'ACDEFGHIKL'[i % 10]},{'ab'[i % 2]}\n" for i in range(50)]
    (tmp_path / "mine.csv").write_text("seq,label\n" + "".join(rows))
    assert cli._exit_code(["recommend", "--data", str(tmp_path / "mine.csv"), "--target", "label", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["type"], answer["n"], answer["task"]) == ("proteins", 50, "classification")
    assert answer["recipe"] == "proteins/esm2-embed-head"
    assert answer["next_command"].endswith("mine.csv --target label --folds 5")


def test_recommend_without_type_and_file_says_what_to_type(capsys):
    assert cli._exit_code(["recommend", "--n", "5"]) == 2
    assert "zoo recommend --type proteins --n 20000" in capsys.readouterr().err


def test_every_purpose_that_a_reader_asks_for_can_be_named() -> None:
    """Readers say "--column smiles=NAME" in their errors; the command line once refused all but three of them."""
    sources = [*Path("domains").rglob("*.py"), Path("README.md")]
    asked = {name for path in sources for name in re.findall(r"--column ([a-z]+)=", path.read_text(encoding="utf-8"))}
    assert {"smiles", "source", "words"} <= asked <= set(cli_runs.PURPOSES)


def test_a_column_is_named_by_its_purpose_and_an_unknown_purpose_is_an_error(zoo: Any, tmp_path: Any) -> None:
    path = tmp_path / "a.csv"
    path.write_text("title,story,y\n" + "".join(f"t {i},a longer story {i},{'pq'[i % 2]}\n" for i in range(30)))
    line = f"plan text/encoder-classify --data {path} --target y --set options.weights=random:1x16 --json"
    code, out, _ = zoo(f"{line} --column text=title")
    assert code == 0
    assert json.loads(out)["plan"]["facts"]["schema"]["text"] == "title"
    for wrong in ("tekst=title", "text", "text="):
        code, _, err = zoo(f"{line} --column {wrong}")
        assert (code, "write PURPOSE=COLUMN" in err) == (2, True)
    assert "no column 'titel'. Did you mean title?" in zoo(f"{line} --column text=titel")[2]
