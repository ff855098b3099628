"""Words as the pieces that a model reads: which piece begins which word, and long sentences cut into windows.

The first piece of each word carries its tag (Devlin et al. 2019, arXiv 1810.04805, section 5.3). A sentence longer than the
model is read in windows that overlap; each word is learned from, and tagged in, the one window where most stands around it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from domains.shared.tokens import TextTokenizer

CONTEXT_SHARE = 0.25
"""Share of a window that it has in common with each of its neighbours."""
_AT_ONCE = 1024


@dataclass(frozen=True)
class Window:
    """A stretch of a sentence as the model reads it.

    numbers: (L,) tokens, start and end included.   first: (words owned,) where the first piece of each stands.
    begin: number of the first word that this window owns; it owns those that follow one another from there.
    """

    numbers: np.ndarray
    first: np.ndarray
    begin: int


class WordPieces:
    """Cuts sentences of words into windows of at most `max_tokens` tokens.

    Sentences are cut as running text, words joined by spaces, as the tokenizer was made for; a word that it drops (control
    characters) becomes the unknown token, so that every word has a piece.
    """

    def __init__(self, tokenizer: TextTokenizer, max_tokens: int) -> None:
        self.tokenizer = tokenizer
        tokenizer.tokenizer.no_truncation()
        self.before, self.after, self.unknown = _special(tokenizer)
        self.room = max_tokens - len(self.before) - len(self.after)
        assert self.room > 0, f"max_tokens {max_tokens} leaves no room between start and end"

    def windows(self, sentences: Sequence[Sequence[str]]) -> list[list[Window]]:
        """The windows of each sentence, in order; together they own every word once."""
        return [self._windows(pieces) for pieces in self.pieces(sentences)]

    def pieces(self, sentences: Sequence[Sequence[str]]) -> Iterator[list[list[int]]]:
        """Of each sentence, of each word, the token numbers: at least one, and no more than a window holds."""
        for start in range(0, len(sentences), _AT_ONCE):
            part = sentences[start : start + _AT_ONCE]
            encoded = self.tokenizer.tokenizer.encode_batch(
                [" ".join(words) for words in part], add_special_tokens=False
            )
            for words, found in zip(part, encoded, strict=True):
                by_word = _by_word(words, found.ids, found.offsets)
                yield [(each or [self.unknown])[: self.room] for each in by_word]

    def _windows(self, pieces: list[list[int]]) -> list[Window]:
        found = []
        for start, stop, begin, end in spans([len(each) for each in pieces], self.room):
            starts = list(accumulate((len(each) for each in pieces[start:stop]), initial=len(self.before)))
            numbers = [*self.before, *(number for word in pieces[start:stop] for number in word), *self.after]
            first = np.array(starts[begin - start : end - start], dtype=np.int64)
            found.append(Window(np.array(numbers, dtype=np.int32), first, begin))
        return found


def spans(sizes: Sequence[int], room: int) -> list[tuple[int, int, int, int]]:
    """(start, stop, begin, end) of each window: it holds words start to stop, and owns begin to end of them.

    sizes: pieces of each word, none above `room`, the most that a window holds.
    """
    windows = []
    start, num_words = 0, len(sizes)
    while True:
        stop = _reach(sizes, start, room)
        windows.append((start, stop))
        if stop >= num_words:
            break
        # The next word must fit behind what is shared, or there would be no getting on.
        back, context = stop, min(int(room * CONTEXT_SHARE), room - sizes[stop])
        while back - 1 > start and sum(sizes[back - 1 : stop]) <= context:
            back -= 1
        start = back
    # Where two windows share words, each owns the half that is farther from its own edge.
    borders = [
        0,
        *((later[0] + earlier[1] + 1) // 2 for earlier, later in pairwise(windows)),
        num_words,
    ]
    return [(*window, borders[at], borders[at + 1]) for at, window in enumerate(windows)]


def _reach(sizes: Sequence[int], start: int, room: int) -> int:
    """How far a window from `start` goes: one word at least."""
    stop, filled = start, 0
    while stop < len(sizes) and filled + sizes[stop] <= room:
        filled += sizes[stop]
        stop += 1
    return max(stop, min(start + 1, len(sizes)))


def _by_word(words: Sequence[str], numbers: Sequence[int], offsets: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Token numbers by word, from where each token stands in the words joined by spaces."""
    begins = [0, *accumulate(len(word) + 1 for word in words)][: len(words)]
    found: list[list[int]] = [[] for _ in words]
    for number, (begin, end) in zip(numbers, offsets, strict=True):
        # By its last character: pieces of some tokenizers begin with the space before their word, or are that space.
        at = max(begin, end - 1)
        word = bisect_right(begins, at) - 1
        word += at >= begins[word] + len(words[word])
        if word < len(words):
            found[word].append(number)
    return found


def _special(tokenizer: TextTokenizer) -> tuple[list[int], list[int], int]:
    """Tokens before and after a text, and the one for what is unknown (padding where there is none)."""
    encoded = tokenizer.tokenizer.encode("a")
    marks = encoded.special_tokens_mask
    own = [at for at, is_special in enumerate(marks) if not is_special]
    first, last = (own[0], own[-1]) if own else (len(marks) // 2, len(marks) // 2 - 1)
    known = (tokenizer.tokenizer.token_to_id(name) for name in ("[UNK]", "<unk>", "[MASK]", "<mask>"))
    unknown = next((number for number in known if number is not None), tokenizer.pad)
    return encoded.ids[:first], encoded.ids[last + 1 :], unknown
