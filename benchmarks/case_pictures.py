"""Hostile pictures and scans; see benchmarks/cases.py."""

import json
import re
import shutil
import sys
from collections import defaultdict
from pathlib import Path

from case_bench import Bench, Check, lines_of

RECIPE, SCANS, LABELLED = "images/cnn-finetune", "medical/nnunet", "medical/cnn-finetune"
SHORT = ("--epochs", "1")


def junk(bench: Bench) -> None:
    ended = bench.train(RECIPE, bench.case / "train", *SHORT)
    bench.see_code(ended, 0, "train")
    found = bench.json("data.json")
    used, classes = found["num_rows_used"], found["classes"]
    bench.see(classes.keys() == {"cat", "dog"} and used == 16, f"{used} pictures of {', '.join(classes)}")
    names = [p.relative_to(bench.case / "train").as_posix() for p in (bench.case / "train").rglob("*") if p.is_file()]
    shown = [name for name in names if name.split("/")[0] not in classes or not name.split("/")[-1][0].isdigit()]
    listed = ", ".join(found["notices"]).split("ignored", 1)[-1].replace(":", ",").split(", ")
    counts = {name: sum(each.strip() == name for each in listed) for name in shown}
    bench.see(set(counts.values()) == {1}, f"{len(counts)} ignored paths, each listed {set(counts.values())} times")


def class_missing(bench: Bench) -> None:
    sets = ("options.network=null", "options.weights=demo", "options.image_size=64", "train.batch_size=8")
    ended = bench.train(RECIPE, bench.case, "--epochs", "8", sets=sets)
    bench.see_code(ended, 0, "train")
    ended = bench.zoo("evaluate", bench.work / "run", "--data", bench.case / "val", "--json")
    bench.see_code(ended, 0, "evaluate")
    accuracy = json.loads(ended.out)["scores"]["accuracy"]["value"]
    bench.see(accuracy >= 0.95, f"accuracy on val {accuracy:.2f}")
    bench.see_named(ended, ["'b'", "support 0"])


def unreadable(bench: Bench) -> None:
    ended = bench.train(RECIPE, bench.case / "train", *SHORT)
    bench.see_code(ended, 2, "train")
    bench.see_named(ended, ["trunc.jpg", "zero.png", "page.jpg"], absent=["ok_png_named.jpg"])
    bench.see(not (bench.work / "run").exists(), "no run folder was begun")
    bench.see_code(bench.train(RECIPE, bench.case / "train", *SHORT, "--skip-bad"), 0, "--skip-bad")
    used = bench.json("data.json")["num_rows_used"]
    bench.see(used == 13, f"{used} pictures used")


def every_suffix(bench: Bench) -> None:
    bench.see_code(bench.train(RECIPE, bench.case / "train", *SHORT), 0, "train")
    found = bench.json("data.json")
    bench.see(found["num_rows_used"] == 12, f"{found['num_rows_used']} pictures: {found['classes']}")
    _, answers = bench.predict(bench.case / "train")
    names = {p.relative_to(bench.case / "train").as_posix() for p in (bench.case / "train").rglob("*") if p.is_file()}
    bench.see({line["id"] for line in answers} == names, f"{len(answers)} answers under the same names, in UTF-8")


def numbered_classes(bench: Bench) -> None:
    sets = ("options.network=null", "options.weights=demo", "options.image_size=64", "train.batch_size=8")
    bench.see_code(bench.train(RECIPE, bench.case / "train", "--epochs", "20", sets=sets), 0, "train")
    _, answers = bench.predict(bench.case / "test")
    found = {line["id"]: line["prediction"] for line in answers}
    right = [name for name, label in found.items() if name == f"is_{label}.png"]
    bench.see(len(right) == len(found) == 4, f"answers {found}")


def geometry(bench: Bench) -> None:
    ended = bench.train(SCANS, bench.case)
    bench.see_code(ended, 2, "train")
    bench.see_named(ended, ["c01", "c02", "c03", "origin", "spacing"], absent=["c04", "c00"])


def orientation(bench: Bench) -> None:
    program = (
        "import sys; import numpy as np; from pathlib import Path; from domains.medical.volumes import read_image\n"
        "for name in sys.argv[1:]:\n"
        "    a = np.abs(np.squeeze(read_image([Path(name)]).array)); half = a.shape[0] // 2\n"
        "    print('left' if a[:half].sum() > a[half:].sum() else 'right')"
    )
    files = [bench.case / line["image"] for line in lines_of(bench.case / "twins.csv")]
    sides = bench.run(sys.executable, "-c", program, *files).out.split()
    bench.see(len(set(sides)) == 1 and len(sides) == len(files), f"brighter side of the twins as read: {sides}")
    sets = ("options.network=null", "options.weights=demo", "train.batch_size=4")
    bench.see_code(bench.train(LABELLED, bench.case / "train.csv", "--epochs", "20", sets=sets), 0, "train")
    _, answers = bench.predict(bench.case / "twins.csv")
    found = [line["prediction"] for line in answers]
    bench.see(found == ["left"] * len(files), f"the twins are of the side {found}")


def labels_of_masks(bench: Bench) -> None:
    ended = bench.train(SCANS, bench.case)
    bench.see_code(ended, 2, "train")
    bench.see_named(ended, ["c03", "7"])
    bench.see_code(bench.train(SCANS, bench.case, "--skip-bad"), 0, "--skip-bad")
    ended = bench.zoo("evaluate", bench.work / "run", "--data", bench.case, "--skip-bad", "--json")
    bench.see_code(ended, 0, "evaluate")
    dice = json.loads(ended.out)["scores"]["dice"]
    bench.see("num_scored" in dice and "num_undefined" in dice, f"dice {dice}")


def dicom(bench: Bench) -> None:
    program = (
        "import sys; import numpy as np; from pathlib import Path; from domains.medical.dicom import read_series\n"
        "expected = np.load(sys.argv[1])\n"
        "for name in sys.argv[2:]:\n"
        "    a = read_series(Path(name)).array\n"
        "    print(any(a.shape == (e := np.transpose(expected, axes)).shape and np.allclose(a, e) for axes in\n"
        "        [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]))"
    )
    twins = [bench.case / f"twin_{name}" for name in "abc"]
    same = bench.run(sys.executable, "-c", program, bench.case / "expected.npy", *twins).out.split()
    bench.see(same == ["True"] * 3, f"equal to expected.npy: {', '.join(same)}")
    other = bench.case.parents[1] / "medical/05-empty-and-unexpected-labels"
    bench.see_code(bench.train(SCANS, other, "--skip-bad"), 0, "train on another case")
    for twin in twins:
        ended = bench.zoo("predict", bench.work / "run", twin, "--out", bench.work / twin.name)
        bench.see_code(ended, 0, f"predict {twin.name}")
        masks = list((bench.work / twin.name / "files").glob("*"))
        bench.see(len(masks) == 1, f"{len(masks)} mask")
    two = bench.case / "two_series"
    series = re.findall(r"holds 2 series: ([\d.]+) .*?, ([\d.]+) ", _reason(bench, two))
    bench.see(len(series) == 1, f"two series: the answer's problem names {series}")
    # Training lists the case among those that cannot be used.
    copy = shutil.copytree(other, bench.work / "with_two")
    shutil.copytree(two, copy / "imagesTr/two")
    shutil.copy(copy / "labelsTr/c00.nii.gz", copy / "labelsTr/two.nii.gz")
    ended = bench.train(SCANS, copy, run="two")
    bench.see_code(ended, 2, "train with two series")
    bench.see_named(ended, series[0] if series else ["both"])


def _reason(bench: Bench, folder: Path) -> str:
    ended = bench.zoo("predict", bench.work / "run", folder, "--out", bench.work / "two_out")
    bench.see_code(ended, 0, "predict two series")
    (line,) = lines_of(bench.work / "two_out/predictions.csv")
    return "" if line["prediction"] else line["problem"]


def patients(bench: Bench) -> None:
    data = bench.case / "train.csv"
    bench.see_code(bench.train(LABELLED, data, "--target", "label", "--group", "patient", *SHORT), 0, "--group patient")
    owner = {line["image"]: line["patient"] for line in lines_of(data)}
    parts = defaultdict(set)
    for part, ids in bench.json("split.json")["ids"].items():
        for name in ids:
            parts[owner[name]].add(part)
    bench.see(all(len(found) == 1 for found in parts.values()), f"{len(parts)} patients, each in one part")
    for recipe, run in ((RECIPE, "without"), (LABELLED, "scans")):
        bench.see_named(bench.train(recipe, data, "--target", "label", *SHORT, run=run), ["patient", "--group"])


CHECKS: dict[str, Check] = {
    "images/03-hidden-junk": junk,
    "images/04-val-missing-class": class_missing,
    "images/05-unreadable-files": unreadable,
    "images/06-extensions-and-unicode": every_suffix,
    "images/07-numeric-class-names": numbered_classes,
    "medical/01-affine-mismatch": geometry,
    "medical/04-orientation-twins": orientation,
    "medical/05-empty-and-unexpected-labels": labels_of_masks,
    "medical/06-dicom-rescale-and-order": dicom,
    "medical/07-same-patient-leak": patients,
}
