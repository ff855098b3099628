"""The encoder of ProtT5: residues to tokens, mean-pooled states, and weights from the hub, a folder, or random.

The network is transformers' `T5EncoderModel`. Elnaggar et al. 2021, 10.1109/TPAMI.2021.3095381; the released weights are under
the Academic Free License 3.0 (LICENSE.md of github.com/agemagician/ProtTrans). Of checkpoints with a decoder only the encoder
is read. Shapes: B sequences, L tokens (residues, end, padding), D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from domains.shared.esm import demand_all, pool_tokens
from domains.shared.weights import (
    RANDOM_HEAD_SIZE,
    Weights,
    config_json,
    quiet_transformers,
    random_shape,
    resolve,
    with_config,
)
from trainers.contract import JSON
from trainers.errors import DataError

RANDOM_KIND = "t5"
"""random-t5:2x64."""
# Token numbers are positions in this list, as sentencepiece gives them (printed in issue 42 of agemagician/ProtTrans);
# what follows in a checkpoint's table are 100 sentinels of T5 that no sequence has.
VOCABULARY = ("<pad>", "</s>", "<unk>", *"ALGVSREDTIPKFQNYMHWCXBOUZ")
PAD, END, UNKNOWN = 0, 1, 2
NUM_TOKENS = 128
NUM_ADDED_TOKENS = 1
"""The end: a sequence of n residues costs n + 1 tokens."""
# As its authors feed it: rare and ambiguous residues are unknown ones.
_AS_X = str.maketrans("UZOB", "XXXX")
RESIDUE_TOKENS = {letter: number for number, letter in enumerate(VOCABULARY) if len(letter) == 1}


def read_as(sequence: str) -> str:
    """The sequence as the encoder sees it: U, Z, O and B as X."""
    return sequence.translate(_AS_X)


def tokens(sequences: Sequence[str], *, max_residues: int) -> tuple[Tensor, Tensor]:
    """Token numbers (B, L) and whether each is a residue (B, L). Longer sequences lose their tail.

    The letters are those that `residues.cleaned` lets through; others are a KeyError.
    """
    cropped = [read_as(sequence[:max_residues]) for sequence in sequences]
    width = max((len(sequence) for sequence in cropped), default=0) + NUM_ADDED_TOKENS
    numbers = np.full((len(cropped), width), PAD, dtype=np.int64)
    for row, sequence in zip(numbers, cropped, strict=True):
        row[: len(sequence) + 1] = [*(RESIDUE_TOKENS[letter] for letter in sequence), END]
    numbers_BL = torch.from_numpy(numbers)
    return numbers_BL, numbers_BL > UNKNOWN


def pooled(encoder: nn.Module, numbers_BL: Tensor, is_residue_BL: Tensor) -> Tensor:
    """Mean residue states (B, D) of the encoder's last layer, float32."""
    states_BLD = encoder(input_ids=numbers_BL, attention_mask=(numbers_BL != PAD).long()).last_hidden_state
    # Under autocast the mean must not fall back to 8 bits of precision.
    with torch.autocast(states_BLD.device.type, enabled=False):
        return pool_tokens(states_BLD, is_residue_BL)


def find(spec: str) -> Weights:
    """The weights of a spec that is not random: hub id or folder. Raises MissingError."""
    return with_config(resolve(spec))


def read_config(spec: str) -> JSON:
    """The architecture behind a spec, as values of a `T5Config`; reads no tensor.

    Raises DataError for another T5 than ProtT5: its tokens would mean something else.
    """
    shape = random_shape(spec, (RANDOM_KIND,))
    if shape is not None:
        return _random_config(*shape)
    folder = find(spec).path
    found = config_json(folder)
    if found.get("model_type") != "t5" or found.get("vocab_size") != NUM_TOKENS:
        raise DataError(
            f"{folder}: a {found.get('model_type')!r} model with {found.get('vocab_size')} tokens, not ProtT5 (t5, "
            f"{NUM_TOKENS} tokens). Give one as Rostlab/prot_t5_xl_half_uniref50-enc with --set options.weights=..."
        )
    return found


def load_encoder(spec: str) -> nn.Module:
    """The pretrained encoder of a spec, in evaluation mode and float32. Random specs draw from torch's generator.

    Raises MissingError for weights that are not to be had, DataError for files that are no whole encoder.
    """
    config = read_config(spec)
    if random_shape(spec, (RANDOM_KIND,)) is None:
        return _from_folder(find(spec)).eval()
    from transformers import T5Config, T5EncoderModel

    drawn: nn.Module = T5EncoderModel(T5Config(**config))
    return drawn.eval()


def num_parameters(config: JSON) -> int:
    """Parameters of the encoder, by formula: no network is built. Matrices have no biases, norms only a scale."""
    width, inside, attended = config["d_model"], config["d_ff"], config["num_heads"] * config["d_kv"]
    num_in = 2 if str(config.get("feed_forward_proj", "relu")).startswith("gated") else 1
    per_layer = 4 * width * attended + (num_in + 1) * width * inside + 2 * width
    table = config["vocab_size"] * width + config.get("relative_attention_num_buckets", 32) * config["num_heads"]
    return int(table + config["num_layers"] * per_layer + width)


def numbers_per_token(config: JSON, num_tokens: int) -> int:
    """Numbers that one layer keeps of each token of a sequence of `num_tokens` without a backward pass, about.

    The biases of positions are a number for each head and pair of tokens.
    """
    return 12 * int(config["d_model"]) + 2 * int(config["d_ff"]) + int(config["num_heads"]) * num_tokens


def _random_config(layers: int, width: int) -> JSON:
    """Values of a small `T5Config` (the first T5's form, as ProtT5 has it: ReLU, biases of positions in 32 buckets)."""
    return {
        "vocab_size": NUM_TOKENS,
        "d_model": width,
        "d_kv": RANDOM_HEAD_SIZE,
        "num_heads": width // RANDOM_HEAD_SIZE,
        "d_ff": 4 * width,
        "num_layers": layers,
        "feed_forward_proj": "relu",
        "relative_attention_num_buckets": 32,
        "pad_token_id": PAD,
        "eos_token_id": END,
    }


def _from_folder(weights: Weights) -> nn.Module:
    from safetensors import SafetensorError
    from transformers import T5EncoderModel

    load: Any = T5EncoderModel.from_pretrained
    try:
        with quiet_transformers():
            encoder, info = load(weights.path, dtype=torch.float32, local_files_only=True, output_loading_info=True)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise DataError(f"{weights.path}: cannot be loaded ({str(error).strip().splitlines()[0]}).") from None
    demand_all([*info["missing_keys"]], weights, "a T5 encoder")
    network: nn.Module = encoder
    return network
