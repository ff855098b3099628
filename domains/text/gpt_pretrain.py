"""Train a GPT and its tokenizer on running text from nothing, and let it continue prompts.

See `corpus_task` for what a row is and how it is scored, `gpt` for the model, `scale` for sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from torch import Tensor, nn

from domains.contract import Facts
from domains.text import gpt, gpt_folder
from domains.text.bpe import Tokenizer
from domains.text.corpus_task import CorpusOptions, CorpusTask, check_corpus, packs
from domains.text.generation import continued
from domains.text.scale import GOOD_EPOCHS, Size, size_of
from trainers.contract import JSON, Machine, Plan, Predictions, Role, Watch
from trainers.errors import UsageError
from trainers.gradient import GradientLearner
from trainers.settings import Gradient

TINY: JSON = {
    "options": {
        "depth": 2,
        "width": 32,
        "head_size": 16,
        "context": 32,
        "vocabulary": 300,
        "stride": 16,
        "new_tokens": 4,
        "windows": "SL",
    },
    "train": {"epochs": 8, "batch_size": 16, "lr": 0.02, "precision": "fp32", "compile": "off"},
}
BYTES_PER_PARAMETER = 16
# Activations kept for the backward pass, per token, layer and width (Korthikanti et al. 2022, arXiv 2205.05198, eq. 2,
# less the attention matrix), in bytes with 16-bit activations.
ACTIVATION_BYTES = 34


class Options(CorpusOptions):
    """The `options:` block of text/gpt-pretrain. Depth is the one dial; the rest follows unless it is said."""

    depth: int | None = Field(None, ge=1, description="layers; None: as many as the corpus is enough for, 4 at least")
    width: int | None = Field(None, ge=8, description="None: 64 a layer, in whole heads")
    head_size: int = Field(128, ge=8, description="channels of a head, even")
    kv_heads: int | None = Field(None, ge=1, description="heads of keys and values; None: as many as query heads")
    vocabulary: int | None = Field(None, ge=257, description="tokens; None: by the size of the corpus")
    windows: str = Field("L", description="a letter a layer, repeated: S sees half the context, L all of it")
    feed_forward: Literal["relu2", "swiglu"] = "relu2"
    value_embeddings: bool | None = Field(None, description="None: where text is not scarce")
    is_tied: bool = Field(False, description="one table for embedding and head")
    logit_cap: float | None = Field(15.0, gt=0)
    z_loss: float = Field(0.0, ge=0)
    dropout: float | None = Field(
        None, ge=0, lt=1, description="of what a layer adds; None: 0.2 where text is scarce, else 0"
    )


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from the bytes of the corpus. Raises UsageError where the shape does not fit together."""
    check_corpus(facts)
    try:
        size = size_of(facts, options)
    except ValueError as error:
        raise UsageError(f"options: {error}") from None
    config = size.config
    examples = max(1, int(size.tokens / config.max_length))
    steps = settings.steps or math.ceil((settings.epochs or GOOD_EPOCHS) * examples / settings.batch_size)
    rows = settings.micro_batch_size or settings.batch_size
    activations = rows * config.max_length * (config.depth * config.width * ACTIVATION_BYTES + 12 * config.vocab_size)
    notes = [size.note(_epochs(settings, size))]
    if settings.seconds is not None:
        notes.append("a budget in seconds: how many passes they are enough for shows when training has begun")
    return {
        "num_parameters": int(size.params),
        "num_steps": steps if settings.seconds is None else None,
        "flops_per_epoch": int(6 * size.params * size.tokens),
        "memory_bytes": int(BYTES_PER_PARAMETER * size.params + activations),
        "shape": {"depth": config.depth, "width": config.width, "vocabulary": config.vocab_size},
        "notes": notes,
    }


def _epochs(settings: Gradient, size: Size) -> float | None:
    if settings.steps is not None:
        return settings.steps * settings.batch_size * size.config.max_length / size.tokens
    return settings.epochs if settings.seconds is None else None


def build(plan: Plan) -> PretrainLearner:
    """A fresh learner; the tokenizer is trained when training starts."""
    return PretrainLearner(
        GradientLearner(plan, lambda train: _statistics(plan, train), lambda *made: _task(plan, *made))
    )


def load(plan: Plan, folder: Path) -> PretrainLearner:
    """The learner that `save` wrote: tokenizer and weights are in the folder."""
    return PretrainLearner(GradientLearner.load(plan, folder, lambda *made: _task(plan, *made)))


class PretrainLearner:
    """A `GradientLearner` whose saved folder transformers' tokenizers and `gpt_folder.load` can read too."""

    resumable = True

    def __init__(self, learner: GradientLearner) -> None:
        self.learner = learner

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Train; see `trainers.loop`."""
        actual = self.learner.fit(train, valid, watch)
        return {**actual, "left_out": getattr(self.learner.task, "left_out", {})}

    def predict(self, rows: Any) -> Predictions:
        """Bits of each shard, or the continuation of each prompt."""
        return self.learner.predict(rows)

    def save(self, folder: Path) -> None:
        """Weights and statistics, and beside them config.json and the tokenizer's files."""
        self.learner.save(folder)
        assert self.learner.statistics is not None
        gpt_folder.describe(folder, self.learner.statistics)


def _statistics(plan: Plan, train: Any) -> JSON:
    """The tokenizer, and the shape with the vocabulary that it really has."""
    options, facts = Options.model_validate(plan.options), Facts.from_json(plan.facts)
    size = size_of(facts, options)
    tokenizer = Tokenizer.trained_on(train, size.config.vocab_size)
    config = {**vars(size.config), "vocab_size": tokenizer.size}
    return {"config": config, "tokenizer": tokenizer.as_json(), "packs": packs(facts, options)}


def _task(plan: Plan, fitted: JSON, _: bool) -> CorpusTask:
    options = Options.model_validate(plan.options)
    tokenizer = Tokenizer.from_json(fitted["tokenizer"])
    ours = OwnSpeaker(gpt.GPT(gpt.GPTConfig(**fitted["config"])), tokenizer.bos, options)
    return CorpusTask(ours, tokenizer, options, packs=fitted["packs"], seed=plan.seed)


class OwnSpeaker:
    """A `gpt.GPT` as a `corpus_task.Speaker`.   stop: the token behind which a completion is over."""

    def __init__(self, network: gpt.GPT, stop: int, options: Options) -> None:
        self.network, self.stop, self.options = network, stop, options

    def roles(self) -> Mapping[str, Role]:
        return gpt.roles(self.network)

    def counts(self, num_targets: float) -> dict[str, float]:
        return {"cross_entropy": num_targets, **({"z": num_targets} if self.options.z_loss else {})}

    def costs(
        self, model: nn.Module, tokens_BT: Tensor, targets_BT: Tensor, documents_BT: Tensor | None
    ) -> Mapping[str, Tensor]:
        return gpt.losses(model(tokens_BT, documents_BT), targets_BT, self.options.z_loss)

    def completion(self, model: nn.Module, numbers: Sequence[int], seed: Sequence[int]) -> Sequence[int]:
        return continued(
            model,
            numbers,
            num_new=self.options.new_tokens,
            length=self.network.config.max_length,
            stop=self.stop,
            temperature=self.options.temperature,
            top_k=self.options.top_k,
            seed=seed,
            device=next(model.parameters()).device,
        )
