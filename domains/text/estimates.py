"""What a plan says of encoder recipes before training: tokens, cropped texts, where the weights come from."""

from __future__ import annotations

from domains.contract import Facts
from domains.text.encoder_weights import find, random_shape
from trainers.contract import JSON

CHARACTERS_PER_TOKEN = 4.2
"""Of English prose under BERT's word pieces (AG News: 4.2, start and end included); other scripts have fewer."""


def weights_facts(spec: str) -> JSON:
    """Id, revision and sha256 of the weights; the spec alone for random ones. Raises MissingError."""
    if random_shape(spec):
        return {"id": spec, "revision": "", "sha256": ""}
    return {name: value for name, value in find(spec).reference().items() if name != "path"}


def num_tokens(facts: Facts, max_tokens: int) -> int:
    """Tokens of one pass over the training rows, guessed from characters."""
    guessed = facts.sizes["total_characters"] / CHARACTERS_PER_TOKEN + 2 * facts.num_rows
    return int(min(guessed, facts.num_rows * max_tokens))


def cropping_notes(facts: Facts, spec: str, max_tokens: int) -> list[str]:
    """What to expect of long texts, and a warning where nothing was pretrained."""
    notes = [f"{spec}: random weights, nothing pretrained; good for trying out only"] if random_shape(spec) else []
    longest = facts.sizes["longest_characters"] / CHARACTERS_PER_TOKEN + 2
    if longest > max_tokens:
        notes.append(
            f"the longest training text has {facts.sizes['longest_characters']:,.0f} characters, about {longest:,.0f} "
            f"tokens; texts are cropped after {max_tokens} (options.max_tokens), and training says how many"
        )
    return notes
