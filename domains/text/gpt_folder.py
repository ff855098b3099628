"""A trained GPT as a folder that others can read.

transformers has no architecture that equals ours (x0 and value embeddings, norms without weights, capped logits) and no
code from a folder is ever run. So the folder holds what can be shared: tokenizer.json with tokenizer_config.json, which
`transformers.AutoTokenizer.from_pretrained(folder)` loads; config.json with the shape; model.safetensors. The model
comes from `load(folder)` here.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_model

from domains.text.bpe import write_for_transformers
from domains.text.gpt import GPT, GPTConfig
from trainers.contract import JSON
from trainers.errors import DataError
from trainers.gradient import WEIGHTS

MODEL_TYPE = "zoo_gpt"
CONFIG = "config.json"


def describe(folder: Path, statistics: JSON) -> None:
    """Write config.json and the tokenizer's files beside the weights."""
    config = {"model_type": MODEL_TYPE, "architectures": ["domains.text.gpt.GPT"], **statistics["config"]}
    (folder / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")
    write_for_transformers(statistics["tokenizer"], folder, int(statistics["config"]["max_length"]))


def load(folder: str | Path) -> GPT:
    """The model of such a folder (`RUN/model`), ready to be called with token numbers (B, T); see `gpt.GPT`.

    Raises DataError for a folder of another kind.
    """
    path = Path(folder)
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no {CONFIG}. Give the folder model/ of a run of text/gpt-pretrain.") from None
    if config.pop("model_type", None) != MODEL_TYPE:
        raise DataError(f"{path / CONFIG}: its model_type is not {MODEL_TYPE!r}. Give the folder model/ of such a run.")
    del config["architectures"]
    model = GPT(GPTConfig(**config))
    load_model(model, path / WEIGHTS)
    return model.eval()
