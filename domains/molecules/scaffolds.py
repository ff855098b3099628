"""Which molecules are relatives: Bemis-Murcko scaffolds, and for acyclic molecules clusters of like fingerprints.

Sources: Bemis & Murcko 1996, J Med Chem 39:2887 (scaffolds); Butina 1999, J Chem Inf Comput Sci 39:747 (clusters).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rdkit import DataStructs
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
from rdkit.Chem.Scaffolds import MurckoScaffold

from domains.molecules.chemistry import main_fragment, molecule
from trainers.contract import JSON

LIKE = 0.4
"""Tanimoto similarity of ECFP4 from which acyclic molecules may share a cluster; random pairs of drug-like molecules lie
near 0.1 and seldom above 0.3 (Landrum 2021, RDKit blog, "thresholds for random in fingerprints")."""
MOST_CLUSTERED = 20_000
"""Acyclic molecules; neighbours are counted for all pairs, which takes about 20 s for so many."""
MOST_COMPARED = 50_000
RADIUS, NUM_BITS = 2, 2048
SHARES = (0.8, 0.1)
"""Of train and valid in `largest_first`, as DeepChem and OGB have them."""


def scaffold(canonical: str, *, chirality: bool = False, whole: bool = False) -> str:
    """Rings and what links them as SMILES; "" for acyclic molecules. Stereo is dropped unless `chirality`: mirror images
    are relatives. whole: of all fragments, not of the main one alone."""
    mol = molecule(canonical)
    mol = mol if whole else main_fragment(mol)
    frame: Any = MurckoScaffold.MurckoScaffoldSmiles
    return str(frame(mol=mol, includeChirality=chirality))


def relatives(canonical: Sequence[str], *, fast: bool = False) -> tuple[np.ndarray, JSON]:
    """(molecules,) names of groups for distinct canonical SMILES, and figures about them.

    fast: acyclic molecules are told apart only by their SMILES.
    """
    group = np.array([scaffold(smiles) for smiles in canonical], dtype=object)
    acyclic = np.flatnonzero(group == "")
    figures: JSON = {"scaffolds": len(set(group)) - bool(len(acyclic)), "acyclic_molecules": len(acyclic)}
    if not len(acyclic):
        return group, figures
    skips = fast or len(acyclic) > MOST_CLUSTERED
    clusters = (
        np.arange(len(acyclic)) if skips else butina(_fingerprints([canonical[i] for i in acyclic.tolist()]), LIKE)
    )
    group[acyclic] = [f"acyclic {cluster}" for cluster in clusters]
    figures["acyclic_clusters"] = "not looked for" if skips else len(set(clusters.tolist()))
    return group, figures


def _fingerprints(canonical: Sequence[str]) -> list[DataStructs.ExplicitBitVect]:
    generator = GetMorganGenerator(radius=RADIUS, fpSize=NUM_BITS)
    return [generator.GetFingerprint(molecule(smiles)) for smiles in canonical]


def butina(fingerprints: Sequence[DataStructs.ExplicitBitVect], like: float) -> np.ndarray:
    """(molecules,) the cluster of each. The molecule with most unassigned neighbours takes them all, and so on."""
    neighbours: list[list[int]] = [[i] for i in range(len(fingerprints))]
    for i, fingerprint in enumerate(fingerprints[1:], start=1):
        near = np.flatnonzero(np.asarray(DataStructs.BulkTanimotoSimilarity(fingerprint, fingerprints[:i])) >= like)
        for j in near.tolist():
            neighbours[i].append(j)
            neighbours[j].append(i)
    cluster = np.full(len(fingerprints), -1)
    # The counts of the start decide the order, as in Butina's paper; recounting would be slower and little better.
    for number, i in enumerate(sorted(range(len(neighbours)), key=lambda i: (-len(neighbours[i]), i))):
        if cluster[i] < 0:
            members = np.asarray(neighbours[i])
            cluster[members[cluster[members] < 0]] = number
    return cluster


def links(canonical: Sequence[str], code: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Highest Tanimoto similarity of rows to other rows, as proof of a split. code: each row's molecule in `canonical`."""
    kept: list[DataStructs.ExplicitBitVect] = []

    def of_rows(these: np.ndarray, those: np.ndarray) -> np.ndarray:
        if not kept:
            kept.extend(_fingerprints(canonical))
        mine, back = np.unique(code[these], return_inverse=True)
        yours = [kept[i] for i in np.unique(code[those])]
        highest = [max(DataStructs.BulkTanimotoSimilarity(kept[i], yours), default=0.0) for i in mine]
        return np.asarray(highest)[back]

    return of_rows


def nearest(canonical: Sequence[str], these: np.ndarray, those: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each molecule of `these` the highest Tanimoto similarity to one of `those`, and its place among them (-1: none)."""
    if not len(those):
        return np.zeros(len(these)), np.full(len(these), -1)
    found = similarities(*([canonical[i] for i in rows.tolist()] for rows in (these, those)))
    return found.max(axis=1), found.argmax(axis=1)


def similarities(these: Sequence[str], those: Sequence[str]) -> np.ndarray:
    """(these, those) Tanimoto similarities of ECFP4 fingerprints."""
    mine, yours = _fingerprints(these), _fingerprints(those)
    return np.array([DataStructs.BulkTanimotoSimilarity(each, yours) for each in mine]).reshape(len(mine), len(yours))


def largest_first(canonical: Sequence[str]) -> np.ndarray:
    """(rows,) "train", "valid", "test" or "" (a copy of an earlier row): the largest scaffolds train.

    Scaffolds with chirality, of whole molecules, by (rows, first row) descending, into 80/10/10: the rule of DeepChem's
    and OGB's scaffold splitters, for comparison with papers. Ties in size are what the second key decides.
    """
    first: dict[str, int] = {}
    for position, smiles in enumerate(canonical):
        first.setdefault(smiles, position)
    groups: dict[str, list[int]] = {}
    for smiles, position in first.items():
        groups.setdefault(scaffold(smiles, chirality=True, whole=True), []).append(position)
    ordered = sorted(groups.values(), key=lambda rows: (len(rows), rows[0]), reverse=True)
    part = np.full(len(canonical), "", dtype=object)
    train_end, valid_end = SHARES[0] * len(first), sum(SHARES) * len(first)
    num_train = num_valid = 0
    for rows in ordered:
        if num_train + len(rows) <= train_end:
            part[rows], num_train = "train", num_train + len(rows)
        elif num_train + num_valid + len(rows) <= valid_end:
            part[rows], num_valid = "valid", num_valid + len(rows)
        else:
            part[rows] = "test"
    return part
