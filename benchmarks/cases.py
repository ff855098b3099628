"""Hostile input: what the zoo does with each case of a folder of them, beside what is expected.

    python benchmarks/cases.py FOLDER [--only tabular text/01 ...] [--keep WORK]

FOLDER holds index.json and a folder a case. Each case whose data type has a ready recipe is run through the command line
with the smallest settings, and judged by what comes out: exit codes, messages, rows, files, peak memory, files of the run.
Wherever a file called ZOO_CANARY* appears, the case has failed. Prints `case | expected | seen | verdict` as a Markdown
table, then counts; exits with 1 if one differs. Cases of types that are not built yet are listed as such.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import case_pictures
import case_security
import case_sequences
import case_tables
import case_trainer
import yaml
from case_bench import REPOSITORY, Bench, Check

CHECKS: dict[str, Check] = {
    **case_tables.CHECKS,
    **case_sequences.CHECKS,
    **case_pictures.CHECKS,
    **case_trainer.CHECKS,
    **case_security.CHECKS,
}
CANARY = "ZOO_CANARY*"
OF_NO_TYPE = ("trainer", "security")
NOT_READY = "type not ready"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of case ids")
    parser.add_argument("--keep", type=Path, help="leave what the runs wrote here")
    arguments = parser.parse_args()
    cases = json.loads((arguments.folder / "index.json").read_text())
    verdicts = []
    print("| case | expected | seen | verdict |\n| --- | --- | --- | --- |")
    for case in cases:
        if case["id"].startswith(tuple(arguments.only)):
            seen, verdict = judged(arguments.folder / case["id"], case, arguments.keep)
            print(
                "| " + " | ".join(cell(text) for text in (case["id"], case["expect"], seen, verdict)) + " |", flush=True
            )
            verdicts.append(verdict)
    counts = {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}
    print(f"\n{len(verdicts)} cases: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    sys.exit("DIFFERS" in counts)


def judged(folder: Path, case: Any, keep: Path | None) -> tuple[str, str]:
    """What was seen, in words, and the verdict."""
    if case["domain"] not in ready_types() and case["id"] not in CHECKS:
        return "-", NOT_READY
    if case["id"] not in CHECKS:
        return "there is no check for this case", "DIFFERS"
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="case-") as place:
        # Two folders down, so that what climbs out of one or two of them is found as well.
        work = (keep or Path(place)).absolute() / case["id"] / "work"
        work.mkdir(parents=True)
        bench = Bench(folder.absolute(), work)
        try:
            CHECKS[case["id"]](bench)
        except Exception as error:  # of the check, not of the zoo: what it waited for is not there
            bench.see(False, f"{type(error).__name__}: {error}")
        escaped = [str(path.name) for root in (work.parents[1], folder) for path in root.rglob(CANARY)]
        bench.see(not escaped, f"canaries on disk: {len(escaped)}")
    print(f"{case['id']}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    fine = all(as_expected for as_expected, _ in bench.seen)
    return "; ".join(text if good else f"**{text}**" for good, text in bench.seen), "as expected" if fine else "DIFFERS"


def ready_types() -> set[str]:
    """Data types with a recipe that can be run, by registry.yaml; what is no type is ready too, but not what needs one."""
    recipes = yaml.safe_load((REPOSITORY / "registry.yaml").read_text())["recipes"]
    return {name.split("/")[0] for name, recipe in recipes.items() if recipe.get("status") == "ready"} | set(OF_NO_TYPE)


def cell(text: str) -> str:
    """One cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    main()
