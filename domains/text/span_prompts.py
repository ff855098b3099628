"""Entities as lines of text that a language model can write, and such lines back as tags.

A line is "TYPE: WORDS", in the order of the sentence; NONE stands for no entity. As Wang et al. 2023, arXiv 2304.10428, section
3, entities are asked for as text, which models know how to write, not as a tag a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from domains.text.tags import Entity, as_tags, entities

NONE = "none"


def as_lines(words: Sequence[str], tags: Sequence[str], names: Mapping[str, str]) -> str:
    """What an example shows. names: what a type is called in prompts, where its own name says little."""
    lines = [
        f"{names.get(kind, kind)}: {' '.join(words[first : last + 1])}" for kind, first, last in entities(tuple(tags))
    ]
    return "\n".join(lines) or NONE


def tags_of(answer: str, words: Sequence[str], types: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """BIO tags of a sentence, from what was written about it.

    A line counts where its type is known and its words stand in the sentence (as written, else with letters of any size), at
    their first place that no line before it took; other lines are left out.
    """
    called = {names.get(kind, kind).casefold(): kind for kind in types}
    found: list[Entity] = []
    is_free = [True] * len(words)
    for line in answer.splitlines():
        name, _, text = line.partition(":")
        kind, wanted = called.get(name.strip().casefold()), text.split()
        first = None if kind is None or not wanted else _place(wanted, words, is_free)
        if kind is not None and first is not None:
            last = first + len(wanted) - 1
            is_free[first : last + 1] = [False] * len(wanted)
            found.append((kind, first, last))
    return as_tags(found, len(words))


def _place(wanted: Sequence[str], words: Sequence[str], is_free: Sequence[bool]) -> int | None:
    """Where `wanted` begins in `words`; a word of a table may hold white space itself."""
    for plain in (str, str.casefold):
        asked = [plain(word) for word in wanted]
        for first in range(len(words) - len(asked) + 1):
            part = slice(first, first + len(asked))
            if all(is_free[part]) and [plain(word) for word in words[part]] == asked:
                return first
    return None
