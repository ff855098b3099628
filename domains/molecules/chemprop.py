"""Atoms and bonds as chemprop 2 describes them, so that networks trained there see here what they saw.

Kinds are numbers below a size each, as in `graphs`; an atom ends with two plain numbers: aromatic, and mass / 100.
Source: chemprop 2.3.1 (MIT), `MultiHotAtomFeaturizer` and `MultiHotBondFeaturizer`; equality is checked against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from rdkit import Chem

from domains.molecules.graphs import Features

_DEGREES, _CHARGES, _TAGS, _HYDROGENS = 6, (-1, -2, 1, 2, 0), 4, 5
_ELEMENTS: dict[str, Sequence[int]] = {
    "v1": range(1, 101),
    "v2": (*range(1, 37), 53),
    "organic": (1, 5, 6, 7, 8, 9, 14, 15, 16, 17, 35, 53),
}
_HYBRIDS: dict[str, Sequence[str]] = {
    "v1": ("SP", "SP2", "SP3", "SP3D", "SP3D2"),
    "v2": ("S", "SP", "SP2", "SP2D", "SP3", "SP3D", "SP3D2"),
    "organic": ("S", "SP", "SP2", "SP3"),
}
_BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
_STEREOS = 6
BOND_SIZES = (1, len(_BONDS), 1, 1, _STEREOS + 1)
"""No bond, order, conjugated, in a ring, stereo. A flag is kind 0 where it holds and the size where not; so is an order
that has no kind."""


def atom_sizes(mode: str) -> tuple[int, ...]:
    """Sizes of an atom's kinds: element, bonds, charge, chiral tag, hydrogens, hybrid; each with a place for others."""
    known = (len(_ELEMENTS[mode]), _DEGREES, len(_CHARGES), _TAGS, _HYDROGENS, len(_HYBRIDS[mode]))
    return tuple(size + 1 for size in known)


MODES = {sum(atom_sizes(mode)) + 2: mode for mode in _ELEMENTS}
"""The mode of a checkpoint, by how many numbers an atom has there."""


def features(mode: str) -> Features:
    """What networks of chemprop's `mode` ("v1", "v2", "organic") know of a molecule."""
    elements = {number: at for at, number in enumerate(_ELEMENTS[mode])}
    hybrids = {name: at for at, name in enumerate(_HYBRIDS[mode])}
    atom = partial(_atom, elements, hybrids)
    return Features(atom, _bond, len(atom_sizes(mode)) + 2, len(BOND_SIZES), np.float32)


def _atom(
    elements: dict[int, int], hybrids: dict[str, int], atom: Chem.Atom, rings: Chem.RingInfo
) -> tuple[float, ...]:
    charge = atom.GetFormalCharge()
    return (
        elements.get(atom.GetAtomicNum(), len(elements)),
        min(atom.GetTotalDegree(), _DEGREES),
        _CHARGES.index(charge) if charge in _CHARGES else len(_CHARGES),
        min(int(atom.GetChiralTag()), _TAGS),
        min(atom.GetTotalNumHs(), _HYDROGENS),
        hybrids.get(str(atom.GetHybridization()), len(hybrids)),
        float(atom.GetIsAromatic()),
        0.01 * atom.GetMass(),
    )


def _bond(bond: Chem.Bond) -> tuple[float, ...]:
    name = str(bond.GetBondType())
    order = _BONDS.index(name) if name in _BONDS else len(_BONDS)
    stereo = min(int(bond.GetStereo()), _STEREOS)
    return 1, order, int(not bond.GetIsConjugated()), int(not bond.IsInRing()), stereo
