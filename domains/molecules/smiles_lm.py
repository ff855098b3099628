"""The family `molecules/smiles-lm`: a small causal transformer learns to write molecules as SMILES.

A row that is predicted gets a molecule of its own, drawn token by token, and the bits of the molecule it holds. The network
is transformers' Llama, from nothing. Source of the approach: Bagal et al. 2022, 10.1021/acs.jcim.1c00600 (MolGPT).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional

from domains.contract import Facts
from domains.molecules.generated import Draws, predictions
from domains.molecules.smiles_tokens import SPECIAL, of_smiles, other_writing
from domains.shared.encoders import encoder_roles
from domains.shared.tokens import END, PAD, START, TextTokenizer
from trainers.contract import JSON, Batch, Machine, Plan, Predictions, Role
from trainers.errors import DataError
from trainers.gradient import GradientLearner
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"width": 64, "depth": 2, "max_tokens": 64},
    "train": {"epochs": 12, "batch_size": 16, "lr": 5e-3, "precision": "fp32", "compile": "off"},
}
HEAD_WIDTH, BASE_BYTES, BYTES_A_PARAMETER, ACTIVATION_BYTES = 32, 600 << 20, 16, 68
TOKENS_PER_ATOM, TYPICAL_VOCABULARY, SEEDS = 1.7, 60, 2**31 - 1
IGNORED = -100
KNOWN = "known"


class Options(BaseModel):
    """The `options:` block of molecules/smiles-lm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    width: int = Field(256, ge=HEAD_WIDTH, multiple_of=HEAD_WIDTH)
    depth: int = Field(6, ge=1, description="layers")
    max_tokens: int = Field(128, ge=8, description="longer SMILES are left out of training; none is written longer")
    rewrite: float = Field(0.0, ge=0, le=1, description="share of molecules that training writes in another way")
    temperature: float = Field(1.0, gt=0, description="below 1: likelier, less various molecules")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Steps, parameters and memory."""
    with torch.device("meta"):
        network = _network(_config(options, TYPICAL_VOCABULARY))
    total = sum(parameter.numel() for parameter in network.parameters())
    rows = settings.micro_batch_size or settings.batch_size
    tokens = rows * min(TOKENS_PER_ATOM * facts.sizes["most_atoms"], options.max_tokens)
    steps = settings.planned_steps(facts.num_rows)
    return {
        "num_parameters": total,
        **({} if steps is None else {"num_steps": steps}),
        "flops_per_epoch": 6 * total * TOKENS_PER_ATOM * facts.sizes["total_atoms"],
        "memory_bytes": int(
            BASE_BYTES + BYTES_A_PARAMETER * total + tokens * options.depth * options.width * ACTIVATION_BYTES
        ),
        "notes": ["predicting writes one new molecule a row, whatever the row holds"],
    }


def build(plan: Plan) -> GradientLearner:
    """A fresh learner; the tokens are those of the training rows."""
    return GradientLearner(plan, lambda train: _statistics(plan, train), lambda values, _: _task(plan, values))


def load(plan: Plan, folder: Path) -> GradientLearner:
    """The learner that `save` wrote; the training molecules are kept with it, to tell what is new."""
    return GradientLearner.load(plan, folder, lambda values, _: _task(plan, values))


def _statistics(plan: Plan, train: Any) -> JSON:
    smiles = train.column("smiles").tolist()
    tokenizer = of_smiles(smiles)
    config = _config(Options.model_validate(plan.options), tokenizer.size)
    return {"config": config, **tokenizer.as_json(), KNOWN: sorted(set(smiles))}


def _config(options: Options, vocabulary: int) -> JSON:
    return {
        "vocab_size": vocabulary,
        "hidden_size": options.width,
        "num_hidden_layers": options.depth,
        "num_attention_heads": options.width // HEAD_WIDTH,
        "intermediate_size": 64 * -(-8 * options.width // (3 * 64)),
        "max_position_embeddings": options.max_tokens,
        "pad_token_id": SPECIAL.index(PAD),
        "bos_token_id": SPECIAL.index(START),
        "eos_token_id": SPECIAL.index(END),
        "tie_word_embeddings": False,
    }


def _network(config: JSON) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    make: Any = LlamaForCausalLM
    network: nn.Module = make(LlamaConfig(**config))
    return network


def _task(plan: Plan, fitted: JSON) -> WritingTask:
    network = _network(fitted["config"])
    tokenizer = TextTokenizer.from_json(fitted)
    return WritingTask(network, tokenizer, frozenset(fitted[KNOWN]), Options.model_validate(plan.options), plan.seed)


class WritingTask:
    """Meets `contract.Task`. An example is a canonical SMILES.

    Shapes: B molecules, T positions, V vocabulary.
    """

    couples_rows = False
    min_rows = 1

    def __init__(
        self, model: nn.Module, tokenizer: TextTokenizer, known: frozenset[str], options: Options, seed: int
    ) -> None:
        self.model, self.tokenizer, self.known, self.options = model, tokenizer, known, options
        self.draws = Draws(seed)

    def roles(self) -> Mapping[str, Role]:
        """Those of the layers; the last matrix is the head."""
        found = encoder_roles(self.model)
        depth = 1 + max(role.depth for role in found.values())
        return {**found, "lm_head.weight": Role("head", depth)}

    def examples(self, train: Any, folder: Path) -> Sequence[str]:
        """Molecules that fit. Raises DataError where none does."""
        smiles = train.column("smiles").tolist()
        fits = ~self.tokenizer.encode(smiles, self.options.max_tokens).is_cropped
        if not fits.any():
            raise DataError(
                f"no training molecule has at most {self.options.max_tokens} tokens. Raise options.max_tokens."
            )
        return [text for text, is_short in zip(smiles, fits, strict=True) if is_short]

    def sizes(self, examples: Sequence[str]) -> Sequence[int]:
        """Tokens of each."""
        return self.tokenizer.encode(examples, self.options.max_tokens).lengths

    def draw(self, examples: Sequence[str], rngs: Sequence[np.random.Generator]) -> Batch:
        """Tokens and the next ones."""
        texts = [self._written_anew(text, rng) for text, rng in zip(examples, rngs, strict=True)]
        inputs = self._shifted(texts)
        return Batch(inputs, {"cross_entropy": float((inputs[1] != IGNORED).sum())})

    def loss(self, model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Mapping[str, Tensor]:
        """Total nats."""
        tokens_BT, next_BT = inputs
        logits = model(input_ids=tokens_BT, use_cache=False).logits.float()
        total = functional.cross_entropy(logits.flatten(0, 1), next_BT.flatten(), ignore_index=IGNORED, reduction="sum")
        return {"cross_entropy": total}

    def row_sizes(self, rows: Any) -> Sequence[int]:
        """Tokens of each row's molecule."""
        self.draws.begin(rows)
        return self.tokenizer.encode(rows.column("smiles").tolist(), self.options.max_tokens).lengths

    def collate(self, rows: Any) -> tuple[Tensor, Tensor, np.ndarray]:
        """Tokens, the next ones, and (B, max_tokens) chance that the written molecules come from."""
        chance = np.stack([rng.random(self.options.max_tokens) for rng in self.draws.of(rows)])
        return *self._shifted(rows.column("smiles").tolist()), chance

    def predict(self, model: nn.Module, inputs: tuple[Tensor, Tensor, np.ndarray]) -> Predictions:
        """A new molecule a row, and the cost of the row's own."""
        tokens_BT, next_BT, chance = inputs
        with torch.no_grad():
            costs = self._costs(model, tokens_BT, next_BT)
            written = self._written(model, torch.as_tensor(chance), tokens_BT.device)
        return predictions(written, costs, self.known)

    def _costs(self, model: nn.Module, tokens_BT: Tensor, next_BT: Tensor) -> np.ndarray:
        """(B, 2) bits and tokens; NaN bits where the row holds no molecule."""
        logits = model(input_ids=tokens_BT, use_cache=False).logits.double()
        nats_BT = functional.cross_entropy(logits.transpose(1, 2), next_BT, ignore_index=IGNORED, reduction="none")
        num_B = (next_BT != IGNORED).sum(dim=1)
        bits_B = (nats_BT.sum(dim=1) / math.log(2)).masked_fill(num_B < 2, math.nan)  # END alone: an empty row
        return torch.stack([bits_B, num_B.double()], dim=1).cpu().numpy()

    def _written(self, model: nn.Module, chance_BT: Tensor, device: torch.device) -> list[str]:
        end = SPECIAL.index(END)
        token_B = torch.full((len(chance_BT),), SPECIAL.index(START), device=device)
        past, found, is_over_B = None, [], torch.zeros(len(chance_BT), dtype=torch.bool, device=device)
        for chance_B in chance_BT.T[:-1]:
            out = model(input_ids=token_B[:, None], past_key_values=past, use_cache=True)
            past = out.past_key_values
            token_B = self._drawn(out.logits[:, -1], chance_B.to(device))
            is_over_B = is_over_B | (token_B == end)
            found.append(torch.where(is_over_B, end, token_B).cpu())
            if bool(is_over_B.all()):
                break
        names = [self.tokenizer.tokenizer.id_to_token(number) for number in range(self.tokenizer.size)]
        return ["".join(names[n] for n in row if n != end) for row in torch.stack(found, dim=1).tolist()]

    def _drawn(self, logits_BV: Tensor, chance_B: Tensor) -> Tensor:
        """The token in whose share of the line from 0 to 1 the row's chance lies. Special ones but END are never drawn."""
        logits_BV = logits_BV.double() / self.options.temperature
        logits_BV[:, [at for at, name in enumerate(SPECIAL) if name != END]] = -math.inf
        below_BV = logits_BV.softmax(dim=1).cumsum(dim=1)
        places = torch.searchsorted(below_BV, (chance_B * below_BV[:, -1])[:, None], right=True)
        return places.squeeze(1).clamp(max=logits_BV.shape[1] - 1)

    def _written_anew(self, text: str, rng: np.random.Generator) -> str:
        if not self.options.rewrite or rng.random() >= self.options.rewrite:
            return text
        other = other_writing(text, int(rng.integers(1, SEEDS)))
        return text if self.tokenizer.encode([other], self.options.max_tokens).is_cropped[0] else other

    def _shifted(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """(B, T) tokens from START on, and what follows each; a crop at max_tokens has no END."""
        numbers, is_token = self.tokenizer.padded(self.tokenizer.encode(texts, self.options.max_tokens).numbers)
        return numbers[:, :-1].contiguous(), numbers.masked_fill(~is_token, IGNORED)[:, 1:].contiguous()
