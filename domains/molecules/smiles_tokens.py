"""SMILES as tokens of chemistry (atoms, bonds, rings), and the other ways to write the same molecule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rdkit import Chem, rdBase

from domains.molecules.chemistry import PATTERN
from domains.shared.tokens import END, MASK, PAD, START, UNKNOWN, TextTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = (PAD, UNKNOWN, START, END, MASK)
MOST_TOKENS = 2000


def of_smiles(texts: Iterable[str], *, rarest: int = 1) -> TextTokenizer:
    """A tokenizer whose tokens are those of `texts` that occur at least `rarest` times, start and end around each text."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    split: Any = pre_tokenizers.Split
    tokenizer.pre_tokenizer = split(Regex(PATTERN), "isolated")
    make: Any = trainers.WordLevelTrainer
    trainer = make(vocab_size=MOST_TOKENS, min_frequency=rarest, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(token, SPECIAL.index(token)) for token in (START, END)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{START} $A {END}", special_tokens=ends)
    return TextTokenizer(_sorted(tokenizer), SPECIAL.index(PAD))


def _sorted(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, equally frequent tokens in the order of the alphabet: the library's order differs by run."""
    from tokenizers import models

    known = sorted(name for name in tokenizer.get_vocab() if name not in SPECIAL)
    numbers = {name: at for at, name in enumerate([*SPECIAL, *known])}
    make: Any = models.WordLevel
    tokenizer.model = make(vocab=numbers, unk_token=UNKNOWN)
    return tokenizer


def other_writing(smiles: str, seed: int) -> str:
    """The same molecule begun at another atom and walked in another order; the same for the same seed.

    Source: Bjerrum 2017, arXiv 1703.07076, section 2.1 (SMILES enumeration). Under 1 ms.
    """
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(smiles)
        return str(Chem.MolToRandomSmilesVect(mol, 1, seed)[0]) if mol is not None else smiles


def other_writings(smiles: Sequence[str], num: int) -> list[str]:
    """`num` writings of each, the canonical one first, one molecule after another; always the same ones."""
    return [text if view == 0 else other_writing(text, view) for text in smiles for view in range(num)]
