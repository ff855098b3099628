"""Our own GPT: a decoder made to be trained from scratch, by Muon for its matrices and AdamW for the rest.

A block adds causal attention and then a feed-forward part to the stream, each of them on the normalised stream (no
weights in the norms) and silent at the start (output matrices are zero). Beside that stand, each an option: the tokens'
embedding mixed back in before every block (x0), embeddings added to the values of every second layer, normalised
queries and keys, windows, soft-capped logits, z-loss. What is not here: tokenizer, data, generation with a cache.

Shapes: B rows, T positions, D width, H query heads, K key and value heads, E width of a head, V vocabulary, L layers,
F width inside the feed-forward part.
Sources: nanochat, https://github.com/karpathy/nanochat (the recipe as a whole, x0 and value embeddings after
https://github.com/KellerJordan/modded-nanogpt); others where they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from domains.text.operations import Mask, attended, document_blocks, normed, rotated, rotation, squared_relu, thinned
from trainers.contract import Role

IGNORED = -100
"""The target of a position that does not count."""
GATE_INPUTS = 32
"""The gate of the value embeddings reads this many channels of the stream: enough, and it stays cheap."""
HEAD_STD, TIED_STD = 0.001, 0.02
X0_START = 0.1


@dataclass(frozen=True)
class GPTConfig:
    """The shape and the options of a GPT; `of_depth` fixes width and heads by the one dial.

    windows: one letter a layer, repeated: S sees `short_window` positions, itself included, L all. The last layer is L.
    short_window: None means half of max_length.   max_length: positions at most.
    logit_cap: logits become cap * tanh(logits / cap) (Gemma Team 2024, arXiv 2408.00118, section 2); None: no cap.
    dropout: share of the channels of what attention and feed-forward add that is left out in training.
    z_loss: weight of squared log-normalisers in `losses` (Chowdhery et al. 2022, arXiv 2204.02311, section 5: 1e-4).
    Raises ValueError where the numbers do not fit together.
    """

    vocab_size: int
    max_length: int
    depth: int
    width: int
    num_heads: int
    num_kv_heads: int | None = None
    feed_forward: Literal["relu2", "swiglu"] = "relu2"
    windows: str = "SSSL"
    short_window: int | None = None
    rope_base: float = 10_000.0
    value_embeddings: bool = True
    qk_norm: bool = True
    embedding_norm: bool = True
    logit_cap: float | None = 15.0
    z_loss: float = 0.0
    is_tied: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % (2 * self.num_heads):
            raise ValueError(
                f"width {self.width} is no even multiple of num_heads {self.num_heads}, as rotation needs."
            )
        if self.num_heads % self.kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.kv_heads}.")
        if not self.windows or set(self.windows) - {"S", "L"}:
            raise ValueError(f"windows is {self.windows!r}; it takes letters S (short) and L (long), such as SSSL.")

    @classmethod
    def of_depth(cls, depth: int, *, vocab_size: int, max_length: int, head_size: int = 128) -> GPTConfig:
        """The shape that follows from depth alone: width 64 * depth, rounded up to whole heads."""
        num_heads = -(-64 * depth // head_size)
        return cls(vocab_size, max_length, depth, num_heads * head_size, num_heads)

    @property
    def kv_heads(self) -> int:
        """K. Fewer than H: several queries share keys and values (Ainslie et al. 2023, arXiv 2305.13245)."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_size(self) -> int:
        """E."""
        return self.width // self.num_heads

    def window(self, layer: int) -> int:
        """How many positions layer number `layer` (from 0) sees, itself included."""
        is_short = self.windows[layer % len(self.windows)] == "S" and layer < self.depth - 1
        return (self.short_window or self.max_length // 2) if is_short else self.max_length

    def has_values(self, layer: int) -> bool:
        """Whether a layer gets value embeddings: the last one and every second before it."""
        return self.value_embeddings and (self.depth - 1 - layer) % 2 == 0


def mask_of(num_positions: int, window: int, documents_BT: Tensor | None, device: torch.device) -> Mask:
    """What each position (row) may look at (column): (T, T), or (B, 1, T, T) with documents; None: all up to itself.
    On CUDA documents give the blocks of FlexAttention, which skips what no position of a block sees.

    documents_BT: numbers that differ between the documents packed into a row. Positions need not restart with them:
    rotation knows distances only, and no distance reaches into another document.
    """
    if documents_BT is None and window >= num_positions:
        return None  # the fast path: a causal kernel needs no mask and computes half
    if documents_BT is not None and device.type == "cuda":
        return document_blocks(documents_BT, window)
    at = torch.arange(num_positions, device=device)
    back_TT = at[:, None] - at
    is_seen_TT = (back_TT >= 0) & (back_TT < window)
    if documents_BT is None:
        return is_seen_TT
    return (is_seen_TT & (documents_BT[:, :, None] == documents_BT[:, None]))[:, None]


def in_heads(x_BTC: Tensor, head_size: int) -> Tensor:
    """(B, T, heads, E)."""
    return x_BTC.view(*x_BTC.shape[:-1], -1, head_size)


class Attention(nn.Module):
    """Causal attention with rotated, normalised queries and keys, and embeddings added to the values through a gate.

    Queries, keys and values have matrices of their own, which Muon orthogonalises one by one, and come out of one
    product. The gate starts at 1 for every head.
    """

    def __init__(self, config: GPTConfig, has_values: bool) -> None:
        super().__init__()
        width, kv_width = config.width, config.kv_heads * config.head_size
        self.config = config
        self.query_DD = nn.Parameter(torch.empty(width, width))
        self.key_CD = nn.Parameter(torch.empty(kv_width, width))
        self.value_CD = nn.Parameter(torch.empty(kv_width, width))
        self.output = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(min(GATE_INPUTS, width), config.kv_heads, bias=False) if has_values else None

    def forward(self, x_BTD: Tensor, rotation_2T1E: Tensor, mask: Mask, values_BTC: Tensor | None) -> Tensor:
        """(B, T, D). x: normalised.   values: (B, T, K * E) embeddings, where the layer has them."""
        config = self.config
        every_BTC = functional.linear(x_BTD, torch.cat([self.query_DD, self.key_CD, self.value_CD]))
        # Queries and keys go through rotation and norm together: half as many small operations.
        numbers = [config.num_heads + config.kv_heads, config.kv_heads]
        asked, value = torch.split(in_heads(every_BTC, config.head_size), numbers, dim=2)
        asked = rotated(asked, rotation_2T1E)
        asked = normed(asked) if config.qk_norm else asked
        if values_BTC is not None and self.gate is not None:
            gate_BTK = 2 * self.gate(x_BTD[..., : self.gate.in_features]).sigmoid()
            value = value + gate_BTK[..., None] * in_heads(values_BTC, config.head_size)
        query, key = torch.split(asked, [config.num_heads, config.kv_heads], dim=2)
        mixed_BTD: Tensor = self.output(attended(query, key, value, mask).flatten(2))
        return mixed_BTD


class FeedForward(nn.Module):
    """Squared ReLU, 4 times as wide inside (So et al. 2021, arXiv 2109.08668), or SwiGLU, 8/3 times, in whole 64s
    (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        is_gated = config.feed_forward == "swiglu"
        inner = 64 * -(-8 * config.width // (3 * 64)) if is_gated else 4 * config.width
        self.inner = nn.Linear(config.width, inner, bias=False)
        self.gate = nn.Linear(config.width, inner, bias=False) if is_gated else None
        self.output = nn.Linear(inner, config.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D)."""
        x_BTF = self.inner(x_BTD)
        x_BTF = squared_relu(x_BTF) if self.gate is None else functional.silu(self.gate(x_BTD)) * x_BTF
        added_BTD: Tensor = self.output(x_BTF)
        return added_BTD


class Block(nn.Module):
    """Attention, then the feed-forward part, each normalised before and added after."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(config, config.has_values(layer)), FeedForward(config)
        self.dropout = config.dropout

    def forward(self, x_BTD: Tensor, rotation_2T1E: Tensor, mask: Mask, values_BTC: Tensor | None) -> Tensor:
        """(B, T, D)."""
        x_BTD = x_BTD + self._thinned(self.attention(normed(x_BTD), rotation_2T1E, mask, values_BTC))
        return x_BTD + self._thinned(self.feed_forward(normed(x_BTD)))

    def _thinned(self, x_BTD: Tensor) -> Tensor:
        return thinned(x_BTD, self.dropout) if self.dropout and self.training else x_BTD


class GPT(nn.Module):
    """Logits of the next token. A fresh one starts from torch's generator; see `initialize`."""

    rotation_2T1E: Tensor  # noqa: N815

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config, self.keeps_activations = config, True
        kv_width = config.kv_heads * config.head_size
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        with_values = [str(layer) for layer in range(config.depth) if config.has_values(layer)]
        self.value_embeddings = nn.ModuleDict({name: nn.Embedding(config.vocab_size, kv_width) for name in with_values})
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.depth))
        self.residual_L = nn.Parameter(torch.empty(config.depth))
        self.x0_L = nn.Parameter(torch.empty(config.depth))
        self.head = nn.Linear(config.width, config.vocab_size)
        if config.is_tied:
            self.head.weight = self.embedding.weight
        angles = rotation(config.max_length, config.head_size, config.rope_base)
        self.register_buffer("rotation_2T1E", angles, persistent=False)
        self.initialize()

    @torch.no_grad()
    def initialize(self) -> None:
        """Set every parameter to its start: all blocks add nothing, all tokens are about equally likely."""
        bound = (3 / self.config.width) ** 0.5  # a uniform matrix with this bound keeps the size of its input
        for name, parameter in self.named_parameters():
            if name.endswith(("output.weight", "attention.gate.weight", "head.bias")):
                parameter.zero_()
            elif parameter.ndim == 2:
                parameter.uniform_(-bound, bound)
        self.head.weight.normal_(std=HEAD_STD)
        self.embedding.weight.normal_(std=TIED_STD if self.config.is_tied else 1.0)
        self.residual_L.fill_(1.0)
        self.x0_L.fill_(X0_START)

    def forward(self, tokens_BT: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        """(B, T, V) logits in float32. documents_BT: see `mask_of`.  Raises ValueError for more than max_length tokens."""
        length, config = tokens_BT.size(1), self.config
        if length > config.max_length:
            raise ValueError(f"{length} tokens in a row, but max_length is {config.max_length}.")
        windows = {config.window(layer) for layer in range(config.depth)}
        masks = {window: mask_of(length, window, documents_BT, tokens_BT.device) for window in windows}
        x_BTD = self.embedding(tokens_BT)
        x_BTD = x0_BTD = normed(x_BTD) if config.embedding_norm else x_BTD
        scales = zip(self.residual_L.unbind(), self.x0_L.unbind(), strict=True)
        for layer, (block, (residual, x0)) in enumerate(zip(self.blocks, scales, strict=True)):
            values = self.value_embeddings[str(layer)](tokens_BT) if config.has_values(layer) else None
            inputs = (
                residual * x_BTD + x0 * x0_BTD,
                self.rotation_2T1E[:, :length],
                masks[config.window(layer)],
                values,
            )
            x_BTD = block(*inputs) if self.keeps_activations else checkpoint(block, *inputs, use_reentrant=False)
        logits_BTV: Tensor = self.head(normed(x_BTD)).float()
        cap = config.logit_cap
        return logits_BTV if cap is None else cap * torch.tanh(logits_BTV / cap)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute every block twice instead of keeping what is inside it, as timm's models name it."""
        self.keeps_activations = not enable


def losses(logits_BTV: Tensor, targets_BT: Tensor, z_loss: float = 0.0) -> dict[str, Tensor]:
    """Totals over the positions whose target is not IGNORED: `cross_entropy` in nats, and `z`, z_loss * log(Z) ** 2, if
    z_loss is not 0."""
    logits, targets = logits_BTV.flatten(0, -2), targets_BT.flatten()
    totals = {"cross_entropy": functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")}
    if z_loss:
        totals["z"] = z_loss * (logits.logsumexp(dim=-1).square() * (targets != IGNORED)).sum()
    return totals


def roles(model: GPT) -> Mapping[str, Role]:
    """What every parameter is for, by name: see `trainers.optim`.

    The gates of value embeddings, a few numbers a head, are scalars: Muon would make the heads' gates orthogonal.
    """
    return {name: _role(name, parameter, model.config) for name, parameter in model.named_parameters()}


def _role(name: str, parameter: Tensor, config: GPTConfig) -> Role:
    part, *rest = name.split(".")
    head = config.depth + 1
    if part == "embedding":
        return Role("head", head) if config.is_tied else Role("embedding", 0)
    if part == "value_embeddings":
        return Role("embedding", int(rest[0]) + 1)
    if part == "head":
        return Role("head" if rest[0] == "weight" else "scalar", head)
    if part == "blocks":
        return Role("scalar" if "attention.gate" in name else "matrix", int(rest[0]) + 1)
    return Role("scalar", 0)
