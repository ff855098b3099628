"""The states of a Mamba of transformers, read in blocks: the same numbers, in time and memory that grow with the length.

Without CUDA kernels transformers goes token by token, and its backward pass then costs the square of the length. Here one
block follows another, with the gradient of the recurrence written down, and a block is computed again in the backward pass
instead of being kept (Gu & Dao 2023, arXiv 2312.00752, section 3.3.2, does so on the GPU).

Shapes: B texts, L tokens, W width, D inner width, N numbers of state a channel.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

BLOCK = 128
"""Tokens whose states are in memory at once."""


def last_states(model: Any, numbers_BL: Tensor, is_token_BL: Tensor) -> Tensor:
    """(B, L, W) what `MambaModel` gives as its last hidden state; padding stands behind the tokens."""
    if numbers_BL.is_cuda and find_spec("mamba_ssm") is not None:
        found: Tensor = model(
            input_ids=numbers_BL, attention_mask=is_token_BL.long(), use_cache=False
        ).last_hidden_state
        return found
    states_BLW = model.embeddings(numbers_BL)
    for layer in model.layers:
        # Sums over many layers are kept in float32, as the model's own code does.
        states_BLW = states_BLW.float() + mixed(layer.mixer, layer.norm(states_BLW), is_token_BL)
    out: Tensor = model.norm_f(states_BLW)
    return out


def mixed(mixer: Any, states_BLW: Tensor, is_token_BL: Tensor) -> Tensor:
    """(B, L, W) what a `MambaMixer` makes of its input: gate, convolution, recurrence."""
    is_token_BL1 = is_token_BL[:, :, None]
    length = states_BLW.shape[1]
    inner_BLD, gate_BLD = mixer.in_proj(states_BLW * is_token_BL1).chunk(2, dim=-1)
    inner_BLD = mixer.act(mixer.conv1d(inner_BLD.transpose(1, 2))[..., :length]).transpose(1, 2) * is_token_BL1
    sizes = (mixer.time_step_rank, mixer.ssm_state_size, mixer.ssm_state_size)
    step_BLR, into_BLN, out_of_BLN = mixer.x_proj(inner_BLD).split(sizes, dim=-1)
    step_BLD = mixer.dt_proj(step_BLR)
    with torch.autocast(states_BLW.device.type, enabled=False):  # what is added up over thousands of tokens
        inner_BLD = inner_BLD.float()
        rate_DN = -torch.exp(mixer.A_log.float())
        found_BLD = scanned(
            functional.softplus(step_BLD.float()), inner_BLD, rate_DN, into_BLN.float(), out_of_BLN.float()
        )
        found_BLD = (found_BLD + inner_BLD * mixer.D.float()) * functional.silu(gate_BLD.float())
    out: Tensor = mixer.out_proj(found_BLD)
    return out


def scanned(step_BLD: Tensor, inner_BLD: Tensor, rate_DN: Tensor, into_BLN: Tensor, out_of_BLN: Tensor) -> Tensor:
    """(B, L, D) of the recurrence h = exp(step * rate) h + step * into * inner, read by out_of; h begins at zero."""
    state_BDN = inner_BLD.new_zeros(inner_BLD.shape[0], *rate_DN.shape)
    found = []
    parts = (torch.split(each, BLOCK, dim=1) for each in (step_BLD, inner_BLD, into_BLN, out_of_BLN))
    for step, inner, into, out_of in zip(*parts, strict=True):
        given = (step, inner, rate_DN, into, out_of, state_BDN)
        if torch.is_grad_enabled():
            read, state_BDN = checkpoint(block, *given, use_reentrant=False, preserve_rng_state=False)
        else:
            read, state_BDN = block(*given)
        found.append(read)
    return torch.cat(found, dim=1)


def block(
    step_BLD: Tensor, inner_BLD: Tensor, rate_DN: Tensor, into_BLN: Tensor, out_of_BLN: Tensor, state_BDN: Tensor
) -> tuple[Tensor, Tensor]:
    """What `scanned` gives for one block that begins in `state_BDN`, and the state behind it."""
    step_LBD, inner_LBD, into_LBN = (each.transpose(0, 1) for each in (step_BLD, inner_BLD, into_BLN))
    keep_LBDN = torch.exp(step_LBD[..., None] * rate_DN)
    add_LBDN = (step_LBD * inner_LBD)[..., None] * into_LBN[:, :, None]
    states_LBDN: Tensor = Recurrence.apply(keep_LBDN, add_LBDN, state_BDN)
    return torch.einsum("lbdn,bln->bld", states_LBDN, out_of_BLN), states_LBDN[-1]


class Recurrence(torch.autograd.Function):
    """h[t] = keep[t] h[t - 1] + add[t], all (L, B, D, N); h before the first is (B, D, N).

    One operation a token each way. Left to autograd, each token would bring a gradient as long as the block.
    """

    @staticmethod
    def forward(ctx: Any, keep: Tensor, add: Tensor, state: Tensor) -> Tensor:
        states, before = torch.empty_like(add), state
        for at in range(len(add)):
            before = torch.addcmul(add[at], keep[at], before, out=states[at])
        ctx.save_for_backward(keep, states, state)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keep, states, state = ctx.saved_tensors
        grads = given.clone()
        for at in range(len(grads) - 1, 0, -1):
            grads[at - 1].addcmul_(keep[at], grads[at])
        before = torch.cat([state[None], states[:-1]])
        return grads * before, grads, keep[0] * grads[0]
