"""What a SMILES says, by RDKit: parsed or refused with a reason, in canonical form, and what is unusual about it.

Canonical form: RDKit's SMILES with stereo kept, explicit hydrogens removed (isotopes of hydrogen stay) and atom maps
dropped. Fragments (salts, solvents) are all kept: they are part of what was measured. Where one fragment must stand for the
molecule, as in scaffolds, it is `main_fragment`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rdkit import Chem, rdBase

from domains.molecules.structures import Structure

COMMON_ELEMENTS = frozenset(
    ("H", "B", "C", "N", "O", "F", "Na", "Si", "P", "S", "Cl", "K", "Ca", "As", "Se", "Br", "I", "Li", "Mg", "Zn")
)
"""Elements that a graph network tells apart; all others share one bucket, and files with them are told so."""
PATTERN = r"(\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9])"
"""Of Schwaller et al. 2019, arXiv 1811.02633, section 3.2: what stands in brackets is one token."""
MOST_ATOMS = 1000
"""Heavy atoms. RDKit's scaffolds cost atoms cubed: 0.3 s at 600, 23 s at 2,400; the largest molecule of the usual screens
(HIV, PCBA) has 332."""
MOST_CHARACTERS = 10 * MOST_ATOMS
_MOST_SHOWN = 5


@dataclass(frozen=True)
class Parsed:
    """canonical: "" where `reason` says why there is none.   oddities: what is unusual about the molecule.   structure: where
    its atoms are, if the file says."""

    canonical: str
    reason: str = ""
    oddities: tuple[str, ...] = ()
    num_fragments: int = 1
    num_atoms: int = 0
    structure: Structure | None = None


def parsed(text: str) -> Parsed:
    """One cell of a column of SMILES. What follows a space is a name and is not read."""
    text = text.strip()
    if not text:
        return Parsed("", "no SMILES")
    if len(text) > MOST_CHARACTERS:
        return Parsed(
            "", f"{text[:60]!r}... has {len(text):,} characters, more than {MOST_CHARACTERS:,}: no small molecule"
        )
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(text)
        if mol is None:
            return Parsed("", f"{text[:60]!r} is no SMILES that RDKit accepts{_why(text)}")
    return described(mol)


def described(mol: Chem.Mol) -> Parsed:
    """The same of a molecule that RDKit read already."""
    if not mol.GetNumAtoms():
        return Parsed("", "a molecule without atoms")
    if mol.GetNumAtoms() > MOST_ATOMS:
        return Parsed("", f"{mol.GetNumAtoms():,} atoms, more than {MOST_ATOMS:,}: no small molecule")
    for atom in mol.GetAtoms():
        atom.SetAtomMapNum(0)
    canonical = Chem.MolToSmiles(mol)
    with rdBase.BlockLogs():
        # Once more: removing maps and hydrogens can change what is a stereo centre, and the text must be a fixed point.
        again = Chem.MolFromSmiles(canonical)
    if again is None:
        return Parsed("", f"RDKit cannot read back its own SMILES {canonical[:60]!r}")
    return Parsed(Chem.MolToSmiles(again), "", _oddities(again), canonical.count(".") + 1, again.GetNumAtoms())


def _why(text: str) -> str:
    loose = Chem.MolFromSmiles(text, sanitize=False)
    problems = [] if loose is None else [problem.Message() for problem in Chem.DetectChemistryProblems(loose)]
    return f": {problems[0]}" if problems else " (its grammar is broken)"


def _oddities(mol: Chem.Mol) -> tuple[str, ...]:
    """Names of what few molecules have, as they are counted for a notice."""
    found = set()
    for atom in mol.GetAtoms():
        symbol = atom.GetSymbol()
        if atom.GetAtomicNum() == 0:
            found.add("wildcard *")
        elif symbol not in COMMON_ELEMENTS:
            found.add(f"element {symbol}")
        if atom.GetIsotope() and atom.GetAtomicNum():
            found.add(f"isotope {atom.GetIsotope()}{symbol}")
        if atom.GetNumRadicalElectrons() and symbol in COMMON_ELEMENTS and atom.GetDegree() + atom.GetTotalNumHs() > 0:
            found.add("a radical")
    return tuple(sorted(found))


def molecule(canonical: str) -> Chem.Mol:
    """The molecule of a canonical SMILES that `parsed` made; it cannot fail."""
    with rdBase.BlockLogs():
        return Chem.MolFromSmiles(canonical)


def main_fragment(mol: Chem.Mol) -> Chem.Mol:
    """The fragment that stands for a molecule: one with carbon, then most heavy atoms, then the first SMILES by alphabet.

    [Na+].[Cl-] has no carbon; there the rest of the rule decides.
    """
    fragments = Chem.GetMolFrags(mol, asMols=True, sanitizeFrags=False)
    if len(fragments) == 1:
        return mol

    def rank(fragment: Chem.Mol) -> tuple[bool, int, str]:
        has_carbon = any(atom.GetAtomicNum() == 6 for atom in fragment.GetAtoms())
        return not has_carbon, -fragment.GetNumHeavyAtoms(), Chem.MolToSmiles(fragment)

    chosen: Chem.Mol = min(fragments, key=rank)
    Chem.GetSymmSSSR(chosen)  # a fragment comes without its rings, and scaffolds ask for them
    return chosen


def fragment_notice(found: Sequence[Parsed]) -> list[str]:
    """How many molecules have several fragments, and what is done about them."""
    num = sum(each.num_fragments > 1 for each in found)
    if not num:
        return []
    return [
        f"{num:,} molecules have several fragments (salts, solvents): all are kept as what was measured; for the split the "
        "main one counts (with carbon, most heavy atoms)"
    ]


def oddity_notice(found: Sequence[Parsed], places: Sequence[str], known: Sequence[str] = ()) -> list[str]:
    """What is unusual and in which rows. known: oddities that the training rows have too, which need no word."""
    rows: dict[str, list[int]] = {}
    for position, each in enumerate(found):
        for oddity in each.oddities:
            if oddity not in known:
                rows.setdefault(oddity, []).append(position)
    return [
        f"{name} in {_shown([places[i] for i in positions])}: {_ADVICE[name.split()[0]]}"
        for name, positions in sorted(rows.items())
    ]


_ADVICE: Mapping[str, str] = {
    "wildcard": "an open place of a pattern is no atom; scores for it mean little",
    "element": "rare in training sets; graph networks see it as 'another element'",
    "isotope": "fingerprints tell it from the usual atom, graph networks do not",
    "a": "an unpaired electron is seen by graph networks as such, by fingerprints as missing hydrogen",
}


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(names[:_MOST_SHOWN]) + more
