"""Molecules as graphs of small whole numbers, made once for each molecule and joined into batches by slices.

Every atom and every bond has a few kinds (element, charge, ring ...), each a number below its own limit; the last one of an
open kind means "another". All of it is invariant under the order of atoms: stereo is CIP's R and S, E and Z, not RDKit's
clockwise tags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem import rdCIPLabeler

from domains.molecules.chemistry import molecule

ELEMENTS = (
    *("H", "B", "C", "N", "O", "F", "Na", "Si", "P", "S", "Cl", "K", "Ca", "As", "Se", "Br", "I", "Li", "Mg", "Zn"),
)
_ELEMENT = {Chem.GetPeriodicTable().GetAtomicNumber(symbol): at for at, symbol in enumerate(ELEMENTS)}
_MOST_DEGREE, _MOST_HYDROGENS, _MOST_CHARGE, _MOST_RADICALS = 6, 4, 2, 2
_HYBRIDS = ("S", "SP", "SP2", "SP3", "SP3D", "SP3D2")
_BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
_CIP = ("", "R", "S", "r", "s", "E", "Z", "M", "P", "m", "p")
_STEREO = ("STEREONONE", "STEREOE", "STEREOZ", "STEREOCIS", "STEREOTRANS", "STEREOANY")
_MOST_RING = 8
MOST_COMPARISONS = 100_000  # about 0.1 s; most molecules need fewer than 10,000 (RDKit's manual)
ATOM_KINDS = (
    len(ELEMENTS) + 1,
    _MOST_DEGREE + 2,
    2 * _MOST_CHARGE + 3,
    _MOST_HYDROGENS + 2,
    len(_HYBRIDS) + 1,
    2,
    len(_CIP),
    _MOST_RING + 1,
    _MOST_RADICALS + 1,
)
"""How many numbers each kind of an atom can be: element, bonds, charge, hydrogens, hybrid, aromatic, R or S, smallest
ring (0: none), unpaired electrons."""
BOND_KINDS = (len(_BONDS) + 1, len(_STEREO), 2, 2)
"""Of a bond: order, E or Z, conjugated, in a ring."""


@dataclass(frozen=True)
class Graphs:
    """Molecules one after another. atoms: (atoms, kinds).   bonds: (edges, kinds), both uint8 for our own features.
    edges: (2, edges) int32 from and to, as atoms of the molecule; edge 2k and 2k+1 are the two directions of a bond.
    first_atom, first_edge: (molecules + 1,) where each begins."""

    atoms: np.ndarray
    bonds: np.ndarray
    edges: np.ndarray
    first_atom: np.ndarray
    first_edge: np.ndarray

    def __len__(self) -> int:
        return len(self.first_atom) - 1

    def batch(self, positions: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        """The molecules at `positions` as one graph: atoms, bonds, edges (2, edges) int64 between atoms of the batch, and
        molecule (atoms,) int64, to which each atom belongs."""
        at = np.asarray(positions, np.int64)
        num_atoms, num_edges = np.diff(self.first_atom)[at], np.diff(self.first_edge)[at]
        atom, edge = _slices(self.first_atom[at], num_atoms), _slices(self.first_edge[at], num_edges)
        start = np.cumsum(num_atoms) - num_atoms
        return {
            "atoms": self.atoms[atom],
            "bonds": self.bonds[edge],
            "edges": self.edges[:, edge] + np.repeat(start, num_edges),
            "molecule": np.repeat(np.arange(len(at)), num_atoms),
        }


def _slices(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The positions start, start + 1 ... of each slice, one slice after another."""
    offsets = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return np.asarray(np.arange(int(lengths.sum())) + offsets)


@dataclass(frozen=True)
class Features:
    """What a network knows of atoms and bonds. atom(atom, rings), bond(bond): as many numbers as the counts say.
    prepare: what is computed on the molecule first."""

    atom: Callable[[Chem.Atom, Chem.RingInfo], tuple[float, ...]]
    bond: Callable[[Chem.Bond], tuple[float, ...]]
    num_atom_columns: int
    num_bond_columns: int
    dtype: Any = np.uint8
    prepare: Callable[[Chem.Mol], None] = lambda mol: None


def graphs_of(canonical: Sequence[str], features: Features | None = None) -> Graphs:
    """The graphs of canonical SMILES; about 0.3 ms each. features: None for our own."""
    with rdBase.BlockLogs():
        found = [_graph(molecule(smiles), features or OWN) for smiles in canonical]
    chosen = features or OWN
    empty = (
        np.zeros((0, chosen.num_atom_columns), chosen.dtype),
        np.zeros((0, chosen.num_bond_columns), chosen.dtype),
        np.zeros((2, 0), np.int32),
    )
    return Graphs(
        np.concatenate([atoms for atoms, _, _ in found] or [empty[0]]),
        np.concatenate([bonds for _, bonds, _ in found] or [empty[1]]),
        np.concatenate([edges for _, _, edges in found] or [empty[2]], axis=1),
        np.cumsum([0, *(len(atoms) for atoms, _, _ in found)]),
        np.cumsum([0, *(len(bonds) for _, bonds, _ in found)]),
    )


def _graph(mol: Chem.Mol, features: Features) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    features.prepare(mol)
    rings = mol.GetRingInfo()
    atoms = [features.atom(atom, rings) for atom in mol.GetAtoms()]
    bonds, ends = [], []
    for bond in mol.GetBonds():
        kinds, here, there = features.bond(bond), bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        bonds += [kinds, kinds]
        ends += [(here, there), (there, here)]
    return (
        np.array(atoms, features.dtype).reshape(-1, features.num_atom_columns),
        np.array(bonds, features.dtype).reshape(-1, features.num_bond_columns),
        np.array(ends, np.int32).reshape(-1, 2).T,
    )


def _label_stereo(mol: Chem.Mol) -> None:
    # Highly symmetric cages would take for ever; they keep the labels that reading gave them.
    with suppress(RuntimeError):
        rdCIPLabeler.AssignCIPLabels(mol, maxRecursiveIterations=MOST_COMPARISONS)


def _atom(atom: Chem.Atom, rings: Chem.RingInfo) -> tuple[int, ...]:
    charge = max(-_MOST_CHARGE - 1, min(_MOST_CHARGE + 1, atom.GetFormalCharge())) + _MOST_CHARGE + 1
    return (
        _ELEMENT.get(atom.GetAtomicNum(), len(ELEMENTS)),
        min(atom.GetDegree(), _MOST_DEGREE + 1),
        charge,
        min(atom.GetTotalNumHs(), _MOST_HYDROGENS + 1),
        _place(_HYBRIDS, str(atom.GetHybridization())),
        int(atom.GetIsAromatic()),
        _cip(atom),
        min(rings.MinAtomRingSize(atom.GetIdx()), _MOST_RING),
        min(atom.GetNumRadicalElectrons(), _MOST_RADICALS),
    )


def _bond(bond: Chem.Bond) -> tuple[int, ...]:
    stereo = _STEREO.index(name) if (name := str(bond.GetStereo())) in _STEREO else 0
    order = _place(_BONDS, str(bond.GetBondType()))
    return order, stereo, int(bond.GetIsConjugated()), int(bond.IsInRing())


def _cip(atom: Chem.Atom) -> int:
    return _CIP.index(label) if atom.HasProp("_CIPCode") and (label := atom.GetProp("_CIPCode")) in _CIP else 0


def _place(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else len(names)


OWN = Features(_atom, _bond, len(ATOM_KINDS), len(BOND_KINDS), prepare=_label_stereo)
"""The features of networks that the zoo trains from nothing."""


class Shelf:
    """Graphs (and descriptors) of molecules, each made once, however often it is asked for."""

    def __init__(self, with_descriptors: bool, features: Features | None = None) -> None:
        self.with_descriptors, self.features = with_descriptors, features
        self.place: dict[str, int] = {}
        self.graphs = graphs_of([], features)
        self.descriptors = np.zeros((0, 0), np.float32)

    def places(self, canonical: Sequence[str]) -> np.ndarray:
        """Where each molecule is; those that are new are made first."""
        new = [smiles for smiles in dict.fromkeys(canonical) if smiles not in self.place]
        if new:
            self._add(new)
        return np.array([self.place[smiles] for smiles in canonical], np.int64)

    def _add(self, new: Sequence[str]) -> None:
        from domains.molecules.fingerprints import feature_matrix

        self.place.update({smiles: len(self.place) + at for at, smiles in enumerate(new)})
        self.graphs = _appended(self.graphs, graphs_of(new, self.features))
        if self.with_descriptors:
            found = feature_matrix(new, ["descriptors"], radius=0, num_bits=1)
            self.descriptors = np.concatenate([self.descriptors, found]) if len(self.descriptors) else found

    def arrays(self) -> dict[str, np.ndarray]:
        """What `safetensors` keeps of a shelf; the molecules are joined by line ends."""
        names = np.frombuffer("\n".join(self.place).encode(), np.uint8)
        graphs = {name: np.ascontiguousarray(value) for name, value in vars(self.graphs).items()}
        return {**graphs, "descriptors": self.descriptors, "smiles": names}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take what `arrays` gave."""
        smiles = arrays["smiles"].tobytes().decode().split("\n")
        self.place = {name: at for at, name in enumerate(smiles)} if smiles != [""] else {}
        self.graphs = Graphs(*(arrays[name] for name in ("atoms", "bonds", "edges", "first_atom", "first_edge")))
        self.descriptors = arrays["descriptors"]


def _appended(one: Graphs, other: Graphs) -> Graphs:
    return Graphs(
        np.concatenate([one.atoms, other.atoms]),
        np.concatenate([one.bonds, other.bonds]),
        np.concatenate([one.edges, other.edges], axis=1),
        np.concatenate([one.first_atom, other.first_atom[1:] + one.first_atom[-1]]),
        np.concatenate([one.first_edge, other.first_edge[1:] + one.first_edge[-1]]),
    )
