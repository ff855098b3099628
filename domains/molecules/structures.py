"""Molecules in space: elements and positions in Å, from an SDF or made by RDKit, and the pairs of atoms that see each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem import rdDistGeom, rdForceFieldHelpers

STRUCTURES, RECORD = "structures", "record of the file"
"""In the context of a table: a `Structure` by the number of its record, of rows whose file has positions; and the column
that has this number. Names repeat: an SDF may hold several conformers of one molecule."""
NEAREST = (0.6, 2.2)
"""Å. The shortest distance in a molecule is a bond to hydrogen (0.74 in H2, about 1.1) or, without hydrogens, of 1.2 to
1.6; nanometres and bohr lie outside."""
SAME_PLACE, LONGEST_BOND = 0.01, 20.0
"""Units of the file: no two nuclei are nearer, no two bound ones farther, in Å, nanometres or bohr alike (H2 is 0.074 nm;
the longest bonds, between heavy metals, are about 6 bohr)."""
MAX_ATTEMPTS = 20


@dataclass(frozen=True, eq=False)
class Structure:
    """elements: (atoms,) uint8 atomic numbers.   positions: (atoms, 3) float32 in Å.   num_missing: hydrogens without one."""

    elements: np.ndarray
    positions: np.ndarray
    num_missing: int = 0

    @property
    def nearest(self) -> float:
        """The shortest distance between two atoms, infinite of a lone one."""
        apart = _distances(self.positions)
        np.fill_diagonal(apart, np.inf)
        return float(apart.min())


def of_block(text: str) -> Structure | None:
    """The structure in a molfile with all its atoms, hydrogens included; None where it is flat or not read.

    Raises ValueError, saying why, where atoms cannot be at the positions given.
    """
    with rdBase.BlockLogs():
        mol = Chem.MolFromMolBlock(text, removeHs=False)
    if mol is None or not mol.GetNumConformers():
        return None
    positions = mol.GetConformer().GetPositions()
    if not np.isfinite(positions).all():
        raise ValueError("positions that are not finite numbers")
    if not mol.GetConformer().Is3D():
        return None
    _check_distances(mol, positions)
    return _structure(mol)


def _check_distances(mol: Chem.Mol, positions: np.ndarray) -> None:
    ends = np.array([(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in mol.GetBonds()], int).reshape(-1, 2)
    lengths = np.linalg.norm(positions[ends[:, 0]] - positions[ends[:, 1]], axis=1)
    if lengths.max(initial=0) > LONGEST_BOND:
        raise ValueError(f"positions with a bond of {lengths.max():.3g}, longer than {LONGEST_BOND:g}")
    nearest = Structure(np.zeros(len(positions), np.uint8), positions).nearest
    if nearest < SAME_PLACE:
        raise ValueError(f"positions with two atoms {nearest:.3g} apart, nearer than {SAME_PLACE:g}")


def made(smiles: str, seed: int) -> Structure | None:
    """A likely conformer of a canonical SMILES: ETKDG, then the MMFF94 force field where it knows the atoms; None where
    RDKit finds none. About 10 ms for a drug-like molecule. The same for the same seed.

    Source: Riniker & Landrum 2015, 10.1021/acs.jcim.5b00654.
    """
    with rdBase.BlockLogs():
        mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
        settings: Any = rdDistGeom.ETKDGv3()
        settings.randomSeed, settings.maxIterations = seed, MAX_ATTEMPTS
        if rdDistGeom.EmbedMolecule(mol, settings) != 0:
            return None
        if rdForceFieldHelpers.MMFFHasAllMoleculeParams(mol):
            rdForceFieldHelpers.MMFFOptimizeMolecule(mol)
    return _structure(mol)


def _structure(mol: Chem.Mol) -> Structure:
    elements = np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()], np.uint8)
    num_missing = sum(atom.GetTotalNumHs() for atom in mol.GetAtoms())  # neighbours are not counted
    return Structure(elements, np.asarray(mol.GetConformer().GetPositions(), np.float32), num_missing)


def hydrogens(structures: Sequence[Structure | None]) -> str:
    """Of how many molecules all hydrogens are atoms: "all", "none", or "some"."""
    found = [each for each in structures if each is not None]
    for said in ("all", "none"):
        if all(has_hydrogens(each, said) for each in found):
            return said
    return "some"


def has_hydrogens(structure: Structure, said: str) -> bool:
    """Whether the structure is like those of which `hydrogens` said so; one without any hydrogen is like all."""
    if said == "some":
        return True
    return not structure.num_missing if said == "all" else 1 not in structure.elements


def _distances(positions: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(positions[:, None].astype(np.float64) - positions[None], axis=2))


@dataclass(frozen=True)
class Joined:
    """Several structures as one. molecule: (atoms,) int64 of which each atom is.   pairs: (2, pairs) int64 atoms of the same
    molecule nearer than the cutoff, both ways, from and to."""

    elements: np.ndarray
    positions: np.ndarray
    molecule: np.ndarray
    pairs: np.ndarray


def joined(structures: Sequence[Structure], cutoff: float) -> Joined:
    """The structures one after another."""
    sizes = np.array([len(each.elements) for each in structures])
    start = np.cumsum(sizes) - sizes
    pairs = [np.argwhere(_near(each, cutoff)).T + at for each, at in zip(structures, start, strict=True)]
    return Joined(
        np.concatenate([each.elements for each in structures]).astype(np.int64),
        np.concatenate([each.positions for each in structures]),
        np.repeat(np.arange(len(structures)), sizes),
        np.concatenate(pairs, axis=1),
    )


def _near(structure: Structure, cutoff: float) -> np.ndarray:
    apart = _distances(structure.positions)
    np.fill_diagonal(apart, np.inf)
    return np.asarray(apart < cutoff)


def given(rows: Any) -> list[Structure | None]:
    """The structure of each row in its file; None where there is none."""
    known: Mapping[int, Structure] = rows.context.get(STRUCTURES, {})
    return [known.get(number) for number in rows.column(RECORD)] if known else [None] * len(rows)


class Conformers:
    """Structures of rows: those of the file, or made once for each molecule."""

    def __init__(self, makes: bool, seed: int) -> None:
        self.makes, self.seed = makes, seed
        self.known: dict[str, Structure | None] = {}

    def of(self, rows: Any) -> list[Structure | None]:
        """One a row; None where there is none to be had."""
        if self.makes:
            return [self._made(smiles) for smiles in rows.column("smiles")]
        return given(rows)

    def _made(self, smiles: str) -> Structure | None:
        if smiles not in self.known:
            self.known[smiles] = made(smiles, self.seed)
        return self.known[smiles]
