"""Ask a causal language model with a few labelled examples in the prompt; nothing is trained. See `trainers.prompt`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator

from domains.contract import Baseline, Facts
from domains.shared.weights import random_notes, random_shape, weights_facts
from domains.text import causal_weights as languages
from domains.text.baselines import words
from domains.text.prompted import Entities, Prompted, format_of
from domains.text.tags import types_of
from trainers.contract import JSON, Machine, Plan
from trainers.errors import UsageError
from trainers.precision import autocast_dtype
from trainers.prompt import LEVELS, PromptLearner, choices_of, chosen_examples
from trainers.settings import Prompt

TINY: JSON = {
    "options": {"weights": "random:1x512", "max_new_tokens": 8},
    "train": {"examples": 9, "selection": "nearest", "calibration": "none", "precision": "fp32"},
}
TEMPLATES = {
    "generation": "{question}\nAnswer: {answer}",
    "regression": "Text: {question}\nLevel: {answer}",
    "seq2seq": "Source: {question}\nTarget: {answer}",
    "ner": "Sentence: {question}\nEntities:\n{answer}",
}
TEMPLATE = "Text: {question}\nLabel: {answer}"
CHARACTERS_PER_TOKEN = 4.0


class Options(BaseModel):
    """The `options:` block of text/few-shot-prompt, text/few-shot-rewrite and text/few-shot-tag."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field("HuggingFaceTB/SmolLM2-360M", description="hub id, folder, or random:1x64")
    instruction: str = Field("", description="before the examples; {labels} becomes the list of labels")
    template: str = Field("", description='an example, "Text: {question}\\nLabel: {answer}"; empty: one by task')
    names: dict[str, str] = Field(
        {}, description="what a class (or type of entity) is called, where its name says little"
    )
    max_characters: int = Field(2000, gt=0, description="of a question; what follows is not shown")
    max_new_tokens: int = Field(128, gt=0, description="of a written answer at most")

    @field_validator("template")
    @classmethod
    def _has_both(cls, value: str) -> str:
        if value and (value.count("{question}") != 1 or value.count("{answer}") != 1):
            raise ValueError("needs {question} and {answer}, each once")
        if value and value.index("{question}") > value.index("{answer}"):
            raise ValueError("{question} comes before {answer}: what follows the question is what is asked for")
        return value


def plan(facts: Facts, options: Options, settings: Prompt, machine: Machine) -> JSON:
    """Length of a prompt and memory. Raises MissingError where the weights are not to be had, UsageError for names of
    classes that there are not and for prompts longer than the model was made for."""
    known = types_of(facts.classes) if facts.task == "ner" else facts.classes
    if unknown := sorted(set(options.names) - set(known)):
        raise UsageError(f"options.names: no class {unknown[0]!r}. Classes: {', '.join(known) or 'none'}.")
    config = languages.read_config(options.weights)
    total = languages.num_parameters(config)
    each = _characters(facts, options.max_characters) / CHARACTERS_PER_TOKEN + 8
    tokens = round(each * (settings.examples + 1))
    if tokens > languages.most_tokens(config):
        raise UsageError(
            f"train.examples={settings.examples}: a prompt would have about {tokens:,} tokens, but {options.weights} was "
            f"made for {languages.most_tokens(config):,}. Show fewer, or crop them with options.max_characters."
        )
    width = 2 if autocast_dtype(settings.precision, machine) is not None else 4
    notes = [*random_notes(options.weights), f"a prompt has about {tokens:,} tokens"]
    if settings.calibration != "none" and settings.selection == "nearest":
        notes.append("calibrating nearest examples asks the model four times for each row")
    return {
        "num_parameters": total,
        "num_steps": 0,
        "memory_bytes": width * total + 4 * 4 * tokens * config.hidden_size * config.num_hidden_layers,
        "weights": weights_facts(options.weights, languages.find),
        "notes": notes,
    }


def _characters(facts: Facts, most: int) -> float:
    """Of a question as it is shown, and of its answer where that is a text of its own."""
    if facts.task == "seq2seq":
        return min(facts.sizes["total_source"] / facts.num_rows, most) + facts.sizes["total_target"] / facts.num_rows
    return min(facts.sizes["median_characters"], most)


def build(plan: Plan) -> PromptLearner:
    """A fresh learner; weights are read when it fits."""
    return PromptLearner(plan, _opener(plan), plan.options["names"])


def load(plan: Plan, folder: Path) -> PromptLearner:
    """The learner that `save` wrote. The language model is found by the reference kept there."""
    return PromptLearner.load(plan, folder, _opener(plan))


def baselines(plan: Plan) -> tuple[Baseline, ...]:
    """Words with a linear model, trained on the very examples that the prompt shows."""
    settings = Prompt.model_validate(plan.settings)
    if plan.task not in ("classification", "regression") or settings.selection == "nearest" or settings.examples < 2:
        return ()
    rival = words(plan.task)

    def fit(train: Any) -> Any:
        choices = choices_of(train.target(), plan, {})
        return rival.fit(train.take(chosen_examples(train, plan, choices).tolist()))

    return (Baseline("tf-idf-same-examples", f"{rival.about}, on the {settings.examples} examples shown", fit),)


def _opener(plan: Plan) -> Callable[[JSON | None, Any], Prompted]:
    options = Options.model_validate(plan.options)
    template = options.template or TEMPLATES.get(plan.task, TEMPLATE)
    classes = tuple(plan.facts["classes"])
    entities = Entities(classes, options.names) if plan.task == "ner" else None
    labels = [options.names.get(name, name) for name in (classes if entities is None else types_of(classes))]
    labels = list(LEVELS) if plan.task == "regression" else labels

    def opened(state: JSON | None, train: Any) -> Prompted:
        if state is None:
            state = _found(options.weights, template, train, labels)
        spec = languages.found_again(state["weights"])
        config = languages.read_config(spec)
        made = state["tokenizer"]
        tokenizer = languages.tokenizer_of(made) if made else languages.load_tokenizer(spec, config.vocab_size)
        dtype = autocast_dtype(plan.settings["precision"], plan.machine)
        language = languages.load_language(spec, config, dtype=dtype or torch.float32)
        return Prompted(
            language.to(plan.machine.device).eval(),
            tokenizer,
            format_of(template, options.instruction, labels, options.max_characters),
            state=state,
            max_new=options.max_new_tokens,
            entities=entities,
        )

    return opened


def _found(spec: str, template: str, train: Any, labels: list[str]) -> JSON:
    """Where the weights come from, and the tokenizer of random ones."""
    made = ""
    if random_shape(spec):
        texts = [
            str(text)
            for name in ("text", "prompt", "answer", "source", "target")
            if name in train.frame
            for text in train.column(name)
        ]
        made = languages.made_tokenizer([*texts, template, *(f" {label}" for label in labels for _ in range(20))])
    return {"weights": languages.reference(spec), "tokenizer": made}
