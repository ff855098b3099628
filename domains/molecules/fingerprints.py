"""A molecule as a row of numbers: fingerprints and descriptors, by RDKit.

Sources: Rogers & Hahn 2010, J Chem Inf Model 50:742 (ECFP, FCFP); Durant et al. 2002, J Chem Inf Comput Sci 42:1273 (MACCS
keys); Carhart et al. 1985, J Chem Inf Comput Sci 25:64 (atom pairs); Nilakantan et al. 1987, J Chem Inf Comput Sci 27:82
(torsions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rdkit import Chem, rdBase

from domains.molecules.chemistry import molecule
from trainers.vectors import VectorCache, vectors_of

Features = Literal["ecfp", "fcfp", "maccs", "pairs", "torsions", "descriptors"]
CACHE_FILE = "descriptors.sqlite"
KEPT_AT_ONCE = 500
"""Descriptors, as they are made: five seconds of work that a crash can lose."""
MOST_COUNTED = 255
LARGEST_DESCRIPTOR = 1e6
"""Larger ones are cut: float32 in trees, and means in networks, need no more."""
# qed and SPS take half the time of all descriptors together; Ipc grows like a factorial and leaves float64.
LEFT_OUT = ("qed", "SPS", "Ipc")


def feature_matrix(
    canonical: Sequence[str], kinds: Sequence[str], *, radius: int, num_bits: int, cache: Path | None = None
) -> np.ndarray:
    """(molecules, features) float32 of canonical SMILES: the blocks of `kinds` side by side. Fingerprints are counts (of
    several fragments too), with stereo; each distinct molecule is computed once.

    cache: a folder that outlives runs, where descriptors are kept (10 ms a molecule; fingerprints take 0.2 ms)."""
    distinct, back = np.unique(np.asarray(canonical, dtype=str), return_inverse=True)
    if not len(distinct):
        return np.zeros((0, sum(widths(kinds, num_bits))), np.float32)
    makers = {kind: maker(kind, radius=radius, num_bits=num_bits) for kind in kinds if kind != "descriptors"}
    with rdBase.BlockLogs():
        blocks = _fingerprints(distinct, makers) if makers else {}
        if "descriptors" in kinds:
            blocks["descriptors"] = descriptor_matrix(distinct.tolist(), cache)
    return np.concatenate([blocks[kind] for kind in kinds], axis=1)[back]


def _fingerprints(
    distinct: Iterable[str], makers: Mapping[str, Callable[[Chem.Mol], np.ndarray]]
) -> dict[str, np.ndarray]:
    """(molecules, features) of each kind; a molecule is read once for all of them."""
    rows = []
    for smiles in distinct:
        mol = molecule(smiles)
        rows.append([make(mol) for make in makers.values()])
    return {kind: np.stack(column) for kind, column in zip(makers, zip(*rows, strict=True), strict=True)}


def descriptor_matrix(distinct: Sequence[str], cache: Path | None) -> np.ndarray:
    """(molecules, descriptors) float32. cache: a folder for `CACHE_FILE`, None keeps nothing."""
    names = descriptor_names()
    # Values change between releases of RDKit, and so does the list.
    identity = f"RDKit {rdBase.rdkitVersion} {' '.join(names)}"

    def made(positions: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(positions), KEPT_AT_ONCE):
            part = positions[start : start + KEPT_AT_ONCE]
            yield part, np.stack([descriptors(molecule(distinct[at])) for at in part])

    contents = [smiles.encode() for smiles in distinct]
    with closing(VectorCache(None if cache is None else cache / CACHE_FILE)) as known:
        return vectors_of(contents, made, known, identity=identity, width=len(names))


def maker(kind: str, *, radius: int, num_bits: int) -> Callable[[Chem.Mol], np.ndarray]:
    """The function that gives one block of features of a molecule, as float32."""
    if kind == "maccs":
        return _maccs
    if kind == "descriptors":
        return descriptors
    found_by = generator(kind, radius, num_bits)

    def counts(mol: Chem.Mol) -> np.ndarray:
        found = found_by.GetCountFingerprintAsNumPy(mol)
        return np.asarray(np.minimum(found, MOST_COUNTED), np.float32)

    return counts


def generator(kind: str, radius: int, num_bits: int) -> Any:
    """RDKit's generator of one kind of hashed fingerprint."""
    from rdkit.Chem import rdFingerprintGenerator

    if kind == "pairs":
        return rdFingerprintGenerator.GetAtomPairGenerator(fpSize=num_bits, includeChirality=True)
    if kind == "torsions":
        return rdFingerprintGenerator.GetTopologicalTorsionGenerator(fpSize=num_bits, includeChirality=True)
    if kind == "fcfp":
        invariants = rdFingerprintGenerator.GetMorganFeatureAtomInvGen()
        return rdFingerprintGenerator.GetMorganGenerator(
            radius, fpSize=num_bits, includeChirality=True, atomInvariantsGenerator=invariants
        )
    return rdFingerprintGenerator.GetMorganGenerator(radius, fpSize=num_bits, includeChirality=True)


def _maccs(mol: Chem.Mol) -> np.ndarray:
    from rdkit.Chem.rdMolDescriptors import GetMACCSKeysFingerprint

    return np.array(list(GetMACCSKeysFingerprint(mol)), np.float32)


def descriptor_names() -> tuple[str, ...]:
    """RDKit's descriptors of two dimensions, without those in LEFT_OUT."""
    from rdkit.Chem import Descriptors

    return tuple(name for name, _ in Descriptors.descList if name not in LEFT_OUT)


def descriptors(mol: Chem.Mol) -> np.ndarray:
    """(descriptors,) float32; what is undefined for a molecule (partial charges of a metal) is 0, what is huge is cut."""
    from rdkit.Chem import Descriptors

    values = [_value(function, mol) for name, function in Descriptors.descList if name not in LEFT_OUT]
    finite = np.nan_to_num(np.array(values, np.float64), nan=0.0, posinf=LARGEST_DESCRIPTOR, neginf=-LARGEST_DESCRIPTOR)
    return np.clip(finite, -LARGEST_DESCRIPTOR, LARGEST_DESCRIPTOR).astype(np.float32)


def _value(function: Callable[[Chem.Mol], float], mol: Chem.Mol) -> float:
    try:
        return float(function(mol))
    except (ValueError, RuntimeError, ZeroDivisionError, OverflowError):  # as RDKit raises on single atoms and metals
        return float("nan")


def widths(kinds: Sequence[str], num_bits: int) -> list[int]:
    """Features of each block."""
    known = {"maccs": 167, "descriptors": len(descriptor_names()) if "descriptors" in kinds else 0}
    return [known.get(kind, num_bits) for kind in kinds]
