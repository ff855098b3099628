"""New pictures by flow matching with a small U-Net, by class where the training folders or a column `class` tell it.

A finished run draws a picture for every row of a table without pictures (`zoo predict RUN orders.csv --out FOLDER`, with a
column `class` or without), and keeps a sheet of examples in `model/samples.png`. Its score is the error of the flow on held-out
pictures; with `options.frechet` the Frechet distance between drawn and training pictures is told too, where there are enough.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field

from domains.contract import Baseline, Facts
from domains.images import flow, frechet
from domains.images.flow_network import FlowNetwork
from domains.images.generated import CONDITION
from domains.images.labelled import FILE
from domains.images.shelf import Examples, shelve
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role, Watch
from trainers.gradient import GradientLearner
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"image_size": 16, "widths": [16, 16], "steps": 4},
    "train": {"epochs": 12, "batch_size": 16, "lr": 3e-3, "precision": "fp32", "compile": "off", "ema": None},
}
LARGEST_SIDE = 64
SAMPLES, _COLUMNS = 24, 8
_MOST_AT_ONCE = 32
SHEET = "samples.png"


class Options(BaseModel):
    """The `options:` block of images/diffusion."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image_size: int | None = Field(None, ge=8, le=512, description="side in pixels; None: the median one, 64 at most")
    widths: tuple[int, ...] = Field((48, 96, 192), min_length=1, max_length=6, description="channels of each level")
    class_dropout: float = Field(0.1, ge=0, lt=1, description="share of pictures whose class is kept from the network")
    guidance: float = Field(2.0, ge=0, description="how often the class's part of the direction counts; 1: as learned")
    steps: int = Field(20, ge=1, le=1000, description="midpoint steps to draw a picture, two looks of the network each")
    flip: bool = Field(True, description="mirror left and right; false where that changes the meaning (digits)")
    frechet: str | None = Field(
        None,
        description='network for a Frechet distance once trained: hub id, folder, run on pictures, "demo"; None: none',
    )
    frechet_pictures: int = Field(10_000, ge=2, description="drawn for it and compared with as many, at most")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from shapes. Raises MissingError where the weights for a Frechet distance are not to be had."""
    side = input_side(facts, options)
    with torch.device("meta"):
        network = FlowNetwork(len(facts.classes), options.widths)
    num_parameters = sum(parameter.numel() for parameter in network.parameters())
    activations = sum(14 * width * (side >> level) ** 2 for level, width in enumerate(options.widths))
    steps = settings.planned_steps(facts.num_rows)
    drawn_by = f"by {len(facts.classes)} classes" if facts.classes else "without classes"
    notes = [f"pictures of {side} x {side} pixels, {drawn_by}"]
    if options.frechet is not None:
        width, num = frechet.Features(options.frechet, "cpu").width, min(facts.num_rows, options.frechet_pictures)
        problem = frechet.why_not(num, width)
        notes.append(
            f"no Frechet distance: {problem}" if problem else f"{num:,} pictures are drawn for a Frechet distance"
        )
    return {
        "num_parameters": num_parameters,
        "memory_bytes": 20 * num_parameters + 4 * activations * (settings.micro_batch_size or settings.batch_size),
        **({"num_steps": steps} if steps else {}),
        "notes": notes,
    }


def build(plan: Plan) -> DrawingLearner:
    """The learner of this plan."""
    return DrawingLearner(plan, lambda train: {}, lambda s, p: make_task(plan))


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote into `folder`."""
    return DrawingLearner.load(plan, folder, lambda s, p: make_task(plan))


def baselines(plan: Plan) -> tuple[Baseline, ...]:
    """One picture for all, and pixels that know nothing of one another, asked about the same noise as the model."""
    side = input_side(Facts.from_json(plan.facts), Options.model_validate(plan.options))
    return flow.mean_picture(side), flow.gaussian_pixels(side)


def input_side(facts: Facts, options: Options) -> int:
    """A multiple of what the levels halve."""
    step: int = 2 ** (len(options.widths) - 1)
    side = options.image_size or min(LARGEST_SIDE, round(facts.sizes["median_short_side"]))
    return max(step, math.ceil(side / step) * step)


def make_task(plan: Plan) -> FlowTask:
    """The network, with random weights."""
    options, facts = Options.model_validate(plan.options), Facts.from_json(plan.facts)
    return FlowTask(FlowNetwork(len(facts.classes), options.widths), options, facts)


class DrawingLearner(GradientLearner):
    """A gradient learner that leaves a sheet of examples beside its weights, and tells how far they are from real ones."""

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Train, and where it is asked for count the Frechet distance, among several processes in the first."""
        actual = super().fit(train, valid, watch)
        options, task = Options.model_validate(self.plan.options), self.task
        if options.frechet is None or watch.rank:
            return actual
        assert isinstance(task, FlowTask)
        classes = task.numbers(train.column(CONDITION))
        features = frechet.Features(options.frechet, self.plan.machine.device)
        how: JSON = {"side": task.side, "most": options.frechet_pictures, "seed": self.plan.seed, "log": watch.log}

        def drawing(numbers: Sequence[int], rows: np.ndarray) -> np.ndarray:
            return task.samples(numbers, classes[rows], self.plan.seed)

        return {**actual, **frechet.compared(drawing, train, features, **how)}

    def save(self, folder: Path) -> None:
        """Weights, and SHEET."""
        super().save(folder)
        assert isinstance(self.task, FlowTask)
        classes = np.arange(SAMPLES) % max(1, len(self.task.classes))
        flow.grid(self.task.samples(range(SAMPLES), classes, self.plan.seed), _COLUMNS).save(folder / SHEET)


@dataclass(frozen=True)
class Drawn:
    """An answer: a picture. pixels: (side, side, 3) uint8."""

    pixels: bytes
    side: int
    suffix = ".png"

    def write(self, path: Path) -> None:
        """A PNG."""
        Image.frombytes("RGB", (self.side, self.side), self.pixels).save(path)

    def __str__(self) -> str:
        return f"picture of {self.side} x {self.side} pixels"


class FlowTask:
    """Meets `trainers.contract.Task`."""

    couples_rows = False
    min_rows = 1

    def __init__(self, model: FlowNetwork, options: Options, facts: Facts) -> None:
        self.model: torch.nn.Module = model
        self.options, self.classes = options, facts.classes
        self.side, self.megapixels = input_side(facts, options), facts.sizes["megapixels"]

    def roles(self) -> Mapping[str, Role]:
        """Kernels and matrices; the classes are an embedding."""
        return {
            name: Role("embedding" if name.startswith("classes.") else "matrix" if value.ndim > 1 else "scalar")
            for name, value in self.model.named_parameters()
        }

    def examples(self, train: Any, folder: Path) -> Sequence[Any]:
        """Pictures decoded once into `folder`, with their classes."""
        paths = [Path(train.context["root"]) / file for file in train.column(FILE)]
        shelf = shelve(paths, self.side, folder / "pictures", num_bytes=int(3e6 * self.megapixels))
        return Examples(shelf, self.numbers(train.column(CONDITION)))

    def sizes(self, examples: Sequence[Any]) -> None:
        """All pictures cost the same."""

    def draw(self, examples: Sequence[Any], rngs: Sequence[np.random.Generator]) -> Batch:
        """Pictures uint8, noise, times and classes; some classes are kept back."""
        pictures, noise, times, classes = [], [], [], []
        for i, (picture, number) in enumerate(examples):
            view = flow.shrunk(picture, self.side)
            pictures.append(view[:, :, ::-1] if self.options.flip and rngs[i].random() < 0.5 else view)
            noise.append(rngs[i].standard_normal(view.shape, dtype=np.float32))
            times.append(rngs[i].random())
            classes.append(len(self.classes) if rngs[i].random() < self.options.class_dropout else number)
        stacked = (torch.from_numpy(np.stack(each)) for each in (pictures, noise))
        inputs = (*stacked, torch.tensor(times, dtype=torch.float32), torch.tensor(classes))
        return Batch(inputs, {"flow": float(len(examples))})

    def loss(self, model: torch.nn.Module, inputs: Any) -> Mapping[str, torch.Tensor]:
        """Mean squared error of the direction over pixels, summed over pictures."""
        pictures, noise, times, classes = inputs
        pictures = flow.as_floats(pictures)
        found = model(flow.on_the_way(pictures, noise, times), times, classes)
        return {"flow": (found.float() - (pictures - noise)).square().flatten(1).mean(dim=1).sum()}

    def row_sizes(self, rows: Any) -> None:
        """All pictures cost the same."""

    def collate(self, rows: Any) -> tuple[torch.Tensor, ...]:
        """Pictures uint8, their fixed noise and classes; without pictures the noise to begin with, and classes."""
        classes = torch.from_numpy(self.numbers(rows.column(CONDITION)))
        if rows.context["has_pictures"]:
            pictures = flow.squares(rows, self.side)
            noise = np.stack([flow.fixed_noise(each) for each in pictures])
            return torch.from_numpy(pictures), torch.from_numpy(noise), classes
        noise = np.stack([self._noise(np.random.default_rng(zlib.crc32(name.encode()))) for name in rows.ids])
        return torch.from_numpy(noise), classes

    def predict(self, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Predictions:
        """The error of the flow on pictures, or new pictures."""
        if len(inputs) == 3:
            pictures, noise, classes = inputs
            errors = flow.flow_errors(model, flow.as_floats(pictures), noise, classes)
            return Predictions.of_numbers(errors.double().cpu().numpy())
        found = self._drawn(model, *inputs)
        return Predictions.of_files([Drawn(each.tobytes(), self.side) for each in found])

    def samples(self, numbers: Sequence[int], classes: np.ndarray, seed: int) -> np.ndarray:
        """(numbers, side, side, 3) uint8: a picture of its class for each number, always the same one."""
        model, device = self.model.eval(), next(self.model.parameters()).device
        rngs = [np.random.default_rng([seed, i]) for i in numbers]
        noise = torch.from_numpy(np.stack([self._noise(rng) for rng in rngs])).to(device)
        return self._drawn(model, noise, torch.from_numpy(classes).to(device))

    def _drawn(self, model: torch.nn.Module, noise: torch.Tensor, classes: torch.Tensor) -> np.ndarray:
        velocity = flow.guided(model, self.options.guidance if self.classes else 1.0, len(self.classes))
        with torch.no_grad():
            parts = [
                flow.drawn(velocity, part, which, steps=self.options.steps)
                for part, which in zip(*(torch.split(each, _MOST_AT_ONCE) for each in (noise, classes)), strict=True)
            ]
        return flow.as_bytes(torch.cat(parts))

    def _noise(self, rng: np.random.Generator) -> np.ndarray:
        return rng.standard_normal((3, self.side, self.side), dtype=np.float32)

    def numbers(self, labels: Any) -> np.ndarray:
        """(rows,) class positions; the last, one beyond the classes, for none."""
        place = {name: at for at, name in enumerate(self.classes)}
        return np.array([place.get(label, len(self.classes)) for label in labels], np.int64)
