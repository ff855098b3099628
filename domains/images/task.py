"""The inner contract for pictures: examples, training views, losses and predictions of a timm network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from domains.contract import Facts
from domains.images.augment import mixed, training_view
from domains.images.growing import sides_of, stages_of
from domains.images.labelled import FILE
from domains.images.shelf import STORED_MARGIN, Examples, shelve
from domains.images.views import PlainViews
from domains.shared.convolutions import batch_norms, hold_statistics
from domains.shared.timm_backbone import head_names, layer_depths, normalised
from domains.shared.timm_checks import stored_side
from trainers.contract import JSON, Batch, Predictions, Role
from trainers.outcome import Outcome


class PictureTask:
    """Meets `trainers.contract.Task`, and `Staged` where training pictures grow. Pictures travel as uint8 (rows, 3, side,
    side) and are normalised in the model's device, a quarter of the bytes of floats."""

    couples_rows = False

    def __init__(self, model: torch.nn.Module, options: Any, facts: Facts, fitted: JSON) -> None:
        self.model, self.options, self.facts, self.fitted = model, options, facts, fitted
        self.outcome = Outcome.from_json(fitted["outcome"])
        self.config = fitted["pictures"]
        self.side = stored_side(self.config)
        self.sides = sides_of(model, self.side, options.progressive)
        self.stages = stages_of(self.sides) if len(self.sides) > 1 else ()
        self.views = PlainViews(self.config)
        self.mixes = options.mixup > 0 or options.cutmix > 0
        # Random weights come with no statistics that were worth keeping.
        self.freezes_bn = options.freeze_bn and fitted["backbone"]["weights"] is not None
        # Batch norm cannot learn from the statistics of one row.
        self.min_rows = 2 if batch_norms(model) and not self.freezes_bn else 1

    def roles(self) -> Mapping[str, Role]:
        """Depth from timm's own grouping of layers; frozen groups have no role."""
        depths = layer_depths(self.model)
        heads = tuple(f"{name}." for name in head_names(self.model))
        return {
            name: Role("head" if name.startswith(heads) else "matrix" if p.ndim > 1 else "scalar", depths[name])
            for name, p in self.model.named_parameters()
            if depths[name] >= self.options.freeze_layers or name.startswith(heads)
        }

    def examples(self, train: Any, folder: Path) -> Sequence[Any]:
        """Pictures decoded once into `folder`, with class positions or standardised numbers."""
        paths = [Path(train.context["root"]) / file for file in train.column(FILE)]
        num_bytes = int(3e6 * self.facts.sizes.get("megapixels", 0.0))
        shelf = shelve(paths, round(self.side * STORED_MARGIN), folder / "pictures", num_bytes=num_bytes)
        return Examples(shelf, self.outcome.encoded(train.target()))

    def sizes(self, examples: Sequence[Any]) -> None:
        """All pictures cost the same."""

    def draw(self, examples: Sequence[Any], rngs: Sequence[np.random.Generator], stage: int = -1) -> Batch:
        """Training views with their targets; smaller and less changed in the first stages, where there are several."""
        side = self.sides[stage]
        how = {"scale": self.options.scale, "flip": self.options.flip, "interpolation": self.config["interpolation"]}
        how["randaug"] = self.options.randaug * (side / self.side)
        views = np.stack([training_view(x, side, rng=rngs[i], **how) for i, (x, _) in enumerate(examples)])
        targets, share = np.array([target for _, target in examples]), 1.0
        if self.mixes:
            views, share = mixed(views, mixup=self.options.mixup, cutmix=self.options.cutmix, rng=rngs[0])
        counts = _blend(self.outcome.counts(targets), self.outcome.counts(targets[::-1]), share)
        pictures = torch.from_numpy(views).permute(0, 3, 1, 2)
        shares = (torch.tensor(share),) if self.mixes else ()
        return Batch((pictures, torch.from_numpy(targets), *shares), counts)

    def loss(self, model: torch.nn.Module, inputs: Any) -> Mapping[str, torch.Tensor]:
        """Cross entropy with smoothed labels, or the squared error of standardised numbers, summed over rows; of mixed
        pictures the mean over both targets by their shares."""
        if self.freezes_bn:
            hold_statistics(model)
        pictures, targets, *share = inputs
        answers, smoothing = model(normalised(pictures, self.config)), self.options.label_smoothing
        own = self.outcome.totals(answers, targets, label_smoothing=smoothing)
        if not share:
            return own
        return _blend(own, self.outcome.totals(answers, targets.flip(0), label_smoothing=smoothing), share[0])

    def row_sizes(self, rows: Any) -> None:
        """All pictures cost the same."""

    def collate(self, rows: Any) -> torch.Tensor:
        """(rows, 3, side, side) uint8, as timm's evaluation transform crops them."""
        return self.views.batch([Path(rows.context["root"]) / file for file in rows.column(FILE)])

    def predict(self, model: torch.nn.Module, inputs: torch.Tensor) -> Predictions:
        """Class probabilities, or numbers in the unit of the target."""
        pictures = normalised(inputs, self.config)
        answers = model(pictures)
        if self.options.flip_test:
            answers = (answers + model(pictures.flip(-1))) / 2
        return self.outcome.predictions(answers)


def _blend(one: Mapping[str, Any], other: Mapping[str, Any], share: Any) -> dict[str, Any]:
    """share of `one` and the rest of `other`, name by name."""
    return {name: share * value + (1 - share) * other[name] for name, value in one.items()}
