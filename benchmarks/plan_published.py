"""What the trace makes of trainings whose peaks others published: models by their configuration, no weights, no GPU.

python benchmarks/plan_published.py

The peak of tensors: weights, gradients, AdamW's states, and what one pass makes, as torch.cuda.max_memory_allocated counts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode, unset_fake_temporarily

from trainers.trace import Trace

Make = Callable[[], tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]]


class Adapted(torch.nn.Module):
    """A linear layer with an adapter of rank 8 beside it, and LitGPT's dropout before that."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, 8, bias=False)
        self.up = torch.nn.Linear(8, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dropped = torch.nn.functional.dropout(x, 0.05)
        return self.base(x) + self.up(self.down(dropped)) * 2.0  # type: ignore[no-any-return]


def llama_lora(rows: int, tokens: int) -> Make:
    """Llama 2 7B in bfloat16 with adapters of rank 8 on queries and values, as LitGPT's table has it."""

    def make() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]:
        config = transformers.LlamaConfig(attn_implementation="sdpa")
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = transformers.LlamaForCausalLM(config).requires_grad_(False)
            for layer in model.model.layers:
                for name in ("q_proj", "v_proj"):
                    setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name)))
        finally:
            torch.set_default_dtype(torch.float32)
        return model, lambda model: _language(model, rows, tokens)

    return make


def gpt2(rows: int) -> Make:
    """GPT-2 124M under autocast, without dropout as in nanoGPT."""

    def make() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]:
        none = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
        config = transformers.GPT2Config(attn_implementation="sdpa", use_cache=False, **none)
        model = transformers.GPT2LMHeadModel(config)
        return model, lambda model: _language(model, rows, 1024)

    return make


def esm2(rows: int) -> Make:
    """ESM-2 650M under autocast, sequences of 1,022 residues."""

    def make() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]:
        shape = {"vocab_size": 33, "hidden_size": 1280, "num_hidden_layers": 33, "num_attention_heads": 20}
        config = transformers.EsmConfig(
            **shape,
            intermediate_size=5120,
            attention_probs_dropout_prob=0.0,
            hidden_dropout_prob=0.0,
            position_embedding_type="rotary",
            pad_token_id=1,
            mask_token_id=32,
            attn_implementation="sdpa",
        )
        model = transformers.EsmModel(config, add_pooling_layer=False)
        ids = torch.full((rows, 1024), 5)
        return model, lambda model: model(input_ids=ids).last_hidden_state.float().mean()

    return make


def swin_unetr(rows: int, checkpoint: bool) -> Make:
    """MONAI's Swin UNETR of 48 features on volumes of 96 x 96 x 96 with 14 organs, as its BTCV tutorial has it."""

    def make() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]:
        from monai.networks.nets import SwinUNETR

        shapes = torch.utils._python_dispatch._get_current_dispatch_mode()
        with unset_fake_temporarily():  # its rates of dropped paths are read from a tensor
            real = SwinUNETR(in_channels=1, out_channels=14, feature_size=48, use_checkpoint=checkpoint)
        with FakeCopyMode(shapes):
            model = copy.deepcopy(real)
        volumes = torch.zeros(rows, 1, 96, 96, 96)
        labels = torch.zeros(rows, 96, 96, 96, dtype=torch.long)
        return model, lambda model: torch.nn.functional.cross_entropy(model(volumes).float(), labels)

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
        "Swin UNETR 48, autocast, 1 x 96^3": (swin_unetr(1, False), True),
        "Swin UNETR 48, autocast, checkpointing, 1 x 96^3": (swin_unetr(1, True), True),
        "Swin UNETR 48, autocast, checkpointing, 4 x 96^3": (swin_unetr(4, True), True),
    }
    for name, (make, is_autocast) in cases.items():
        try:
            print(f"{name}: {peak_gb(make, is_autocast=is_autocast):.2f} GB", flush=True)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)


if __name__ == "__main__":
    main()
