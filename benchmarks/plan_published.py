"""What the trace makes of trainings whose peaks others published: models by their configuration, no weights, no GPU.

python benchmarks/plan_published.py

The peak of tensors: weights, gradients, AdamW's states, and what one pass makes, as torch.cuda.max_memory_allocated counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode

from trainers.trace import Trace

Make = Callable[[], tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]]


def llama_lora(rows: int, tokens: int) -> Make:
    """Llama 2 7B in bfloat16 with adapters of rank 8 on queries and values, as LitGPT's table has it."""

    def make() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]:
        import peft

        config = transformers.LlamaConfig(attn_implementation="sdpa")
        adapters = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = peft.get_peft_model(transformers.LlamaForCausalLM(config).bfloat16(), adapters).bfloat16()
        return model, lambda model: _language(model, rows, tokens)

    return make


def gpt2(rows: int) -> Make:
    """GPT-2 124M under autocast."""

    def make() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(attn_implementation="sdpa", use_cache=False))
        return model, lambda model: _language(model, rows, 1024)

    return make


def esm2(rows: int) -> Make:
    """ESM-2 650M under autocast, sequences of 1,022 residues."""

    def make() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]:
        shape = {"vocab_size": 33, "hidden_size": 1280, "num_hidden_layers": 33, "num_attention_heads": 20}
        config = transformers.EsmConfig(
            **shape, intermediate_size=5120, position_embedding_type="rotary", pad_token_id=1, mask_token_id=32
        )
        model = transformers.EsmModel(config, add_pooling_layer=False)
        ids = torch.full((rows, 1024), 5)
        return model, lambda model: model(input_ids=ids).last_hidden_state.float().mean()

    return make


def _language(model: torch.nn.Module, rows: int, tokens: int) -> torch.Tensor:
    ids = torch.zeros(rows, tokens, dtype=torch.long)
    loss: Any = model(input_ids=ids, labels=ids).loss
    return loss  # type: ignore[no-any-return]


def peak_gb(make: Make, *, is_autocast: bool) -> float:
    """GB of tensors at most in one step with AdamW: over the pass, with the optimizer's states of the step before."""
    shapes = FakeTensorMode(allow_non_fake_inputs=True)
    with shapes:
        model, loss_of = make()
    model.train()
    trace = Trace(shapes)
    weights = [*model.parameters(), *model.buffers()]
    trace.know(weights)
    with shapes, trace:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
            loss = loss_of(model)
        loss.backward()
    held = sum(each.numel() * each.element_size() for each in weights)
    trained = sum(2 * each.numel() * each.element_size() for each in model.parameters() if each.requires_grad)
    return (held + trained + trace.peak) / 1e9


def main() -> None:
    cases = {
        "Llama 2 7B LoRA, bf16, 1 x 1304 tokens": (llama_lora(1, 1304), False),
        "Llama 2 7B LoRA, bf16, 2 x 1304 tokens": (llama_lora(2, 1304), False),
        "GPT-2 124M, autocast, 12 x 1024 tokens": (gpt2(12), True),
        "ESM-2 650M, autocast, 1 x 1024 tokens": (esm2(1), True),
    }
    for name, (make, is_autocast) in cases.items():
        try:
            print(f"{name}: {peak_gb(make, is_autocast=is_autocast):.2f} GB", flush=True)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)


if __name__ == "__main__":
    main()
