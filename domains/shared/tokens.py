"""Texts as token numbers: a fast tokenizer that travels as JSON, cropping counted, batches padded.

Shapes: B texts, L tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from trainers.contract import JSON
from trainers.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WORD_TOKENIZER_SIZE = 4000
"""Words that a tokenizer made from the training texts keeps: for random weights only."""
PAD, UNKNOWN, START, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
_AT_ONCE = 4096


@dataclass(frozen=True)
class Encoded:
    """numbers: of each text, start and end included.   is_cropped: (B,) whether the text went on."""

    numbers: list[np.ndarray]
    is_cropped: np.ndarray

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [len(each) for each in self.numbers]


class TextTokenizer:
    """A `tokenizers.Tokenizer` with the crop that a model needs; `as_json` is all that a run keeps of it."""

    def __init__(self, tokenizer: Tokenizer, pad: int) -> None:
        self.tokenizer, self.pad = tokenizer, pad
        tokenizer.no_padding()
        tokenizer.no_truncation()

    @property
    def size(self) -> int:
        """Token numbers are below this."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def as_json(self) -> JSON:
        """The content of a tokenizer.json, and the number that fills rows up."""
        self.tokenizer.no_truncation()
        return {"tokenizer": json.loads(self.tokenizer.to_str()), "pad": self.pad}

    @classmethod
    def from_json(cls, values: JSON) -> TextTokenizer:
        """The tokenizer that `as_json` wrote."""
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_str(json.dumps(values["tokenizer"])), values["pad"])

    def encode(self, texts: Sequence[str], max_tokens: int) -> Encoded:
        """Token numbers of each text, cropped at its end to `max_tokens`, start and end tokens included."""
        self.tokenizer.enable_truncation(max_tokens)
        numbers, cropped = [], []
        for start in range(0, len(texts), _AT_ONCE):
            for found in self.tokenizer.encode_batch(list(texts[start : start + _AT_ONCE])):
                numbers.append(np.array(found.ids, dtype=np.int32))
                cropped.append(bool(found.overflowing))
        return Encoded(numbers, np.array(cropped, dtype=bool))

    def windows(self, texts: Sequence[str], max_tokens: int) -> list[list[np.ndarray]]:
        """Of each text, all its token numbers in windows of at most `max_tokens`, start and end tokens in each."""
        self.tokenizer.enable_truncation(max_tokens)
        found = []
        for start in range(0, len(texts), _AT_ONCE):
            for first in self.tokenizer.encode_batch(list(texts[start : start + _AT_ONCE])):
                found.append([np.array(part.ids, dtype=np.int32) for part in (first, *first.overflowing)])
        return found

    def padded(self, numbers: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """(B, L) token numbers and whether each is one, L the longest here."""
        lengths = np.array([len(each) for each in numbers])
        is_token = np.arange(max(lengths, default=0)) < lengths[:, None]
        padded = np.full(is_token.shape, self.pad, dtype=np.int64)
        padded[is_token] = np.concatenate(list(numbers)) if len(numbers) else []
        return torch.from_numpy(padded), torch.from_numpy(is_token)


def of_folder(folder: Path) -> TextTokenizer:
    """The tokenizer beside a model. Raises DataError where there is none that can be read without running its code."""
    if (folder / "tokenizer_config.json").exists():
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        if config.get("auto_map"):
            raise DataError(f"{folder}: its tokenizer needs code from the hub, and none is run. Choose another model.")
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer.from_pretrained
    try:
        found = load(folder, use_fast=True, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # every tokenizer class raises its own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{folder}: its tokenizer cannot be loaded ({reason}). Fetch the whole folder again.") from None
    if not getattr(found, "is_fast", False) or found.pad_token_id is None:
        raise DataError(f"{folder}: no fast tokenizer with a padding token here. Give one with tokenizer.json.")
    return TextTokenizer(found.backend_tokenizer, int(found.pad_token_id))


def check_vocabulary(folder: Path, num_known: int, num_modelled: int) -> None:
    """Raise DataError where a tokenizer knows more tokens than the model beside it."""
    if num_known > num_modelled:
        raise DataError(
            f"{folder}: the tokenizer knows {num_known:,} tokens, the model only {num_modelled:,}: they do not belong "
            "together. Put the model's own tokenizer files back."
        )


def of_bytes(
    texts: Iterable[str], size: int, special: list[str], *, add_prefix_space: bool, normalizer: Any = None
) -> Tokenizer:
    """Byte-level BPE of `texts` with at most `size` tokens, `special` first, for weights that know no other."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    make: Any = trainers.BpeTrainer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = make(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def of_pieces(texts: Iterable[str], size: int, *, lowercase: bool) -> TextTokenizer:
    """A tokenizer of bytes and their commonest pairs in `texts`, for encoders: start, end and mask tokens included."""
    from tokenizers import normalizers, processors

    special = [PAD, UNKNOWN, START, END, MASK]
    normal = [normalizers.NFC(), *([normalizers.Lowercase()] if lowercase else [])]
    normalizer = normalizers.Sequence(normal)
    tokenizer = of_bytes(texts, size, special, add_prefix_space=True, normalizer=normalizer)
    ends = [(token, special.index(token)) for token in (START, END)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{START} $A {END}", special_tokens=ends)
    return TextTokenizer(tokenizer, special.index(PAD))


def write_for_transformers(tokenizer: TextTokenizer, folder: Path, max_tokens: int) -> None:
    """tokenizer.json and tokenizer_config.json, from which `transformers.AutoTokenizer` makes the same tokenizer."""
    from transformers import PreTrainedTokenizerFast

    tokenizer.tokenizer.no_truncation()
    known = {"pad_token": PAD, "unk_token": UNKNOWN, "cls_token": START, "sep_token": END, "mask_token": MASK}
    make: Any = PreTrainedTokenizerFast
    make(tokenizer_object=tokenizer.tokenizer, model_max_length=max_tokens, **known).save_pretrained(folder)


def of_words(texts: Sequence[str]) -> TextTokenizer:
    """A tokenizer whose tokens are the most frequent words of `texts` (lower case), for weights that know no other."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [PAD, UNKNOWN, START, END]
    tokenizer.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=WORD_TOKENIZER_SIZE, special_tokens=special, show_progress=False)
    )
    ends = [(token, special.index(token)) for token in (START, END)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{START} $A {END}", special_tokens=ends)
    return TextTokenizer(tokenizer, special.index(PAD))
