"""A causal language model that learns answers: contract.Task on pairs and chats. Adapters (LoRA) or all weights.

Shapes: B rows, L tokens, A tokens of answers, D width.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from domains.shared.weights import quiet_transformers
from domains.text import mamba
from domains.text.causal_tokens import Scribe, Script, padded
from trainers.contract import Batch, Predictions, Role, RoleKind
from trainers.errors import DataError

SCORES_AT_ONCE = 2**24
"""Scores of tokens that are kept at once: 64 MiB in float32. Vocabularies of 260,000 make a MiB of every token."""
_LAYER = re.compile(r"\.(?:layers?|h|blocks?)\.(\d+)\.")


class Answering(nn.Module):
    """(B, L) tokens, which are any, which are answer -> (B,) nats that the answers cost.

    Only what is trained is in its state: base weights under adapters are kept by reference, not in every snapshot.
    """

    def __init__(self, language: Any) -> None:
        super().__init__()
        self.language = language
        trained = {f"language.{name}" for name, each in language.named_parameters() if each.requires_grad}
        frozen = {f"language.{name}" for name, _ in language.named_parameters()} - trained
        if frozen:
            keep_trained_state(self, trained)

    def forward(self, numbers_BL: Tensor, is_token_BL: Tensor, is_answer_BL: Tensor) -> Tensor:
        states_BLD = last_states(self.language, numbers_BL, is_token_BL)
        is_next = is_answer_BL[:, 1:]
        states_AD, next_A = states_BLD[:, :-1][is_next], numbers_BL[:, 1:][is_next]
        row_A = is_next.nonzero()[:, 0]
        nats_A = next_nats(self.language, states_AD, next_A)
        return torch.zeros(len(numbers_BL), device=nats_A.device).index_add(0, row_A, nats_A)


def keep_trained_state(model: nn.Module, names: set[str]) -> None:
    """Leave everything but `names` out of the model's state dict, and do not miss it when one is loaded."""

    def only(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
        for name in [name for name in state if name.removeprefix(prefix) not in names]:
            del state[name]

    def not_missed(module: nn.Module, incompatible: Any) -> None:
        incompatible.missing_keys[:] = [name for name in incompatible.missing_keys if name in names]

    hooked: Any = model
    hooked.register_state_dict_post_hook(only)
    hooked.register_load_state_dict_post_hook(not_missed)


def bare(language: Any) -> Any:
    """The model of transformers itself, adapters inside."""
    return language.get_base_model() if hasattr(language, "get_base_model") else language


def last_states(language: Any, numbers_BL: Tensor, is_token_BL: Tensor) -> Tensor:
    """(B, L, D) of the last layer, before scores of tokens are made of them."""
    model = bare(language)
    decoder = getattr(model, model.base_model_prefix)
    if model.config.model_type == "mamba":
        return mamba.last_states(decoder, numbers_BL, is_token_BL)
    states: Tensor = decoder(input_ids=numbers_BL, attention_mask=is_token_BL.long(), use_cache=False).last_hidden_state
    return states


def token_scores(language: Any, states_AD: Tensor) -> Tensor:
    """(A, V) float32 scores of the next token, as the families of transformers make them of the last states."""
    model = bare(language)
    scores: Tensor = model.get_output_embeddings()(states_AD).float()
    scores = scores * getattr(model.config, "logit_scale", 1.0) / getattr(model.config, "logits_scaling", 1.0)
    cap = getattr(model.config, "final_logit_softcapping", None)
    return scores if cap is None else cap * torch.tanh(scores / cap)


def next_nats(language: Any, states_AD: Tensor, next_A: Tensor) -> Tensor:
    """(A,) what each next token costs; scores are made in parts and made again in the backward pass."""
    rows = max(1, SCORES_AT_ONCE // bare(language).config.vocab_size)

    def part(states_PD: Tensor, next_P: Tensor) -> Tensor:
        return functional.cross_entropy(token_scores(language, states_PD), next_P, reduction="none")

    parts = zip(torch.split(states_AD, rows), torch.split(next_A, rows), strict=True)
    if len(states_AD) <= rows or not torch.is_grad_enabled():
        found = [part(*each) for each in parts]
    else:
        found = [checkpoint(part, *each, use_reentrant=False) for each in parts]
    return torch.cat(found) if found else states_AD.new_zeros(0, dtype=torch.float32)


def check_scores(language: Any, where: str) -> None:
    """Raise DataError where the model makes its scores in a way that `token_scores` does not know."""
    numbers = torch.arange(2, 6, device=next(language.parameters()).device)[None]
    was_training = language.training
    language.eval()
    with torch.no_grad():
        theirs = bare(language)(input_ids=numbers, attention_mask=torch.ones_like(numbers)).logits.float()[0]
        ours = token_scores(language, last_states(language, numbers, torch.ones_like(numbers))[0])
    language.train(was_training)
    if not torch.allclose(ours, theirs, atol=0.02 * float(theirs.abs().max()), rtol=0):
        raise DataError(f"{where}: this model makes its scores in a way of its own. Choose another model.")


class CausalTask:
    """Meets `contract.Task`. An example is a `Script`.   max_new: tokens of an answer that is written."""

    couples_rows = False
    min_rows = 1

    def __init__(
        self, model: Answering, scribe: Scribe, *, max_tokens: int, max_new: int, say: Callable[[str], None]
    ) -> None:
        self.model: nn.Module = model
        self.scribe, self.max_tokens, self.max_new, self.say = scribe, max_tokens, max_new, say
        self.known: dict[tuple[str, str | None], Script] = {}

    def roles(self) -> Mapping[str, Role]:
        tables = {f"{name}.weight" for name, part in self.model.named_modules() if isinstance(part, nn.Embedding)}
        roles, deepest = {}, 0
        for name, parameter in self.model.named_parameters():
            layer = _LAYER.search(name)
            deepest = max(deepest, int(layer[1]) + 1 if layer else 0)
            is_matrix = parameter.ndim == 2 and not name.endswith("A_log")  # see `encoder_weights.encoder_roles`
            kind: RoleKind = "embedding" if name in tables else "matrix" if is_matrix else "scalar"
            if parameter.requires_grad:
                roles[name] = Role(kind, int(layer[1]) + 1 if layer else deepest)
        return roles

    def examples(self, train: Any, folder: Path) -> Sequence[Script]:
        pairs = zip(train.column("prompt"), train.column("answer"), strict=True)
        scripts = [self.scribe.answered(*pair, every=True).cropped(self.max_tokens) for pair in pairs]
        # The first token is never predicted, so it cannot be learned.
        kept = [script for script in scripts if script.is_answer[1:].any()]
        self._tell(len(scripts), len(kept), sum(not script.is_whole for script in kept))
        if not kept:
            raise DataError(
                f"No training row has a part of its answer in the first {self.max_tokens} tokens: nothing can be "
                "learned. Raise it: --set options.max_tokens=..."
            )
        return kept

    def _tell(self, num_rows: int, num_kept: int, num_cropped: int) -> None:
        if num_kept < num_rows:
            self.say(
                f"{num_rows - num_kept:,} of {num_rows:,} training rows are not trained on: their prompts fill the "
                f"{self.max_tokens} tokens that are read (options.max_tokens), so nothing of their answers is left"
            )
        if num_cropped:
            self.say(
                f"{num_cropped:,} of {num_rows:,} training rows are longer than {self.max_tokens} tokens; the rest of "
                "their answers is not read (options.max_tokens)"
            )

    def sizes(self, examples: Sequence[Script]) -> Sequence[int]:
        return [len(script.numbers) for script in examples]

    def draw(self, examples: Sequence[Script], rngs: Sequence[np.random.Generator]) -> Batch:
        inputs = self._tensors(examples)
        return Batch(inputs, {"nats": float(inputs[2][:, 1:].sum())})

    def loss(self, model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor]) -> Mapping[str, Tensor]:
        return {"nats": model(*inputs).sum()}

    def row_sizes(self, rows: Any) -> Sequence[int]:
        return [len(script.numbers) for script in self._scripts(rows)]

    def collate(self, rows: Any) -> tuple[Tensor, ...]:
        """With answers: tokens, which are any, which are answer, which rows are whole. Without: the prompts alone."""
        scripts = self._scripts(rows)
        fits = torch.tensor([script.is_whole for script in scripts], dtype=torch.bool)
        if "answer" in rows.frame.columns:
            return (*self._tensors(scripts), fits)
        return (*padded([script.numbers for script in scripts], self.scribe.pad, to_left=True), fits)

    def predict(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> Predictions:
        """Bits that answers cost where they are known, else written answers."""
        fits = inputs[-1].cpu().numpy()
        too_long = f"longer than the {self.max_tokens} tokens that are read (options.max_tokens)"
        if len(inputs) == 4:
            bits = model(*inputs[:3]).double().cpu().numpy() / math.log(2)
            found = Predictions.of_numbers(np.where(fits, bits, np.nan))
        else:
            found = Predictions.of_texts(self._written(model, *inputs[:2]))
            found.values[~fits] = None
        problems = tuple(problem if fit else too_long for problem, fit in zip(found.problems, fits, strict=True))
        return Predictions(found.kind, found.values, None, (), problems)

    def _written(self, model: Any, numbers_BL: Tensor, is_token_BL: Tensor) -> list[str]:
        if not len(numbers_BL):
            return []
        written = write_on(
            model.language, numbers_BL, is_token_BL, max_new=self.max_new, ends=self.scribe.ends(), pad=self.scribe.pad
        )
        return [self.scribe.text(row) for row in written]

    def _tensors(self, scripts: Sequence[Script]) -> tuple[Tensor, Tensor, Tensor]:
        numbers, is_token = padded([script.numbers for script in scripts], self.scribe.pad)
        is_answer, _ = padded([script.is_answer for script in scripts], 0)
        return numbers, is_token, is_answer.bool()

    def _scripts(self, rows: Any) -> list[Script]:
        """Those of the rows that are being predicted are kept, as they are asked for twice."""
        has_answers = "answer" in rows.frame.columns
        answers = rows.column("answer").tolist() if has_answers else [None] * len(rows)
        pairs = list(zip(rows.column("prompt").tolist(), answers, strict=True))
        if any(pair not in self.known for pair in pairs):
            self.known = {pair: self._script(*pair) for pair in pairs}
        return [self.known[pair] for pair in pairs]

    def _script(self, prompt: str, answer: str | None) -> Script:
        if answer is not None:
            return self.scribe.answered(prompt, answer).cropped(self.max_tokens)
        numbers = np.array(self.scribe.asked(prompt), dtype=np.int32)
        return Script(numbers, np.zeros(len(numbers), bool)).cropped(self.max_tokens)


def write_on(
    language: Any, numbers_BL: Tensor, is_token_BL: Tensor, *, max_new: int, ends: Sequence[int], pad: int
) -> list[list[int]]:
    """The most probable continuation of each row, token by token, without its end; rows are padded to the left."""
    was_training = language.training
    language.eval()
    with torch.no_grad(), quiet_transformers():
        found = language.generate(
            input_ids=numbers_BL,
            attention_mask=is_token_BL.long(),
            max_new_tokens=max_new,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            eos_token_id=list(ends),
            pad_token_id=pad,
        )
    language.train(was_training)
    rows = found[:, numbers_BL.shape[1] :].tolist()
    over = set(ends)
    return [row[: next((i for i, number in enumerate(row) if number in over), len(row))] for row in rows]
