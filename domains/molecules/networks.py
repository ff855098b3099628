"""Graph networks over molecules: D-MPNN (messages on directed bonds) and GINE (messages on atoms).

Shapes: A atoms, E directed bonds, M molecules, K kinds of an atom or bond, D width, F descriptors. A batch is one graph;
edges 2k and 2k+1 are the two directions of a bond. Sums over neighbours and atoms are float32 under autocast: bf16 loses
counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from domains.molecules.chemprop import BOND_SIZES, atom_sizes
from domains.molecules.graphs import ATOM_KINDS, BOND_KINDS

TYPICAL_ATOMS = 25.0
"""Heavy atoms of a drug-like molecule; ChEMBL's median is about 29, MoleculeNet's sets have 13 to 26."""


@dataclass(frozen=True)
class Architecture:
    """Shape of a `GraphNetwork`. network: "dmpnn" and "gine" are our own, "chemprop" reads that library's features.

    typical_atoms: what the sum over atoms is divided by, for the pooling "norm".   features, bias, activation: of chemprop's
    messages (`domains.molecules.chemprop`).
    """

    network: str = "dmpnn"
    width: int = 300
    depth: int = 3
    hidden: int = 300
    hidden_layers: int = 1
    dropout: float = 0.0
    pooling: str = "norm"
    typical_atoms: float = TYPICAL_ATOMS
    features: str = ""
    bias: bool = False
    activation: str = "relu"


ROWS = 128
"""Atoms and bonds of a batch are filled up to a multiple: for products in bf16 oneDNN compiles and keeps a kernel for every
number of rows that it meets (3 MB a step of 50 molecules, and a fifth of the time)."""


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


class Lists:
    """For every directed bond those that end where it starts, its own reverse left out: `items`, one list after another from
    `first_E` on. bonds_E: by the atom where they end, from `first_A` on. Rows beyond the bonds have empty lists."""

    def __init__(self, start_E: Tensor, end_E: Tensor, num_atoms: int, num_rows: int) -> None:
        num_A = torch.bincount(end_E, minlength=num_atoms)
        self.bonds_E, self.first_A = end_E.argsort(stable=True), num_A.cumsum(0) - num_A
        # All that end there, and of those not its own reverse, which is one of them.
        num_E = num_A.index_select(0, start_E)
        first_E = num_E.cumsum(0) - num_E
        bond_L = torch.repeat_interleave(num_E)
        place_L = torch.arange(len(bond_L), dtype=torch.int64, device=start_E.device) - first_E.index_select(0, bond_L)
        other_L = self.bonds_E.index_select(0, self.first_A.index_select(0, start_E).index_select(0, bond_L) + place_L)
        self.items = other_L[other_L != bond_L ^ 1]
        self.first_E = _filled((num_E - 1).cumsum(0) - (num_E - 1), num_rows, len(self.items))


class Arriving:
    """Which bonds arrive where, listed once a batch: a sum over a list reads each state once, where adding up at atoms,
    copying to bonds and taking the reverse away again passes over all states five times.

    num_atoms, num_rows: of the tensors of atoms and bonds, which may be longer than what is listed.
    """

    def __init__(self, edges_2E: Tensor, num_atoms: int, num_rows: int) -> None:
        start_E, self.end_E = edges_2E[0], edges_2E[1]
        places = torch.arange(len(start_E), dtype=torch.int64, device=start_E.device)
        self.places_E = _filled(places, num_rows, len(start_E))
        self.lists = Lists(start_E, self.end_E, num_atoms, num_rows)
        self.turned = Lists(self.end_E, start_E, num_atoms, num_rows)

    def at_atoms(self, state_ED: Tensor) -> Tensor:
        """(A, D) float32: the sum of the bonds that end there."""
        there = self.lists
        out: Tensor = _Sums.apply(state_ED.float(), there.bonds_E, there.first_A, self.end_E, self.places_E)
        return out

    def before_bonds(self, state_ED: Tensor) -> Tensor:
        """(E, D) float32: the sum of the bonds that end where each starts, its own reverse left out."""
        there, back = self.lists, self.turned
        out: Tensor = _Sums.apply(state_ED.float(), there.items, there.first_E, back.items, back.first_E)
        return out


def _filled(values: Tensor, num: int, value: int = 0) -> Tensor:
    """(num, ...): `values` with rows of one value behind."""
    return functional.pad(values, (*[0] * (2 * values.dim() - 1), num - len(values)), value=value)


def _round(number: int) -> int:
    return -(-number // ROWS) * ROWS


class _Sums(torch.autograd.Function):
    """Sums over lists of rows. The gradient is one too, over lists that say in which sums a row is: embedding_bag's own fills
    zeros and adds to them row by row."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, items: Tensor, first: Tensor, back_items: Tensor, back_first: Tensor
    ) -> Tensor:
        ctx.save_for_backward(back_items, back_first)
        return _bags(items, first, values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        items, first = ctx.saved_tensors
        return _bags(items, first, gradient), None, None, None, None


def _bags(items: Tensor, first: Tensor, values: Tensor) -> Tensor:
    if not len(items):
        return values.new_zeros(len(first), values.shape[1])
    return functional.embedding_bag(items, values, first, mode="sum")


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
        num_atoms, num_rows = len(atoms_AK), _round(len(bonds_EK))
        atoms_AK, bonds_EK = _filled(atoms_AK, _round(num_atoms)), _filled(bonds_EK, num_rows)
        arriving = Arriving(edges_2E, len(atoms_AK), num_rows)
        # index_select: its gradient adds rows, where that of indexing looks each element up.
        first_ED = self.atoms(atoms_AK).index_select(0, _filled(edges_2E[0], num_rows)) + self.bonds(bonds_EK)
        state_ED = first_ED.relu()
        for _ in range(1, self.depth):
            # The sum and the product in one pass.
            sum_ED = torch.addmm(first_ED, arriving.before_bonds(state_ED), self.update.weight.t())
            state_ED = self.dropout(sum_ED.relu_())
        arriving_AD = arriving.at_atoms(state_ED)
        out_AD: Tensor = self.dropout((self.atoms_out(atoms_AK) + self.out(arriving_AD)).relu())
        return out_AD[:num_atoms]


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


class ChempropMessages(nn.Module):
    """The D-MPNN of chemprop, on its own features and with its own names of tensors, so that its checkpoints fit.

    Against `DirectedMessages`: atoms have a mass, unknown bonds no kind, and the first layer may have a bias.
    Source: Heid et al. 2024, 10.1021/acs.jcim.3c01250; Yang et al. 2019, arXiv 1904.01561, section 2.
    """

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.depth, sizes = shape.depth, atom_sizes(shape.features)
        self.num_kinds, num_atom, num_bond = len(sizes), sum(sizes) + 2, sum(BOND_SIZES)
        self.W_i = nn.Linear(num_atom + num_bond, shape.width, shape.bias)
        self.W_h = nn.Linear(shape.width, shape.width, shape.bias)
        self.W_o = nn.Linear(num_atom + shape.width, shape.width)
        self.atoms, self.bonds = OneHot(sizes), OneHot(BOND_SIZES)
        self.activation, self.dropout = ACTIVATIONS[shape.activation](), nn.Dropout(shape.dropout)

    def forward(self, atoms_AC: Tensor, bonds_EC: Tensor, edges_2E: Tensor) -> Tensor:
        """(A, D) states of atoms. atoms_AC: float32, a number below its limit for each kind, then aromatic, then mass."""
        atoms_AF = torch.cat([self.atoms(atoms_AC[:, : self.num_kinds]), atoms_AC[:, self.num_kinds :]], dim=1)
        bonds_EF = self.bonds(bonds_EC)
        # One product an atom instead of one a bond: an atom has about 2.2 directed bonds.
        of_atom, of_bond = torch.split(self.W_i.weight, [atoms_AF.shape[1], bonds_EF.shape[1]], dim=1)
        first_ED = functional.linear(atoms_AF, of_atom).index_select(0, edges_2E[0])
        first_ED = first_ED + functional.linear(bonds_EF, of_bond, self.W_i.bias)
        state_ED, arriving = self.activation(first_ED), Arriving(edges_2E, len(atoms_AF), len(bonds_EF))
        for _ in range(1, self.depth):
            state_ED = self.dropout(self.activation(first_ED + self.W_h(arriving.before_bonds(state_ED))))
        arriving_AD = arriving.at_atoms(state_ED)
        out_AD: Tensor = self.dropout(self.activation(self.W_o(torch.cat([atoms_AF, arriving_AD], dim=1))))
        return out_AD


class OneHot(nn.Module):
    """(N, K) numbers -> (N, sum of sizes) float32: a one a kind; none where the number is no place of its kind."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = nn.Buffer(torch.tensor(sizes))
        self.starts = nn.Buffer(torch.tensor([sum(sizes[:at]) for at in range(len(sizes))]))
        self.width = sum(sizes)

    def forward(self, kinds_NK: Tensor) -> Tensor:
        """See the class."""
        kinds = kinds_NK.long()
        places = (kinds + self.starts).clamp(max=self.width - 1)
        zeros = torch.zeros(len(kinds), self.width, device=kinds.device)
        return zeros.scatter_add(1, places, (kinds < self.sizes).float())


class GraphNetwork(nn.Module):
    """Messages, one state a molecule, hidden layers, answers. num_descriptors: 0 for none."""

    def __init__(self, shape: Architecture, num_outputs: int, num_descriptors: int) -> None:
        super().__init__()
        self.messages = _messages(shape)
        self.pooling, self.typical_atoms = shape.pooling, shape.typical_atoms
        self.norm = nn.LayerNorm(shape.width) if shape.network == "gine" else nn.Identity()
        widths = [shape.width + num_descriptors, *[shape.hidden] * shape.hidden_layers]
        layers: list[nn.Module] = []
        for here, there in pairwise(widths):
            layers += [nn.Dropout(shape.dropout), nn.Linear(here, there), ACTIVATIONS[shape.activation]()]
        self.hidden = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], num_outputs)

    def forward(
        self, atoms_AK: Tensor, bonds_EK: Tensor, edges_2E: Tensor, molecule_A: Tensor, size_M: Tensor, more_MF: Tensor
    ) -> Tensor:
        """(M, outputs). size_M: atoms of each molecule.   more_MF: standardised descriptors, (M, 0) for none."""
        states_AD = self.messages(atoms_AK, bonds_EK, edges_2E)
        # One state a molecule is little to compute, and numbers that are told apart by less than bf16 keeps come out of it.
        with torch.autocast(states_AD.device.type, enabled=False):
            pooled_MD = summed(states_AD, molecule_A, len(size_M))
            if self.pooling == "mean":
                pooled_MD = pooled_MD / size_M[:, None]
            elif self.pooling == "norm":
                # chemprop's "norm": a sum on the scale of means, so that size still counts.
                pooled_MD = pooled_MD / self.typical_atoms
            out: Tensor = self.head(self.hidden(torch.cat([self.norm(pooled_MD), more_MF], dim=1)))
        return out


class Ensemble(nn.Module):
    """Networks of one shape, drawn apart, on the same graphs: (M, members, outputs).

    Lakshminarayanan et al. 2017, arXiv 1612.01474, section 2.4: random starts and orders are enough to make members differ.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, *graph: Tensor) -> Tensor:
        """See the class."""
        return torch.stack([member(*graph) for member in self.members], dim=1)


ACTIVATIONS: dict[str, Any] = {
    "relu": nn.ReLU,
    "leakyrelu": lambda: nn.LeakyReLU(0.1),  # chemprop's slope
    "tanh": nn.Tanh,
    "elu": nn.ELU,
}


def _messages(shape: Architecture) -> nn.Module:
    if shape.network == "chemprop":
        return ChempropMessages(shape)
    kind = DirectedMessages if shape.network == "dmpnn" else IsomorphismMessages
    return kind(shape.width, shape.depth, shape.dropout)
