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
from trainers.errors import DataError, UsageError

SCORES_AT_ONCE = 2**24
"""Scores of tokens that are kept at once: 64 MiB in float32. Vocabularies of 260,000 make a MiB of every token."""
_LAYER = re.compile(r"\.(?:layers?|h|blocks?)\.(\d+)\.")


class Answering(nn.Module):
    """(B, L) tokens, which are any, which are answer -> (B,) nats that the answers cost.

    Only what is trained is in its state: base weights under adapters are kept by reference, not in every snapshot.
    packs: rows are put in one line before the model reads them, see `states_in_line`.
    """

    def __init__(self, language: Any, *, packs: bool = False) -> None:
        super().__init__()
        self.language, self.packs = language, packs
        keep_trained_state(self)

    def forward(self, numbers_BL: Tensor, is_token_BL: Tensor, is_answer_BL: Tensor) -> Tensor:
        states = states_in_line if self.packs and len(numbers_BL) > 1 else last_states
        states_BLD = states(self.language, numbers_BL, is_token_BL)
        is_next = is_answer_BL[:, 1:]
        states_AD, next_A = states_BLD[:, :-1][is_next], numbers_BL[:, 1:][is_next]
        row_A = is_next.nonzero()[:, 0]
        nats_A = next_nats(self.language, states_AD, next_A)
        return torch.zeros(len(numbers_BL), device=nats_A.device).index_add(0, row_A, nats_A)


def keep_trained_state(model: nn.Module) -> None:
    """Leave frozen weights out of the model's state dict, and do not miss them when one is loaded."""
    names = {name for name, each in model.named_parameters() if each.requires_grad}
    if len(names) == sum(1 for _ in model.named_parameters()):
        return

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


def states_in_line(language: Any, numbers_BL: Tensor, is_token_BL: Tensor) -> Tensor:
    """What `last_states` gives, from all tokens in one line without padding; positions begin anew with each row, by which
    transformers masks one from the other."""
    positions_BL = is_token_BL.long().cumsum(1) - 1
    line_ND = states_by_position(language, numbers_BL[is_token_BL][None], positions_BL[is_token_BL][None])[0]
    states_BLD = line_ND.new_zeros(*numbers_BL.shape, line_ND.shape[-1])
    states_BLD[is_token_BL] = line_ND
    return states_BLD


def states_by_position(language: Any, numbers_BL: Tensor, positions_BL: Tensor) -> Tensor:
    """(B, L, D) of the last layer, where a token sees those before it since the position was last 0."""
    model = bare(language)
    decoder = getattr(model, model.base_model_prefix)
    states: Tensor = decoder(input_ids=numbers_BL, position_ids=positions_BL, use_cache=False).last_hidden_state
    return states


def check_packing(language: Any, where: str, instead: str) -> None:
    """Raise UsageError where the model does not keep texts apart that stand in one line (those with a state do not).
    instead: the value of options.packing to use then."""
    device = next(language.parameters()).device
    numbers, is_token = torch.arange(2, 10, device=device).view(2, 4), torch.ones(2, 4, dtype=torch.bool, device=device)
    was_training = language.training
    language.eval()
    with torch.no_grad():
        apart = last_states(language, numbers, is_token).float()
        together = None if bare(language).config.model_type == "mamba" else states_in_line(language, numbers, is_token)
    language.train(was_training)
    if together is None or not torch.allclose(apart, together.float(), atol=0.02 * float(apart.abs().max()), rtol=0):
        raise UsageError(
            f"{where}: this model does not keep texts apart that stand in one line. Use --set options.packing={instead}"
        )


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


def language_roles(network: nn.Module) -> dict[str, Role]:
    """What every trained parameter of a model of transformers is for, by name: see `trainers.optim`."""
    tables = {f"{name}.weight" for name, part in network.named_modules() if isinstance(part, nn.Embedding)}
    roles, deepest = {}, 0
    for name, parameter in network.named_parameters():
        layer = _LAYER.search(name)
        deepest = max(deepest, int(layer[1]) + 1 if layer else 0)
        is_matrix = parameter.ndim == 2 and not name.endswith("A_log")  # see `encoder_weights.encoder_roles`
        kind: RoleKind = "embedding" if name in tables else "matrix" if is_matrix else "scalar"
        if parameter.requires_grad:
            roles[name] = Role(kind, int(layer[1]) + 1 if layer else deepest)
    return roles


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

    @property
    def their_tokenizer(self) -> Any:
        """As transformers made it."""
        return self.scribe.tokenizer

    def roles(self) -> Mapping[str, Role]:
        return language_roles(self.model)

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
    language: Any,
    numbers_BL: Tensor,
    is_token_BL: Tensor,
    *,
    max_new: int,
    ends: Sequence[int],
    pad: int,
    temperature: float = 0.0,
    top_k: int | None = None,
) -> list[list[int]]:
    """A continuation of each row, token by token, without its end; rows are padded to the left.

    temperature: 0 takes the most probable token, more draws by torch's generator among the `top_k` most probable.
    """
    is_drawn = temperature > 0
    was_training = language.training
    language.eval()
    with torch.no_grad(), quiet_transformers():
        found = language.generate(
            input_ids=numbers_BL,
            attention_mask=is_token_BL.long(),
            max_new_tokens=max_new,
            do_sample=is_drawn,
            temperature=temperature if is_drawn else None,
            top_p=None,
            top_k=(top_k or 0) if is_drawn else None,
            eos_token_id=list(ends),
            pad_token_id=pad,
        )
    language.train(was_training)
    rows = found[:, numbers_BL.shape[1] :].tolist()
    over = set(ends)
    return [row[: next((i for i, number in enumerate(row) if number in over), len(row))] for row in rows]
