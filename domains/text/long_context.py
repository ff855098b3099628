"""Mamba for long texts: a class or a number of a text of many thousand tokens, or an answer to a long prompt.

Gu & Dao 2023, arXiv 2312.00752: time and memory grow with the length, not with its square, and writing keeps a state of
constant size. The models are transformers' own; `mamba` reads them in blocks. Answers are learned as in `causal`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from domains.contract import Facts
from domains.shared.pooled import mean_state
from domains.shared.tokens import TextTokenizer, of_folder, of_pieces
from domains.shared.weights import config_json, kept_config, quiet_transformers, random_shape, weights_facts
from domains.text import causal, mamba
from domains.text import causal_weights as languages
from domains.text.encoder import TextTask
from domains.text.estimates import BYTES_PER_PARAMETER, CHARACTERS_PER_TOKEN, num_tokens
from trainers.contract import JSON, Learner, Machine, Plan
from trainers.errors import DataError
from trainers.gradient import GradientLearner
from trainers.outcome import ClassWeights, Outcome, fit_outcome
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"weights": "random:2x32", "vocabulary": 400, "max_tokens": 96, "max_new_tokens": 8, "dropout": 0.0},
    "train": {
        "epochs": 12,
        "batch_size": 16,
        "lr": 1e-2,
        "head_lr": 1e-2,
        "micro_batch_tokens": 4096,
        "precision": "fp32",
        "compile": "off",
    },
}
KEPT_PER_TOKEN = 24
"""Numbers of a layer's width that the backward pass needs of each token, as counted in `mamba.mixed`."""
SLOW_TOKENS = 1000
"""Tokens a second in training, of four layers of width 128 on one core without kernels: measured by timing
`mamba.last_states` and its backward pass on 2,048 tokens (1,030 a second); the plan only warns by it."""


class Options(BaseModel):
    """The `options:` block of text/long-context."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field("random:4x128", description="hub id or folder of a Mamba, or random:4x128: from nothing")
    max_tokens: int = Field(16_384, ge=8, description="of a text, or of prompt and answer; what follows is not read")
    vocabulary: int = Field(
        4096, ge=300, description="tokens at most, of the tokenizer that is trained with random weights"
    )
    pooling: Literal["mean", "last"] = Field("mean", description="mean of all tokens' states, or the last one's")
    dropout: float = Field(0.1, ge=0, lt=1, description="of the pooled state, before the head")
    class_weights: ClassWeights = "none"
    max_new_tokens: int = Field(256, ge=1, description="of a written answer at most")
    separator: str = Field("\n", description="between prompt and answer where there is no chat template")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from lengths and architecture. Raises MissingError where the weights are not to be had."""
    if facts.task == "generation":
        found = causal.plan(facts, _answering(options), settings, machine)
        return {**found, "notes": [*found["notes"], *slow_notes(machine)]}
    config = read_config(options)
    total = _num_parameters(config) + (config["hidden_size"] + 1) * facts.num_outputs
    rows = settings.micro_batch_size or settings.batch_size
    widest = min(
        rows * options.max_tokens, max(settings.micro_batch_tokens or rows * options.max_tokens, options.max_tokens)
    )
    kept = widest * config["num_hidden_layers"] * config["hidden_size"] * KEPT_PER_TOKEN * 4
    return {
        "num_parameters": total,
        "num_steps": settings.planned_steps(facts.num_rows),
        "flops_per_epoch": 6 * total * num_tokens(facts, options.max_tokens),
        "memory_bytes": BYTES_PER_PARAMETER * total + kept,
        "weights": weights_facts(options.weights, languages.find),
        "notes": [*length_notes(facts, options), *slow_notes(machine)],
    }


def length_notes(facts: Facts, options: Options) -> list[str]:
    """What to expect of lengths, and of weights that nobody trained."""
    longest = facts.sizes["longest_characters"] / CHARACTERS_PER_TOKEN
    found = [f"the longest training text has about {longest:,.0f} tokens; {options.max_tokens:,} are read"]
    if random_shape(options.weights) is not None:
        found.append(f"{options.weights}: from nothing, with a tokenizer of the training texts; nothing is pretrained")
    return found


def slow_notes(machine: Machine) -> list[str]:
    """What reading token by token costs where there are no kernels for it."""
    if machine.device.startswith("cuda"):
        return ["on CUDA the package mamba-ssm brings kernels; without it every token of a layer is one call"]
    return [
        f"on a CPU the recurrence goes token by token: about {SLOW_TOKENS:,} tokens a second and core in training with 4 "
        "layers of width 128. Texts below 512 tokens train faster with text/encoder-classify"
    ]


def build(plan: Plan) -> Learner:
    """A fresh learner; weights are read, or drawn, when training starts."""
    if plan.task == "generation":
        return causal.build(_generating(plan))
    learner = GradientLearner(
        plan,
        lambda train: _statistics(plan, train),
        lambda fitted, pretrained: _task(
            plan, fitted, pretrained, lambda text: learner.batch.say(kind="warning", text=text)
        ),
    )
    return learner


def load(plan: Plan, folder: Path) -> Learner:
    """The learner that `save` wrote: architecture, tokenizer and all weights are in the folder."""
    if plan.task == "generation":
        return causal.load(_generating(plan), folder)
    return GradientLearner.load(
        plan, folder, lambda fitted, pretrained: _task(plan, fitted, pretrained, lambda text: None)
    )


def _answering(options: Options) -> causal.Options:
    """The options of `causal`, by which all weights of a Mamba learn answers."""
    return causal.Options(
        weights=options.weights.replace("random:", "random-mamba:", 1),
        method="all",
        max_tokens=options.max_tokens,
        max_new_tokens=options.max_new_tokens,
        separator=options.separator,
    )


def _generating(plan: Plan) -> Plan:
    return replace(plan, options=_answering(Options.model_validate(plan.options)).model_dump(mode="json"))


def read_config(options: Options) -> JSON:
    """The architecture as the values of transformers' config. Raises DataError for what is no Mamba."""
    shape = random_shape(options.weights)
    if shape is not None:
        return {**kept_config(languages.mamba_config(*shape, options.vocabulary)), "model_type": "mamba"}
    folder = languages.find(options.weights).path
    kind = config_json(folder).get("model_type")
    if kind != "mamba":
        raise DataError(f"{folder}: a {kind!r} model is no Mamba. Give one with --set options.weights=...")
    from transformers import AutoConfig

    return kept_config(AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False))


def _num_parameters(config: JSON) -> int:
    with torch.device("meta"):
        return sum(each.numel() for each in _empty(config).parameters())


def _empty(config: JSON) -> Any:
    from transformers import MambaConfig, MambaModel

    return MambaModel(MambaConfig(**{name: value for name, value in config.items() if name != "model_type"}))


def _loaded(spec: str, config: JSON) -> Any:
    """The pretrained model of a spec, or one drawn from torch's generator."""
    if random_shape(spec) is not None:
        return _empty(config)
    from transformers import MambaModel

    folder = languages.find(spec).path
    with quiet_transformers():
        load_model: Any = MambaModel.from_pretrained
        model, info = load_model(folder, dtype=torch.float32, local_files_only=True, output_loading_info=True)
    if missing := sorted(info["missing_keys"]):
        raise DataError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]!r}. Fetch it again.")
    return model


def _statistics(plan: Plan, train: Any) -> JSON:
    """Everything fitted or read: outcome, architecture, tokenizer."""
    options = Options.model_validate(plan.options)
    config = read_config(options)
    if random_shape(options.weights) is not None:
        tokenizer = of_pieces(list(train.column("text")), options.vocabulary, lowercase=True)
        config["vocab_size"] = tokenizer.size
    else:
        tokenizer = of_folder(languages.find(options.weights).path)
    outcome = fit_outcome(train.target(), plan.facts["classes"], options.class_weights)
    return {"config": config, "outcome": outcome.as_json(), **tokenizer.as_json()}


def _task(plan: Plan, fitted: JSON, pretrained: bool, say: Callable[[str], None]) -> TextTask:
    options, config = Options.model_validate(plan.options), fitted["config"]
    model = _loaded(options.weights, config) if pretrained else _empty(config)
    outcome = Outcome.from_json(fitted["outcome"])
    network = PooledMamba(model, config["hidden_size"], outcome.width, options)
    return TextTask(network, outcome, TextTokenizer.from_json(fitted), options.max_tokens, say)


class PooledMamba(nn.Module):
    """Mamba, one state a text, dropout, linear head: (B, L) token numbers -> (B, outputs)."""

    def __init__(self, encoder: nn.Module, width: int, num_outputs: int, options: Options) -> None:
        super().__init__()
        self.encoder, self.dropout, self.head = encoder, nn.Dropout(options.dropout), nn.Linear(width, num_outputs)
        self.is_mean = options.pooling == "mean"

    def forward(self, numbers_BL: Tensor, is_token_BL: Tensor) -> Tensor:
        states_BLD = mamba.last_states(self.encoder, numbers_BL, is_token_BL)
        with torch.autocast(states_BLD.device.type, enabled=False):
            pooled_BD = mean_state(states_BLD, is_token_BL) if self.is_mean else last_state(states_BLD, is_token_BL)
        out: Tensor = self.head(self.dropout(pooled_BD))
        return out


def last_state(states_BLD: Tensor, is_token_BL: Tensor) -> Tensor:
    """(B, D) float32 state of each text's last token; padding stands behind it."""
    last_B = is_token_BL.sum(dim=1).clamp(min=1) - 1
    return states_BLD[torch.arange(len(last_B), device=last_B.device), last_B].float()
