"""A causal language model behind prompts with examples: `trainers.prompt.Asked` for texts.

What the examples have in common is read once: its keys and values are kept, and every question goes on from there.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from domains.text.baselines import WORD
from domains.text.chats import of_text
from domains.text.span_prompts import as_lines, tags_of
from domains.text.tags import rarest_types, types_of
from trainers.contract import JSON, Predictions
from trainers.errors import DataError
from trainers.prompt import Shown

BREAK = "\n\n"
"""Between examples, and so what a model writes behind an answer."""


@dataclass(frozen=True)
class Format:
    """How prompts are written. before: up to the question.   between: from question to answer.   gap: " " where the
    answer follows behind one; it belongs to the answer's first token.   after: behind the answer."""

    instruction: str
    before: str
    between: str
    gap: str
    after: str
    max_characters: int

    def asked(self, question: str) -> str:
        """A question up to where its answer begins."""
        return f"{self.before}{question[: self.max_characters]}{self.between}"

    def told(self, shown: Sequence[Shown]) -> str:
        """Instruction and examples, each with its answer."""
        lines = [f"{self.asked(each.question)}{self.gap}{each.answer}{self.after}{BREAK}" for each in shown]
        return (f"{self.instruction}{BREAK}" if self.instruction else "") + "".join(lines)


@dataclass(frozen=True)
class Entities:
    """classes: O, and B- and I- of every type.   names: what types are called in prompts."""

    classes: tuple[str, ...]
    names: Mapping[str, str]


def format_of(template: str, instruction: str, labels: Sequence[str], max_characters: int) -> Format:
    """The format that a template with {question} and {answer} describes."""
    before, rest = template.split("{question}")
    between, after = rest.split("{answer}")
    bare = between.rstrip(" ")
    told = instruction.replace("{labels}", ", ".join(labels))
    return Format(told, before, bare, between[len(bare) :], after, max_characters)


class Prompted:
    """Meets `trainers.prompt.Asked`. state: reference of the weights, and the tokenizer of random ones.   entities: where
    words are to be tagged."""

    empty: Sequence[str] = ("N/A", "", "[MASK]")
    """Zhao et al. 2021, arXiv 2102.09690, section 4."""

    def __init__(
        self,
        language: Any,
        tokenizer: Any,
        form: Format,
        *,
        state: JSON,
        max_new: int,
        entities: Entities | None = None,
    ) -> None:
        self.language, self.tokenizer, self.form, self.max_new = language, tokenizer, form, max_new
        self._state, self.entities = state, entities
        self.num_parameters = sum(each.numel() for each in language.parameters())
        named = inspect.signature(language.forward).parameters
        self.cache_name = "cache" if "cache" in named else "past_key_values"
        self.read: tuple[str, Any] = ("", None)

    @property
    def state(self) -> JSON:
        return self._state

    def questions(self, rows: Any) -> list[str]:
        if "text" in rows.frame.columns:
            return [str(text) for text in rows.column("text")]
        if "source" in rows.frame.columns:
            return [str(text) for text in rows.column("source")]
        prompts = [str(text) for text in rows.column("prompt")]
        if not rows.context.get("is_chat"):
            return prompts
        return ["\n".join(f"{each['role']}: {each['content']}" for each in of_text(prompt)) for prompt in prompts]

    def known_answers(self, rows: Any) -> list[str] | None:
        return [str(text) for text in rows.column("answer")] if "answer" in rows.frame.columns else None

    def shown_answers(self, rows: Any) -> list[str]:
        if self.entities is None:
            return self.known_answers(rows) or [str(text) for text in rows.target()]
        pairs = zip(rows.column("words"), rows.target(), strict=True)
        return [as_lines(words, tags, self.entities.names) for words, tags in pairs]

    def kinds(self, rows: Any) -> np.ndarray:
        if self.entities is None:
            return np.zeros(len(rows), np.int64)
        return np.unique(rarest_types(rows.target()), return_inverse=True)[1]

    def read_back(self, rows: Any, written: Sequence[str]) -> Predictions:
        if self.entities is None:
            return Predictions.of_texts(written)
        types, names = types_of(self.entities.classes), self.entities.names
        pairs = zip(written, rows.column("words"), strict=True)
        return Predictions.of_tags([tags_of(text, words, types, names) for text, words in pairs], self.entities.classes)

    def likelihoods(
        self, shown: Sequence[Shown], question: str, answers: Sequence[str], *, to_end: bool = False
    ) -> np.ndarray:
        """(answers,) nats; each longer answer goes on from a copy of what was read."""
        end = self.form.after + BREAK if to_end else ""
        written = [self._numbers(f"{self.form.gap}{answer}{end}") for answer in answers]
        with torch.no_grad():
            scores, cache = self._after_question(shown, question)
            found = [float(scores[each[0]]) for each in written]
            longer = [i for i, each in enumerate(written) if len(each) > 1]
            for i in longer:
                # The last one may use up the cache.
                kept = cache if i == longer[-1] else copy.deepcopy(cache)
                rest, _ = self._read_on(written[i][:-1], kept, keep=0)
                found[i] += float(rest.gather(1, self._row(written[i][1:]).T).sum())
        return np.array(found, np.float64)

    def written(self, shown: Sequence[Shown], question: str) -> str:
        """The most probable tokens one after another, up to a blank line or the model's end."""
        numbers: list[int] = []
        with torch.no_grad():
            scores, cache = self._after_question(shown, question)
            while len(numbers) < self.max_new:
                number = int(scores.argmax())
                if number == self.tokenizer.eos_token_id:
                    break
                numbers.append(number)
                if BREAK in str(self.tokenizer.decode(numbers)).lstrip():
                    break
                last, cache = self._read_on([number], cache, keep=1)
                scores = last[0]
        text = str(self.tokenizer.decode(numbers, skip_special_tokens=True)).strip()
        text = text.split(BREAK)[0]
        return text.removesuffix(self.form.after).strip()

    def nearest(self, pool: Sequence[str], questions: Sequence[str], num: int) -> np.ndarray:
        """By the angle between weighted counts of words."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        counts = TfidfVectorizer(token_pattern=WORD, sublinear_tf=True, strip_accents="unicode")
        weights = counts.fit_transform(pool)
        own: dict[str, list[int]] = {}
        for place, text in enumerate(pool):
            own.setdefault(text, []).append(place)
        found = np.empty((len(questions), num), np.int64)
        for row, question in enumerate(questions):
            alike = (counts.transform([question]) @ weights.T).toarray()[0]
            # A question that is itself in the pool is no example for itself.
            alike[own.get(question, [])] = -1.0
            found[row] = np.argsort(alike, kind="stable")[len(pool) - num :]
        return found

    def _after_question(self, shown: Sequence[Shown], question: str) -> tuple[Tensor, Any]:
        """(V,) log-probabilities of the token behind the question, and the cache up to there."""
        cache = self._told(self.form.told(shown))
        scores, cache = self._read_on(self._numbers(self.form.asked(question)), cache, keep=1)
        return scores[0], cache

    def _told(self, text: str) -> Any:
        """The cache of what comes before every question; that of the last text is kept, and copied each time."""
        if self.read[0] != text or self.read[1] is None:
            numbers = list(self.tokenizer(text)["input_ids"])
            if numbers and numbers[-1] == self.tokenizer.eos_token_id:
                numbers = numbers[:-1]
            limit = getattr(self.language.config, "max_position_embeddings", None) or len(numbers) + 1
            if len(numbers) >= limit:
                raise DataError(
                    f"The examples alone have {len(numbers):,} tokens, but the model was made for {limit:,}. Show fewer "
                    "(train.examples), or crop them (options.max_characters)."
                )
            self.read = (text, self._read_on(numbers, None, keep=1)[1] if numbers else None)
        return copy.deepcopy(self.read[1])

    def _read_on(self, numbers: Sequence[int], cache: Any, *, keep: int) -> tuple[Tensor, Any]:
        """(keep, V) log-probabilities behind the last `keep` tokens (0: all), and the cache with them in it."""
        before = {} if cache is None else {self.cache_name: cache}
        found = self.language(input_ids=self._row(numbers), use_cache=True, logits_to_keep=keep, **before)
        after = getattr(found, "cache", None)
        after = found.past_key_values if after is None else after
        return found.logits[0].float().log_softmax(dim=-1), after

    def _row(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor([list(numbers)], device=self.language.device)

    def _numbers(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
