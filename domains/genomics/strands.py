"""A convolutional network that reads both strands with one set of weights, and whose answer is the same for either.

Features of the sequence and of its reverse complement are added and compared before the head, which is symmetric in the two
strands: the "siamese" or conjoined form, Zhou et al. 2022, PMLR 165 (Machine Learning in Computational Biology),
"Towards a better understanding of reverse-complement equivariance". First layer as motif scanners: Alipanahi et al. 2015,
Nature Biotechnology 33:831 (DeepBind).

Shapes: B sequences, L bases, F filters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from domains.genomics.bases import STANDARD, shares

NUM_BASES = len(STANDARD)


def padded_shares(sequences: Sequence[str], most_bases: int) -> tuple[Tensor, Tensor]:
    """Base probabilities (B, L, 4), zero at padding, and lengths (B,). Longer sequences keep their middle."""
    cropped = [middle(sequence, most_bases) for sequence in sequences]
    lengths = np.array([len(sequence) for sequence in cropped], np.int64)
    found = np.zeros((len(cropped), int(lengths.max(initial=1)), NUM_BASES), np.float32)
    for row, sequence in zip(found, cropped, strict=True):
        row[: len(sequence)] = shares(sequence)
    return torch.from_numpy(found), torch.from_numpy(lengths)


def middle(sequence: str, most_bases: int) -> str:
    """At most `most_bases` of a sequence, around its middle, the same ones on either strand: cropping at one end would show
    the two strands different parts."""
    spare = len(sequence) - most_bases
    if spare <= 0:
        return sequence
    each = (spare + 1) // 2
    return sequence[each : len(sequence) - each]


def other_strand(bases_BL4: Tensor, lengths_B: Tensor) -> Tensor:
    """The reverse complements (B, L, 4), each beginning at place 0, zero at padding."""
    places_L = torch.arange(bases_BL4.shape[1], device=bases_BL4.device)
    source_BL = lengths_B[:, None] - 1 - places_L
    is_base_BL1 = (source_BL >= 0).unsqueeze(-1)
    index_BL4 = source_BL.clamp(min=0).unsqueeze(-1).expand_as(bases_BL4)
    return (bases_BL4.gather(1, index_BL4) * is_base_BL1).flip(-1)


class StrandNetwork(nn.Module):
    """(B, L, 4) probabilities and (B,) lengths -> (B, outputs), the same for a sequence and its reverse complement.

    Motif scanners of `motif` bases, `num_blocks` residual dilated convolutions on what they found, the strongest and the mean
    response along the sequence, the stronger of both strands and their mean, one hidden layer.
    """

    def __init__(
        self, *, filters: int, motif: int, num_blocks: int, hidden: int, num_outputs: int, dropout: float
    ) -> None:
        super().__init__()
        self.scan = nn.Conv1d(NUM_BASES, filters, motif, padding=motif // 2)
        self.blocks = nn.ModuleList(Block(filters, dilation=2**depth) for depth in range(num_blocks))
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(4 * filters, hidden)
        self.head = nn.Linear(hidden, num_outputs)

    def forward(self, bases_BL4: Tensor, lengths_B: Tensor) -> Tensor:
        strands = torch.cat([bases_BL4, other_strand(bases_BL4, lengths_B)])
        one, other = self.features(strands, lengths_B.repeat(2)).chunk(2)
        # Symmetric in the two, so that neither strand is the first.
        both = torch.cat([torch.maximum(one, other), (one + other) / 2], dim=1)
        out: Tensor = self.head(self.dropout(torch.relu(self.hidden(self.dropout(both)))))
        return out

    def features(self, bases_BL4: Tensor, lengths_B: Tensor) -> Tensor:
        """(B, 2F) strongest and mean response of every filter along one strand, padding left out."""
        is_base_B1L = (torch.arange(bases_BL4.shape[1], device=bases_BL4.device) < lengths_B[:, None]).unsqueeze(1)
        # N and padding say nothing: both are zero once the share of chance is taken away.
        centred = (bases_BL4 - 1 / NUM_BASES).transpose(1, 2) * is_base_B1L
        states_BFL = torch.relu(self.scan(centred)) * is_base_B1L
        for block in self.blocks:
            states_BFL = (states_BFL + block(states_BFL)) * is_base_B1L
        strongest = states_BFL.masked_fill(~is_base_B1L, -torch.inf).amax(dim=2)
        mean = states_BFL.float().sum(dim=2) / lengths_B[:, None].clamp(min=1)
        return torch.cat([strongest, mean.to(strongest.dtype)], dim=1)


class Block(nn.Module):
    """What is added to the states (B, F, L): a norm over filters at each place, a dilated convolution, ReLU."""

    def __init__(self, filters: int, *, dilation: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(filters)
        self.mix = nn.Conv1d(filters, filters, 3, padding=dilation, dilation=dilation)

    def forward(self, states_BFL: Tensor) -> Tensor:
        normed = self.norm(states_BFL.transpose(1, 2)).transpose(1, 2)
        return torch.relu(self.mix(normed))
