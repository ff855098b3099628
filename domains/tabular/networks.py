"""Parts of networks for tables: embeddings of numbers and categories, layers that many members of an ensemble share.

Shapes: B rows, N number columns, C category columns, F frequencies, D width of an embedding, K members of an ensemble,
I inputs and O outputs of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainers.contract import Role


class PeriodicNumbers(nn.Module):
    """Each number as ReLU of its own linear layer on cos and sin of learned frequencies, plus a vector where missing.

    Source: Gorishniy et al. 2022, arXiv 2203.05556, section 3.3 (PLR).
    """

    def __init__(self, num_columns: int, width: int, *, num_frequencies: int, frequency_scale: float) -> None:
        super().__init__()
        self.frequencies_NF = nn.Parameter(torch.randn(num_columns, num_frequencies) * frequency_scale)
        bound = (2 * num_frequencies) ** -0.5
        self.weight_NFD = nn.Parameter(torch.empty(num_columns, 2 * num_frequencies, width).uniform_(-bound, bound))
        self.bias_ND = nn.Parameter(torch.empty(num_columns, width).uniform_(-bound, bound))
        self.missing_ND = nn.Parameter(torch.zeros(num_columns, width))

    def forward(self, numbers_BN: Tensor, missing_BN: Tensor) -> Tensor:
        """(B, N, D)."""
        angles_NBF = 2 * math.pi * self.frequencies_NF[:, None] * numbers_BN.T[..., None]
        waves_NBF = torch.cat([angles_NBF.cos(), angles_NBF.sin()], dim=-1)
        x_NBD = torch.baddbmm(self.bias_ND[:, None], waves_NBF, self.weight_NFD)
        return x_NBD.relu().transpose(0, 1) + missing_BN[..., None] * self.missing_ND


class LinearNumbers(nn.Module):
    """Each number times its own vector, plus a bias, plus a vector where missing.

    Source: Gorishniy et al. 2021, arXiv 2106.11959, section 3.3 (feature tokenizer).
    """

    def __init__(self, num_columns: int, width: int) -> None:
        super().__init__()
        bound = width**-0.5
        self.weight_ND = nn.Parameter(torch.empty(num_columns, width).uniform_(-bound, bound))
        self.bias_ND = nn.Parameter(torch.empty(num_columns, width).uniform_(-bound, bound))
        self.missing_ND = nn.Parameter(torch.zeros(num_columns, width))

    def forward(self, numbers_BN: Tensor, missing_BN: Tensor) -> Tensor:
        """(B, N, D)."""
        return numbers_BN[..., None] * self.weight_ND + self.bias_ND + missing_BN[..., None] * self.missing_ND


def numbers_of(options: Any, num_columns: int, width: int) -> nn.Module:
    """The embedding of numbers that a family's options name: `numbers`, `num_frequencies` and `frequency_scale`."""
    """The embedding of numbers that a family's options name: `numbers`, `num_frequencies` and `frequency_scale`."""
    if options.numbers == "linear":
        return LinearNumbers(num_columns, width)
    how = {"num_frequencies": options.num_frequencies, "frequency_scale": options.frequency_scale}
    return PeriodicNumbers(num_columns, width, **how)


class Categories(nn.Module):
    """A vector for each category of each column, in one table of vectors.

    Slot 0 of a column is for missing and unseen categories. It starts at zero, the mean of the others, and stays there
    if the training rows had none.
    """

    starts_C: Tensor  # noqa: N815

    def __init__(self, sizes: Sequence[int], width: int) -> None:
        super().__init__()
        *starts, num_vectors = accumulate((size + 1 for size in sizes), initial=0)
        self.vectors = nn.Parameter(torch.randn(num_vectors, width) * width**-0.5)
        self.vectors.data[starts] = 0.0
        self.register_buffer("starts_C", torch.tensor(starts), persistent=False)

    def forward(self, codes_BC: Tensor) -> Tensor:
        """(B, C, D)."""
        return functional.embedding(codes_BC + self.starts_C, self.vectors)


class SharedLinear(nn.Module):
    """K linear layers that share one matrix; each has its own scaling of inputs and outputs, and its own bias.

    first: the members' input scalings are random signs, which makes them differ; elsewhere all scalings start at 1.
    Source: Wen et al. 2020, arXiv 2002.06715 (BatchEnsemble); initialisation as in Gorishniy et al. 2025,
    arXiv 2410.24210, section 3.3 (TabM).
    """

    def __init__(self, num_inputs: int, num_outputs: int, num_members: int, *, first: bool = False) -> None:
        super().__init__()
        bound = num_inputs**-0.5
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs).uniform_(-bound, bound))
        signs = torch.randint(0, 2, (num_members, num_inputs)).float() * 2 - 1
        self.inputs_KI = nn.Parameter(signs if first else torch.ones(num_members, num_inputs))
        self.outputs_KO = nn.Parameter(torch.ones(num_members, num_outputs))
        self.bias_KO = nn.Parameter(torch.empty(num_members, num_outputs).uniform_(-bound, bound))

    def forward(self, x_BKI: Tensor) -> Tensor:
        """(B, K, O); x may have one member, which all of them get."""
        return functional.linear(x_BKI * self.inputs_KI, self.weight) * self.outputs_KO + self.bias_KO


class Heads(nn.Module):
    """K separate linear layers."""

    def __init__(self, num_inputs: int, num_outputs: int, num_members: int) -> None:
        super().__init__()
        bound = num_inputs**-0.5
        self.weight_KIO = nn.Parameter(torch.empty(num_members, num_inputs, num_outputs).uniform_(-bound, bound))
        self.bias_KO = nn.Parameter(torch.empty(num_members, num_outputs).uniform_(-bound, bound))

    def forward(self, x_BKI: Tensor) -> Tensor:
        """(B, K, O)."""
        return torch.baddbmm(self.bias_KO[:, None], x_BKI.transpose(0, 1), self.weight_KIO).transpose(0, 1)


def roles_of(network: nn.Module) -> Mapping[str, Role]:
    """Role of every parameter of a network whose parts are called `numbers`, `categories`, `blocks` (a list) and `head`.

    Only plain matrices of blocks are "matrix"; what scales, shifts or embeds is never decayed, as in all sources above.
    """
    deepest = len(network.blocks) + 1  # type: ignore[arg-type]
    return {name: _role(name, parameter, deepest) for name, parameter in network.named_parameters()}


def _role(name: str, parameter: Tensor, deepest: int) -> Role:
    part, *rest = name.split(".")
    if part == "head":
        return Role("head", deepest)
    if part != "blocks":
        # Only a table with a row a category: all else before the blocks moves with every row, not with a few.
        return Role("embedding" if name.endswith("vectors") else "scalar", 0)
    is_matrix = rest[-1] == "weight" and parameter.ndim == 2
    return Role("matrix" if is_matrix else "scalar", int(rest[0]) + 1)
