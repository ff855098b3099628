"""Training steps per CPU-second of images/cnn-finetune against timm's parts, put together as its train script does.

    python benchmarks/timm_race.py cifar10-18k.tar --side 128 --pairs 5 --block 10

Both fine-tune EfficientNet-Lite0 with its ImageNet weights, every layer, on the same JPEG files in batches of 32 at one size:
random boxes and mirroring, smoothed labels, AdamW, clipping at 1, a rate that falls step by step, on one thread. timm: its
dataset, loader without workers, optimizer, scheduler, autocast in bfloat16 (`--amp --amp-dtype bfloat16`), and by `--peer` in
float32, with channels last, or compiled. Ours: the settings of registry.yaml but with learning batch norm and no frozen layers,
pictures decoded once into the cache or each time. Each side is a process that waits while another works: after a block of
warm-up (compiling, first touches) blocks alternate, and all CPU-seconds of a block count. Evaluation and saving are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from alternating import Blocks, Side, Watch

NETWORK = "tf_efficientnet_lite0"
WEIGHTS = "demo"  # its ImageNet weights, as a package brings them
BATCH, SCALE, SMOOTHING, CLIP, RATE, DECAY = 32, 0.7, 0.1, 1.0, 3e-4, 0.05
TARGETS = {"cached": 1.1, "uncached": 0.95}
PEERS = {
    "amp": {"amp": True},
    "float32": {"amp": False},
    "amp-last": {"amp": True, "channels_last": True},
    "float32-last": {"amp": False, "channels_last": True},
    "amp-compiled": {"amp": True, "compile": True},
    "float32-compiled": {"amp": False, "compile": True},
}


def main() -> None:
    """Start all sides, let them alternate, print the ratios to each peer."""
    arguments = _parser().parse_args()
    if arguments.side_name:
        (_train_ours if arguments.side_name in TARGETS else _train_timm)(arguments)
        return
    sides = {name: _side(name, arguments) for name in (*TARGETS, *arguments.peer)}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for pair in range(arguments.pairs):
        for name in sides if pair % 2 else reversed(sides):
            rates[name].append(sides[name].told("go")["rate"])
        print(json.dumps({"pair": pair + 1, **{name: found[-1] for name, found in rates.items()}}), flush=True)
    for side in sides.values():
        side.process.kill()
    best = max(arguments.peer, key=lambda name: statistics.median(rates[name]))
    ratios = {name: [_shown(name, peer, rates) for peer in arguments.peer] for name in TARGETS}
    print(f"timm's best: {best}")
    sys.exit(any(ratios[name][arguments.peer.index(best)] < target for name, target in TARGETS.items()))


def _shown(name: str, peer: str, rates: dict[str, list[float]]) -> float:
    found = [one / other for one, other in zip(rates[name], rates[peer], strict=True)]
    median = statistics.median(found)
    print(f"steps per CPU-second, {name} / timm {peer}: median {median:.3f}, {min(found):.3f} to {max(found):.3f}")
    return median


def _side(name: str, arguments: argparse.Namespace) -> Side:
    words = [sys.executable, __file__, arguments.data, "--side-name", name]
    words += [f"--{key}={getattr(arguments, key)}" for key in ("side", "pairs", "block")]
    return Side(name, words, {})


def _num_steps(arguments: argparse.Namespace) -> int:
    return int(arguments.block * (arguments.pairs + 1) + 1)


def _job(arguments: argparse.Namespace) -> Any:
    from zoo.job import prepare
    from zoo.plan import Wishes

    options = {"weights": WEIGHTS, "image_size": arguments.side, "freeze_layers": 0, "freeze_bn": False}
    train = {"batch_size": BATCH, "steps": _num_steps(arguments), "epochs": None, "evaluations": 1}
    train |= {"lr": RATE, "head_lr": RATE, "layer_decay": 1.0}
    sets: dict[str, Any] = {f"options.{name}": value for name, value in options.items()}
    return prepare(
        "images/cnn-finetune",
        arguments.data,
        wishes=Wishes(sets={**sets, **{f"train.{name}": value for name, value in train.items()}}),
    )


def _train_ours(arguments: argparse.Namespace) -> None:
    import torch

    from domains.images import cnn, shelf

    torch.set_num_threads(1)
    if arguments.side_name == "uncached":
        shelf.LARGEST_SHARE_OF_DISK = 0.0
    job = _job(arguments)
    blocks = Blocks(arguments.block, arguments.pairs, _num_steps(arguments))
    blocks.facts = {"parameters": job.plan.estimates["num_parameters"]}
    with tempfile.TemporaryDirectory() as folder:
        cnn.build(job.plan).fit(job.part("train"), None, Watch(Path(folder), blocks))


def _train_timm(arguments: argparse.Namespace) -> None:
    import timm
    import torch
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import create_scheduler_v2
    from timm.utils import AverageMeter, dispatch_clip_grad

    torch.set_num_threads(1)
    how, job = PEERS[arguments.side_name], _job(arguments)
    model = timm.create_model(NETWORK, num_classes=len(job.plan.facts["classes"]))
    _give_weights(model, job)
    layout = torch.channels_last if how.get("channels_last") else torch.contiguous_format
    model = model.to(memory_format=layout)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=RATE, weight_decay=DECAY)
    steps = _num_steps(arguments)
    scheduler, _ = create_scheduler_v2(
        optimizer, "cosine", num_epochs=1, updates_per_epoch=steps, step_on_epochs=False, warmup_epochs=0
    )
    loader, smoothed, seen = _loader(arguments, job), LabelSmoothingCrossEntropy(SMOOTHING), AverageMeter()
    model.train()
    run = torch.compile(model) if how.get("compile") else model
    blocks = Blocks(arguments.block, arguments.pairs, steps)
    blocks.facts = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    step = 0
    while step < steps:
        for pictures, targets in loader:
            blocks()
            pictures = pictures.contiguous(memory_format=layout)
            with torch.autocast("cpu", torch.bfloat16, enabled=bool(how["amp"])):
                loss = smoothed(run(pictures), targets)
            optimizer.zero_grad()
            loss.backward()
            dispatch_clip_grad(model.parameters(), CLIP)
            optimizer.step()
            seen.update(loss.item(), len(pictures))
            step += 1
            scheduler.step_update(step)


def _give_weights(model: Any, job: Any) -> None:
    """The ImageNet weights that ours begins with, but the head."""
    from domains.contract import Facts
    from domains.images import cnn
    from domains.shared.timm_backbone import fit_tensors
    from domains.shared.weights import read_tensors

    found = cnn.backbone_of(cnn.Options.model_validate(job.plan.options), Facts.from_json(job.plan.facts))
    assert found.weights is not None
    fit_tensors(model, read_tensors(found.weights.path), found.weights.path)


def _loader(arguments: argparse.Namespace, job: Any) -> Any:
    import torch
    from timm.data import create_loader
    from timm.data.dataset import ImageDataset

    from domains.images.labelled import FILE

    rows = job.part("train")
    classes = {name: at for at, name in enumerate(job.plan.facts["classes"])}
    paths = [str(Path(rows.context["root"]) / file) for file in rows.column(FILE)]
    dataset: Any = ImageDataset(str(rows.context["root"]))
    dataset.reader.samples = [(path, classes[str(label)]) for path, label in zip(paths, rows.target(), strict=True)]
    return create_loader(
        dataset,
        input_size=(3, arguments.side, arguments.side),
        batch_size=BATCH,
        is_training=True,
        use_prefetcher=False,
        scale=(SCALE, 1.0),
        ratio=(3 / 4, 4 / 3),
        hflip=0.5,
        color_jitter=None,
        interpolation="bicubic",
        num_workers=0,
        device=torch.device("cpu"),
        persistent_workers=False,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="class folders of JPEG files, also packed")
    parser.add_argument("--side", type=int, default=128, help="pixels")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--block", type=int, default=10, help="steps of a block")
    parser.add_argument("--peer", nargs="+", choices=list(PEERS), default=["amp"])
    parser.add_argument("--side-name", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
