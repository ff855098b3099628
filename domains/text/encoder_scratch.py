"""Train an encoder from nothing on the user's own texts, first to fill in masked tokens, then on the labels.

Devlin et al. 2019, arXiv 1810.04805, section 3, without next sentences, which hurt (Liu et al. 2019, arXiv 1907.11692,
section 4.2). The tokenizer is trained on the same texts. What pretraining leaves is a folder as transformers writes it,
and the second training is that of `encoder` or `encoder_ner` with this folder as its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from domains.contract import Facts
from domains.shared.masked import MaskedTask
from domains.shared.tokens import TextTokenizer, of_pieces, write_for_transformers
from domains.shared.weights import quiet_transformers
from domains.text import encoder, encoder_ner, unlabelled
from domains.text import encoder_weights as encoders
from domains.text.estimates import (
    ACTIVATION_BYTES,
    BYTES_PER_PARAMETER,
    CHARACTERS_PER_TOKEN,
    cropping_notes,
    num_tokens,
)
from domains.text.masked import MaskedEncoder, masked_task
from trainers.contract import JSON, Learner, Machine, Plan, Predictions, Watch
from trainers.gradient import GradientLearner
from trainers.outcome import ClassWeights
from trainers.phases import TwoPhases
from trainers.settings import DEFAULT_EPOCHS, Gradient, Phases

_SMALL: JSON = {"batch_size": 16, "micro_batch_tokens": 2048, "precision": "fp32", "compile": "off"}
TINY: JSON = {
    "options": {"layers": 2, "width": 32, "vocabulary": 400, "max_tokens": 64, "dropout": 0.0},
    "train": {
        "pretrain": {**_SMALL, "epochs": 2, "lr": 3e-3},
        "tune": {**_SMALL, "epochs": 8, "lr": 5e-3, "head_lr": 1e-2, "layer_decay": 1.0},
    },
}
HEAD_SIZE = 64
LEAST_LAYERS, MOST_LAYERS = 4, 12
"""Four are cheap; BERT's twelve are the most that the texts of one data set have been worth."""
TOKENS_PER_PARAMETER = 20.0
"""Hoffmann et al. 2022, arXiv 2203.15556, table 3: of causal models, for masked ones a first guess."""
VOCABULARIES = ((16 << 20, 4096), (1 << 30, 8192), (float("inf"), 30_522))
"""Below so many characters so many tokens: rare ones are never learned. The last is BERT's, the others are guesses."""
FEW_ROWS = 100_000


class Options(BaseModel):
    """The `options:` block of text/encoder-scratch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    texts: str = Field("", description="a file or folder with more texts, without labels, to pretrain on")
    layers: int | None = Field(None, ge=1, description="None: as many as the texts are enough for")
    width: int | None = Field(None, ge=16, multiple_of=16, description="of states; None: 64 a layer")
    vocabulary: int | None = Field(None, ge=300, description="tokens at most; None: by the number of characters")
    lowercase: bool | None = Field(None, description="None: yes, but not to tag words, where capitals tell")
    mask_share: float = Field(0.3, gt=0, lt=1, description="of the tokens, masked in pretraining")
    max_tokens: int = Field(256, ge=8, description="of a window in pretraining, and as in text/encoder-classify")
    pooling: Literal["mean", "first"] = Field("mean", description="mean of all tokens, or the first one's state (CLS)")
    dropout: float = Field(0.1, ge=0, lt=1, description="of the pooled state, before the head")
    encoder_dropout: float = Field(0.0, ge=0, lt=1, description="inside the encoder while it learns the labels")
    class_weights: ClassWeights = "none"


def plan(facts: Facts, options: Options, settings: Phases, machine: Machine) -> JSON:
    """Estimates from lengths and shape. Raises MissingError where there is no file options.texts."""
    if options.texts:
        unlabelled.check(options.texts)
    config = config_of(facts, options)
    total = encoders.num_parameters(config)
    tokens = num_tokens(facts, options.max_tokens)
    pretrain, tune = settings.phase("pretrain"), settings.phase("tune")
    steps = [None if options.texts else pretrain.planned_steps(facts.num_rows), tune.planned_steps(facts.num_rows)]
    widest = max(_most_tokens(each, options.max_tokens) for each in (pretrain, tune))
    activations = widest * (config["num_hidden_layers"] * config["hidden_size"] * ACTIVATION_BYTES)
    scores = widest * options.mask_share * config["vocab_size"] * 12
    return {
        "num_parameters": total,
        "num_steps": None if None in steps else sum(step for step in steps if step is not None),
        "flops_per_epoch": 6 * total * tokens,
        "memory_bytes": int(BYTES_PER_PARAMETER * total + activations + scores),
        "notes": notes(facts, options, settings, config),
    }


def _most_tokens(settings: Gradient, max_tokens: int) -> int:
    rows = settings.micro_batch_size or settings.batch_size
    return min(rows * max_tokens, settings.micro_batch_tokens or rows * max_tokens)


def notes(facts: Facts, options: Options, settings: Phases, config: JSON) -> list[str]:
    """The shape, what it learns from, and what would be better for few rows."""
    size = f"{config['num_hidden_layers']} layers of width {config['hidden_size']}"
    tokens, first = num_tokens(facts, options.max_tokens), settings.phase("pretrain")
    often = f"read {first.epochs or DEFAULT_EPOCHS:g} times"
    if first.seconds or first.steps:
        often = f"for {first.seconds:g} seconds" if first.seconds else f"for {first.steps:,} steps"
    more = f" and the texts in {options.texts}" if options.texts else ""
    found = [
        f"{size}, at most {config['vocab_size']:,} tokens; pretrained on the training texts (about {tokens / 1e6:.3g}M "
        f"tokens){more}, {often}, then trained on the labels"
    ]
    if facts.num_rows < FEW_ROWS and not options.texts:
        found.append(
            f"{facts.num_rows:,} training texts are few to learn a language from: below {FEW_ROWS:,} a pretrained encoder "
            "(text/encoder-classify, text/encoder-ner) is the better choice where one knows the language"
        )
    if facts.task == "ner":
        return found
    return [*found, *cropping_notes(facts, "", options.max_tokens)]


def config_of(facts: Facts, options: Options) -> JSON:
    """The architecture: BERT's, as large as the texts are enough for where the options do not say."""
    characters = facts.sizes["total_characters"] + (_size_of(options.texts) if options.texts else 0)
    vocabulary = options.vocabulary or next(size for below, size in VOCABULARIES if characters < below)
    layers = options.layers or _layers_for(characters / CHARACTERS_PER_TOKEN, vocabulary)
    width = options.width or HEAD_SIZE * layers
    return {
        "model_type": "bert",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": _num_heads(width),
        "intermediate_size": 4 * width,
        "max_position_embeddings": options.max_tokens,
        "type_vocab_size": 1,
        "pad_token_id": 0,
    }


def _num_heads(width: int) -> int:
    """As many heads of HEAD_SIZE as fit, of equal size."""
    return max(heads for heads in range(1, max(1, width // HEAD_SIZE) + 1) if width % heads == 0)


def _layers_for(tokens: float, vocabulary: int) -> int:
    """The most layers whose parameters have TOKENS_PER_PARAMETER in DEFAULT_EPOCHS passes."""
    enough = [
        layers
        for layers in range(LEAST_LAYERS, MOST_LAYERS + 1)
        if (12 * layers * HEAD_SIZE * layers + vocabulary) * HEAD_SIZE * layers * TOKENS_PER_PARAMETER
        <= tokens * DEFAULT_EPOCHS
    ]
    return max(enough, default=LEAST_LAYERS)


def _size_of(path: str) -> int:
    """Bytes of a file, or of the files below a folder."""
    place = Path(path)
    return sum(each.stat().st_size for each in (place.rglob("*") if place.is_dir() else [place]) if each.is_file())


def build(plan: Plan) -> TwoPhases:
    """A fresh learner; tokenizer and weights are made when training starts."""
    return TwoPhases(Pretraining(plan), lambda folder: _family(plan).build(_tuning(plan, folder)))


def load(plan: Plan, folder: Path) -> Learner:
    """The learner that `save` wrote: architecture, tokenizer and all weights are in the folder."""
    learner: Learner = _family(plan).load(_tuning(plan, folder), folder)
    return learner


def _family(plan: Plan) -> ModuleType:
    return encoder_ner if plan.task == "ner" else encoder


def _tuning(plan: Plan, folder: Path) -> Plan:
    """The plan of the second training, which begins from the encoder in `folder`."""
    family = _family(plan)
    shared = {name: value for name, value in plan.options.items() if name in family.Options.model_fields}
    settings = Phases.model_validate(plan.settings).phase("tune")
    options = family.Options(**shared, weights=str(folder))
    return replace(plan, options=options.model_dump(mode="json"), settings=settings.model_dump(mode="json"))


class Pretraining:
    """Meets `phases.First`: masked tokens of the training texts, and of options.texts."""

    name, metric = "pretrain", "masked_cross_entropy"

    def __init__(self, plan: Plan) -> None:
        self.options = Options.model_validate(plan.options)
        self.facts = Facts.from_json(plan.facts)
        self.more: list[str] | None = None
        settings = Phases.model_validate(plan.settings).phase("pretrain")
        self.learner = GradientLearner(
            replace(plan, settings=settings.model_dump(mode="json")),
            self._statistics,
            lambda fitted, _: self._task(fitted),
        )

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """Train; see `trainers.loop`."""
        return self.learner.fit(train, valid, watch)

    def score(self, rows: Any, predictions: Predictions) -> float | None:
        """Mean nats of a masked token over the rows, each row alike."""
        values = predictions.values[[not problem for problem in predictions.problems]]
        return float(values.mean()) if len(values) else None

    def save(self, folder: Path) -> None:
        """The encoder and its tokenizer as transformers writes them."""
        assert self.learner.task is not None
        assert self.learner.statistics is not None
        network: Any = self.learner.task.model.get_submodule("encoder")
        with quiet_transformers():
            network.save_pretrained(folder, safe_serialization=True)
        tokenizer = TextTokenizer.from_json(self.learner.statistics)
        write_for_transformers(tokenizer, folder, self.options.max_tokens)

    def _statistics(self, train: Any) -> JSON:
        config = config_of(self.facts, self.options)
        lowercase = self.facts.task != "ner" if self.options.lowercase is None else self.options.lowercase
        tokenizer = of_pieces(self._texts(train), config["vocab_size"], lowercase=lowercase)
        return {"config": {**config, "vocab_size": tokenizer.size}, **tokenizer.as_json()}

    def _task(self, fitted: JSON) -> MaskedTask:
        config = fitted["config"]
        model = MaskedEncoder(encoders.empty_encoder(config, 0.0), config["hidden_size"])
        sizes: Any = {"max_tokens": self.options.max_tokens, "share": self.options.mask_share}
        return masked_task(model, TextTokenizer.from_json(fitted), self._texts, **sizes)

    def _texts(self, train: Any) -> Sequence[str]:
        """The training texts and those of options.texts; what is left out of these is told once."""
        own = list(train.column("text"))
        if not self.options.texts:
            return own
        if self.more is None:
            self.more, num_out = unlabelled.texts_of(self.options.texts, train.context["every_text"])
            self.learner.batch.say(
                kind="texts",
                text=f"{len(self.more):,} more texts from {self.options.texts}; {num_out:,} left out, as they stand in "
                "the labelled file too",
            )
        return [*own, *self.more]
