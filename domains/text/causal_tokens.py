"""Prompts and answers as token numbers, and which of them are answer: only those are learned and measured.

A tokenizer with a chat template gets its own format, one question and one answer where there is no chat. Others get
prompt, separator, answer and the token for the end, which is learned like the rest: or answers would never end.
Shapes: B rows, L tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from domains.text.chats import ANSWERING, Message, of_text
from trainers.errors import DataError


@dataclass(frozen=True)
class Script:
    """numbers: (L,) tokens.   is_answer: (L,) which are to be learned.   is_whole: False where the end was cropped."""

    numbers: np.ndarray
    is_answer: np.ndarray
    is_whole: bool = True

    def cropped(self, max_tokens: int) -> Script:
        """The first `max_tokens` of it."""
        if len(self.numbers) <= max_tokens:
            return self
        return Script(self.numbers[:max_tokens], self.is_answer[:max_tokens], False)


class Scribe:
    """Writes rows as `Script`s. is_chat: prompts are messages as JSON text."""

    def __init__(self, tokenizer: Any, separator: str, *, is_chat: bool) -> None:
        self.tokenizer, self.separator, self.is_chat = tokenizer, separator, is_chat
        self.has_template = bool(tokenizer.chat_template)
        self.end = int(tokenizer.eos_token_id)
        self.pad = self.end if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)

    def asked(self, prompt: str) -> list[int]:
        """The tokens of a prompt up to where its answer begins."""
        if self.has_template:
            return self._rendered(self._messages(prompt), add_generation_prompt=True)
        numbers = list(self.tokenizer(self._plain(prompt) + self.separator)["input_ids"])
        return numbers[:-1] if numbers and numbers[-1] == self.end else numbers

    def answered(self, prompt: str, answer: str, *, every: bool = False) -> Script:
        """A prompt with its answer. every: earlier answers of a chat count as answers too."""
        if not self.has_template:
            before = self.asked(prompt)
            return _script(before, [*self.tokenizer(answer, add_special_tokens=False)["input_ids"], self.end])
        messages = [*self._messages(prompt), {"role": ANSWERING, "content": answer}]
        numbers = np.array(self._rendered(messages), dtype=np.int32)
        is_answer = np.zeros(len(numbers), dtype=bool)
        turns = [i for i, message in enumerate(messages) if message["role"] == ANSWERING]
        for turn in turns if every else turns[-1:]:
            before = self._rendered(messages[:turn], add_generation_prompt=True)
            until = self._rendered(messages[: turn + 1])
            is_last = turn == len(messages) - 1
            if not _begins(numbers, until) or not _begins(until, before):
                # Some templates drop the thoughts of earlier answers: those cannot be learned from this text.
                if is_last:
                    raise DataError("the chat template of these weights changes a question once it is answered.")
                continue
            is_answer[len(before) : len(until)] = True
        return Script(numbers, is_answer)

    def ends(self) -> list[int]:
        """Tokens behind which an answer is over: the tokenizer's end, and what the chat template puts there."""
        if not self.has_template:
            return [self.end]
        numbers = self.answered(as_question("a") if self.is_chat else "a", "b").numbers.tolist()
        special = set(self.tokenizer.all_special_ids)
        start = len(self.asked(as_question("a") if self.is_chat else "a"))
        return sorted({self.end, *(number for number in numbers[start:] if number in special)})

    def text(self, numbers: Sequence[int]) -> str:
        """What was written, without special tokens."""
        return str(self.tokenizer.decode(list(numbers), skip_special_tokens=True)).strip()

    def _messages(self, prompt: str) -> list[Message]:
        return of_text(prompt) if self.is_chat else [{"role": "user", "content": prompt}]

    def _plain(self, prompt: str) -> str:
        if not self.is_chat:
            return prompt
        return "\n".join([*(f"{each['role']}: {each['content']}" for each in of_text(prompt)), f"{ANSWERING}:"])

    def _rendered(self, messages: Sequence[Message], **options: Any) -> list[int]:
        try:
            found = self.tokenizer.apply_chat_template(list(messages), tokenize=True, return_dict=False, **options)
        except Exception as error:  # templates raise what they like
            raise DataError(f"the chat template of these weights refuses a chat: {error}") from None
        return [int(number) for number in found]


def as_question(text: str) -> str:
    """A prompt of a chat that asks one thing."""
    from domains.text.chats import one_question

    return one_question(text)


def padded(numbers: Sequence[np.ndarray], pad: int, *, to_left: bool = False) -> tuple[Tensor, Tensor]:
    """(B, L) tokens and which are any, L the longest here. to_left: rows end together, as for writing on."""
    longest = max((len(each) for each in numbers), default=0)
    filled, is_token = np.full((len(numbers), longest), pad, np.int64), np.zeros((len(numbers), longest), bool)
    for row, each in enumerate(numbers):
        place = slice(longest - len(each), longest) if to_left else slice(0, len(each))
        filled[row, place], is_token[row, place] = each, True
    return torch.from_numpy(filled), torch.from_numpy(is_token)


def _script(before: Sequence[int], answer: Sequence[int]) -> Script:
    is_answer = np.arange(len(before) + len(answer)) >= len(before)
    return Script(np.array([*before, *answer], dtype=np.int32), is_answer)


def _begins(whole: Any, part: Sequence[int]) -> bool:
    return list(whole[: len(part)]) == list(part)
