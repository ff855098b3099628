"""The verbs that touch data: train, plan, resume, evaluate, predict. Heavy modules are imported when a verb runs."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

Recipe = Annotated[str, typer.Argument(help="TYPE/NAME, see zoo list")]
RunFolder = Annotated[Path, typer.Argument(help="run folder, as zoo train printed it")]
Data = Annotated[str | None, typer.Option("--data", help="file or folder; left out: the recipe's demo")]
Target = Annotated[str | None, typer.Option("--target", help="column to predict")]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task", help="such as classification, regression, multilabel (zoo show); left out: told by the data"
    ),
]
Group = Annotated[str | None, typer.Option("--group", help="column whose values stay together in a split")]
Order = Annotated[str | None, typer.Option("--order", help="time column: the last rows become the test")]
IdColumn = Annotated[str | None, typer.Option("--id-column", help="column that names the rows")]
Labels = Annotated[str | None, typer.Option("--labels", help="second file with ids and labels (FASTA)")]
Reference = Annotated[
    str | None, typer.Option("--reference", help="genome that the places of a BED file are cut out of")
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="PURPOSE=COLUMN where the reader would guess: text, sequence, path; repeatable"),
]
Encoding = Annotated[str | None, typer.Option("--encoding", help="of a text file that is no UTF-8, such as cp1252")]
SplitRule = Annotated[
    str | None,
    typer.Option("--split", help="random, stratified, grouped, time, given; molecules: scaffold-largest-first"),
]
Sets = Annotated[list[str] | None, typer.Option("--set", help="path=value, for example train.lr=0.001; repeatable")]
Epochs = Annotated[float | None, typer.Option("--epochs", help="passes over the training rows")]
Budget = Annotated[float | None, typer.Option("--budget", help="seconds of training")]
Precision = Annotated[str | None, typer.Option("--precision", help="auto, bf16, fp16, fp32 or fp8")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps")]
Seed = Annotated[int, typer.Option("--seed", help="of the split, the order and the weights")]
Folds = Annotated[
    int | None,
    typer.Option("--folds", help="cross-validate: so many runs, every row is tested in one; --budget is for all"),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", help="so many runs, from --seed on; mean and deviation; --budget is for all")
]
Gap = Annotated[
    bool, typer.Option("--gap", help="train on a random split as well, and show what similar rows are worth")
]
Shard = Annotated[bool, typer.Option("--shard", help="under torchrun: split the model among the processes (FSDP2)")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="drop and count unusable rows")]
Fast = Annotated[bool, typer.Option("--fast", help="skip the search for similar rows; the split says so")]
Strict = Annotated[bool, typer.Option("--strict", help="exit with 2 where there is a warning about the data")]
Loggers = Annotated[
    list[str] | None,
    typer.Option("--log", help="also write curves for tensorboard, trackio, wandb or mlflow; repeatable"),
]
Offline = Annotated[bool, typer.Option("--offline", help="never ask a model hub")]
Out = Annotated[Path | None, typer.Option("--out", help="folder to write; never one with content")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]

# Questions of size, answered without data (zoo.sizing).
Params = Annotated[str | None, typer.Option("--params", help="size question: parameters, for example 350M or 1e9")]
Tokens = Annotated[str | None, typer.Option("--tokens", help="size question: tokens to train on, repeats included")]
Flops = Annotated[str | None, typer.Option("--flops", help="size question: FLOPs to spend, for example 1e20")]
Hours = Annotated[float | None, typer.Option("--hours", help="size question: hours on --gpus of --gpu")]
GpuName = Annotated[str | None, typer.Option("--gpu", help="of a size question: a100, h100, 4090, ...")]
Gpus = Annotated[int | None, typer.Option("--gpus", help="of a size question: how many")]
Mfu = Annotated[float | None, typer.Option("--mfu", help="of a size question: share of the peak reached, such as 0.4")]
Tflops = Annotated[
    float | None, typer.Option("--tflops", help="of a size question: measured dense bf16 peak of one GPU")
]
Price = Annotated[float | None, typer.Option("--price", help="of an hour of the machine; size question: of one GPU")]
Watts = Annotated[float | None, typer.Option("--watts", help="drawn by the machine; size question: by one GPU")]
Unique = Annotated[str | None, typer.Option("--unique", help="of a size question: tokens there are without repeats")]
Context = Annotated[int | None, typer.Option("--context", help="of a size question: positions; counts attention too")]

COUNTS, NUMBERS = ("params", "tokens", "flops", "unique"), ("hours", "gpu", "gpus", "mfu", "tflops", "context")
"""Arguments that make a question one of size: counts such as 350M, and plain numbers and names."""
COSTS = ("price", "watts")

AnyRecipe = Annotated[str | None, typer.Argument(help="TYPE/NAME, see zoo list")]
Calibrate = Annotated[bool, typer.Option("--calibrate", help="measure how fast this machine computes, and keep it")]
Measure = Annotated[bool, typer.Option("--measure", help="take a few real steps, and say how long one takes")]
Savings = Annotated[
    bool,
    typer.Option(
        "--savings", help="forecast what each way to save memory buys; done in any case where it does not fit"
    ),
]
Verify = Annotated[bool, typer.Option("--verify", help="forecasts of this machine's past runs beside what came")]

PURPOSES = (
    *("text", "words", "prompt", "answer", "messages", "source"),
    *("sequence", "mutant", "wild_type", "smiles", "path"),
)
"""What the reader of some data type may need a column for."""


def register(app: typer.Typer) -> None:
    """Add the verbs of this module to the command line."""
    for verb in (train, plan, resume, evaluate, predict):
        app.command()(verb)


def train(
    recipe: Recipe,
    data: Data = None,
    target: Target = None,
    task: TaskName = None,
    group: Group = None,
    order: Order = None,
    id_column: IdColumn = None,
    labels: Labels = None,
    reference: Reference = None,
    column: Columns = None,
    encoding: Encoding = None,
    split: SplitRule = None,
    sets: Sets = None,
    epochs: Epochs = None,
    budget: Budget = None,
    precision: Precision = None,
    device: Device = "auto",
    seed: Seed = 0,
    folds: Folds = None,
    seeds: Seeds = None,
    gap: Gap = False,
    shard: Shard = False,
    skip_bad: SkipBad = False,
    fast: Fast = False,
    strict: Strict = False,
    log: Loggers = None,
    offline: Offline = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Train a recipe on data, score it beside baselines, and keep it in a run folder."""
    _prepare_process(offline)
    from zoo import run
    from zoo.plan import parse_sets

    done = run.train(
        recipe, data, target=target, task=task, group=group, order=order, id_column=id_column, labels=labels,
        reference=reference, columns=columns_of(column), encoding=encoding, split=split, set=parse_sets(sets or []),
        epochs=epochs, budget=budget,
        precision=precision, device=device, seed=seed, folds=folds, seeds=seeds, gap=gap, shard=shard, skip_bad=skip_bad,
        fast=fast, strict=strict, loggers=log or (), out=out, say=_say, bar=True,
    )  # fmt: skip
    _show_run(done, as_json=as_json)


def plan(
    ctx: typer.Context,
    recipe: AnyRecipe = None,
    data: Data = None,
    target: Target = None,
    task: TaskName = None,
    group: Group = None,
    order: Order = None,
    id_column: IdColumn = None,
    labels: Labels = None,
    reference: Reference = None,
    column: Columns = None,
    encoding: Encoding = None,
    split: SplitRule = None,
    sets: Sets = None,
    epochs: Epochs = None,
    budget: Budget = None,
    precision: Precision = None,
    device: Device = "auto",
    seed: Seed = 0,
    folds: Folds = None,
    seeds: Seeds = None,
    skip_bad: SkipBad = False,
    fast: Fast = False,
    offline: Offline = False,
    params: Params = None,
    tokens: Tokens = None,
    flops: Flops = None,
    hours: Hours = None,
    gpu: GpuName = None,
    gpus: Gpus = None,
    mfu: Mfu = None,
    tflops: Tflops = None,
    price: Price = None,
    watts: Watts = None,
    unique: Unique = None,
    context: Context = None,
    measure: Measure = False,
    calibrate: Calibrate = False,
    verify: Verify = False,
    savings: Savings = False,
    as_json: AsJson = False,
) -> None:
    """Fix and show everything that train would do, without training; or answer a size question without any data."""
    if calibrate or verify:
        _show_machine(recipe, calibrate=calibrate, verify=verify, as_json=as_json)
        return
    if recipe is None:
        from trainers.errors import UsageError

        raise UsageError("Which recipe? Name one (zoo list), or use --calibrate or --verify.")
    if given := _of_size(ctx):
        _show_sizes(recipe, given, as_json=as_json)
        return
    _prepare_process(offline)
    from domains.contract import Request
    from zoo import many
    from zoo.plan import Wishes, parse_sets

    request = Request(target, task, group, order, id_column, labels, reference, columns_of(column), encoding=encoding)
    wishes = Wishes(parse_sets(sets or []), epochs, budget, precision, device, seed)
    job = many.prepare(
        recipe, data, request=request, wishes=wishes, split=split, folds=folds, seeds=seeds, skip_bad=skip_bad, fast=fast,
        say=_say,
    )  # fmt: skip
    _show_plan(job, fast=fast, measure=measure, savings=savings, price=price, watts=watts, as_json=as_json)


def _show_plan(
    job: Any, *, fast: bool, measure: bool, savings: bool, price: float | None, watts: float | None, as_json: bool
) -> None:
    """The plan with what is forecast of it."""
    from zoo import forecasts, report

    measured: dict[str, Any] = {"measured_step_seconds": forecasts.measured_step(job)} if measure else {}
    forecast = {**((None if fast else forecasts.forecast_of(job, say=_say)) or {}), **measured} or None
    if total := forecasts.total_of(job, forecast, price, watts):
        forecast = {**(forecast or {}), "total": total}
    saved = _savings(job, forecast, wanted=savings)
    if as_json:
        evidence = {"rule": job.split.rule, **job.split.evidence}
        _print_json({"schema_version": 1, "plan": job.plan.as_json(), "split": evidence, "forecast": forecast, **saved})
    else:
        print("\n".join([report.plan_lines(job), *forecasts.lines_of(forecast)]))
        if saved:
            from zoo.savings import lines_of

            print("\n".join(lines_of(saved["savings"])))


def _savings(job: Any, forecast: Any, *, wanted: bool) -> dict[str, Any]:
    """What could be saved, where it is asked for or has to be. Raises DoesNotFitError where nothing fits."""
    if not forecast or "memory" not in forecast:
        return {}
    if not wanted and forecast["memory"]["peak_bytes"] <= job.plan.machine.memory_bytes:
        return {}
    from zoo.savings import report_of

    return {"savings": report_of(job, forecast)}


def _show_machine(recipe: str | None, *, calibrate: bool, verify: bool, as_json: bool) -> None:
    from zoo import forecasts

    found = forecasts.calibrated() if calibrate else {}
    runs = forecasts.past(recipe) if verify else []
    if as_json:
        _print_json({"schema_version": 1, "rates": found, "runs": runs})
    else:
        print(
            "\n".join([*(f"{name}: {value:.4g}" for name, value in found.items()), *forecasts.table_of(runs, verify)])
        )


def resume(run_folder: RunFolder, offline: Offline = False, as_json: AsJson = False) -> None:
    """Continue a run that was stopped or killed, from its last snapshot."""
    _prepare_process(offline)
    from zoo import run

    _show_run(run.resume(run_folder, say=_say, bar=True), as_json=as_json)


def evaluate(
    run_folder: RunFolder,
    data: Annotated[str, typer.Option("--data", help="labelled file or folder")],
    target: Target = None,
    labels: Labels = None,
    encoding: Encoding = None,
    sets: Sets = None,
    device: Device = "auto",
    skip_bad: SkipBad = False,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Score a run on labelled data, with intervals."""
    _prepare_process(offline)
    from zoo import report
    from zoo.ensemble import load
    from zoo.plan import parse_sets

    loaded = load(run_folder, device=device, sets=parse_sets(sets or []))
    scores = loaded.evaluate(data, target=target, labels=labels, encoding=encoding, skip_bad=skip_bad, say=_say)
    if as_json:
        _print_json({"schema_version": 1, "run": str(run_folder), "data": data, "scores": scores})
    else:
        print(report.aligned([["", *scores], [data, *(report.score_text(score) for score in scores.values())]]))


def predict(
    run_folder: RunFolder,
    data: Annotated[
        str | None, typer.Argument(help="file or folder with new rows; left out: the recipe's demo")
    ] = None,
    encoding: Encoding = None,
    sets: Sets = None,
    device: Device = "auto",
    offline: Offline = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder, or a file ending in .csv; left out: stdout")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict every row of new data, in order; rows that cannot be used say why."""
    _prepare_process(offline)
    from trainers.errors import UsageError
    from zoo import report
    from zoo.ensemble import load
    from zoo.plan import parse_sets

    loaded = load(run_folder, device=device, sets=parse_sets(sets or []))
    if out is None and loaded.answers_with_files:
        raise UsageError("The answers of this run are files. Name a folder for them: --out FOLDER")
    path = None if out is None else _predictions_path(out, data)  # what is wrong with it shows before the work
    ids, predictions = loaded.answers(data, encoding=encoding, say=_say)
    if path is None and as_json:
        _print_json({"schema_version": 1, "run": str(run_folder), **report.prediction_columns(ids, predictions)})
        return
    if path is None:
        report.write_rows(sys.stdout, report.prediction_columns(ids, predictions))
        return
    report.write_predictions(path, ids, predictions)
    if as_json:
        _print_json(
            {"schema_version": 1, "run": str(run_folder), "predictions": str(path), "num_rows": len(predictions)}
        )
    else:
        print(path)


def columns_of(given: Sequence[str] | None) -> dict[str, str]:
    """{purpose: column} from PURPOSE=COLUMN texts. Raises UsageError for an unknown purpose."""
    from trainers.errors import UsageError, did_you_mean

    found = dict(pair.partition("=")[::2] for pair in given or ())
    for purpose, name in found.items():
        if purpose not in PURPOSES or not name:
            hint = did_you_mean(purpose, PURPOSES) or f" Purposes: {', '.join(PURPOSES)}."
            raise UsageError(f"--column {purpose}={name}: write PURPOSE=COLUMN, such as text=body.{hint}")
    return found


def _of_size(ctx: typer.Context) -> dict[str, Any]:
    """{argument: value} of a question of size, empty where none is asked. Raises UsageError for flags about data in one."""
    from trainers.errors import UsageError

    typed = {name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"}
    if not typed & {*COUNTS, *NUMBERS}:
        return {}
    others = typed - {*COUNTS, *NUMBERS, *COSTS, "recipe", "offline", "as_json"}
    if others:
        named = " and ".join(option.opts[0] for option in ctx.command.params if option.name in others)
        raise UsageError(
            f"{named}: a question of size (--params, --tokens, --flops, --hours) reads no data. Leave it out."
        )
    return {name: ctx.params[name] for name in (*COUNTS, *NUMBERS, *COSTS) if name in typed}


def _show_sizes(recipe: str, given: dict[str, Any], *, as_json: bool) -> None:
    from zoo.registry import load_registry
    from zoo.sizing import Sizes, answer, count
    from zoo.sizing_text import as_text

    registry = load_registry()
    read: dict[str, Any] = {name: count(given[name], f"--{name}") for name in COUNTS if name in given}
    found = answer(registry.get(recipe), registry, Sizes(**{**given, **read}))
    if as_json:
        _print_json(found)
    else:
        print(as_text(found, _text_width()))


def _text_width() -> int:
    import shutil

    return min(shutil.get_terminal_size().columns, 100)


def _predictions_path(out: Path, data: str | None) -> Path:
    from trainers.errors import UsageError
    from zoo import saved

    path = out if out.suffix == ".csv" else out / "predictions.csv"
    if data is not None and path.resolve() == Path(data).resolve():
        raise UsageError(f"--out {out} is the data file itself. Choose another name.")
    if saved.is_run(path.parent):
        raise UsageError(
            f"--out {out}: {path.parent} is the folder of a run, which is never changed. Choose another one."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not _holds_predictions(path):
            raise UsageError(f"--out {out}: {path} exists and holds no predictions. Choose another name.")
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written there ({error.strerror}). Choose another name.") from None
    return path


def _holds_predictions(path: Path) -> bool:
    """Whether a file is what an earlier `zoo predict` wrote, which the next one may replace."""
    with path.open(encoding="utf-8", errors="replace") as file:
        names = file.readline().strip().split(",")
    return {"prediction", "problem"} <= set(names)


def _show_run(done: Any, *, as_json: bool) -> None:
    from zoo import hardware, many_text, report, saved

    if hardware.rank_and_world()[0] > 0:  # under torchrun one of the processes answers
        return
    actual = saved.read_json(done.folder / "actual.json")
    if as_json:
        _print_json({"schema_version": 1, "run": str(done.folder), "metrics": done.metrics, "actual": actual})
        return
    table = many_text.score_table if saved.is_parent(done.folder) else report.score_table
    print(report.aligned(table(done.metrics)))
    for text in filter(None, (report.verdict(done.metrics), report.gap_sentence(done.metrics))):
        print(f"\n{text}")
    print()
    print(report.closing_block(done.metrics, actual))
    print()
    print(done.folder)


def _prepare_process(offline: bool) -> None:
    """Settings that must stand before torch or a hub client is imported."""
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"


def _say(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):  # the reader of the log has left (`2>&1 | head`): training goes on without it
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))
