"""The leak family: labels that are random by group, where a group is what the data type must find by itself.

    python benchmarks/leaks.py [--only tabular ...] [--seeds 2]

A group is a patient, a scaffold, a family of proteins, a document with its edited copies, a picture with its near copies,
overlapping stretches of DNA on either strand. All its rows look alike and carry one label, tossed for the group. So there is
nothing to learn: whoever keeps groups on one side of the split scores chance, and whoever does not is flattered for
remembering. Trains a small recipe of every type through the command line, under the default split and with `--split random`,
and prints a Markdown table with the test score, its 95 % interval and whether chance lies within. Exits with 1 where under
the default split it does not.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).parents[1]
CHANCE = 0.5
"""Two classes, tossed with equal shares: accuracy and AUC of whatever does not know the group."""
NUM_GROUPS, ROWS_A_GROUP = 120, 5
_TINY_TRAIN = ("train.precision=fp32", "train.compile=off")

Score = tuple[float, float, float]
"""Value, and the ends of its interval."""


@dataclass(frozen=True)
class Leak:
    """What a group is, in words; the recipe with small settings; and who writes the data: write(folder, rng) -> arguments."""

    group: str
    recipe: str
    sets: Sequence[str]
    write: Callable[[Path, np.random.Generator], list[str]]
    score: Callable[[Path, Path], Score] | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of recipes")
    parser.add_argument("--seeds", type=int, default=2, help="of data and split; one row each")
    arguments = parser.parse_args()
    print("| group | recipe | seed | default split: score (interval) | chance within | `--split random` |")
    print("| --- | --- | --- | --- | --- | --- |")
    verdicts = []
    for leak in LEAKS:
        if leak.recipe.startswith(tuple(arguments.only)):
            for seed in range(arguments.seeds):
                with tempfile.TemporaryDirectory(prefix="leak-") as place:
                    verdicts.append(_row(leak, seed, Path(place)))
    print(f"\nchance within the interval in {sum(verdicts)} of {len(verdicts)} runs under the default split")
    sys.exit(not all(verdicts))


def _row(leak: Leak, seed: int, work: Path) -> bool:
    given = leak.write(work, np.random.default_rng([seed, 0x1EAC]))
    (rule, default), (_, loose) = (_trained(leak, given, work, seed, extra) for extra in ((), ("--split", "random")))
    is_fine = default[1] <= CHANCE <= default[2]
    cells = (leak.group, leak.recipe, seed, f"{rule}: {_shown(default)}", "yes" if is_fine else "**NO**", _shown(loose))
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    return is_fine


def _shown(score: Score) -> str:
    return f"{score[0]:.3f} ({score[1]:.3f}-{score[2]:.3f})"


def _trained(leak: Leak, given: list[str], work: Path, seed: int, extra: Sequence[str]) -> tuple[str, Score]:
    """The rule of the split, and the test score of a run."""
    run = work / ("random" if extra else "default")
    sets = [part for each in leak.sets for part in ("--set", each)]
    command = [sys.executable, "-m", "zoo.cli", "train", leak.recipe, *given, *sets, *extra]
    paths = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, "--seed", str(seed), "--out", str(run)],
        env={**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"},
        cwd=work,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{leak.recipe}: exit {done.returncode}: {done.stderr[-1500:]}")
    rule = json.loads((run / "split.json").read_text())["rule"]
    if leak.score is not None:
        return rule, leak.score(run, work)
    metrics = json.loads((run / "metrics.json").read_text())
    found = metrics["test"][metrics["decides"]]
    return rule, (found["value"], found["low"], found["high"])


# --- what each type is given -------------------------------------------------------------------------------------------


def _labels(rng: np.random.Generator, num: int = NUM_GROUPS) -> np.ndarray:
    return rng.choice(["no", "yes"], num)


def _table(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]], rng: np.random.Generator) -> list[str]:
    """Write the rows in random order, as files of real data hide their groups."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([rows[i] for i in rng.permutation(len(rows))])
    return ["--data", str(path), "--target", "label"]


def patients(folder: Path, rng: np.random.Generator) -> list[str]:
    """Measurements of patients that lie close together."""
    rows = []
    for number, label in enumerate(_labels(rng)):
        centre = rng.normal(size=6)
        for _ in range(ROWS_A_GROUP):
            rows.append([f"P{number:03d}", *np.round(centre + rng.normal(scale=0.05, size=6), 4), label])
    return _table(folder / "rows.csv", ["patient", *"abcdef", "label"], rows, rng)


def repeated(folder: Path, rng: np.random.Generator) -> list[str]:
    """Rows that repeat others exactly, a tenth of them, and nothing names them."""
    rows = []
    for label in _labels(rng, 400):
        row = [*np.round(rng.normal(size=4), 3), label]
        rows += [row] * (2 if rng.random() < 0.15 else 1)
    return _table(folder / "rows.csv", [*"abcd", "label"], rows, rng)


def documents(folder: Path, rng: np.random.Generator) -> list[str]:
    """Documents, and copies with a word or two changed."""
    words = ["".join(rng.choice(list("abcdefghiklmnoprstuvw"), size=rng.integers(3, 9))) for _ in range(800)]
    rows = []
    for label in _labels(rng):
        text = rng.choice(words, size=40)
        for _ in range(ROWS_A_GROUP):
            copy = text.copy()
            copy[rng.integers(0, 40, 1)] = rng.choice(words, 1)
            rows.append([" ".join(copy), label])
    return _table(folder / "texts.csv", ["text", "label"], rows, rng)


def scaffolds(folder: Path, rng: np.random.Generator) -> list[str]:
    """Two rings and what links them, with small groups that vary."""
    rings = ["c1ccc({})cc1{}", "c1ccc({})nc1{}", "c1cc({})sc1{}", "c1cc({})oc1{}", "C1CCC({})CC1{}", "C1CCN({})C1{}"]
    rings += ["c1ccc2c(c1)cc({})[nH]2{}", "c1ccc2nc({})ccc2c1{}", "C1CCC({})NC1{}", "c1cnc({})cn1{}", "C1COC({})C1{}"]
    links = ["", "C", "CC", "CO", "C(=O)N", "CNC", "S", "CCC"]
    chosen = [(a, link, b) for a in rings for b in rings for link in links]
    picked = [chosen[i] for i in rng.permutation(len(chosen))[:NUM_GROUPS]]
    ends = ["C", "CC", "O", "OC", "F", "Cl", "N(C)C", "CO", "C#N"]
    rows = []
    for (one, link, other), label in zip(picked, _labels(rng), strict=True):
        for end in rng.permutation(ends)[:ROWS_A_GROUP]:
            inner = other.format(end, "").translate(str.maketrans("12", "34"))  # ring closures of its own
            rows.append([one.format(link + inner, ""), label])
    return _table(folder / "molecules.csv", ["smiles", "label"], rows, rng)


def families(folder: Path, rng: np.random.Generator) -> list[str]:
    """Proteins of 90 residues; a family shares seven in ten."""
    letters = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
    rows = []
    for label in _labels(rng):
        ancestor = rng.choice(letters, 90)
        for _ in range(ROWS_A_GROUP):
            changes = rng.random(90) < 0.16
            rows.append(["".join(np.where(changes, rng.choice(letters, 90), ancestor)), label])
    return _table(folder / "proteins.csv", ["sequence", "label"], rows, rng)


def targets(folder: Path, rng: np.random.Generator) -> list[str]:
    """Pairs of simple molecules and proteins of 90 residues; which of two classes they are was tossed for the family."""
    letters = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
    molecules = [f"{'C' * a}{b}{'C' * c}{d}" for a in (1, 2, 3, 4) for b in "NOS" for c in (1, 2, 3) for d in "OF"]
    rows = []
    for label in _labels(rng):
        ancestor = rng.choice(letters, 90)
        for smiles in rng.choice(molecules, ROWS_A_GROUP, replace=False):
            changes = rng.random(90) < 0.16
            rows.append([smiles, "".join(np.where(changes, rng.choice(letters, 90), ancestor)), label])
    return _table(folder / "pairs.csv", ["smiles", "protein", "label"], rows, rng)


def loci(folder: Path, rng: np.random.Generator) -> list[str]:
    """Windows of 120 bases that overlap by two thirds or more, every other one read from the other strand."""
    rows = []
    for label in _labels(rng):
        genome = "".join(rng.choice(list("ACGT"), 160))
        for number, start in enumerate(rng.permutation(40)[:ROWS_A_GROUP]):
            window = genome[start : start + 120]
            strand = window[::-1].translate(str.maketrans("ACGT", "TGCA"))
            rows.append([strand if number % 2 else window, label])
    return _table(folder / "dna.csv", ["sequence", "label"], rows, rng)


def near_copies(folder: Path, rng: np.random.Generator) -> list[str]:
    """Pictures in class folders, with copies that were stored again with a little noise."""
    for number, label in enumerate(_labels(rng)):
        (folder / "pictures" / label).mkdir(parents=True, exist_ok=True)
        colours = rng.integers(30, 220, (4, 4, 3)).repeat(8, axis=0).repeat(8, axis=1)
        for copy in range(ROWS_A_GROUP):
            name = f"{rng.integers(1 << 40):010x}_{number}_{copy}.png"
            _save_picture(folder / "pictures" / label / name, colours + rng.normal(0, 2, colours.shape))
    return ["--data", str(folder / "pictures")]


def pictured_patients(folder: Path, rng: np.random.Generator) -> list[str]:
    """A table of pictures, several of each patient, which are alike in colour but no copies."""
    rows = []
    for number, label in enumerate(_labels(rng)):
        tint = rng.integers(40, 210, 3)
        for copy in range(ROWS_A_GROUP):
            name = f"{number}_{copy}.png"
            _save_picture(folder / name, tint + rng.normal(0, 25, (4, 4, 3)).repeat(8, axis=0).repeat(8, axis=1))
            rows.append([name, f"P{number}", label])
    return _table(folder / "pictures.csv", ["path", "patient", "label"], rows, rng)


def _save_picture(path: Path, pixels: np.ndarray) -> None:
    from PIL import Image

    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path)


SCANS, NUM_PATIENTS, SCANS_A_PATIENT, NUM_CHANNELS = "scans", 48, 3, 8


def scanned_patients(folder: Path, rng: np.random.Generator) -> list[str]:
    """Scans with a ball whose intensities in eight channels are the patient's; which of two classes it is was tossed."""
    import nibabel as nib

    root = folder / SCANS
    for name in ("imagesTr", "labelsTr"):
        (root / name).mkdir(parents=True)
    grid = np.stack(np.meshgrid(*[np.arange(16)] * 3, indexing="ij"))
    for number, label in enumerate(_labels(rng, NUM_PATIENTS)):
        levels = 300 * rng.choice([-1, 1], NUM_CHANNELS) * rng.uniform(0.5, 1, NUM_CHANNELS)
        for scan in range(SCANS_A_PATIENT):
            ball = ((grid - rng.uniform(6, 10, 3)[:, None, None, None]) ** 2).sum(axis=0) < 16
            image = ball[..., None] * levels + rng.normal(500, 20, (16, 16, 16, NUM_CHANNELS))
            name = f"patient{number:03d}_{scan}.nii.gz"
            nib.save(nib.Nifti1Image(image.astype(np.int16), np.eye(4)), root / "imagesTr" / name)
            nib.save(
                nib.Nifti1Image((ball * (1 + (label == "yes"))).astype(np.uint8), np.eye(4)), root / "labelsTr" / name
            )
    channels = {str(channel): "MRI" for channel in range(NUM_CHANNELS)}
    described = {"name": "Balls", "modality": channels, "labels": {"0": "background", "1": "no", "2": "yes"}}
    (root / "dataset.json").write_text(json.dumps(described))
    return ["--data", str(root)]


def right_balls(run: Path, work: Path) -> Score:
    """The share of test scans whose ball is of the right class for the most part; the interval resamples patients."""
    import nibabel as nib

    right: dict[str, list[float]] = {}
    with (run / "predictions.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            truth = np.asarray(nib.load(work / SCANS / "labelsTr" / f"{line['id']}.nii.gz").dataobj)
            answer = np.asarray(nib.load(run / line["prediction"]).dataobj)
            counts = np.bincount(answer[truth > 0].astype(int), minlength=3)[1:]
            is_right = CHANCE if counts[0] == counts[1] else float(counts.argmax() + 1 == truth.max())
            right.setdefault(line["id"].rpartition("_")[0], []).append(is_right)
    means = np.array([np.mean(each) for each in right.values()])
    sizes = np.array([len(each) for each in right.values()])
    drawn = np.random.default_rng(0).integers(0, len(means), (2000, len(means)))
    resampled = (means * sizes)[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float((means * sizes).sum() / sizes.sum()), float(low), float(high)


_TEXT = ("options.weights=random:2x32", "options.max_tokens=128", "options.dropout=0", "train.batch_size=16")
_TEXT += ("train.lr=0.003", "train.head_lr=0.01", "train.layer_decay=1", "train.epochs=8", *_TINY_TRAIN)
_CNN = ("options.network=test_efficientnet", "options.weights=none", "options.image_size=32", "train.epochs=12")
_CNN += ("train.lr=0.003", *_TINY_TRAIN)
_UNET = ("options.base_features=8", "options.augment=0", "options.test_mirror=false", "train.epochs=25")
_UNET += ("train.batch_size=8", "train.lr=0.004", "train.ema=null", "train.evaluations=4", *_TINY_TRAIN)
_PAIRS = ("options.weights=random:2x128", "options.dropout=0", "train.head.epochs=30")
LEAKS = (
    Leak("patient (column found by its name)", "tabular/xgboost", ("train.rounds=150",), patients),
    Leak("rows that repeat exactly", "tabular/xgboost", ("train.rounds=150",), repeated),
    Leak("document and edited copies", "text/encoder-classify", _TEXT, documents),
    Leak("picture and near copies (folders)", "images/cnn-finetune", _CNN, near_copies),
    Leak("patient (column found by its name)", "images/cnn-finetune", _CNN, pictured_patients),
    Leak("patient (names of files)", "medical/nnunet", _UNET, scanned_patients, right_balls),
    Leak("scaffold", "molecules/fingerprint-trees", ("options.num_trees=100",), scaffolds),
    Leak("family of homologues", "proteins/kernel", (), families),
    Leak("family of proteins that bind", "molecules/drug-target", _PAIRS, targets),
    Leak("overlapping windows, both strands", "genomics/scratch", ("train.epochs=15",), loci),
)

if __name__ == "__main__":
    main()
