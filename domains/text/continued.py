"""Go on pretraining a causal language model of transformers on running text: all its weights, or adapters beside them.

Gururangan et al. 2020, arXiv 2004.10964, section 3: a second phase of pretraining on the domain helps the tasks in it. What
a row is and how it is scored is as in text/gpt-pretrain, so bits per byte of the two compare; see `corpus_task`.
Shapes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from domains.contract import Facts
from domains.shared.weights import random_notes, random_shape
from domains.text import causal_weights as languages
from domains.text.bpe import blocks
from domains.text.causal import (
    CHARACTERS_PER_TOKEN,
    CausalLearner,
    LanguageOptions,
    check_options,
    language_and_tokenizer,
    language_estimates,
    loaded,
)
from domains.text.causal import export_merged as export_merged_by
from domains.text.causal_task import (
    keep_trained_state,
    language_roles,
    last_states,
    next_nats,
    states_by_position,
    write_on,
)
from domains.text.corpus_task import CorpusOptions, CorpusTask, check_corpus, packs
from domains.text.gpt import IGNORED
from trainers.contract import JSON, Machine, Plan, Role
from trainers.gradient import GradientLearner, seeded
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"weights": "random:2x32", "context": 32, "stride": 16, "new_tokens": 4},
    "train": {"epochs": 6, "batch_size": 16, "lr": 1e-2, "precision": "fp32", "compile": "off"},
}


class Options(LanguageOptions, CorpusOptions):
    """The `options:` block of text/continued-pretrain."""

    weights: str = Field("HuggingFaceTB/SmolLM2-135M", description="hub id, folder, or random:2x64")
    method: Literal["lora", "all"] = Field("all", description="train adapters beside the weights, or all weights")
    context: int = Field(512, ge=8, description="tokens that the model reads at once")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from the bytes of the corpus. Raises as `causal.check_options`, and MissingError without the weights."""
    check_corpus(facts)
    config = languages.read_config(options.weights)
    check_options(options, config, machine, "context", options.context)
    tokens = facts.sizes["total_bytes"] / CHARACTERS_PER_TOKEN
    num_rows = max(1, int(tokens / options.context))
    rows = settings.micro_batch_size or settings.batch_size
    estimates = language_estimates(config, options, settings, machine, rows * options.context)
    of_model = estimates["num_parameters"] - (estimates["num_trained"] if options.method == "lora" else 0)
    return {
        **estimates,
        "num_steps": None if settings.seconds is not None else settings.planned_steps(num_rows),
        "flops_per_epoch": int(6 * of_model * tokens),
        "notes": random_notes(options.weights),
    }


def build(plan: Plan) -> CausalLearner:
    """A fresh learner; weights are read when training starts."""
    return CausalLearner(
        GradientLearner(
            plan,
            partial(_statistics, plan),
            lambda fitted, pretrained: _task(plan, fitted, fitted["weights"]["id"] if pretrained else None),
            brings_all=plan.options["method"] == "all",
        )
    )


def load(plan: Plan, folder: Path) -> CausalLearner:
    """The learner that `CausalLearner.save` wrote. Weights under adapters are found by the reference kept there."""
    return loaded(plan, folder, partial(_task, plan))


def export_merged(run: str | Path, folder: str | Path) -> Path:
    """As `causal.export_merged`, of a finished run of text/continued-pretrain."""
    return export_merged_by(run, folder, load)


def _statistics(plan: Plan, train: Any) -> JSON:
    options = Options.model_validate(plan.options)
    fitted: JSON = {
        "weights": languages.reference(options.weights),
        "tokenizer": "",
        "packs": packs(Facts.from_json(plan.facts), options),
    }
    if random_shape(options.weights, languages.KINDS):
        texts = [text for row in range(min(len(train), 20)) for text in train.documents(row)]
        fitted["tokenizer"] = languages.made_tokenizer(texts)
    return fitted


def _task(plan: Plan, fitted: JSON, source: str | None) -> ContinuedTask:
    options = Options.model_validate(plan.options)
    unpacked = "stream" if fitted["packs"] else None
    language, tokenizer = language_and_tokenizer(plan, options, fitted, source, unpacked=unpacked)
    return ContinuedTask(language, tokenizer, options, packs=fitted["packs"], seed=plan.seed)


class ContinuedTask(CorpusTask):
    """A `CorpusTask` of a model of transformers, which `CausalLearner` keeps as transformers and peft do."""

    def __init__(self, language: Any, tokenizer: Any, options: Options, *, packs: bool, seed: int) -> None:
        self.their_tokenizer = tokenizer
        words = KnownWords(tokenizer, language.config.vocab_size)
        super().__init__(PretrainedSpeaker(language, words.bos, options), words, options, packs=packs, seed=seed)


class KnownWords:
    """The tokenizer of a pretrained model as `token_store.Words`; BOS is its token for the end where it has none."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self.inner, self.size = tokenizer, vocab_size
        start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        self.bos = self.line = int(start)

    def encode(self, text: str) -> np.ndarray:
        """(tokens,) int64. What looks like a special token in a text is its characters."""
        parts = [
            np.array(self.inner(part, add_special_tokens=False, split_special_tokens=True)["input_ids"], dtype=np.int64)
            for part in blocks(text)
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def decode(self, numbers: Sequence[int] | np.ndarray) -> str:
        """The text of these tokens, without special ones."""
        return str(self.inner.decode([int(number) for number in numbers], skip_special_tokens=True))

    def as_json(self) -> JSON:
        """Its vocabulary."""
        return dict(sorted(self.inner.get_vocab().items()))


class Continuing(nn.Module):
    """(B, T) tokens, targets, documents -> the nats of the targets that are not IGNORED. Frozen weights are not kept."""

    def __init__(self, language: Any) -> None:
        super().__init__()
        self.language = language
        keep_trained_state(self)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor, documents_BT: Tensor | None) -> Tensor:
        if documents_BT is None:
            states_BTD = last_states(self.language, tokens_BT, torch.ones_like(tokens_BT, dtype=torch.bool))
        else:
            states_BTD = states_by_position(self.language, tokens_BT, positions_in(documents_BT))
        is_wanted = targets_BT != IGNORED
        return next_nats(self.language, states_BTD[is_wanted], targets_BT[is_wanted]).sum()


def positions_in(documents_BT: Tensor) -> Tensor:
    """(B, T) how far each position is from where its document (or the padding) began in the row."""
    at_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    is_first_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    is_first_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    return at_T - (at_T * is_first_BT).cummax(dim=1).values


class PretrainedSpeaker:
    """A model of transformers as a `corpus_task.Speaker`.   stop: the token behind which a completion is over."""

    def __init__(self, language: Any, stop: int, options: Options) -> None:
        self.network, self.stop, self.options = Continuing(language), stop, options

    def roles(self) -> Mapping[str, Role]:
        return language_roles(self.network)

    def counts(self, num_targets: float) -> dict[str, float]:
        return {"cross_entropy": num_targets}

    def costs(
        self, model: nn.Module, tokens_BT: Tensor, targets_BT: Tensor, documents_BT: Tensor | None
    ) -> Mapping[str, Tensor]:
        return {"cross_entropy": model(tokens_BT, targets_BT, documents_BT)}

    def completion(self, model: nn.Module, numbers: Sequence[int], seed: Sequence[int]) -> Sequence[int]:
        device, options = next(model.parameters()).device, self.options
        read = torch.tensor([list(numbers)[-options.context :]], device=device)
        with seeded(int(np.random.SeedSequence(list(seed)).generate_state(1)[0])):
            (found,) = write_on(
                model.get_submodule("language"),
                read,
                torch.ones_like(read, dtype=torch.bool),
                max_new=options.new_tokens,
                ends=[self.stop],
                pad=self.stop,
                temperature=options.temperature,
                top_k=options.top_k,
            )
        return found
