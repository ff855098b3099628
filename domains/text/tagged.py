"""Tagged sentences: a row is a sentence, its words, and a tag for each. See `domains.contract.Domain`.

In the table the columns are always "text" (the words with spaces between) and "words".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from domains.contract import Baseline, Facts, Keys, Metric, Reading, Request
from domains.shared.frames import FrameTable
from domains.shared.groupings import joined
from domains.shared.roles import named_keys
from domains.text import conll
from domains.text.copies import copy_groups, search_of_copies, with_copies
from domains.text.tag_baselines import all_outside, word_features
from domains.text.tagged_readers import read_files, read_table
from domains.text.tags import OUTSIDE, entities, entity_metrics, rarest_types, types_of
from trainers.errors import DataError, UsageError


def read(data: Any, request: Request) -> Reading:
    """Read CoNLL files, a folder of them, or a table, every sentence in order; a sentence with faults is a bad row.

    With `request.facts` tags may be absent, and so may lists of words: then "text" is cut at white space.
    Raises DataError for what holds no tagged words, UsageError for another task.
    """
    if request.task not in (None, "ner"):
        raise UsageError(f"--task {request.task}: sentences with a tag a word are for --task ner.")
    if isinstance(data, str | Path) and (Path(data).is_dir() or conll.is_conll(Path(data))):
        return read_files(Path(data), request)
    return read_table(data, request)


def keys(table: FrameTable, task: str, request: Request, *, fast: bool) -> Keys:
    """Copies and near copies of sentences stay together, and so do the sentences of a document where files mark them.

    The stratum is the rarest type of entity in the sentence. A column named with --group or --order, files named train,
    dev and test, or a column called "split", are used instead.
    """
    stratum = None if table.target_name is None else rarest_types(table.target())
    code = copy_groups(table.column("text").tolist(), near=not fast)
    if (named := named_keys(table, request, stratum)) is not None:
        return with_copies(named, code)
    if "split" in table.frame.columns:
        given = table.column("split").tolist()
        return Keys("given", str(table.context["parts"]), given=given, group=code, stratum=stratum)
    how, evidence = search_of_copies(code, fast=fast)
    because = f"copies and near copies of sentences stay together ({how})"
    if "document" in table.frame.columns:
        code = joined([code, table.column("document")])
        because = f"the sentences of a document stay together, and {because}"
    return Keys("grouped", because, group=code, stratum=stratum, evidence=evidence)


def describe(train: FrameTable, task: str, request: Request) -> Facts:
    """Lengths and tags of the training rows; classes: O, and B- and I- of every type. sizes: characters and words."""
    lengths = train.column("text").str.len().to_numpy()
    num_words = train.column("words").map(len).to_numpy()
    types = types_of([tag for tags in train.target() for tag in tags])
    if not types:
        raise DataError(f"target {train.target_name!r}: no training sentence holds an entity; every tag is {OUTSIDE}.")
    sizes: dict[str, float] = {
        "longest_characters": int(lengths.max()),
        "median_characters": float(np.median(lengths)),
        "total_characters": int(lengths.sum()),
        "longest_words": int(num_words.max()),
        "total_words": int(num_words.sum()),
        "num_entities": sum(len(entities(tags)) for tags in train.target()),
    }
    classes = (OUTSIDE, *(f"{mark}-{kind}" for kind in types for mark in "BI"))
    schema = {name: train.context[name] for name in ("shape", "words", "tags", "id_column")}
    return Facts("text", task, train.target_name, len(train), classes, sizes, schema)


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """F1 of whole entities decides."""
    return entity_metrics(facts.classes)


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """No entity anywhere; then a linear model of each word's form and neighbours."""
    return all_outside(facts.classes), word_features(facts.classes)
