"""Graph networks over molecules: D-MPNN (messages on directed bonds) and GINE (messages on atoms).

Shapes: A atoms, E directed bonds, M molecules, K kinds of an atom or bond, D width, F descriptors. A batch is one graph;
edges 2k and 2k+1 are the two directions of a bond. Sums over neighbours and atoms are float32 under autocast: bf16 loses
counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from domains.molecules.graphs import ATOM_KINDS, BOND_KINDS


class Kinds(nn.Module):
    """The sum of one vector a kind: (N, K) uint8 -> (N, D). A linear layer on all kinds one-hot, without making those."""

    def __init__(self, sizes: Sequence[int], width: int) -> None:
        super().__init__()
        starts = torch.tensor([sum(sizes[:at]) for at in range(len(sizes))])
        self.starts = nn.Buffer(starts)
        self.table = nn.EmbeddingBag(sum(sizes), width, mode="sum")
        bound = len(sizes) ** -0.5
        nn.init.uniform_(self.table.weight, -bound, bound)

    def forward(self, kinds_NK: Tensor) -> Tensor:
        out: Tensor = self.table(kinds_NK.long() + self.starts)
        return out


def summed(values_ND: Tensor, place_N: Tensor, num: int) -> Tensor:
    """(num, D) float32: the rows with the same place, summed."""
    zeros = torch.zeros(num, values_ND.shape[1], device=values_ND.device)
    return zeros.index_add(0, place_N, values_ND.float())


class DirectedMessages(nn.Module):
    """D-MPNN: each directed bond gathers from the bonds that end where it starts, except its own reverse.

    Source: Yang et al. 2019, arXiv 1904.01561, section 2 (equations 4 to 8); `depth` counts as there: depth 1 passes none.
    """

    def __init__(self, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.depth = depth
        self.atoms, self.bonds = Kinds(ATOM_KINDS, width), Kinds(BOND_KINDS, width)
        self.update = nn.Linear(width, width, bias=False)
        self.atoms_out, self.out = Kinds(ATOM_KINDS, width), nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, atoms_AK: Tensor, bonds_EK: Tensor, edges_2E: Tensor) -> Tensor:
        """(A, D) states of atoms."""
        start_E, end_E = edges_2E
        num_atoms = len(atoms_AK)
        first_ED = self.atoms(atoms_AK)[start_E] + self.bonds(bonds_EK)
        state_ED = first_ED.relu()
        for _ in range(1, self.depth):
            arriving_AD = summed(state_ED, end_E, num_atoms)
            reverse_ED = state_ED.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)
            state_ED = self.dropout((first_ED + self.update(arriving_AD[start_E] - reverse_ED)).relu())
        arriving_AD = summed(state_ED, end_E, num_atoms)
        out_AD: Tensor = self.dropout((self.atoms_out(atoms_AK) + self.out(arriving_AD)).relu())
        return out_AD


class IsomorphismMessages(nn.Module):
    """GINE: an atom adds the ReLU of neighbour plus bond, then two layers; residual, with LayerNorm.

    Source: Hu et al. 2020, arXiv 1905.12265, appendix A; the sum over neighbours is torch-geometric's GINEConv.
    LayerNorm instead of BatchNorm, so that a molecule does not depend on its batch.
    """

    def __init__(self, width: int, depth: int, dropout: float) -> None:
        from torch_geometric.nn import GINEConv

        super().__init__()
        self.atoms = Kinds(ATOM_KINDS, width)
        self.bonds = nn.ModuleList(Kinds(BOND_KINDS, width) for _ in range(depth))
        self.layers = nn.ModuleList(
            GINEConv(nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)))
            for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.dropout = nn.Dropout(dropout)

    def forward(self, atoms_AK: Tensor, bonds_EK: Tensor, edges_2E: Tensor) -> Tensor:
        """(A, D) states of atoms."""
        x_AD: Tensor = self.atoms(atoms_AK)
        for bonds, layer, norm in zip(self.bonds, self.layers, self.norms, strict=True):
            x_AD = x_AD + self.dropout(layer(norm(x_AD), edges_2E, bonds(bonds_EK)).relu())
        return x_AD


class GraphNetwork(nn.Module):
    """Messages, one state a molecule, hidden layers, answers. options: of `gnn_scratch`.   num_descriptors: 0 for none."""

    def __init__(self, options: Any, num_outputs: int, num_descriptors: int) -> None:
        super().__init__()
        kind = DirectedMessages if options.network == "dmpnn" else IsomorphismMessages
        self.messages = kind(options.width, options.depth, options.dropout)
        self.pooling = options.pooling
        self.norm = nn.LayerNorm(options.width) if options.network == "gine" else nn.Identity()
        widths = [options.width + num_descriptors, *[options.hidden] * options.hidden_layers]
        layers: list[nn.Module] = []
        for here, there in pairwise(widths):
            layers += [nn.Dropout(options.dropout), nn.Linear(here, there), nn.ReLU()]
        self.hidden = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], num_outputs)

    def forward(
        self, atoms_AK: Tensor, bonds_EK: Tensor, edges_2E: Tensor, molecule_A: Tensor, size_M: Tensor, more_MF: Tensor
    ) -> Tensor:
        """(M, outputs). size_M: atoms of each molecule.   more_MF: standardised descriptors, (M, 0) for none."""
        states_AD = self.messages(atoms_AK, bonds_EK, edges_2E)
        with torch.autocast(states_AD.device.type, enabled=False):
            pooled_MD = summed(states_AD, molecule_A, len(size_M))
            if self.pooling == "mean":
                pooled_MD = pooled_MD / size_M[:, None]
            elif self.pooling == "norm":
                # chemprop's "norm": a sum on the scale of means, so that size still counts.
                pooled_MD = pooled_MD / TYPICAL_ATOMS
        out: Tensor = self.head(self.hidden(torch.cat([self.norm(pooled_MD), more_MF], dim=1)))
        return out


TYPICAL_ATOMS = 25.0
"""Heavy atoms of a drug-like molecule; ChEMBL's median is about 29, MoleculeNet's sets have 13 to 26."""
