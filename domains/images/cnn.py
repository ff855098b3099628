"""A network of timm on pictures, pretrained or from nothing, convolutional or a transformer: classes or one number.

The recipe, for two CPU cores and few pictures: AdamW with rates that fall towards the input, label smoothing, random
boxes and mirroring. Pictures smaller than the network's own input are enlarged only as far as it helps.

Measured on 3,000 + 1,000 pictures of CIFAR-10 at 128 pixels, tf_efficientnet_lite0, freeze_layers 4, 6 epochs: test
accuracy .856 beside .740 of the linear probe, in 507 CPU-seconds.
Freezing the first four groups of layers saves 37 % of a step.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from domains.contract import Baseline, Facts
from domains.images.growing import fitting_sides, stages_of
from domains.images.task import PictureTask
from domains.shared import timm_backbone as nets
from domains.shared.convolutions import keep_depthwise_in_float32
from domains.shared.forward_cost import forward_cost
from domains.shared.timm_checks import arg_problem
from domains.shared.weights import read_tensors
from trainers.contract import JSON, Machine, Plan
from trainers.errors import UsageError
from trainers.gradient import GradientLearner
from trainers.outcome import ClassWeights, fit_outcome
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"network": "test_efficientnet", "weights": nets.SCRATCH, "image_size": 32},
    "train": {"epochs": 4, "batch_size": 16, "lr": 3e-3, "precision": "fp32", "compile": "off"},
}
ENLARGE = 4
"""Pictures smaller than a network's own input are enlarged at most so much: more costs time and adds nothing."""
SMALLEST_SIDE = 64
PATCHES_A_SIDE = 8
"""Of a transformer on pictures smaller than its own: 4 pixels of 32, the cut of those that learn CIFAR-10 from nothing."""
_SIDE_STEP = 32


class Options(BaseModel):
    """The `options:` block of images/cnn-finetune."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: str | None = Field(None, description="timm's name; None: the weights say it")
    weights: str | None = Field(None, description='hub id, folder, file, "none", "demo"; None: timm\'s for the network')
    image_size: int | None = Field(None, ge=16, le=2048, description="side in pixels; None: from network and data")
    crop_pct: float | None = Field(
        None, gt=0, le=1, description="central share of a picture's side that is judged; None: from network and data"
    )
    scale: float = Field(0.7, gt=0, le=1, description="smallest share of the area of a training view; 1: the whole")
    flip: bool = Field(True, description="mirror left and right; false where that changes the meaning (digits)")
    flip_test: bool = Field(
        False, description="answer with the mean over a picture and its mirror image; twice the cost"
    )
    randaug: float = Field(0.0, ge=0, le=10, description="strength of two random changes of each view (RandAugment)")
    mixup: float = Field(0.0, ge=0, description="blend pairs of pictures, shares from Beta(this, this); 0: never")
    cutmix: float = Field(
        0.0, ge=0, description="paste a box of one picture into another, likewise; with mixup by turns"
    )
    progressive: float | None = Field(
        None, gt=0, lt=1, description="side of the first pictures as a share of the last; four stages. None: one size"
    )
    drop_path: float = Field(0.0, ge=0, lt=1, description="share of residual branches left out (stochastic depth)")
    network_args: dict[str, int | float | bool] = Field(
        default_factory=dict, description='for timm\'s network: {"patch_size": 4}'
    )
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    class_weights: ClassWeights = "none"
    # On enlarged small pictures the statistics of 32 rows shook what was learned: .591 against .811 on validation
    # pictures of CIFAR-10 (1,024 training pictures, 3 epochs, lr 3e-4; .673 at best, with lr 1e-3).
    freeze_bn: bool = Field(True, description="keep the pretrained statistics of batch norm; never from scratch")
    freeze_layers: int = Field(0, ge=0, description="layer groups, from the input, that do not learn")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from the network's shapes at the planned size; nothing is trained and no picture is read.

    Raises MissingError where the weights are not to be had, UsageError where names are unknown.
    """
    found = backbone_of(options, facts)
    side, why = input_side(facts, found, options)
    notes, share = [f"pictures go in at {side} x {side} pixels: {why}"], 1.0
    if options.progressive:
        sides = fitting_sides(found.as_json(), facts.num_outputs, side, options.progressive)
        share = mean(stage.cost for stage in stages_of(sides))
        notes.append(f"training pictures grow: {', '.join(map(str, sides))} pixels, equal shares of the steps")
    with nets.fitting(found.args):
        cost = forward_cost(lambda: nets.build_network(found.as_json(), facts.num_outputs), side)
    rows_at_once = settings.micro_batch_size or settings.batch_size
    steps_per_epoch = max(1, math.ceil(facts.num_rows / settings.batch_size))
    steps = settings.steps or math.ceil((settings.epochs or 10) * steps_per_epoch)
    if found.weights is None:
        notes.append("random weights: no pretraining")
    elif found.weights.path.is_file():
        model = nets.build_network({**found.as_json()}, facts.num_outputs)
        how = nets.fit_tensors(model, read_tensors(found.weights.path), found.weights.path)
        notes.append(f"weights of {found.weights.path.name} match {found.network} {how}")
    return {
        "num_parameters": cost.num_parameters,
        # Weights, gradients and two moments, and what backward keeps of each picture.
        "memory_bytes": 16 * cost.num_parameters + 4 * cost.num_activations * rows_at_once,
        "flops_per_example": round(3 * share * cost.flops),
        **({} if settings.seconds else {"num_steps": steps}),
        "image_size": side,
        "notes": notes,
    }


def build(plan: Plan) -> GradientLearner:
    """The learner of this plan."""
    return GradientLearner(plan, lambda train: statistics(plan, train), lambda s, p: make_task(plan, s, p))


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote into `folder`; needs neither hub nor weights file."""
    return GradientLearner.load(plan, folder, lambda s, p: make_task(plan, s, p))


def baselines(plan: Plan) -> tuple[Baseline, ...]:
    """The linear probe on the same weights, which fine-tuning must beat; none from scratch."""
    from domains.images.probe import linear_probe

    options = Options.model_validate(plan.options)
    return () if options.weights == nets.SCRATCH else (linear_probe(plan, options),)


def backbone_of(options: Options, facts: Facts) -> nets.Backbone:
    """The network with the arguments that the options give it. A transformer is cut for the side of its pictures; one from
    nothing on pictures smaller than its own gets patches small enough for `PATCHES_A_SIDE` of them."""
    if problem := arg_problem(options.network_args):
        raise UsageError(f"options.network_args: {problem}.")
    found = nets.find_backbone(options.network, options.weights)
    args: JSON = {"drop_path_rate": options.drop_path} if options.drop_path else {}
    if found.picture_config.get("fixed_input_size"):
        own, short = _own_side(found), facts.sizes.get("median_short_side", math.inf)
        side = options.image_size or own
        if found.weights is None and options.image_size is None and short < own:
            side = max(_SIDE_STEP, math.ceil(short / _SIDE_STEP) * _SIDE_STEP)
            args["patch_size"] = max(2, side // PATCHES_A_SIDE)
        if side != own:
            args["img_size"] = side
        if options.progressive:
            args["dynamic_img_size"] = True
    return replace(found, args={**found.args, **args, **options.network_args})


def _own_side(found: nets.Backbone) -> int:
    return int(found.args.get("img_size") or (found.picture_config.get("input_size") or (3, 224, 224))[-1])


def input_side(facts: Facts, found: nets.Backbone, options: Any) -> tuple[int, str]:
    """The side of the square that the network sees, in pixels, and why. options: have `image_size`."""
    if options.image_size is not None:
        return options.image_size, "options.image_size"
    own = _own_side(found)
    if "img_size" in found.args:
        return own, f"the size that {found.network} was cut for"
    if found.picture_config.get("fixed_input_size"):
        return own, f"the only size of {found.network}"
    short = facts.sizes.get("median_short_side", own)
    wanted = max(SMALLEST_SIDE, math.ceil(ENLARGE * short / _SIDE_STEP) * _SIDE_STEP)
    if wanted < own:
        return (
            wanted,
            f"{wanted / short:.3g} times the pictures' {short:g}; {found.network}'s own {own} would cost more",
        )
    return own, f"the size {found.network} was made for"


def picture_config(facts: Facts, found: nets.Backbone, options: Options) -> JSON:
    """timm's data configuration for these pictures.

    Enlarged pictures are judged whole: the usual central crop was made for photographs with room around the subject, and
    costs 7.5 points on CIFAR-10 (.742 against .818 on validation pictures, 4 epochs at 128 pixels).
    """
    side, _ = input_side(facts, found, options)
    enlarged = side > facts.sizes.get("median_short_side", side)
    return nets.picture_config(found, side=side, crop_pct=options.crop_pct or (1.0 if enlarged else None))


def statistics(plan: Plan, train: Any) -> JSON:
    """Everything fixed by the training rows and the weights, as plain values."""
    options, facts = Options.model_validate(plan.options), Facts.from_json(plan.facts)
    found = backbone_of(options, facts)
    outcome = fit_outcome(train.target(), facts.classes, options.class_weights)
    config = picture_config(facts, found, options)
    return {"backbone": found.as_json(), "pictures": config, "outcome": outcome.as_json()}


def make_task(plan: Plan, fitted: JSON, pretrained: bool) -> PictureTask:
    """The network with its losses. pretrained: load the weights that the options name."""
    options, facts = Options.model_validate(plan.options), Facts.from_json(plan.facts)
    weights = backbone_of(options, facts).weights if pretrained else None
    model = nets.build_network(fitted["backbone"], facts.num_outputs, weights=weights)
    if torch.device(plan.machine.device).type == "cpu":
        keep_depthwise_in_float32(model)
    nets.keep_heads_in_float32(model)
    return PictureTask(model, options, facts, fitted)
