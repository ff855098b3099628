"""What a person reads of several runs together: the table of scores and the card."""

import re
from collections.abc import Sequence
from pathlib import Path

from trainers.contract import JSON
from zoo import report, saved

_WHAT = {"folds": "out of fold", "seeds": "mean of seeds"}
_ONE = {"folds": "fold", "seeds": "seed"}


def score_table(metrics: JSON) -> list[list[str]]:
    """Rows of text: model and baselines on all out-of-fold answers (of seeds: their means), then the runs' mean and
    standard deviation."""
    runs = metrics["runs"]
    header, *rows = report.score_table({**metrics, "valid": {}})
    rows = [[row[0].replace(", test", f", {_WHAT[runs['kind']]}"), *row[1:]] for row in rows]
    names = list(metrics["test"])[: report.MOST_COLUMNS]
    label = f"{runs['count']} {runs['kind']}"
    for who, over in {"model": runs["test"], **runs["baseline"], **runs["reference"]}.items():
        rows.append([f"{who}, {label}", *(_spread(over[name]) for name in names)])
    return [header, *rows]


def _spread(over: JSON) -> str:
    if over["mean"] is None:
        return "undefined"
    return f"{over['mean']:.4g}" + ("" if over["sd"] is None else f" sd {over['sd']:.2g}")


def card(parent: Path, folders: Sequence[Path], metrics: JSON, actual: JSON) -> str:
    """README.md of several runs: scores together and one by one, how the rows were divided, how to use them."""
    described, first = saved.read_json(parent / saved.MANY), saved.read_json(folders[0] / "split.json")
    kind, runs = described["kind"], metrics["runs"]
    header, *rows = score_table(metrics)
    text = [
        f"# {described['recipe']}, {runs['count']} {kind}\n",
        f"{described['task'].capitalize()} of `{described['facts']['target']}` from {described['type']}.\n",
        "## Scores\n",
        f"{_ABOUT[kind]} * decides. sd: standard deviation over the {kind}.\n",
        *report.table_lines(header, rows),
        *([f"\n{verdict}"] if (verdict := report.verdict(metrics)) else []),
        f"\nMean over the {kind} with its 95 % interval (Student's t): {_interval(runs['test'][metrics['decides']])}. They "
        "share most of their training rows: the interval says how the runs differ, and is no bound for other data.",
        f"\n## Each {_ONE[kind]}\n",
        *_each(folders, metrics["decides"]),
        "\n## Data and split\n",
        f"Split `{first['rule']}`: {_because(first['because'])}.",
        *_warnings(folders),
        "\n## Training\n",
        "All runs together:\n\n```\n" + report.closing_block(metrics, actual) + "\n```",
        "\n## Use\n",
        f"The mean of the {runs['count']} models answers:\n",
        f"```\nzoo predict {parent} NEW_DATA\nzoo predict {folders[0]} NEW_DATA   # one of them\n```",
    ]
    return "\n".join(text) + "\n"


_ABOUT = {
    "folds": "Every row was answered by the model that had not learned from it. 95 % intervals by bootstrap over groups;",
    "seeds": "Every seed splits, orders and begins anew. Means over the seeds with 95 % intervals of Student's t;",
}


def _because(text: str) -> str:
    return re.sub(r"^fold 0 of (\d+), ", r"\1 folds, ", text)


def _interval(over: JSON) -> str:
    if over["low"] is None:
        return _spread(over)
    return f"{_spread(over)} ({over['low']:.4g} to {over['high']:.4g})"


def _each(folders: Sequence[Path], decides: str) -> list[str]:
    rows = []
    for folder in folders:
        found = saved.read_json(folder / "metrics.json")
        sizes = [str(found["num_rows"][part]) for part in ("train", "valid", "test")]
        valid = report.score_text(found["valid"][decides]) if found["valid"] else ""
        rows.append([folder.name, *sizes, valid, report.score_text(found["test"][decides])])
    return report.table_lines(["run", "train", "valid", "test", f"{decides}, valid", f"{decides}, test"], rows)


def _warnings(folders: Sequence[Path]) -> list[str]:
    found = []
    for folder in folders:
        split = saved.read_json(folder / "split.json")
        if "optimistic" in split:
            found.append(f"- The scores are optimistic: {split['optimistic']}.")
        found += [f"- {folder.name}: {warning}" for warning in split["warnings"]]
    notices = saved.read_json(folders[0] / "data.json")["notices"]
    return list(dict.fromkeys([*found, *(f"- {notice}" for notice in notices)]))
