"""Networks over positions: SchNet and DimeNet++, put together from torch-geometric's layers.

torch-geometric's own forward passes need compiled extensions (torch-cluster, torch-sparse) to find neighbours; here the
pairs come from `structures.joined`, so plain torch is enough. Shapes: A atoms, P pairs, T triples, M molecules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SCHNET_CUTOFF, DIMENET_CUTOFF = 10.0, 5.0
"""Å, as in the papers' settings for QM9."""


def pooled(values_AO: Tensor, molecule_A: Tensor, num: int, *, is_mean: bool) -> Tensor:
    """(M, outputs) float32: sum or mean over the atoms of each molecule."""
    zeros = torch.zeros(num, values_AO.shape[1], device=values_AO.device)
    total = zeros.index_add(0, molecule_A, values_AO.float())
    return total / torch.bincount(molecule_A, minlength=num).clamp(min=1)[:, None] if is_mean else total


class SchNet(nn.Module):
    """Continuous filters over distances. Source: Schütt et al. 2017, arXiv 1706.08566, section 4."""

    def __init__(self, width: int, depth: int, num_outputs: int, cutoff: float, *, is_mean: bool) -> None:
        from torch_geometric.nn.models import SchNet as Layers

        super().__init__()
        self.is_mean = is_mean
        layers: Any = Layers(hidden_channels=width, num_filters=width, num_interactions=depth, cutoff=cutoff)
        self.embedding, self.distances = layers.embedding, layers.distance_expansion
        self.layers, self.inner, self.act = layers.interactions, layers.lin1, layers.act
        self.head = nn.Linear(width // 2, num_outputs)

    def forward(
        self, elements_A: Tensor, positions_A3: Tensor, pairs_2P: Tensor, molecule_A: Tensor, num: int
    ) -> Tensor:
        """(M, outputs)."""
        apart_P = (positions_A3[pairs_2P[0]] - positions_A3[pairs_2P[1]]).norm(dim=1)
        filters_PG = self.distances(apart_P)
        states_AD = self.embedding(elements_A)
        for layer in self.layers:
            states_AD = states_AD + layer(states_AD, pairs_2P, apart_P, filters_PG)
        return pooled(self.head(self.act(self.inner(states_AD))), molecule_A, num, is_mean=self.is_mean)


class DimeNet(nn.Module):
    """DimeNet++: messages on pairs, which see the angles between them. Source: Gasteiger et al. 2020, arXiv 2011.14115."""

    def __init__(self, width: int, depth: int, num_outputs: int, cutoff: float, *, is_mean: bool) -> None:
        from torch_geometric.nn.models import DimeNetPlusPlus

        super().__init__()
        self.is_mean = is_mean
        # The rest as in the paper's table of settings.
        sizes = {"int_emb_size": width // 2, "basis_emb_size": 8, "out_emb_channels": 2 * width}
        self.layers = DimeNetPlusPlus(
            hidden_channels=width,
            out_channels=num_outputs,
            num_blocks=depth,
            num_spherical=7,
            num_radial=6,
            cutoff=cutoff,
            **sizes,
        )

    def forward(
        self, elements_A: Tensor, positions_A3: Tensor, pairs_2P: Tensor, molecule_A: Tensor, num: int
    ) -> Tensor:
        """(M, outputs)."""
        layers: Any = self.layers
        here, to = pairs_2P
        of_before_T, of_pair_T = triples(pairs_2P, len(elements_A))
        before, middle, end = here[of_before_T], here[of_pair_T], to[of_pair_T]
        one, other = positions_A3[middle] - positions_A3[before], positions_A3[end] - positions_A3[middle]
        angle_T = torch.atan2(torch.cross(other, one, dim=1).norm(dim=1), (other * one).sum(dim=1))
        apart_P = (positions_A3[to] - positions_A3[here]).norm(dim=1)
        radial, spherical = layers.rbf(apart_P), layers.sbf(apart_P, angle_T, of_before_T)
        x = layers.emb(elements_A, radial, to, here)
        out_AO = layers.output_blocks[0](x, radial, to, num_nodes=len(elements_A))
        for block, output in zip(layers.interaction_blocks, layers.output_blocks[1:], strict=True):
            x = block(x, radial, spherical, of_before_T, of_pair_T)
            out_AO = out_AO + output(x, radial, to, num_nodes=len(elements_A))
        return pooled(out_AO, molecule_A, num, is_mean=self.is_mean)


def triples(pairs_2P: Tensor, num_atoms: int) -> tuple[Tensor, Tensor]:
    """For every pair j->i the pairs k->j with k other than i: (T,) number of k->j, (T,) number of j->i."""
    here_P, to_P = pairs_2P
    order = torch.argsort(to_P, stable=True)  # pairs by where they end
    num_A = torch.bincount(to_P, minlength=num_atoms)
    first_A = num_A.cumsum(0) - num_A
    num_P = num_A[here_P]
    of_pair_T = torch.arange(len(here_P), device=here_P.device).repeat_interleave(num_P)
    within_T = torch.arange(len(of_pair_T), device=here_P.device) - (num_P.cumsum(0) - num_P)[of_pair_T]
    of_before_T = order[first_A[here_P[of_pair_T]] + within_T]
    is_other = here_P[of_before_T] != to_P[of_pair_T]
    return of_before_T[is_other], of_pair_T[is_other]
