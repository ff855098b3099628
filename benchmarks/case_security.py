"""Files that lie or attack; see benchmarks/cases.py.

Archives are refused altogether, which is safer than a careful unpacker.
"""

import shutil

from case_bench import Bench, Check, Ended

MOST_BYTES, FEW_BYTES = 1 << 30, 500 << 20


def pickles(bench: Bench) -> None:
    for name, arguments in {
        "predict evil.pt": ("predict", bench.case / "evil.pt", bench.case / "x.csv"),
        "resume run": ("resume", bench.case / "run"),
        "predict run": ("predict", bench.case / "run", bench.case / "x.csv"),
    }.items():
        ended = bench.zoo(*arguments)
        bench.see_code(ended, 2, name)
        bench.see_named(ended, [name.split()[-1]])
    evil = ("options.weights=" + str(bench.case / "evil.pt"),)
    proteins = bench.case.parents[1] / "proteins/07-pooling-and-batch/train.csv"
    ended = bench.train("proteins/esm2-finetune", proteins, "--target", "label", sets=evil)
    bench.see(ended.code in (2, 6) and "evil.pt" in ended.err, f"evil.pt as weights: exit {ended.code}")


def archives(bench: Bench) -> None:
    for name in ("dataset.zip", "links.tar"):
        ended = bench.train("images/cnn-finetune", bench.case / name)
        bench.see_code(ended, 2, name)
        bench.see_named(ended, [name])


def bombs(bench: Bench) -> None:
    ended = bench.train("images/cnn-finetune", bench.case / "images", "--epochs", "1")
    _refused(bench, ended, ["bomb.png", "400000000"], "images", MOST_BYTES)
    ended = bench.train("medical/nnunet", bench.case / "nifti")
    _refused(bench, ended, ["c00.nii.gz", "32767"], "nifti", MOST_BYTES)
    _finished_run(bench)
    ended, answers = bench.predict(bench.case / "rows.csv.gz")
    bench.see(ended.code == 2 or len(answers) > 1, f"rows.csv.gz: exit {ended.code}, {len(answers)} answers")
    if ended.code:
        bench.see_named(ended, ["rows.csv.gz"])
    bench.see(ended.peak_bytes < MOST_BYTES, f"peak {ended.peak_bytes / 2**20:.0f} MiB")


def _refused(bench: Bench, ended: Ended, names: list[str], what: str, most: int) -> None:
    bench.see_code(ended, 2, what)
    bench.see_named(ended, names)
    bench.see(ended.peak_bytes < most, f"peak {ended.peak_bytes / 2**20:.0f} MiB")


def _finished_run(bench: Bench) -> None:
    data = bench.work / "line.csv"
    data.write_text("x,y\n" + "".join(f"{i * i % 17},{i % 7}.5\n" for i in range(40)))
    bench.see_code(bench.train("tabular/xgboost", data, "--target", "y"), 0, "train")


def paths(bench: Bench) -> None:
    """With a table of pictures: nothing reads pictures beside texts so far."""
    ended = bench.train("images/cnn-finetune", bench.case / "train.csv", "--target", "label", "--epochs", "1")
    bench.see_code(ended, 2, "train")
    bench.see_named(ended, ["/etc/hostname", "../../secret.png", "http://127.0.0.1"], absent=["im00.png"])
    copy = shutil.copytree(bench.case.parents[1] / "images/03-hidden-junk/train", bench.work / "pictures")
    bench.see_code(bench.train("images/cnn-finetune", copy, "--epochs", "1"), 0, "train on another case")
    before = set(bench.work.parents[1].rglob("*"))
    ended = bench.zoo("predict", bench.work / "run", bench.case / "names.csv", "--out", bench.work / "preds")
    new = set(bench.work.parents[1].rglob("*")) - before
    outside = [path.name for path in new if not path.is_relative_to(bench.work / "preds")]
    bench.see(ended.code in (0, 2), f"ids that are paths: exit {ended.code}")
    bench.see(not outside, f"written outside preds/: {len(outside)}")


def tensor_headers(bench: Bench) -> None:
    pictures = bench.case.parents[1] / "images/03-hidden-junk/train"
    for name in ("huge_header", "overlap", "out_of_range"):
        file = bench.case / f"{name}.safetensors"
        ended = bench.zoo("predict", file, bench.case / "x.csv")
        _refused(bench, ended, [file.name], f"predict {name}", FEW_BYTES)
        ended = bench.train("images/cnn-finetune", pictures, sets=(f"options.weights={file}",))
        bench.see(ended.code == 2 and file.name in ended.err, f"{name} as weights: exit {ended.code}")


CHECKS: dict[str, Check] = {
    "security/01-pickle-checkpoint": pickles,
    "security/04-archive-traversal": archives,
    "security/05-decompression-bombs": bombs,
    "security/06-csv-path-escape": paths,
    "security/07-safetensors-lies": tensor_headers,
}
