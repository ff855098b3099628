"""Training steps per CPU-second of medical/nnunet against nnunetv2's own trainer, and Dice after as many steps.

    python benchmarks/nnunet.py hippocampus PYTHON --pairs 5 --block 10 --steps 200

PYTHON is that of an environment with nnunetv2 (2.8). Both sides learn from the same cases of a Decathlon folder (the training
part of `zoo train medical/nnunet`, seed 0) with the patch, the levels and the widths of nnU-Net's own plan and one batch size,
each with its own augmentation, deep supervision, losses, optimizer and schedule over `--steps`; nnU-Net in float32 and without
compiling, which is what its trainer does on a CPU, ours with the settings of registry.yaml. Preprocessing is apart on both
sides. Each is a process on one thread that waits while the other works: after a block of warm-up (compiling, first touches)
blocks alternate, which side begins changes, and only blocks are counted, in CPU-seconds of all threads, augmentation
included (nnU-Net's in its own process: no workers). Then both go on to `--steps`, and answer the validation cases as they
usually do: sliding windows, nnU-Net over all mirrored views, ours over those of its plan. The test part is not touched.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from alternating import THREADS, Blocks, Side, Watch, say

TARGET_RATIO, TOLERANCE = 1.7, 0.005
NAME, CONFIGURATION = "Dataset004_Race", "3d_fullres"
_EPOCHS = 10
"""In which nnU-Net cuts its steps: its rate falls once an epoch."""


def main() -> None:
    """Lay out the data, start both sides, let them alternate, score their masks."""
    arguments = _parser().parse_args()
    if arguments.side:
        SIDES[arguments.side](arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        arguments.folder = folder
        truth = _laid_out(arguments)
        sides = {name: _side(name, arguments) for name in ("nnunet", "zoo")}
        ratios = [_pair(number, sides) for number in range(arguments.pairs)]
        for side in sides.values():  # nothing is timed any more, so both may work at once
            side.tell("finish")
        found = {name: {**side.answer(), **_score(Path(folder) / name, truth)} for name, side in sides.items()}
    for name, line in found.items():
        print(json.dumps({"side": name, **line}), flush=True)
    median = statistics.median(ratios)
    print(f"steps per CPU-second, zoo / nnU-Net: median {median:.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
    print(f"mean Dice, zoo - nnU-Net: {found['zoo']['dice'] - found['nnunet']['dice']:+.4f}")
    sys.exit(median < TARGET_RATIO or found["zoo"]["dice"] < found["nnunet"]["dice"] - TOLERANCE)


def _side(name: str, arguments: argparse.Namespace) -> Side:
    python = arguments.python if name == "nnunet" else sys.executable
    words = [python, __file__, arguments.data, arguments.python, "--side", name, "--folder", arguments.folder]
    words += [f"--{key}={getattr(arguments, key)}" for key in ("block", "pairs", "steps", "batch")]
    # Without workers nnU-Net augments in its own process, where its CPU-seconds are counted.
    return Side(name, words, {**_nnunet_folders(arguments), "nnUNet_n_proc_DA": "0"})


def _pair(number: int, sides: dict[str, Side]) -> float:
    order = list(sides) if number % 2 else list(reversed(sides))
    rates = {name: sides[name].told("go")["rate"] for name in order}
    print(json.dumps({"pair": number + 1, **rates, "ratio": round(rates["zoo"] / rates["nnunet"], 3)}), flush=True)
    return float(rates["zoo"] / rates["nnunet"])


# --- the data --------------------------------------------------------------------------------------------------------


def _job(arguments: argparse.Namespace, sets: dict[str, Any]) -> Any:
    from zoo.job import prepare
    from zoo.plan import Wishes

    return prepare("medical/nnunet", arguments.data, wishes=Wishes(sets=sets))


def _laid_out(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the training and validation cases as nnU-Net wants them, let it plan and prepare them, and keep its plan where
    both sides find it. Returns {validation case: its mask}."""
    job, root = _job(arguments, {}), Path(arguments.folder)
    raw = root / "raw" / NAME
    for name in ("imagesTr", "labelsTr"):
        (raw / name).mkdir(parents=True)
    train, valid = job.part("train"), job.part("valid").take(range(min(arguments.cases, len(job.part("valid")))))
    for rows in (train, valid):
        for name, images, mask in zip(rows.ids, rows.column("images"), rows.target(), strict=True):
            for channel, path in enumerate(images):
                shutil.copy(path, raw / "imagesTr" / f"{name}_{channel:04d}.nii.gz")
            shutil.copy(mask.path, raw / "labelsTr" / f"{name}.nii.gz")
    schema = job.plan.facts["schema"]
    described = {
        "channel_names": dict(enumerate(schema["channels"])),
        "labels": dict(zip(schema["names"], schema["values"], strict=True)),
        "numTraining": len(train) + len(valid),
        "file_ending": ".nii.gz",
    }
    (raw / "dataset.json").write_text(json.dumps(described))
    (root / "parts.json").write_text(json.dumps([{"train": list(train.ids), "val": list(valid.ids)}]))
    words = [arguments.python, __file__, arguments.data, arguments.python, "--side", "prepare", "--folder", str(root)]
    environment = {**os.environ, **THREADS, **_nnunet_folders(arguments)}
    subprocess.run([*words, f"--batch={arguments.batch}"], check=True, env=environment, stdout=subprocess.DEVNULL)
    return dict(zip(valid.ids, valid.target(), strict=True))


def _nnunet_folders(arguments: argparse.Namespace) -> dict[str, str]:
    root = Path(arguments.folder)
    folders = {f"nnUNet_{name}": str(root / name) for name in ("raw", "preprocessed", "results")}
    return {**folders, "nnUNet_compile": "f"}


def _score(folder: Path, truth: dict[str, Any]) -> dict[str, float]:
    """Mean foreground Dice of the masks that a side left in `folder`, over all cases and classes."""
    from domains.medical.scores import dice

    rows = []
    for name, mask in truth.items():
        answer = np.load(folder / f"{name}.npy")
        rows.append(dice(mask.array(), answer, len(mask.values) - 1))
    return {"dice": round(float(np.nanmean(np.nanmean(rows, axis=0))), 4), "cases": len(rows)}


# --- nnU-Net ---------------------------------------------------------------------------------------------------------


def prepare_nnunet(arguments: argparse.Namespace) -> None:
    """Fingerprint, plan with our batch size, and preprocessing, by nnU-Net's own functions."""
    from nnunetv2.experiment_planning import plan_and_preprocess_api as api

    number = int(NAME[7:10])
    api.extract_fingerprints([number], num_processes=1, check_dataset_integrity=False)
    api.plan_experiments([number])
    folder = Path(arguments.folder) / "preprocessed" / NAME
    path = folder / "nnUNetPlans.json"
    plans = json.loads(path.read_text())
    plans["configurations"][CONFIGURATION]["batch_size"] = arguments.batch
    path.write_text(json.dumps(plans))
    api.preprocess([number], configurations=[CONFIGURATION], num_processes=[1])
    shutil.copy(Path(arguments.folder) / "parts.json", folder / "splits_final.json")


def _nnunet_plan(arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    path = Path(arguments.folder) / "preprocessed" / NAME / "nnUNetPlans.json"
    plans = json.loads(path.read_text())
    return plans, plans["configurations"][CONFIGURATION]


def train_nnunet(arguments: argparse.Namespace) -> None:
    """nnU-Net's trainer, step by step."""
    import torch
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    torch.set_num_threads(1)
    plans, configuration = _nnunet_plan(arguments)
    raw = Path(arguments.folder) / "raw" / NAME
    described = json.loads((raw / "dataset.json").read_text())
    plans["continue_training"] = False  # as its own run_training.py hands it over
    trainer = nnUNetTrainer(plans, CONFIGURATION, 0, described, device=torch.device("cpu"))
    trainer.num_epochs, trainer.num_iterations_per_epoch = _EPOCHS, arguments.steps // _EPOCHS
    trainer.on_train_start()
    blocks = Blocks(arguments.block, arguments.pairs, arguments.steps)
    size = sum(parameter.numel() for parameter in trainer.network.parameters())
    blocks.facts = {"parameters": size, "patch": configuration["patch_size"]}
    for trainer.current_epoch in range(_EPOCHS):
        trainer.on_train_epoch_start()
        for _ in range(trainer.num_iterations_per_epoch):
            blocks()
            trainer.train_step(next(trainer.dataloader_train))
    _answer_nnunet(trainer, raw, Path(arguments.folder))
    say({"steps": arguments.steps})


def _answer_nnunet(trainer: Any, raw: Path, root: Path) -> None:
    import torch
    from nnunetv2.imageio.simpleitk_reader_writer import SimpleITKIO
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    trainer.set_deep_supervision_enabled(False)
    predictor = nnUNetPredictor(device=torch.device("cpu"), perform_everything_on_device=False, allow_tqdm=False)
    predictor.manual_initialization(
        trainer.network,
        trainer.plans_manager,
        trainer.configuration_manager,
        [trainer.network.state_dict()],
        trainer.dataset_json,
        "nnUNetTrainer",
        trainer.inference_allowed_mirroring_axes,
    )
    (root / "nnunet").mkdir()
    channels = len(trainer.dataset_json["channel_names"])
    for name in json.loads((root / "parts.json").read_text())[0]["val"]:
        files = [str(raw / "imagesTr" / f"{name}_{channel:04d}.nii.gz") for channel in range(channels)]
        image, about = SimpleITKIO().read_images(files)
        mask_ZYX = predictor.predict_single_npy_array(image, about, None, None, False)
        np.save(root / "nnunet" / f"{name}.npy", np.asarray(mask_ZYX).transpose(2, 1, 0).astype(np.uint8))


# --- ours ------------------------------------------------------------------------------------------------------------


def train_zoo(arguments: argparse.Namespace) -> None:
    """The learner of medical/nnunet on nnU-Net's network and patch."""
    import torch

    from domains.medical import nnunet

    torch.set_num_threads(1)
    root, options = Path(arguments.folder), _zoo_options(arguments)
    train = {"batch_size": arguments.batch, "steps": arguments.steps, "epochs": None, "evaluations": 1}
    sets = {**options, **{f"train.{name}": value for name, value in train.items()}}
    job = _job(arguments, sets)
    learner, blocks = nnunet.build(job.plan), Blocks(arguments.block, arguments.pairs, arguments.steps)
    found = job.plan.estimates
    blocks.facts = {"parameters": found["num_parameters"], "patch": found["configuration"]["patch"]}
    (root / "ours").mkdir()
    learner.cache = root / "ours"
    learner.inner.fit(job.part("train"), None, Watch(root / "ours", blocks))
    valid = job.part("valid")
    wanted = set(json.loads((root / "parts.json").read_text())[0]["val"])
    rows = valid.take([at for at, name in enumerate(valid.ids) if name in wanted])
    (root / "zoo").mkdir()
    for name, mask in zip(rows.ids, learner.predict(rows.without_target()).values, strict=True):
        np.save(root / "zoo" / f"{name}.npy", mask.array())
    say({"steps": arguments.steps})


def _zoo_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """nnU-Net's patch, strides, kernels and widths as a plan for ours."""
    found = _nnunet_plan(arguments)[1]
    network = found["architecture"]["arch_kwargs"]
    plan = {
        "patch": found["patch_size"],
        "strides": network["strides"],
        "kernels": network["kernel_sizes"],
        "features": network["features_per_stage"],
        "dimensions": 3,
        # Theirs is in z, y, x of the file, and these files are in RAS.
        "axes": [2, 1, 0],
        "spacing": found["spacing"],
    }
    path = Path(arguments.folder) / "plan.json"
    path.write_text(json.dumps(plan))
    return {"options.plan": str(path)}


SIDES = {"prepare": prepare_nnunet, "nnunet": train_nnunet, "zoo": train_zoo}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder with imagesTr, labelsTr and dataset.json")
    parser.add_argument("python", help="that of an environment with nnunetv2")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--block", type=int, default=10, help="steps of a block")
    parser.add_argument("--steps", type=int, default=200, help="of each side in all, for the Dice; a multiple of 10")
    parser.add_argument("--batch", type=int, default=2, help="patches a step")
    parser.add_argument("--cases", type=int, default=29, help="validation cases to answer, at most")
    parser.add_argument("--side", choices=("prepare", "nnunet", "zoo"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
