"""Fine-tune a causal language model on prompts and answers, or chats: adapters beside it (LoRA), or all its weights.

Hu et al. 2021, arXiv 2106.09685, section 4.1, on all linear layers as Dettmers et al. 2023, arXiv 2305.14314, section 4,
found necessary; their QLoRA (base weights in 4 bits) by options.base=4bit on CUDA.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file, save_file

from domains.contract import Facts
from domains.shared.weights import quiet_transformers, random_notes, random_shape, weights_facts
from domains.text import causal_weights as languages
from domains.text.causal_task import SCORES_AT_ONCE, Answering, CausalTask, check_packing, check_scores
from domains.text.causal_tokens import Scribe
from trainers.checkpoint import write_json
from trainers.contract import JSON, Machine, Plan, Predictions, Watch
from trainers.errors import UsageError
from trainers.gradient import STATISTICS, GradientLearner, seeded
from trainers.precision import autocast_dtype
from trainers.settings import Gradient

TINY: JSON = {
    "options": {"weights": "random:2x32", "max_tokens": 96, "max_new_tokens": 12, "dropout": 0.0, "rank": 8},
    "train": {
        "epochs": 12,
        "batch_size": 16,
        "lr": 2e-2,
        "micro_batch_tokens": 4096,
        "eval_batch_size": 64,
        "precision": "fp32",
        "compile": "off",
    },
}
ADAPTER, WHOLE = "adapter", "weights"
# AdamW in float32: weight, gradient and two moments.
BYTES_PER_TRAINED = 16
# Activations kept for the backward pass, per token, layer and width; Korthikanti et al. 2022, arXiv 2205.05198, eq. 2,
# less the attention matrix, which sdpa does not keep. In bytes with 16-bit activations.
ACTIVATION_BYTES = 34
CHARACTERS_PER_TOKEN = 4.0
"""Of English prose under vocabularies of 50,000 and more; other scripts have fewer."""


class LanguageOptions(BaseModel):
    """Which causal language model is trained, and how much of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str = Field("HuggingFaceTB/SmolLM2-360M", description="hub id, folder, or random:2x64")
    method: Literal["lora", "all"] = Field("lora", description="train adapters beside the weights, or all weights")
    rank: int = Field(16, ge=1, description="of the adapters")
    alpha: float = Field(32.0, gt=0, description="adapters are scaled by alpha / rank")
    dropout: float = Field(0.05, ge=0, lt=1, description="of what goes into an adapter")
    targets: tuple[str, ...] = Field((), description="layers with adapters by name, (q_proj, v_proj); none: all linear")
    base: Literal["auto", "fp32", "bf16", "4bit"] = Field(
        "auto", description="format of weights under adapters; auto: that of training; 4bit: QLoRA, on CUDA"
    )


class Options(LanguageOptions):
    """The `options:` block of text/lora-finetune and text/full-finetune."""

    max_tokens: int = Field(1024, ge=8, description="of prompt and answer together; what follows is not read")
    max_new_tokens: int = Field(256, ge=1, description="of a written answer at most")
    separator: str = Field("\n", description="between prompt and answer where there is no chat template")
    packing: bool = Field(False, description="rows that are read together stand in one line, masked, without padding")


def plan(facts: Facts, options: Options, settings: Gradient, machine: Machine) -> JSON:
    """Estimates from lengths and architecture.

    Raises MissingError where the weights are not to be had, UsageError for more tokens than the model was made for and
    for 4 bits without CUDA.
    """
    config = languages.read_config(options.weights)
    check_options(options, config, machine, "max_tokens", options.max_tokens)
    rows = settings.micro_batch_size or settings.batch_size
    tokens = min(rows * options.max_tokens, settings.micro_batch_tokens or rows * options.max_tokens)
    return {
        **language_estimates(config, options, settings, machine, tokens),
        "num_steps": settings.planned_steps(facts.num_rows),
        "notes": notes(facts, options),
    }


def check_options(options: LanguageOptions, config: Any, machine: Machine, name: str, most: int) -> None:
    """Raise UsageError for more tokens (`most`, by option `name`) than the model was made for, and for 4 bits without
    CUDA."""
    limit = languages.most_tokens(config)
    if most > limit:
        raise UsageError(
            f"options.{name} is {most}, but {options.weights} was made for {limit} at most: --set options.{name}={limit}"
        )
    if options.base == "4bit" and (options.method == "all" or not machine.device.startswith("cuda")):
        reason = "weights in 4 bits cannot be trained" if options.method == "all" else "its kernels are for CUDA only"
        raise UsageError(f"options.base=4bit: {reason} (device {machine.device}). Use --set options.base=auto.")


def language_estimates(
    config: Any, options: LanguageOptions, settings: Gradient, machine: Machine, tokens: int
) -> JSON:
    """Parameters, with adapters and trained; where the weights come from; and memory: weights, gradients, moments,
    activations of the `tokens` of a micro-batch, and scores of tokens at once."""
    total = languages.num_parameters(config)
    is_whole = options.method == "all"
    trained = total if is_whole else num_adapter_parameters(config, options)
    frozen = 0 if is_whole else total * bytes_of_base(options, settings, machine)
    factor = 1 if autocast_dtype(settings.precision, machine) is not None else 2
    activations = tokens * config.num_hidden_layers * config.hidden_size * ACTIVATION_BYTES * factor
    return {
        "num_parameters": total if is_whole else total + trained,
        "num_trained": trained,
        "memory_bytes": int(frozen + BYTES_PER_TRAINED * trained + activations + 4 * 4 * SCORES_AT_ONCE),
        "weights": weights_facts(options.weights, languages.find),
    }


def bytes_of_base(options: LanguageOptions, settings: Gradient, machine: Machine) -> float:
    """Bytes of a frozen weight."""
    return 0.5 if options.base == "4bit" else base_dtype(options, settings, machine).itemsize


def base_dtype(options: LanguageOptions, settings: Gradient, machine: Machine) -> torch.dtype:
    """The format of frozen weights: bfloat16 where training multiplies in it anyway, else float32."""
    if options.base == "auto":
        return torch.bfloat16 if autocast_dtype(settings.precision, machine) is torch.bfloat16 else torch.float32
    return torch.float32 if options.base == "fp32" else torch.bfloat16


def num_adapter_parameters(config: Any, options: LanguageOptions) -> int:
    """Parameters of the adapters; shapes are built, not numbers."""
    with torch.device("meta"):
        language = with_adapters(languages.empty_language(config), options)
        return sum(each.numel() for each in language.parameters() if each.requires_grad)


def notes(facts: Facts, options: Options) -> list[str]:
    """What to expect of long rows, and a warning where nothing was pretrained."""
    found = random_notes(options.weights)
    longest = facts.sizes["longest_characters"] / CHARACTERS_PER_TOKEN
    if longest > options.max_tokens:
        found.append(
            f"the longest training row has {facts.sizes['longest_characters']:,.0f} characters, about {longest:,.0f} "
            f"tokens; {options.max_tokens} are read (options.max_tokens). Training says how many rows are cropped, and "
            "how many have no answer left and are not trained on"
        )
    return found


def build(plan: Plan) -> CausalLearner:
    """A fresh learner; weights are read when training starts, and what is cropped is told then."""
    learner = GradientLearner(
        plan,
        lambda train: _statistics(plan, train),
        lambda fitted, pretrained: make_task(
            plan,
            fitted,
            (fitted["weights"]["id"] if pretrained else None),
            lambda text: learner.batch.say(kind="warning", text=text),
        ),
        brings_all=plan.options["method"] == "all",
    )
    return CausalLearner(learner)


def load(plan: Plan, folder: Path) -> CausalLearner:
    """The learner that `save` wrote. Weights under adapters are found by the reference kept there."""
    return loaded(plan, folder, lambda fitted, source: make_task(plan, fitted, source, lambda text: None))


def loaded(plan: Plan, folder: Path, make_task: Callable[[JSON, str | None], Any]) -> CausalLearner:
    """The learner that `CausalLearner.save` wrote.   make_task: the task from statistics and source of all weights."""
    learner = GradientLearner(plan, lambda train: {}, lambda fitted, pretrained: make_task(fitted, None))
    fitted = learner.statistics = json.loads((folder / STATISTICS).read_text())
    with seeded(plan.seed):
        task = learner.task = make_task(fitted, str(folder / WHOLE))
    if (folder / ADAPTER).exists():
        set_adapters(task.model.get_submodule("language"), folder / ADAPTER)
    task.model.to(plan.machine.device).eval()
    return CausalLearner(learner)


class CausalLearner:
    """A `GradientLearner` whose weights are kept as transformers and peft keep theirs: others load them too."""

    resumable = True

    def __init__(self, inner: GradientLearner) -> None:
        self.inner = inner

    def fit(self, train: Any, valid: Any, watch: Watch) -> JSON:
        """See `GradientLearner.fit`."""
        return self.inner.fit(train, valid, watch)

    def predict(self, rows: Any) -> Predictions:
        """Bits of answers that are known, else written answers."""
        return self.inner.predict(rows)

    def save(self, folder: Path) -> None:
        """Write statistics.json and, in safetensors, adapter/ (peft's format) or weights/ with the tokenizer."""
        task: Any = self.inner.task
        assert task is not None
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / STATISTICS, self.inner.statistics)
        language: Any = task.model.get_submodule("language")
        if hasattr(language, "peft_config"):
            save_adapters(language, folder / ADAPTER)
        else:
            save_whole(language, task.their_tokenizer, folder / WHOLE)


def _statistics(plan: Plan, train: Any) -> JSON:
    """Where the weights came from, and the tokenizer of random ones."""
    spec = plan.options["weights"]
    fitted: JSON = {"weights": languages.reference(spec), "tokenizer": ""}
    if random_shape(spec, languages.KINDS):
        fitted["tokenizer"] = languages.made_tokenizer([*train.column("prompt"), *train.column("answer")])
    return fitted


def make_task(plan: Plan, fitted: JSON, source: str | None, say: Callable[[str], None]) -> CausalTask:
    """The task. source: spec or folder of all weights; None where a snapshot brings them. Frozen ones come by reference."""
    options = Options.model_validate(plan.options)
    unpacked = "false" if options.packing else None
    language, tokenizer = language_and_tokenizer(plan, options, fitted, source, unpacked=unpacked)
    scribe = Scribe(tokenizer, options.separator, is_chat=plan.facts["schema"]["is_chat"])
    answering = Answering(language, packs=options.packing)
    return CausalTask(answering, scribe, max_tokens=options.max_tokens, max_new=options.max_new_tokens, say=say)


def language_and_tokenizer(
    plan: Plan, options: LanguageOptions, fitted: JSON, source: str | None, *, unpacked: str | None
) -> tuple[Any, Any]:
    """The model, with adapters where they are asked for, and its tokenizer; see `make_task`.

    unpacked: where texts are to stand in one line, what options.packing must be for a model that cannot read them so.
    """
    is_own = options.method == "all" and source is not None and Path(source).is_dir()
    spec = str(source) if is_own else languages.found_again(fitted["weights"])
    config = languages.read_config(spec)
    tokenizer = (
        languages.tokenizer_of(fitted["tokenizer"])
        if fitted["tokenizer"]
        else languages.load_tokenizer(spec, config.vocab_size)
    )
    language = _language(plan, options, spec if options.method == "lora" else source, config)
    if options.method == "lora" or source is not None:
        check_scores(language, spec)
        if unpacked is not None:
            check_packing(language, options.weights, unpacked)
    return (with_adapters(language, options) if options.method == "lora" else language), tokenizer


def _language(plan: Plan, options: LanguageOptions, source: str | None, config: Any) -> Any:
    settings = Gradient.model_validate(plan.settings)
    if source is None:
        return languages.empty_language(config)
    if options.method == "all":
        return languages.load_language(source, config)
    four_bit = plan.machine.device if options.base == "4bit" else ""
    return languages.load_language(source, config, dtype=base_dtype(options, settings, plan.machine), four_bit=four_bit)


def with_adapters(language: Any, options: LanguageOptions) -> Any:
    """The model with LoRA adapters in float32, which change nothing at first. Raises UsageError for unknown layers."""
    from peft import LoraConfig, get_peft_model

    make: Any = LoraConfig
    config = make(
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=list(options.targets) or "all-linear",
        task_type="CAUSAL_LM",
    )
    try:
        with quiet_transformers():
            return get_peft_model(language, config)
    except ValueError as error:
        raise UsageError(f"options.targets={list(options.targets)}: {str(error).splitlines()[0]}") from None


def save_adapters(language: Any, folder: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors, as peft's `PeftModel.from_pretrained` reads them."""
    from peft import get_peft_model_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    language.peft_config["default"].save_pretrained(str(folder))
    tensors = get_peft_model_state_dict(language, save_embedding_layers=False)
    copies = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(copies, folder / "adapter_model.safetensors", {"format": "pt"})


def set_adapters(language: Any, folder: Path) -> None:
    """Give a model with adapters the ones that `save_adapters` wrote."""
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(language, load_file(folder / "adapter_model.safetensors"))


def save_whole(language: Any, tokenizer: Any, folder: Path) -> None:
    """Write a folder that transformers loads, tokenizer included."""
    with quiet_transformers():
        language.save_pretrained(folder, safe_serialization=True)
        tokenizer.save_pretrained(folder)


def export_merged(run: str | Path, folder: str | Path, load: Callable[[Plan, Path], CausalLearner] = load) -> Path:
    """Write the model of a finished run of text/lora-finetune to `folder`, its adapters added into the weights.

    run: the run folder.   load: of the recipe's module.   The result is a folder of transformers in float32 with its
    tokenizer: give it to any recipe as options.weights. The base weights must be where the run found them, unchanged.
    """
    run, folder = Path(run), Path(folder)
    values = json.loads((run / "plan.json").read_text())
    options = {**values["options"], "base": "fp32"}
    plan = Plan.from_json({**values, "options": options, "machine": {"device": "cpu"}})
    task: Any = load(plan, run / "model").inner.task
    language: Any = task.model.get_submodule("language")
    merged = language.merge_and_unload() if hasattr(language, "merge_and_unload") else language
    save_whole(merged, task.their_tokenizer, folder)
    return folder
