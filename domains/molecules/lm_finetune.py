"""The family `molecules/lm-finetune`: a language model over SMILES (ChemBERTa and other encoders) learns labels.

Mean over tokens, dropout, one linear layer. A molecule can be written in many ways: training draws another writing each
time (SMILES enumeration), and an answer may be the mean over several (Bjerrum 2017, arXiv 1703.07076).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from domains.contract import Facts
from domains.molecules.gnn_scratch import num_outputs, outcome_of
from domains.molecules.smiles_tokens import of_smiles, other_writing, other_writings
from domains.shared.encoders import (
    TOKENIZER_FILES,
    config_of,
    empty_encoder,
    encoder_of,
    most_tokens,
    num_parameters,
    tokenizer_of,
)
from domains.shared.pooled import PooledEncoder, pooled_roles
from domains.shared.tokens import TextTokenizer
from domains.shared.weights import (
    RANDOM_HEAD_SIZE,
    Weights,
    random_notes,
    random_shape,
    resolve,
    weights_facts,
    with_config,
)
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.errors import UsageError
from trainers.gradient import GradientLearner
from trainers.outcome import ClassWeights, Outcome
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"weights": "random:2x32", "max_tokens": 64, "dropout": 0.0},
    "train": {
        "epochs": 8,
        "batch_size": 16,
        "lr": 3e-3,
        "head_lr": 1e-2,
        "layer_decay": 1.0,
        "freeze_epochs": 0,
        "precision": "fp32",
        "compile": "off",
    },
}
BASE_BYTES, BYTES_A_PARAMETER = 600 << 20, 16
# As for proteins: Korthikanti et al. 2022, arXiv 2205.05198, eq. 2, less the attention matrix; 16-bit activations.
ACTIVATION_BYTES = 34
TOKENS_PER_ATOM = 1.7
"""Of a SMILES, its start and end aside: measured 1.62 on ESOL, 1.71 on HIV (a thousand molecules each, tokens of
`smiles_tokens`)."""
RANDOM_MAX_TOKENS, SEEDS = 512, 2**31 - 1


class Options(BaseModel):
    """The `options:` block of molecules/lm-finetune."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field("DeepChem/ChemBERTa-77M-MTR", description="hub id, folder, or random:2x64")
    max_tokens: int = Field(256, ge=8, description="longer SMILES are cropped at the end; start and end token included")
    pooling: Literal["mean", "first"] = Field("mean", description="mean of all tokens, or the first one's state (CLS)")
    dropout: float = Field(0.1, ge=0, lt=1, description="of the pooled state, before the head")
    encoder_dropout: float = Field(0.0, ge=0, lt=1, description="inside the encoder, except on attention")
    rewrite: float = Field(0.5, ge=0, le=1, description="share of molecules that training writes in another way")
    views: int = Field(1, ge=1, description="writings of a molecule whose mean is the answer; 1: the canonical one")
    class_weights: ClassWeights = "none"


def find(spec: str) -> Weights:
    """The weights of a spec that is not random, a folder with config and tokenizer. Raises MissingError."""
    return with_config(resolve(spec, also=TOKENIZER_FILES))


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from sizes and architecture. Raises MissingError where the weights are not to be had, UsageError for more
    tokens than the encoder has positions."""
    config = _config(options.weights, vocabulary=200)
    if options.max_tokens > (limit := most_tokens(config)):
        raise UsageError(
            f"options.max_tokens is {options.max_tokens:,}, but {options.weights} has {limit:,} positions. "
            f"--set options.max_tokens={limit}"
        )
    total = num_parameters(config) + (config["hidden_size"] + 1) * num_outputs(facts)
    rows = settings.micro_batch_size or settings.batch_size
    tokens = rows * min(TOKENS_PER_ATOM * facts.sizes["most_atoms"], options.max_tokens)
    activations = tokens * config["num_hidden_layers"] * config["hidden_size"] * ACTIVATION_BYTES
    seen = TOKENS_PER_ATOM * facts.sizes["total_atoms"]
    steps = settings.planned_steps(facts.num_rows)
    return {
        "num_parameters": total,
        **({} if steps is None else {"num_steps": steps}),
        "flops_per_epoch": 6 * total * seen,
        "memory_bytes": int(BASE_BYTES + BYTES_A_PARAMETER * total + 2 * activations),
        "weights": weights_facts(options.weights, find),
        "notes": random_notes(options.weights),
    }


def build(plan: Plan) -> GradientLearner:
    """A fresh learner; weights are read when training starts."""
    learner = GradientLearner(
        plan,
        lambda train: _statistics(plan, train),
        lambda values, pretrained: _task(
            plan, values, pretrained, lambda text: learner.batch.say(kind="warning", text=text)
        ),
    )
    return learner


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote: architecture, tokenizer and all weights are in the folder."""
    return GradientLearner.load(
        plan, folder, lambda values, pretrained: _task(plan, values, pretrained, lambda text: None)
    )


def _config(spec: str, vocabulary: int) -> JSON:
    shape = random_shape(spec)
    if shape is None:
        return config_of(find(spec).path)
    return {
        "model_type": "roberta",
        "vocab_size": vocabulary,
        "hidden_size": shape[1],
        "num_hidden_layers": shape[0],
        "num_attention_heads": shape[1] // RANDOM_HEAD_SIZE,
        "intermediate_size": 4 * shape[1],
        "max_position_embeddings": RANDOM_MAX_TOKENS + 1,
        "type_vocab_size": 1,
        "pad_token_id": 0,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def _statistics(plan: Plan, train: Any) -> JSON:
    """Everything fitted or read: outcome, architecture, tokenizer."""
    spec = plan.options["weights"]
    is_random = random_shape(spec) is not None
    if is_random:
        tokenizer = of_smiles(train.column("smiles"))
        config = _config(spec, tokenizer.size)
    else:
        config = _config(spec, 0)
        tokenizer = tokenizer_of(find(spec).path, config)
    return {"config": config, "outcome": outcome_of(plan, train).as_json(), **tokenizer.as_json()}


def _task(plan: Plan, fitted: JSON, pretrained: bool, say: Callable[[str], None]) -> SmilesTask:
    options, config = Options.model_validate(plan.options), fitted["config"]
    if pretrained and random_shape(options.weights) is None:
        encoder = encoder_of(find(options.weights), config, options.encoder_dropout)
    else:
        encoder = empty_encoder(config, options.encoder_dropout)
    outcome = Outcome.from_json(fitted["outcome"])
    network = PooledEncoder(encoder, config["hidden_size"], outcome.width, options)
    return SmilesTask(network, outcome, TextTokenizer.from_json(fitted), options, say)


class SmilesTask:
    """Meets `contract.Task`. An example is (canonical SMILES, encoded target); it is written anew when it is drawn."""

    couples_rows = False
    min_rows = 1

    def __init__(
        self, model: nn.Module, outcome: Outcome, tokenizer: TextTokenizer, options: Options, say: Callable[[str], None]
    ) -> None:
        self.model, self.outcome, self.tokenizer, self.options, self.say = model, outcome, tokenizer, options, say

    def roles(self) -> Mapping[str, Role]:
        """Those of the encoder; the head is deepest."""
        return pooled_roles(self.model)

    def examples(self, train: Any, folder: Path) -> Sequence[tuple[str, Any]]:
        """SMILES with targets; says how many are cropped."""
        smiles = train.column("smiles").tolist()
        if num := int(self.tokenizer.encode(smiles, self.options.max_tokens).is_cropped.sum()):
            self.say(
                f"{num:,} of {len(train):,} training molecules are longer than {self.options.max_tokens} tokens; what "
                "follows is not read (options.max_tokens)"
            )
        return list(zip(smiles, self.outcome.encoded(train.target()), strict=True))

    def sizes(self, examples: Sequence[tuple[str, Any]]) -> Sequence[int]:
        """Tokens of the canonical writing; others are about as long."""
        return self._lengths([smiles for smiles, _ in examples])

    def draw(self, examples: Sequence[tuple[str, Any]], rngs: Sequence[np.random.Generator]) -> Batch:
        """Tokens, some of another writing of the molecule, and targets."""
        encoded = np.array([target for _, target in examples])
        texts = [self._written(smiles, rng) for (smiles, _), rng in zip(examples, rngs, strict=True)]
        return Batch((*self._tokens(texts), torch.from_numpy(encoded)), self.outcome.counts(encoded))

    def loss(self, model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor]) -> Mapping[str, Tensor]:
        """Totals by term."""
        numbers, is_token, encoded = inputs
        return self.outcome.totals(model(numbers, is_token), encoded)

    def row_sizes(self, rows: Any) -> Sequence[int]:
        """Tokens of each molecule."""
        return self._lengths(rows.column("smiles").tolist())

    def collate(self, rows: Any) -> tuple[Tensor, Tensor]:
        """Tokens of every writing of every molecule."""
        return self._tokens(other_writings(rows.column("smiles").tolist(), self.options.views))

    def predict(self, model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Predictions:
        """Answers in the terms of the target, the mean over writings."""
        return self.outcome.predictions(model(*inputs).unflatten(0, (-1, self.options.views)))

    def _written(self, smiles: str, rng: np.random.Generator) -> str:
        is_other = rng.random() < self.options.rewrite
        return other_writing(smiles, int(rng.integers(1, SEEDS))) if is_other else smiles

    def _lengths(self, smiles: list[str]) -> list[int]:
        return self.tokenizer.encode(smiles, self.options.max_tokens).lengths

    def _tokens(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        return self.tokenizer.padded(self.tokenizer.encode(texts, self.options.max_tokens).numbers)
