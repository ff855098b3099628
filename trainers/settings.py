"""What the `train:` block of a recipe may say, one class per trainer. Light: pydantic only, so that `zoo check` and
`--set` can validate without torch."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Share = Annotated[float, Field(ge=0, lt=1)]
Flags = Mapping[str, Callable[[Any], dict[str, Any]]]
Optimizer = Literal[
    "adamw", "sgd", "muon+adamw", "adafactor", "lamb", "lars", "lion", "schedule-free", "soap", "adamw-8bit"
]

OPTIMIZER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    # The table of rates per role of the practice around nanochat, which scales embeddings and head by width and leaves
    # scalars unscaled; the request for this zoo scales all three: train.width_scaled=[embedding,head] for the former.
    "muon+adamw": {
        "lr": 0.04,
        "weight_decay": 0.2,
        "decay_schedule": "linear",
        "embedding_lr": 0.6,
        "head_lr": 0.004,
        "scalar_lr": 0.005,
        "width_scaled": ("embedding", "head", "scalar"),
        "betas": (0.8, 0.95),
        "eps": 1e-10,
        "momentum": 0.95,
        "warmup": 0.0,
    },
    "lion": {"lr": 1e-4, "weight_decay": 0.1, "betas": (0.9, 0.99)},  # Chen et al. 2023, arXiv 2302.06675, section 5
    "schedule-free": {"lr": 2.5e-3, "schedule": "constant"},  # Defazio et al. 2024, arXiv 2405.15682
    "soap": {"lr": 3e-3, "betas": (0.95, 0.95)},  # Vyas et al. 2024, arXiv 2409.11321, section 6
    "lamb": {"eps": 1e-6},  # You et al. 2020, arXiv 1904.00962
    "lars": {"lr": 0.1, "weight_decay": 1e-4},  # You et al. 2017, arXiv 1708.03888
    "adafactor": {"lr": 1e-2},  # Shazeer & Stern 2018, arXiv 1804.04235
}
"""What a setting is under an optimizer where neither recipe nor user says it."""
DEFAULT_EPOCHS = 10.0
"""Where no budget is named."""
WITH_MOMENTUM = ("sgd", "lars", "muon+adamw")
SHARDED_OPTIMIZERS = ("adamw", "sgd", "muon+adamw")
"""The first two treat every number by itself, so a part of a matrix is as good as the whole; Muon puts its directions
together first."""


class _Settings(BaseModel):
    """`flags`: what the command line's --epochs, --budget and --precision set, as paths below `train`; `steps`: so many and no
    more, for a measurement.
    has_forecast: whether training begins with a forecast of its memory and time."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    flags: ClassVar[Flags] = {}
    uses_many_processes: ClassVar[bool] = False
    has_forecast: ClassVar[bool] = False


class Gradient(_Settings):
    """Settings of the gradient loop. At most one budget of `epochs`, `steps` and `seconds` ends training; with none,
    `epochs` is 10."""

    flags: ClassVar[Flags] = {
        "epochs": lambda value: {"epochs": value, "steps": None, "seconds": None},
        "budget": lambda value: {"seconds": value, "steps": None, "epochs": None},
        "precision": lambda value: {"precision": value},
        "shard": lambda value: {"shard": value},
        "steps": lambda value: {"steps": value, "epochs": None, "seconds": None, "evaluations": 1},
    }
    uses_many_processes: ClassVar[bool] = True
    has_forecast: ClassVar[bool] = True
    trainer: Literal["gradient"] = "gradient"
    epochs: float | None = Field(None, gt=0, description="passes over the training examples")
    steps: int | None = Field(None, gt=0, description="optimizer steps")
    seconds: float | None = Field(None, gt=0, description="training time: not reading, caching, evaluating")
    batch_size: int = Field(32, gt=0, description="examples of one optimizer step, over all micro-batches and ranks")
    micro_batch_size: int | None = Field(None, gt=0, description="examples at once; None: the whole batch")
    micro_batch_tokens: int | None = Field(None, gt=0, description="padded size of a micro-batch at most")
    eval_batch_size: int = Field(64, gt=0)
    optimizer: Optimizer = "adamw"
    lr: float = Field(1e-3, gt=0, description="peak rate; muon+adamw: of the matrices")
    head_lr: float | None = Field(None, gt=0, description="lr of the head; None: lr")
    embedding_lr: float | None = Field(None, gt=0, description="lr of embeddings; None: lr")
    scalar_lr: float | None = Field(None, gt=0, description="lr of norms, biases, scalars; None: lr")
    width_scaled: tuple[Literal["matrix", "embedding", "head", "scalar"], ...] = Field(
        (), description="roles whose lr is multiplied by (model width / 768) ** -0.5"
    )
    layer_decay: float = Field(1.0, gt=0, le=1, description="lr factor a layer, from the head down to the input")
    freeze_epochs: float = Field(0.0, ge=0, description="epochs in which only the head learns")
    weight_decay: float = Field(0.01, ge=0)
    decay_schedule: Literal["constant", "linear"] = Field("constant", description="linear: decay falls to 0")
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1, description="sgd, lars, and the matrices of muon+adamw")
    momentum_warmup: float = Field(0.0, ge=0, lt=1, description="share of training in which momentum rises from 0.85")
    schedule: Literal["cosine", "trapezoid", "wsd", "constant"] = "cosine"
    warmup: float = Field(0.05, ge=0, lt=1, description="share of training in which lr rises")
    warmdown: float = Field(0.3, ge=0, le=1, description="share in which lr falls; trapezoid and wsd")
    final_lr: float = Field(0.0, ge=0, le=1, description="last lr as a share of the peak")
    clip: float | None = Field(1.0, gt=0, description="gradient norm at most; None: no clipping")
    ema: float | None = Field(None, gt=0, lt=1, description="decay of averaged weights; None: no average")
    precision: Literal["auto", "bf16", "fp16", "fp32", "fp8"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    evaluations: int | None = Field(None, gt=0, description="how many over the run; None: once an epoch")
    patience: int | None = Field(None, gt=0, description="evaluations without gain before stopping")
    save_steps: int | None = Field(None, gt=0, description="also snapshot every so many steps")
    keep: Literal["best", "last"] = "best"
    guard: bool = Field(True, description="skip outlying steps and go back when the loss stays high; False: end")
    rollback_lr: float = Field(1.0, gt=0, le=1, description="lr factor after going back, rising to 1 in 200 steps")
    channels_last: bool = Field(
        False, description="pictures and volumes lie in memory point by point, as kernels read them"
    )
    checkpoint_activations: bool = Field(False, description="compute activations twice to save memory")
    shard: bool = Field(False, description="split the model among the processes of torchrun (FSDP2)")
    profile: bool = Field(False, description="trace a few steps: profile/ in the run folder")
    watch_activations: bool = Field(False, description="statistics of each layer: activations.jsonl")
    max_loss: float = Field(100.0, gt=0, description="mean loss above which training is called diverged")

    @model_validator(mode="before")
    @classmethod
    def _optimizers_own(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {**OPTIMIZER_DEFAULTS.get(str(values.get("optimizer")), {}), **values}

    @model_validator(mode="after")
    def _one_budget(self) -> "Gradient":
        named = [name for name in ("epochs", "steps", "seconds") if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError(f"more than one budget: {', '.join(named)}. Keep one and set the others to null.")
        return self

    @model_validator(mode="after")
    def _has_momentum(self) -> "Gradient":
        if self.momentum_warmup and self.optimizer not in WITH_MOMENTUM:
            raise ValueError(
                f"momentum_warmup goes with the optimizers {', '.join(WITH_MOMENTUM)}; {self.optimizer} has betas."
            )
        return self

    @model_validator(mode="after")
    def _can_shard(self) -> "Gradient":
        if self.shard and (self.optimizer not in SHARDED_OPTIMIZERS or self.precision == "fp16"):
            raise ValueError(
                f"shard goes with the optimizers {', '.join(SHARDED_OPTIMIZERS)} in bf16 or fp32, not with "
                f"{self.optimizer} in {self.precision}: others need whole matrices, and fp16 one loss scale."
            )
        return self

    def planned_steps(self, num_examples: int) -> int | None:
        """Steps that training on so many examples takes; None where a budget in seconds ends it."""
        if self.seconds is not None:
            return None
        steps_per_epoch = math.ceil(num_examples / self.batch_size)
        return self.steps or max(1, round((self.epochs or DEFAULT_EPOCHS) * steps_per_epoch))


class Phases(_Settings):
    """Settings of two trainings in one run: what is learned from texts alone, then what is learned from their labels.

    --epochs means passes of the second; --budget is shared by both.
    """

    flags: ClassVar[Flags] = {
        "epochs": lambda value: {"seconds": None, "tune.epochs": value, "tune.steps": None, "tune.seconds": None},
        "budget": lambda value: {"seconds": value},
        "precision": lambda value: {"pretrain.precision": value, "tune.precision": value},
        "shard": lambda value: {"pretrain.shard": value, "tune.shard": value},
        "steps": lambda value: {
            "seconds": None,
            **{f"pretrain.{name}": each for name, each in Gradient.flags["steps"](value).items()},
            **{f"tune.{name}": each for name, each in Gradient.flags["steps"](value).items()},
        },
    }
    uses_many_processes: ClassVar[bool] = True
    has_forecast: ClassVar[bool] = True
    trainer: Literal["phases"] = "phases"
    pretrain: Gradient = Gradient()
    tune: Gradient = Gradient()
    seconds: float | None = Field(None, gt=0, description="training time of both; their own budgets end nothing then")
    pretrain_share: float = Field(0.7, gt=0, lt=1, description="of `seconds`, for the first")

    def phase(self, name: Literal["pretrain", "tune"]) -> Gradient:
        """The settings of one training, its share of the time included."""
        own = self.pretrain if name == "pretrain" else self.tune
        if self.seconds is None:
            return own
        share = self.pretrain_share if name == "pretrain" else 1 - self.pretrain_share
        return own.model_copy(update={"seconds": self.seconds * share, "epochs": None, "steps": None})


class Trees(_Settings):
    """Settings of boosted trees; names follow XGBoost, and LightGBM's equivalents are set from them."""

    flags: ClassVar[Flags] = {"budget": lambda value: {"seconds": value}}
    trainer: Literal["trees"] = "trees"
    rounds: int = Field(2000, gt=0, description="trees at most")
    early_stopping: int | None = Field(50, gt=0, description="rounds without gain on the validation part")
    lr: float = Field(0.05, gt=0, le=1)
    max_depth: int = Field(6, ge=0, description="0: no limit")
    min_child_weight: float = Field(1.0, ge=0)
    subsample: float = Field(1.0, gt=0, le=1)
    colsample: float = Field(1.0, gt=0, le=1, description="share of columns a tree")
    reg_lambda: float = Field(1.0, ge=0)
    reg_alpha: float = Field(0.0, ge=0)
    max_bin: int = Field(256, gt=1)
    seconds: float | None = Field(None, gt=0, description="training time at most")


class Embed(_Settings):
    """Settings of encode once, cache, fit a head. The head is trained by the gradient loop on cached vectors."""

    flags: ClassVar[Flags] = {
        "epochs": lambda value: {"head.epochs": value, "head.steps": None, "head.seconds": None},
        "budget": lambda value: {"head.seconds": value, "head.steps": None, "head.epochs": None},
        "precision": lambda value: {"precision": value},
    }
    trainer: Literal["embed"] = "embed"
    encode_tokens: int = Field(8192, gt=0, description="padded tokens a batch while encoding")
    precision: Literal["auto", "bf16", "fp32"] = Field("fp32", description="of the encoder")
    head: Gradient = Gradient(epochs=20, batch_size=64, lr=1e-3, weight_decay=0.01, precision="fp32", compile="off")


class Prompt(_Settings):
    """Settings of a language model that is shown examples and asked: nothing is trained."""

    flags: ClassVar[Flags] = {"precision": lambda value: {"precision": value}}
    trainer: Literal["prompt"] = "prompt"
    examples: int = Field(16, ge=0, description="shown before each question")
    selection: Literal["balanced", "nearest"] = Field(
        "balanced", description="the same for all, of every class alike; or for each question those nearest to it"
    )
    calibration: Literal["auto", "none", "contextual"] = Field(
        "auto", description="contextual: against the answers to a question without content; auto: as validates better"
    )
    decide_rows: int = Field(200, gt=0, description="validation rows that decide what is auto")
    precision: Literal["auto", "bf16", "fp32"] = "auto"


class ZeroShot(_Settings):
    """Settings of a pretrained model whose likelihoods are the answer: nothing is trained."""

    flags: ClassVar[Flags] = {"precision": lambda value: {"precision": value}}
    trainer: Literal["zero-shot"] = "zero-shot"
    encode_tokens: int = Field(8192, gt=0, description="padded tokens a batch")
    precision: Literal["auto", "bf16", "fp32"] = Field("fp32", description="differences of likelihoods are small")


class Probe(_Settings):
    """Settings of a linear model on what a frozen network computes of its inputs: solved, not trained step by step."""

    flags: ClassVar[Flags] = {"precision": lambda value: {"precision": value}}
    trainer: Literal["probe"] = "probe"
    max_examples: int = Field(250_000, gt=0, description="examples learned from at most: all are held in memory")
    penalty: float = Field(1.0, gt=0, description="on the squares of the weights of standardised inputs, in all")
    steps: int = Field(1000, gt=0, description="of the solver at most")
    precision: Literal["auto", "bf16", "fp32"] = Field("fp32", description="of the frozen network")


class KernelSettings(_Settings):
    """Settings of Gaussian processes: nothing is tuned by hand, the weights of the kernels maximise the evidence."""

    flags: ClassVar[Flags] = {}
    trainer: Literal["kernel"] = "kernel"
    # Four samples of 300 tell little of what few pairs of rows share: of variants of TEM-1, what neighbours have in common.
    tune_rows: int = Field(1200, gt=10, description="rows of a sample that decides the kernels' weights")
    tune_samples: int = Field(1, gt=0, description="such samples, drawn at random and disjoint")
    steps: int = Field(30, gt=0, description="of the search for weights at most")
    target: Literal["ranks", "values"] = Field(
        "ranks", description="numbers by the normal scores of their ranks, for rank correlation, or as they are"
    )
    max_rows: int = Field(10_000, gt=0, description="training rows at most: memory grows with their square")


SETTINGS: dict[str, type[_Settings]] = {
    "gradient": Gradient,
    "phases": Phases,
    "trees": Trees,
    "embed": Embed,
    "prompt": Prompt,
    "kernel": KernelSettings,
    "zero-shot": ZeroShot,
    "probe": Probe,
}
