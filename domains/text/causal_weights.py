"""Causal language models of transformers from a hub id, a folder, or random ones to try things out with.

No code of a hub entry is ever run, and no tensor is unpickled freely.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from domains.shared.attention import attention
from domains.shared.tokens import check_vocabulary, of_bytes
from domains.shared.weights import (
    RANDOM_HEAD_SIZE,
    Weights,
    config_json,
    quiet_transformers,
    random_kind,
    random_shape,
    resolve,
    resolve_reference,
    with_config,
)
from trainers.contract import JSON
from trainers.errors import DataError, MissingError, UsageError

TOKENIZER_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
RANDOM_VOCABULARY = 400
PAD, END = "<pad>", "<end>"
KINDS = ("", "mamba")
"""Architectures of random weights: Llama's unless it is said."""
COPYING, LOUDNESS = 10.0, 30.0
"""See `copying`."""
_LONGEST_RANDOM = 4096


def find(spec: str) -> Weights:
    """The weights of a spec that is not random: a folder with config and tokenizer. Raises MissingError."""
    return with_config(resolve(spec, also=TOKENIZER_FILES))


def reference(spec: str) -> JSON:
    """What a run keeps of weights that it does not change: id, path, revision, sha256. The spec alone of random ones."""
    return (
        {"id": spec, "path": "", "revision": "", "sha256": ""} if random_shape(spec, KINDS) else find(spec).reference()
    )


def found_again(kept: JSON) -> str:
    """The folder or spec behind a reference. Raises MissingError where it is gone or its hash changed."""
    return str(kept["id"]) if random_shape(kept["id"], KINDS) else str(resolve_reference(kept).path)


def read_config(spec: str) -> Any:
    """The transformers config behind a spec; reads no tensor. Raises DataError for what is no causal language model."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    shape = random_shape(spec, KINDS)
    if shape is not None:
        return mamba_config(*shape, RANDOM_VOCABULARY) if random_kind(spec) else _random_config(*shape)
    folder = find(spec).path
    values = config_json(folder)
    kind = values.get("model_type")
    if kind not in KNOWN or values.get("is_encoder_decoder"):
        code = " It needs code from the hub, and none is run." if values.get("auto_map") else ""
        raise DataError(
            f"{folder}: a {kind!r} model is no causal language model that transformers knows.{code} "
            "Give one with --set options.weights=..."
        )
    if _reads_both_ways(values):
        raise DataError(f"{folder}: a {kind!r} model reads both ways and writes nothing. Use text/encoder-classify.")
    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _reads_both_ways(values: JSON) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return values.get("model_type") in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not values.get("is_decoder")


def most_tokens(config: Any) -> int:
    """Positions that the model was made for; a million where it says nothing."""
    return int(getattr(config, "max_position_embeddings", None) or 1_000_000)


def load_tokenizer(spec: str, vocab_size: int) -> Any:
    """The tokenizer beside the weights. Raises DataError where there is none, or where it is not that of the model."""
    from transformers import AutoTokenizer

    folder = Path(spec) if Path(spec).is_dir() else find(spec).path
    config = folder / "tokenizer_config.json"
    if config.exists() and json.loads(config.read_text(encoding="utf-8")).get("auto_map"):
        raise DataError(f"{folder}: its tokenizer needs code from the hub, and none is run. Choose another model.")
    load: Any = AutoTokenizer.from_pretrained
    try:
        with quiet_transformers():
            tokenizer = load(folder, use_fast=True, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # every tokenizer class raises its own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{folder}: its tokenizer cannot be loaded ({reason}). Fetch the whole folder again.") from None
    check_vocabulary(folder, max(tokenizer.get_vocab().values()) + 1, vocab_size)
    if tokenizer.eos_token_id is None:
        raise DataError(f"{folder}: the tokenizer has no token for the end of a text, so no answer would ever end.")
    return tokenizer


def made_tokenizer(texts: Sequence[str]) -> str:
    """The JSON of a tokenizer of bytes and their commonest pairs in `texts`, for random weights that know no other."""
    return str(of_bytes(texts, RANDOM_VOCABULARY, [PAD, END], add_prefix_space=False).to_str())


def tokenizer_of(text: str) -> Any:
    """The tokenizer that `made_tokenizer` described."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=Tokenizer.from_str(text), pad_token=PAD, eos_token=END)


def load_language(spec: str, config: Any, *, dtype: torch.dtype = torch.float32, four_bit: str = "") -> Any:
    """The pretrained model; a random one has the same weights each time.

    four_bit: the CUDA device for weights in 4 bits (NF4, Dettmers et al. 2023, arXiv 2305.14314, section 3), "" for none.
    Raises DataError for files that are no whole model, or one whose last layers do more than the zoo knows.
    """
    if random_shape(spec, KINDS) is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            language = empty_language(config)
            return (language if random_kind(spec) else copying(language)).to(dtype)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    more = _in_four_bits(four_bit) if four_bit else {}
    folder = Path(spec) if Path(spec).is_dir() else find(spec).path
    options = {"config": config, "dtype": dtype, "local_files_only": True, "attn_implementation": _attention(config)}
    load: Any = AutoModelForCausalLM.from_pretrained
    try:
        with quiet_transformers():
            language, info = load(folder, trust_remote_code=False, output_loading_info=True, **options, **more)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise DataError(f"{folder}: cannot be loaded ({str(error).strip().splitlines()[0]}).") from None
    if missing := sorted(info["missing_keys"]):
        raise DataError(
            f"{folder}: {len(missing)} tensors of the model are missing, the first is {missing[0]!r}. Fetch it again."
        )
    return language


def empty_language(config: Any) -> Any:
    """A model of this architecture with random weights from torch's generator."""
    from transformers import AutoModelForCausalLM

    make: Any = AutoModelForCausalLM.from_config
    return make(config, attn_implementation=_attention(config))


def num_parameters(config: Any) -> int:
    """Parameters of the model, tied ones once; its shapes are built, not its numbers."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in empty_language(config).parameters())


def _in_four_bits(device: str) -> JSON:
    from importlib.util import find_spec

    if not device.startswith("cuda"):
        raise UsageError(
            f"options.base=4bit: weights in 4 bits are multiplied by kernels for CUDA only, and this is {device!r}. "
            "Use --set options.base=auto."
        )
    if find_spec("bitsandbytes") is None:
        raise MissingError("options.base=4bit needs bitsandbytes: pip install 'domain-model-zoo[text,optimizers-8bit]'")
    from transformers import BitsAndBytesConfig

    make: Any = BitsAndBytesConfig
    quantized = make(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"quantization_config": quantized, "device_map": {"": device}}


def _attention(config: Any) -> str | None:
    """Our attention where the model can take another one than its own and caps no scores."""
    from transformers import AutoModelForCausalLM

    models: Any = AutoModelForCausalLM
    network = models._model_mapping[type(config)]
    if getattr(config, "attn_logit_softcapping", None):
        return "eager"
    return attention() if getattr(network, "_supports_sdpa", False) else None


def _random_config(layers: int, width: int) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=RANDOM_VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // RANDOM_HEAD_SIZE,
        intermediate_size=2 * width,
        max_position_embeddings=_LONGEST_RANDOM,
        tie_word_embeddings=True,
        # Wide enough that scores of tokens can differ where only adapters learn.
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )


def mamba_config(layers: int, width: int, vocabulary: int) -> Any:
    """The config of a Mamba (Gu & Dao 2023, arXiv 2312.00752), whose tokenizer has PAD first and END second."""
    from transformers import MambaConfig

    return MambaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )


def copying(language: Any) -> Any:
    """Random weights made to favour what the text before holds most of: attention is even and passes tokens on.

    Such a model knows nothing, yet what it answers can be worked out by hand where its width is no less than its
    vocabulary: scores are COPYING times the cosine between a token and the counts of tokens so far.
    """
    table = language.get_input_embeddings().weight
    if table.shape[0] <= table.shape[1]:
        nn.init.orthogonal_(table, COPYING / table.shape[1] ** 0.5)
    for layer in language.model.layers:
        with torch.no_grad():
            for part in (layer.self_attn.q_proj, layer.mlp.down_proj):
                nn.init.zeros_(part.weight)
            nn.init.eye_(layer.self_attn.v_proj.weight)
            # So much louder than the last token itself that only counts are heard.
            nn.init.eye_(layer.self_attn.o_proj.weight).mul_(LOUDNESS if table.shape[0] <= table.shape[1] else 1)
    return language
