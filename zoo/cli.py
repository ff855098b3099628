"""The command line. stdout is the result only; everything said on the way goes to stderr.

list, show, recommend, check and doctor are here; the verbs that touch data are in `zoo.cli_runs`, which is imported only
when one of them or the help is asked for. Nothing here may import torch, numpy or pandas: a start costs 0.3 CPU-seconds at
most, and a test holds it to that.
"""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from trainers.errors import DoesNotFitError, UsageError, ZooError

# An error of ours, not the user's.
_INTERNAL_ERROR = 1
_INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_WIDEST_TEXT = 100

AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]
TypeName = Annotated[str | None, typer.Option("--type", help="data type: images, text, tabular, proteins, ...")]
OnlyType = Annotated[str | None, typer.Option("--type", help="only recipes of this data type")]
OnlyStatus = Annotated[str | None, typer.Option("--status", help="only recipes that are ready, or planned")]
RecipeName = Annotated[str, typer.Argument(help="TYPE/NAME, as `zoo list` prints it")]
Rows = Annotated[int | None, typer.Option("--n", help="number of labelled rows")]
Data = Annotated[Path | None, typer.Option("--data", help="read type, rows and task from this file or folder")]
Target = Annotated[
    str | None, typer.Option("--target", help="with --data: the column to predict, which tells the task")
]
Groups = Annotated[
    int | None, typer.Option("--groups", help="independent groups among the rows: patients, families, speakers")
]
GroupColumn = Annotated[str | None, typer.Option("--group", help="with --data: the column that names their group")]
Task = Annotated[str | None, typer.Option("--task", help="classification, regression, segmentation, ...")]
Length = Annotated[int | None, typer.Option("--length", help="longest row, in tokens, residues, bases, seconds")]
Series = Annotated[int | None, typer.Option("--series", help="number of time series")]
Channels = Annotated[int | None, typer.Option("--channels", help="variables measured at each time")]
AudioHours = Annotated[float | None, typer.Option("--audio-hours", help="hours of audio")]
Device = Annotated[str | None, typer.Option("--device", help="where the model will run: edge, cpu, gpu")]
Latency = Annotated[str | None, typer.Option("--latency", help="tight if every answer must be fast")]
Pretrained = Annotated[bool | None, typer.Option("--pretrained/--no-pretrained", help="a fitting checkpoint exists")]
Coordinates = Annotated[bool | None, typer.Option("--coordinates/--no-coordinates", help="3-D positions are given")]
GpuName = Annotated[str | None, typer.Option("--gpu", help="the GPU there is: a100, h100, 4090, ...")]
Gpus = Annotated[int | None, typer.Option("--gpus", help="how many of them")]
Hours = Annotated[float | None, typer.Option("--hours", help="hours they are there")]
Memory = Annotated[float | None, typer.Option("--memory", help="GiB of memory of the device that trains")]


def list_(only_type: OnlyType = None, status: OnlyStatus = None, as_json: AsJson = False) -> None:
    """List the recipes."""
    from trainers.errors import UsageError, did_you_mean
    from zoo.registry import load_registry

    registry = load_registry()
    if only_type is not None:
        registry.type_of(only_type)
    if status not in (None, "ready", "planned"):
        near = did_you_mean(status or "", ("ready", "planned"))
        raise UsageError(f"--status {status!r}: unknown.{near} Known: ready, planned.")
    found = [r for r in registry.recipes.values() if only_type in (None, r.type) and status in (None, r.status)]
    if as_json:
        rows = [{"recipe": r.name, "status": r.status, "tasks": list(r.tasks), "about": r.about} for r in found]
        _print_json({"schema_version": 1, "recipes": rows})
    else:
        _print_table([[recipe.name, recipe.status, recipe.about] for recipe in found])


def show(recipe: RecipeName, as_json: AsJson = False) -> None:
    """Show a recipe: what it does, its options and settings, what it needs, where its numbers come from."""
    from zoo.registry import load_registry
    from zoo.show import recipe_json, recipe_text

    registry = load_registry()
    found = recipe_json(registry.get(recipe), registry)
    if as_json:
        _print_json(found)
    else:
        print(recipe_text(found, _text_width()))


def recommend(
    type: TypeName = None,
    n: Rows = None,
    data: Data = None,
    target: Target = None,
    groups: Groups = None,
    group: GroupColumn = None,
    task: Task = None,
    length: Length = None,
    device: Device = None,
    latency: Latency = None,
    series: Series = None,
    channels: Channels = None,
    audio_hours: AudioHours = None,
    pretrained: Pretrained = None,
    coordinates: Coordinates = None,
    gpu: GpuName = None,
    gpus: Gpus = None,
    hours: Hours = None,
    memory: Memory = None,
    as_json: AsJson = False,
) -> None:
    """Name the recipe for data of a type and size, and say why."""
    from zoo.recommend import as_text, with_data
    from zoo.recommend import recommend as answer_for

    known = _known_of(type, n, groups, task, data, target, group, coordinates)
    answer = answer_for(
        **known, length=length, device=device, latency=latency, series=series, channels=channels,
        audio_hours=audio_hours, pretrained=pretrained,
    )  # fmt: skip
    if data is not None:
        answer = with_data(answer, str(data), target)
    if any(value is not None for value in (gpu, gpus, hours, memory)):
        from zoo.budget import Budget, with_budget

        answer = with_budget(answer, Budget(gpu=gpu, gpus=gpus, hours=hours, memory=memory))
    if as_json:
        _print_json(answer.as_json())
    else:
        print(as_text(answer, _text_width()))


def _known_of(
    type: str | None,
    n: int | None,
    groups: int | None,
    task: str | None,
    data: Path | None,
    target: str | None,
    group: str | None,
    coordinates: bool | None,
) -> dict[str, Any]:
    """What was said of type, size, task and positions, completed by what the file tells."""
    from trainers.errors import UsageError

    if group is not None and (data is None or groups is not None):
        raise UsageError("--group COLUMN is counted in --data FILE; --groups N says the number. Say one of them.")
    if data is not None:
        from domains.sniff import sniff

        found = sniff(data, target=target, group=group)
        print(f"{data}: {found.type}, {found.num_rows} rows ({found.because})", file=sys.stderr)
        type, n, task = type or found.type, found.num_rows if n is None else n, task or found.task
        groups, coordinates = groups or found.num_groups, found.has_positions if coordinates is None else coordinates
    if type is None or n is None:
        raise UsageError("say --type and --n, or --data FILE. Example: zoo recommend --type proteins --n 20000")
    return {"type": type, "n": n, "groups": groups, "task": task, "coordinates": coordinates}


def check(
    data: Annotated[str | None, typer.Option("--data", help="report on this file or folder instead")] = None,
    leakage: Annotated[
        Path | None, typer.Option("--leakage", help="run folder: how like rows across its split are")
    ] = None,
    type: TypeName = None,
    target: Annotated[str | None, typer.Option("--target", help="with --data: column to predict")] = None,
    task: Task = None,
    group: Annotated[str | None, typer.Option("--group", help="with --data: column whose values stay together")] = None,
    order: Annotated[str | None, typer.Option("--order", help="with --data: time column")] = None,
    id_column: Annotated[
        str | None, typer.Option("--id-column", help="with --data: column that names the rows")
    ] = None,
    labels: Annotated[str | None, typer.Option("--labels", help="with --data: second file with labels (FASTA)")] = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", help="with --data: PURPOSE=COLUMN; repeatable")
    ] = None,
    encoding: Annotated[str | None, typer.Option("--encoding", help="with --data: of a file that is no UTF-8")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="with --data: unusable rows are no error")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="with --data: skip the search for similar rows")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="with --data: warnings exit with 2")] = False,
    as_json: AsJson = False,
) -> None:
    """Prove the registry; or with --data report on data without training, with --leakage on the split of a run."""
    if data is not None or leakage is not None:
        from zoo import cli_check

        if leakage is not None:
            cli_check.show_leakage(leakage, as_json=as_json)
            return
        about = {"target": target, "task": task, "group": group, "order": order, "id_column": id_column}
        about |= {"labels": labels, "encoding": encoding}
        cli_check.show_data(
            str(data), type, about, column, skip_bad=skip_bad, fast=fast, strict=strict, as_json=as_json
        )  # fmt: skip
        return
    from zoo.check import check_registry
    from zoo.registry import read_registry, registry_path

    report = check_registry(read_registry(registry_path()))
    if as_json:
        _print_json(report.as_json())
    else:
        _print_table([[name.replace("_", " "), str(count)] for name, count in report.counts.items()])
        for line in report.not_checked:
            print(line)
    if report.problems:
        from trainers.errors import UsageError

        raise UsageError("\n  ".join([f"registry.yaml: {len(report.problems)} problems", *report.problems]))


def doctor(as_json: AsJson = False) -> None:
    """Say what machine this is, which packages are here, and how to install what is missing."""
    from zoo.doctor import as_rows, examination

    found = examination()
    if as_json:
        _print_json(found)
    else:
        _print_table(as_rows(found))


_VERBS: dict[str, Callable[..., None]] = {
    "list": list_,
    "show": show,
    "recommend": recommend,
    "check": check,
    "doctor": doctor,
}


def build_app(verb: str | None = None) -> typer.Typer:
    """The command line; with the name of a light verb only that one, which saves the cost of declaring the others."""
    app = typer.Typer(name="zoo", add_completion=False, rich_markup_mode=None)
    app.callback()(_about)
    for name in [verb] if verb in _VERBS else _VERBS:
        app.command(name)(_VERBS[name])
    if verb not in _VERBS:
        from zoo import cli_runs

        cli_runs.register(app)
    return app


def _say_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"zoo {version('domain-model-zoo')}")
        raise typer.Exit


def _about(
    version: Annotated[
        bool, typer.Option("--version", help="the version", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    """From data to a recommended, trained and honestly scored model. Start with `zoo recommend --type TYPE --n N`."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its code; never returns. Codes: `trainers.errors`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for name in ("stdout", "stderr"):  # closed by the caller (`2>&-`): what print() wrote there would go elsewhere
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the whole process
    sys.exit(_exit_code(arguments or ["--help"]))


def _exit_code(arguments: list[str]) -> int:
    try:
        app = build_app(arguments[0])
        code = app(arguments, prog_name="zoo", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except ZooError as error:
        return _told(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _told("interrupted", _INTERRUPTED)
    except typer.Exit as stop:
        return stop.exit_code
    except BrokenPipeError:
        return _silenced()
    except Exception as error:
        return _other_error(error)


def _other_error(error: Exception) -> int:
    """Errors of the command line's parser, told apart by what they can do, as typer brings its own copy of click."""
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        command = getattr(getattr(error, "ctx", None), "command_path", "zoo")
        return _told(f"{error.format_message()} See `{command} --help`.", int(error.exit_code))
    if os.environ.get("ZOO_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, OSError) and error.errno in _FULL:
        return _told(f"{error}. Make room there and try again.", DoesNotFitError.exit_code)
    if isinstance(error, OSError) and error.errno in _FORBIDDEN:
        return _told(f"{error}. Allow this user to read and write there, or name another place.", UsageError.exit_code)
    says = (
        f"{type(error).__name__}: {error}. This is a fault of the zoo, not of your data; ZOO_TRACEBACK=1 shows where."
    )
    return _told(f"internal error: {says}", _INTERNAL_ERROR)


def _told(says: str, code: int) -> int:
    print(f"zoo: {says}", file=sys.stderr)
    return code


def _silenced() -> int:
    """The reader of stdout has left (`zoo list | head`): no error, and no complaint from Python's own last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _print_json(value: Any) -> None:
    import json

    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _print_table(rows: list[list[str]]) -> None:
    """Print rows in aligned columns, all but the last padded."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)][:-1]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]))


def _text_width() -> int:
    import shutil

    return min(shutil.get_terminal_size().columns, _WIDEST_TEXT)


if __name__ == "__main__":
    main()
