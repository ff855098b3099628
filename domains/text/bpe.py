"""Byte-level BPE trained on the corpus itself. Any text has tokens in it, and its tokens give back the text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainers.contract import JSON

BOS = "<|bos|>"
"""Stands where a document begins; it is what the end of one predicts."""
MOST_BYTES = 128 << 20
"""Of a larger corpus every n-th shard trains the tokenizer: merges of frequent pairs no longer change."""
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""What merges never reach across: words, pairs of digits, punctuation with the line end behind it. As in nanochat
(https://github.com/karpathy/nanochat); tinyshakespeare needs 7 % fewer tokens so than by GPT-2's pattern."""
BLOCK = 1 << 16
"""Characters encoded at once: the library keeps 100 bytes and more a token while it works."""


class Tokenizer:
    """Text to token numbers and back.   size: of the vocabulary.   bos: number of BOS.   line: of the line end."""

    def __init__(self, tokenizer: Any) -> None:
        self.inner = tokenizer
        self.size = int(tokenizer.get_vocab_size())
        self.bos = int(tokenizer.token_to_id(BOS))
        self.line = int(tokenizer.encode("\n").ids[0])

    @classmethod
    def trained_on(cls, train: Any, size: int) -> Tokenizer:
        """Merges of the most frequent neighbours in the training shards until there are `size` tokens (Sennrich et al.
        2016, arXiv 1508.07909, section 3.2), among them all 256 bytes and BOS; fewer where the text has no more."""
        from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
        from tokenizers import Tokenizer as Inner

        inner = Inner(models.BPE())
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        split = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
        inner.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
        inner.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=size, initial_alphabet=alphabet, special_tokens=[BOS], show_progress=False
        )
        inner.train_from_iterator(_sample(train), trainer)
        return cls(inner)

    def as_json(self) -> JSON:
        """What `from_json` reads."""
        return dict(json.loads(self.inner.to_str()))

    @classmethod
    def from_json(cls, values: JSON) -> Tokenizer:
        """The tokenizer that `as_json` wrote."""
        from tokenizers import Tokenizer as Inner

        return cls(Inner.from_str(json.dumps(values)))

    def encode(self, text: str) -> np.ndarray:
        """(tokens,) int64. What looks like BOS in a text is its characters."""
        parts = [self._encoded(part) for part in blocks(text)]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def decode(self, numbers: Sequence[int] | np.ndarray) -> str:
        """The text of these tokens; bytes that are no whole character become the replacement character."""
        return str(self.inner.decode([int(number) for number in numbers], skip_special_tokens=True))

    def _encoded(self, text: str) -> np.ndarray:
        if BOS not in text:
            return np.array(self.inner.encode(text).ids, dtype=np.int64)
        # Cut inside every BOS: the library would take it for the token.
        first, *others = text.split(BOS)
        pieces = [first, *(part for other in others for part in (BOS[:2], BOS[2:] + other))]
        return np.concatenate([np.array(self.inner.encode(piece).ids, dtype=np.int64) for piece in pieces])


def blocks(text: str) -> Iterator[str]:
    """`text` in parts of about BLOCK characters, cut where a line begins: there no token reaches across."""
    start = 0
    while start < len(text):
        stop = start + BLOCK
        if stop < len(text):
            line = text.rfind("\n", start, stop)
            stop = line if line > start else stop
        yield text[start:stop]
        start = stop


def _sample(train: Any) -> Iterator[str]:
    step = max(1, -(-int(train.num_bytes().sum()) // MOST_BYTES))
    for row in range(0, len(train), step):
        for text in train.documents(row):
            yield from blocks(text)


def write_for_transformers(tokenizer: JSON, folder: Path, max_length: int) -> None:
    """tokenizer.json and tokenizer_config.json, from which `transformers.AutoTokenizer` makes the same tokenizer."""
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": BOS,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
