"""Small learnable data of every type, made from a seed: what the batteries train on."""

import importlib
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from domains.contract import Request
from domains.text.prompted import Entities, Prompted, format_of
from trainers.prompt import Shown
from zoo import run
from zoo.registry import load_registry

NUM_ROWS, FEW_ROWS = 120, 12


def table(folder: Path, task: str) -> tuple[Any, str]:
    """Two numbers and a category that decide a class or a number."""
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, NUM_ROWS))
    colour = rng.choice(["red", "green", "blue"], NUM_ROWS)
    signal = x + 0.5 * z + (colour == "red")
    frame = pd.DataFrame({"name": [f"r{i}" for i in range(NUM_ROWS)], "x": x, "z": z, "colour": colour})
    frame["y"] = np.where(signal > 0.3, "high", "low") if task == "classification" else signal
    return _written(frame, folder / "table.csv"), "y"


def proteins(folder: Path, task: str) -> tuple[Any, str]:
    """Sequences of 20-40 residues, rich in lysine or in glutamate."""
    rng = np.random.default_rng(0)
    share = rng.uniform(0, 1, NUM_ROWS) if task == "regression" else rng.integers(0, 2, NUM_ROWS).astype(float)
    letters = np.array(list("KEACDFGHILMNPQRSTVWY"))
    sequences = []
    for part in share:
        weights = np.array([0.4 * part, 0.4 * (1 - part), *[0.6 / 18] * 18])
        sequences.append("".join(rng.choice(letters, int(rng.integers(20, 41)), p=weights / weights.sum())))
    frame = pd.DataFrame({"id": [f"p{i}" for i in range(NUM_ROWS)], "sequence": sequences})
    frame["y"] = np.where(share > 0.5, "basic", "acidic") if task == "classification" else share
    if task == "multilabel":
        has = {"basic": frame["sequence"].str.count("K") > 3, "acidic": frame["sequence"].str.count("E") > 3}
        frame["y"] = [";".join(name for name in has if has[name][i]) for i in range(NUM_ROWS)]
    return _written(frame, folder / "proteins.csv"), "y"


FAMILIES = ("ACDEF", "GHIKL", "MNPQR", "STVWY")


def proteins_or_chains(folder: Path, task: str) -> tuple[Any, str | None]:
    """Labelled proteins; to learn a language, chains each of which has the residues of one family only."""
    if task != "masked-lm":
        return proteins(folder, task)
    rng = np.random.default_rng(0)
    chains = ["".join(rng.choice(list(FAMILIES[i % 4]), int(rng.integers(20, 41)))) for i in range(NUM_ROWS)]
    frame = pd.DataFrame({"id": [f"p{i}" for i in range(NUM_ROWS)], "sequence": chains})
    return _written(frame, folder / "chains.csv"), None


def labelled_residues(folder: Path, task: str) -> tuple[Any, str]:
    """Chains whose residues are labelled by their family of letters."""
    rng = np.random.default_rng(0)
    chains = ["".join(rng.choice(list("".join(FAMILIES)), int(rng.integers(20, 41)))) for _ in range(NUM_ROWS)]
    labels = ["".join("HECT"[next(k for k, f in enumerate(FAMILIES) if a in f)] for a in chain) for chain in chains]
    frame = pd.DataFrame({"id": [f"p{i}" for i in range(NUM_ROWS)], "sequence": chains, "structure": labels})
    return _written(frame, folder / "residues.csv"), "structure"


def touching_residues(folder: Path, task: str) -> tuple[Any, str]:
    """Chains in which residues of opposite charge touch."""
    from domains.proteins.demo import touching

    frame = pd.DataFrame(touching(num_proteins=NUM_ROWS, shortest=25, longest=40))
    return _written(frame, folder / "contacts.csv"), "contacts"


def variants(folder: Path, task: str) -> tuple[Any, str]:
    """Mutants of a chain of one family; a residue of another family harms, by about as much everywhere."""
    rng = np.random.default_rng(0)
    wild = "".join(rng.choice(list(FAMILIES[0]), 30))
    rows = []
    for _ in range(NUM_ROWS):
        at, gained = int(rng.integers(30)), str(rng.choice(list("".join(FAMILIES))))
        effect = float(gained in FAMILIES[0]) + 0.1 * float(rng.normal())
        rows.append({"mutant": f"{wild[at]}{at + 1}{gained}", "wild_type": wild, "y": effect})
    frame = pd.DataFrame(rows)
    frame.insert(0, "id", [f"v{i}" for i in range(NUM_ROWS)])
    return _written(frame, folder / "variants.csv"), "y"


def genomics(folder: Path, task: str) -> tuple[Any, str]:
    """DNA of 30-50 bases, rich in G and C or in A and T."""
    rng = np.random.default_rng(0)
    share = rng.uniform(0, 1, NUM_ROWS) if task == "regression" else rng.integers(0, 2, NUM_ROWS).astype(float)
    sequences = []
    for part in share:
        strong = 0.2 + 0.6 * part
        weights = np.array([strong, strong, 1 - strong, 1 - strong]) / 2
        sequences.append("".join(rng.choice(list("GCAT"), int(rng.integers(30, 51)), p=weights)))
    frame = pd.DataFrame({"id": [f"d{i}" for i in range(NUM_ROWS)], "sequence": sequences})
    frame["y"] = np.where(share > 0.5, "strong", "weak") if task == "classification" else share
    return _written(frame, folder / "dna.csv"), "y"


def pictures(folder: Path, task: str) -> tuple[Any, str | None]:
    """24 x 24 pictures, reddish or bluish, in class folders or listed with their redness."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(NUM_ROWS):
        red = rng.uniform() if task == "regression" else float(i % 2)
        pixels = rng.integers(0, 120, (24, 24, 3))
        pixels[..., 0] += int(120 * red)
        pixels[..., 2] += int(120 * (1 - red))
        place = Path("red" if red > 0.5 else "blue") / f"{i:03d}.png"
        (folder / "pictures" / place).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "pictures" / place)
        rows.append({"path": place.as_posix(), "y": red})
    if task == "classification":
        return folder / "pictures", None
    frame = pd.DataFrame(rows)
    if task == "multilabel":  # every other picture, of either colour, has a white corner
        frame["y"] = ["red" * (row["y"] > 0.5) + ";corner" * (i % 4 < 2) for i, row in enumerate(rows)]
        _whiten([folder / "pictures" / row["path"] for i, row in enumerate(rows) if i % 4 < 2])
    return _written(frame, folder / "pictures" / "list.csv"), "y"


def pictures_with_masks(folder: Path, task: str) -> tuple[Any, str | None]:
    """Pictures of 32 x 24 pixels with circles and boxes, and their masks."""
    from domains.images.demo import shapes

    return shapes(folder / "shapes", num=NUM_ROWS, size=(32, 24)), None


def plain_pictures(folder: Path, task: str) -> tuple[Any, str | None]:
    """Pictures of 24 pixels, each with two colours of its own."""
    rng = np.random.default_rng(0)
    (folder / "plain").mkdir(parents=True, exist_ok=True)
    for i in range(NUM_ROWS):
        one, other = rng.integers(0, 256, (2, 3))
        share = np.clip(np.linspace(-0.5, 1.5, 24), 0, 1)[None, :, None]
        pixels = np.broadcast_to(share * one + (1 - share) * other, (24, 24, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "plain" / f"{i:03d}.png")
    return folder / "plain", None


def _whiten(paths: list[Path]) -> None:
    for path in paths:
        pixels = np.array(Image.open(path))
        pixels[:16, :16] = 255
        Image.fromarray(pixels).save(path)


def molecules(folder: Path, task: str) -> tuple[Any, str]:
    """Chains and rings with few or many oxygens, and other atoms between; several targets have gaps."""
    rng = np.random.default_rng(0)
    parts, rings = ["C", "CC", "N", "C(C)", "S"], ["c1ccccc1", "C1CCCCC1", "c1ccncc1", "C1CCOC1", ""]
    share = rng.uniform(0, 1, NUM_ROWS) if task == "regression" else rng.integers(0, 2, NUM_ROWS).astype(float)
    smiles = []
    for part in share:
        chain = ["C(O)" if rng.random() < 0.8 * part else str(rng.choice(parts)) for _ in range(rng.integers(4, 9))]
        smiles.append("C" + "".join(chain) + "C" + str(rng.choice(rings)))
    frame = pd.DataFrame({"name": [f"m{i}" for i in range(NUM_ROWS)], "smiles": smiles})
    counts = np.array([[text.count("O"), text.count("N")] for text in smiles], float)
    frame["y"] = np.where(share > 0.5, "sugar", "fat") if task == "classification" else counts[:, 0]
    if task not in ("multilabel", "multiregression"):
        return _written(frame, folder / "molecules.csv"), "y"
    counts = counts if task == "multiregression" else (counts > 1).astype(float)
    frame["y"], frame["z"] = counts.T
    frame.loc[rng.random(NUM_ROWS) < 0.3, "z"] = np.nan
    return _written(frame, folder / "molecules.csv"), "y,z"


def binding(folder: Path, task: str) -> tuple[Any, str]:
    """Made-up pairs of molecules and proteins: acids like basic proteins, amines acidic ones."""
    from domains.molecules.demo import pairs

    frame = pd.DataFrame(pairs(num_pairs=3 * NUM_ROWS, num_molecules=30, num_families=20))
    return _written(frame, folder / "pairs.csv"), "affinity"


def structures(folder: Path, task: str) -> tuple[Any, str | None]:
    """Molecules alone, each once."""
    data, _ = molecules(folder, "regression")
    return _written(pd.read_csv(data)[["smiles"]].drop_duplicates(), data), None


def scans(folder: Path, task: str) -> tuple[Any, str | None]:
    """Scans of 16 voxels a side with a bright and a dark ellipsoid, and their masks."""
    from domains.medical.demo import phantoms

    return phantoms(folder / "scans", num_cases=NUM_ROWS, shape=(16, 16, 16)), None


def few_scans(folder: Path, task: str) -> tuple[Any, None]:
    """Enough for a network whose smallest patch is sixteen times as large as these scans."""
    from domains.medical.demo import phantoms

    return phantoms(folder / "scans", num_cases=FEW_ROWS, shape=(16, 16, 16)), None


def boxed_scans(folder: Path, task: str) -> tuple[Any, str]:
    """Half as many scans as a table of paths with a box around each ellipsoid, which new scans need too."""
    from domains.medical.boxes import boxes_around
    from domains.medical.demo import phantoms
    from domains.medical.volumes import MaskFile

    phantoms(folder / "scans", num_cases=NUM_ROWS // 2, shape=(16, 16, 16))
    rows = []
    for path in sorted((folder / "scans" / "imagesTr").glob("*.nii.gz")):
        mask = f"scans/labelsTr/{path.name}"
        boxes = boxes_around(MaskFile(str(folder / mask), (0, 1, 2)).array())
        edges = [[f"class {box.position}", *map(int, box.low), *(int(edge) - 1 for edge in box.high)] for box in boxes]
        text = "; ".join(" ".join(map(str, each)) for each in edges)
        rows.append({"path": f"scans/imagesTr/{path.name}", "mask": mask, "boxes": text})
    return _written(pd.DataFrame(rows), folder / "scans.csv"), "mask"


def labelled_scans(folder: Path, task: str) -> tuple[Any, str]:
    """Scans of 16 x 16 x 4 voxels with a box that is brighter or darker than the rest, two of a patient."""
    import nibabel as nib

    rng = np.random.default_rng(0)
    rows = []
    (folder / "scans").mkdir(parents=True, exist_ok=True)
    for i in range(NUM_ROWS):
        share = float(rng.uniform()) if task == "regression" else float(i // 2 % 2)
        image = rng.normal(100, 10, (16, 16, 4))
        image[4:12, 4:12, :] += 100 * (share - 0.5)
        name = f"scans/p{i // 2:02d}_scan{i % 2}.nii.gz"
        nib.save(nib.Nifti1Image(image.astype(np.float32), np.eye(4)), folder / name)
        rows.append({"path": name, "patient": f"p{i // 2:02d}", "y": share})
    frame = pd.DataFrame(rows)
    if task == "classification":
        frame["y"] = np.where(frame["y"] > 0.5, "bright", "dark")
    return _written(frame, folder / "scans.csv"), "y"


def texts(folder: Path, task: str) -> tuple[Any, str]:
    """Sentences of 5-20 words, mostly of one list or of another; the label sets name what they speak of."""
    rng = np.random.default_rng(0)
    share = rng.uniform(0, 1, NUM_ROWS) if task == "regression" else rng.integers(0, 2, NUM_ROWS).astype(float)
    good, bad = ["fine", "lovely", "great", "superb", "warm"], ["dull", "awful", "poor", "cold", "dreadful"]
    other = ["the", "a", "film", "meal", "trip", "was", "and", "we", "had", "it", "there", "again", "of", "town"]
    sentences = []
    for part in share:
        lists = [
            good if rng.random() < part else bad if rng.random() < 0.8 else other for _ in range(rng.integers(5, 21))
        ]
        sentences.append(" ".join(str(rng.choice(words)) for words in lists))
    frame = pd.DataFrame({"id": [f"t{i}" for i in range(NUM_ROWS)], "text": sentences})
    frame["y"] = np.where(share > 0.5, "good", "bad") if task == "classification" else share
    if task == "multilabel":
        found = [[name for name in ("lovely", "awful", "film") if name in text.split()] for text in sentences]
        frame["y"] = [";".join(names) for names in found]
    return _written(frame, folder / "texts.csv"), "y"


def corpus(folder: Path, task: str) -> tuple[Any, str | None]:
    """Running text: paragraphs of sentences that begin, go on and end in few ways."""
    rng = np.random.default_rng(0)
    lists = [["the", "a", "every"], ["old", "small", "red", "tired"], ["dog", "ship", "queen"], ["saw", "took", "lost"]]
    order = [0, 1, 2, 3, 0, 1, 2]

    def sentence() -> str:
        return " ".join(str(rng.choice(lists[at])) for at in order) + "."

    lines = [" ".join(sentence() for _ in range(8)) for _ in range(NUM_ROWS)]
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n")
    return folder / "corpus.txt", None


def pairs(folder: Path, task: str) -> tuple[Any, str]:
    """Prompts of 4 to 8 words, one of which decides the answer; no two prompts are equal."""
    rng = np.random.default_rng(0)
    answers = {"sky": "it is blue", "grass": "it is green", "coal": "it is black", "snow": "it is white"}
    other = ["well", "now", "tell", "me", "about", "the", "big", "old", "small", "far", "near", "warm", "cold"]
    rows = []
    for i in range(NUM_ROWS):
        key = str(rng.choice(list(answers)))
        words = rng.permutation([*rng.choice(other, int(rng.integers(3, 8))), key])
        rows.append({"id": f"q{i}", "prompt": f"{i}: {' '.join(words)}?", "completion": answers[key]})
    return _written(pd.DataFrame(rows), folder / "pairs.csv"), "completion"


def prompts(folder: Path, task: str) -> tuple[Any, str]:
    """Pairs to write answers from, else labelled texts."""
    return pairs(folder, task) if task == "generation" else texts(folder, task)


def tagged_texts(folder: Path, task: str) -> tuple[Any, str]:
    """Sentences of 4-9 words with one name of one or two words in each, as JSON lists."""
    rng = np.random.default_rng(0)
    names, other = ["Anna", "Bob", "Carla", "Dimitri"], ["runs", "to", "the", "old", "house", "and", "sings", "again"]
    rows = []
    for i in range(NUM_ROWS):
        words, num_names = rng.choice(other, rng.integers(3, 8)).tolist(), int(rng.integers(1, 3))
        at = int(rng.integers(len(words)))
        words[at:at] = rng.choice(names, num_names).tolist()
        tags = ["O"] * len(words)
        tags[at : at + num_names] = ["B-person", "I-person"][:num_names]
        rows.append({"id": f"s{i}", "tokens": json.dumps(words), "tags": json.dumps(tags)})
    return _written(pd.DataFrame(rows), folder / "sentences.csv"), "tags"


def texts_or_tags(folder: Path, task: str) -> tuple[Any, str]:
    """Sentences to tag, else labelled texts."""
    return tagged_texts(folder, task) if task == "ner" else texts(folder, task)


def rewritings(folder: Path, task: str) -> tuple[Any, str]:
    """Requests of a few words; the answer depends on the thing that is asked for."""
    rng = np.random.default_rng(0)
    answers = {"tea": "here is your hot cup of tea", "bread": "the bread is still in the oven"}
    rows = []
    for _ in range(NUM_ROWS):
        thing = str(rng.choice(list(answers)))
        words = rng.choice(["please", "bring", "me", "some", "now", "more"], int(rng.integers(2, 6))).tolist()
        rows.append({"source": " ".join([*words, thing]), "target": answers[thing]})
    return _written(pd.DataFrame(rows), folder / "pairs.csv"), "target"


def _written(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path, index=False)
    return path


MAKERS: dict[str, Callable[[Path, str], tuple[Any, str | None]]] = {
    "tabular": table,
    "proteins": proteins,
    "proteins/protein-lm": proteins_or_chains,
    "proteins/esm2-variant-effect": variants,
    "proteins/esm2-residue": labelled_residues,
    "proteins/contacts": touching_residues,
    "genomics": genomics,
    "images": pictures,
    "images/segment": pictures_with_masks,
    "images/contrastive": plain_pictures,
    "images/diffusion": plain_pictures,
    "molecules": molecules,
    "medical": scans,
    "medical/cnn-finetune": labelled_scans,
    "medical/swin-unetr": few_scans,
    "medical/medsam": boxed_scans,
    "text": texts,
    "molecules/smiles-lm": structures,
    "molecules/drug-target": binding,
    "text/gpt-pretrain": corpus,
    "text/continued-pretrain": corpus,
    "text/few-shot-prompt": prompts,
    "text/lora-finetune": pairs,
    "text/full-finetune": pairs,
    "text/encoder-ner": tagged_texts,
    "text/distil-tag": tagged_texts,
    "text/few-shot-tag": tagged_texts,
    "text/few-shot-rewrite": rewritings,
    "text/long-context": prompts,
    "text/encoder-scratch": texts_or_tags,
    "text/seq2seq": rewritings,
}
"""By recipe where it needs data of its own, else by type."""


def made(recipe: str, task: str, folder: Path) -> tuple[Any, str | None]:
    """Data for `recipe` below `folder`, and the name of its target column (None where folders name the classes)."""
    return (MAKERS.get(recipe) or MAKERS[recipe.split("/")[0]])(folder, task)


def teacher(task: str, data: Any, target: str | None, folder: Path) -> dict[str, Any]:
    """A finished run to learn from, on the same data; several recipes of one folder share it."""
    if not (folder / "teacher").exists():
        recipe, family = ("text/encoder-ner", "encoder_ner") if task == "ner" else ("text/encoder-classify", "encoder")
        sets = dict(paths_of(importlib.import_module(f"domains.text.{family}").TINY))
        run.train(recipe, data, target=target, task=task, set=sets, fast=True, out=folder / "teacher")
    return {"options.teacher": str(folder / "teacher")}


def language_of_proteins(task: str, data: Any, target: str | None, folder: Path) -> dict[str, Any]:
    """A language model that learned which residues go together: random weights know of no effect."""
    if not (folder / "language").exists():
        chains, _ = proteins_or_chains(folder, "masked-lm")
        sets = dict(paths_of(importlib.import_module("domains.proteins.protein_lm").TINY))
        run.train("proteins/protein-lm", chains, task="masked-lm", set=sets, fast=True, out=folder / "language")
    return {"options.weights": str(folder / "language")}


def speaker(task: str, data: Any, target: str | None, folder: Path) -> dict[str, Any]:
    """A causal model that learned to answer prompts with one example: random weights write nothing that could be scored."""
    if not (folder / "speaker").exists():
        sets = dict(paths_of(importlib.import_module("domains.text.causal").TINY))
        sets |= {"options.separator": "", "options.weights": "random:2x64", "options.max_tokens": 256, "train.lr": 3e-3}
        prompts = asked_and_answered(task, data, target)
        run.train("text/full-finetune", prompts, task="generation", set=sets, fast=True, out=folder / "speaker")
    weights = str(folder / "speaker" / "model" / "weights")
    return {"options.weights": weights, "options.max_new_tokens": 16, "train.examples": 1}


def asked_and_answered(task: str, data: Any, target: str | None) -> pd.DataFrame:
    """Rows of `data` as text/few-shot-* would ask them behind one example, and the answers."""
    table = importlib.import_module("domains.text.data").read(data, Request(target=target, task=task)).table
    form = format_of(importlib.import_module("domains.text.few_shot").TEMPLATES[task], "", [], 1000)
    entities = Entities((), {}) if task == "ner" else None
    asked = Prompted(torch.nn.Linear(1, 1), None, form, state={}, max_new=1, entities=entities)
    shown = [Shown(*pair) for pair in zip(asked.questions(table), asked.shown_answers(table), strict=True)]
    prompts = [form.told([before]) + form.asked(each.question) for before, each in pairwise(shown)]
    return pd.DataFrame({"prompt": prompts, "completion": [form.gap + each.answer for each in shown[1:]]})


def transformer(task: str, data: Any, target: str | None, folder: Path) -> dict[str, Any]:
    """A small transformer on pictures of 32 pixels, with every augmentation."""
    mixes = {"options.randaug": 2, "options.mixup": 0.2, "options.cutmix": 0.2, "options.scale": 0.9}
    return {"options.network": "test_vit", "options.flip_test": True, "train.epochs": 8, **mixes}


NEEDS: dict[str, Callable[[str, Any, str | None, Path], dict[str, Any]]] = {
    "images/vit-finetune": transformer,
    "images/vit-scratch": transformer,
    "proteins/esm2-variant-effect": language_of_proteins,
    "proteins/prott5-embed-head": lambda *_: {"options.weights": "random-t5:2x32"},
    "text/distil": teacher,
    "text/distil-tag": teacher,
    "text/few-shot-tag": speaker,
    "text/few-shot-rewrite": speaker,
}
"""What a recipe needs that TINY cannot hold, as --set paths: made below a folder, from task, data and target."""


def sets(recipe: str, task: str, data: Any, target: str | None, folder: Path) -> dict[str, Any]:
    """The overrides under which a recipe trains on `made` data within seconds."""
    family = importlib.import_module(str(load_registry().get(recipe).module))
    more = NEEDS[recipe](task, data, target, folder) if recipe in NEEDS else {}
    return {**dict(paths_of(family.TINY)), **more}


def paths_of(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A tree of overrides as --set paths."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from paths_of(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def new_rows(data: Path) -> pd.DataFrame:
    """What to predict: the rows of `data` as a frame."""
    if data.is_dir():
        files = (
            sorted(data.glob("images/*.png")) or sorted(data.rglob("*.png")) or sorted(data.glob("imagesTr/*.nii.gz"))
        )
        return pd.DataFrame({"path": [str(path) for path in files]})
    if data.suffix == ".txt":
        return pd.DataFrame({"text": data.read_text().splitlines()})
    frame = pd.read_csv(data)
    if "path" in frame:
        frame["path"] = [str(data.parent / name) for name in frame["path"]]
    return frame
