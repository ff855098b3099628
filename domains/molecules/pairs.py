"""Pairs of a molecule and a protein with a number (affinity) or a class: reading, keys for splits, facts, rivals.

The table's columns are always called "smiles" and "sequence". Which pairs are held out is a question of its own: those of
proteins that nobody measured (cold protein), of new molecules (cold molecule), of both, or just gaps between measured ones.
Sources: Pahikkala et al. 2015, 10.1093/bib/bbu010 (the four settings); Huang et al. 2020, DeepPurpose, arXiv 2004.08919.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.baselines import trivial
from domains.contract import BadRow, Baseline, Facts, Keys, Likeness, Profile, Reading, Request
from domains.molecules import scaffolds
from domains.molecules.chemistry import fragment_notice, oddity_notice
from domains.molecules.pair_rivals import additive, pair_forest
from domains.molecules.readers import Raw, read_raw, row_ids
from domains.molecules.targets import Target, one_target
from domains.shared.frames import FrameTable
from domains.shared.label_sets import target_columns
from domains.shared.proteins import similarity
from domains.shared.proteins.residues import cleaned, look_like_dna, looks_like_protein
from domains.shared.roles import (
    FEWEST_GROUPS,
    keep_split_columns,
    largest_share,
    named_keys,
    named_or_only_target,
    one_a_row,
    refuse_target_called,
)
from domains.shared.sequences import Kind, sequence_column, settle_repeats
from domains.shared.targets import class_names, infer_task
from domains.splits import make_split
from trainers.contract import JSON
from trainers.errors import DataError

TASK = "interaction"
USUAL_LIMIT = 1022
"""Residues that ESM-2 was trained on at most; Lin et al. 2023, methods."""
KIND = Kind(
    "protein",
    (
        *("sequence", "protein", "protein_sequence", "target_sequence", "target sequence", "aa_sequence", "fasta"),
        *("seq", "target"),  # "target" as in Therapeutics Data Commons: Drug, Target, Y
    ),
    ("protein_id",),
    looks_like_protein,
)
COLD_PROTEIN, COLD_MOLECULE, COLD_BOTH = "cold-protein", "cold-molecule", "cold-both"
QUESTIONS = {
    COLD_PROTEIN: "how good are answers for proteins that nobody has measured",
    COLD_MOLECULE: "how good are answers for new molecules on proteins that were measured",
    COLD_BOTH: "how good are answers where protein and molecule are both new",
    "random": "how well are gaps filled between molecules and proteins that were both measured",
}


def read(data: Any, request: Request) -> Reading:
    """Read a table with a column of SMILES, one of protein sequences and a target, every row in order.

    With `request.facts` the target may be absent. One pair measured several times carries the mean of its numbers.
    Raises DataError where a column is missing or it is not clear which is meant.
    """
    raw = read_raw(data, request)
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(Path(data))
    if not len(raw.frame):
        raise DataError(f"{where}: there is a header but no row.")
    protein = _protein_column(raw, request, where)
    clean = cleaned(raw.frame[protein].astype(object).where(raw.frame[protein].notna(), "").tolist())
    if request.facts is None and look_like_dna(clean.sequences):
        raise DataError(f"{where}: column {protein!r} looks like DNA or RNA, not proteins. Translate it first.")
    target = _target(raw, protein, request, where)
    canonical = [each.canonical for each in raw.molecules]
    columns: dict[str, Any] = {
        "smiles": np.array(canonical, dtype=object),
        "sequence": np.array(clean.sequences, dtype=object),
    }
    for own in columns:
        refuse_target_called(own, target.name, where)
    if target.values is not None:
        columns[str(target.name)] = target.values
    known = request.facts.schema["oddities"] if request.facts else ()
    notices = [*raw.notices, *target.notices, *clean.notices, *fragment_notice(raw.molecules)]
    notices += oddity_notice(raw.molecules, raw.places, known)
    notices += keep_split_columns(columns, raw.frame, request, where=where, target=target.name, uses_found=False)
    if request.facts is None:
        same = [
            f"{one} {other}" if one and other else "" for one, other in zip(canonical, clean.sequences, strict=True)
        ]
        notices += settle_repeats(columns, target.name, target.task, same, "pair")
        notices.append("which split answers what: " + "; ".join(f"{name}: {what}" for name, what in QUESTIONS.items()))
    context = {
        "smiles": raw.smiles,
        "sequence": protein,
        "id_column": raw.id_column,
        "targets": target.columns,
        "oddities": {each.canonical: each.oddities for each in raw.molecules if each.oddities},
        "num_atoms": {each.canonical: each.num_atoms for each in raw.molecules},
    }
    table = FrameTable(pd.DataFrame(columns), row_ids(raw), target.name, context)
    bad = [*raw.bad, *(BadRow(i, raw.places[i], each.reason) for i, each in enumerate(raw.molecules) if each.reason)]
    bad += [BadRow(i, raw.places[i], f"protein: {reason}") for i, reason in clean.reasons.items()]
    return Reading(table, TASK, target.name, tuple(one_a_row([*bad, *target.bad])), tuple(notices))


def _protein_column(raw: Raw, request: Request, where: str) -> str:
    wanted = request.columns.get("sequence") or (request.facts.schema["sequence"] if request.facts else None)
    taken = {raw.smiles, raw.id_column, request.group, request.order} - {wanted}
    left = raw.frame[[name for name in raw.frame.columns if name not in taken]]
    return sequence_column(left, wanted, request, where, KIND)


def _target(raw: Raw, protein: str, request: Request, where: str) -> Target:
    """Numbers are an affinity, but two distinct values, or words, are classes."""
    if request.target is not None and len(target_columns(raw.frame, request.target, where)) > 1:
        raise DataError(f"--target {request.target}: a pair has one number or one class. Name one column.")
    taken = {raw.smiles, raw.id_column, protein, request.group, request.order, "split"}
    left = [str(name) for name in raw.frame.columns if name not in taken]
    name, said = named_or_only_target(raw.frame, request, left, where=where, what="molecules and proteins")
    if name is None:
        return Target(None, TASK)
    if request.facts is not None:
        return one_target(raw, name, kind_of(request.facts), request, where=where, said=said)
    values = raw.frame[name]
    is_amount = pd.api.types.is_numeric_dtype(values.dtype) and values.nunique() > 2
    kind, notice = infer_task(values, "regression" if is_amount else None, comma=raw.comma)
    return one_target(raw, name, kind, request, where=where, said=[*said, *([notice] if notice else [])])


def kind_of(facts: Facts) -> str:
    """What is learned of a pair: "classification" or "regression"."""
    return "classification" if facts.classes else "regression"


def keys(table: FrameTable, request: Request, *, fast: bool) -> Keys:
    """Proteins that are relatives stay together; where there are too few families, molecules with the same scaffold do.

    A column named with --group or --order, or one called "split", is used instead. Raises MissingError without MMseqs2.
    """
    target = table.target()
    stratum = None if target.dtype == np.float64 else target.astype(str)
    if (named := named_keys(table, request, stratum)) is not None:
        return named
    proteins, molecules = table.column("sequence").to_numpy(object), table.column("smiles").to_numpy(object)
    counts = {"proteins": len(set(proteins)), "molecules": len(set(molecules))}
    evidence = {**counts, "copies": len(table) - len(set(zip(proteins, molecules, strict=True)))}
    if "split" in table.frame.columns and request.target != "split":
        given = table.column("split").tolist()
        because = "the column 'split' says which row goes where"
        return Keys("given", because, given=given, group=proteins, stratum=stratum, evidence=evidence)

    @cache
    def by_protein() -> Keys:
        return replace(_by_protein(proteins, fast=fast, more=evidence), stratum=stratum)

    @cache
    def by_molecule() -> Keys:
        return replace(_by_molecule(molecules, fast=fast, more=evidence), stratum=stratum)

    named_splits = {
        COLD_PROTEIN: lambda seed: by_protein(),
        COLD_MOLECULE: lambda seed: by_molecule(),
        COLD_BOTH: lambda seed: _by_both(by_protein(), by_molecule(), seed),
    }
    return replace(_default(by_protein, by_molecule, counts["proteins"]), named=named_splits)


def _default(by_protein: Any, by_molecule: Any, num_proteins: int) -> Keys:
    """By protein, unless fewer than `FEWEST_GROUPS` families leave no honest interval for that."""
    if num_proteins >= FEWEST_GROUPS:
        found: Keys = by_protein()
        num_groups = len(set(np.asarray(found.group).tolist()))
        if num_groups >= FEWEST_GROUPS and "optimistic" not in found.evidence:
            return found
    chosen: Keys = by_molecule()
    why = f"there are under {FEWEST_GROUPS} families of proteins, so they cannot be divided: "
    return replace(chosen, because=why + chosen.because)


def _by_protein(proteins: np.ndarray, *, fast: bool, more: JSON) -> Keys:
    """Rows by family of their protein; by protein where the search is skipped, or all are one family."""
    distinct, code = np.unique(proteins, return_inverse=True)
    question = f"cold protein ({QUESTIONS[COLD_PROTEIN]}): "
    if fast:
        because = f"{question}pairs of one protein stay together; similar ones were not looked for (--fast)"
        return Keys("grouped", because, group=code, evidence={**more, "similarity": "skipped"})
    found = similarity.families(distinct.tolist())
    if found.group is None:
        because = f"{question}pairs of one protein stay together; most proteins are one family"
        optimistic = {"optimistic": "relatives of a test protein are in training, as most proteins are one family"}
        return Keys("grouped", because, group=code, evidence={**more, **found.evidence, **optimistic})
    return Keys(
        *("grouped", question + found.because),
        group=found.group[code],
        links=similarity.of_rows(found.links, code),
        near=similarity.IDENTITY,
        evidence={**more, **found.evidence},
    )


def _by_molecule(molecules: np.ndarray, *, fast: bool, more: JSON) -> Keys:
    distinct, code = np.unique(molecules.astype(str), return_inverse=True)
    group, figures = scaffolds.relatives(distinct.tolist(), fast=fast)
    because = (
        f"cold molecule ({QUESTIONS[COLD_MOLECULE]}): molecules with the same scaffold stay together, acyclic ones "
        + ("were not compared (--fast)" if fast else "by cluster")
    )
    compares = not fast and len(distinct) <= scaffolds.MOST_COMPARED
    links = scaffolds.links(distinct.tolist(), code) if compares else None
    # near: nothing moves: scaffolds decide, and the highest similarity is stated as proof
    return Keys("grouped", because, group=group[code], links=links, near=2.0, evidence={**more, **figures})


def _by_both(by_protein: Keys, by_molecule: Keys, seed: int) -> Keys:
    """Proteins are dealt, molecules are dealt, and a pair stays where both halves are of one part; the others stay unused."""
    group = np.asarray(by_protein.group)
    halves = [make_split(each, len(group), seed=seed, named=True) for each in (by_protein, by_molecule)]
    given = np.full(len(group), "", dtype=object)
    for part in ("train", "valid", "test"):
        rows = np.intersect1d(*(getattr(half, part) for half in halves))
        if not len(rows):
            raise DataError(
                f"--split {COLD_BOTH} leaves no pair for {part}: too few pairs have both halves there. Give more pairs, "
                f"or choose {COLD_PROTEIN} or {COLD_MOLECULE}."
            )
        given[rows] = part
    because = (
        f"cold both ({QUESTIONS[COLD_BOTH]}): {by_protein.because}; {by_molecule.because}; mixed pairs stay unused"
    )
    across = [half.evidence.get("highest_similarity_across") for half in halves]
    evidence = {
        **by_protein.evidence,
        **by_molecule.evidence,
        "highest_identity_of_proteins_across": across[0],
        "highest_similarity_of_molecules_across": across[1],
    }
    return Keys("given", because, given=given.tolist(), group=group, stratum=by_protein.stratum, evidence=evidence)


def profile(table: FrameTable) -> Profile:
    """Atoms, residues, and pairs that occur again."""
    smiles, sequences = table.column("smiles"), table.column("sequence")
    atoms = np.array([table.context["num_atoms"][each] for each in smiles])
    num_copies = int(table.frame[["smiles", "sequence"]].duplicated().sum())
    lengths = {"heavy atoms": atoms, "residues": sequences.str.len().to_numpy()}
    return Profile(num_copies, lengths=lengths, marks={"residues": (USUAL_LIMIT,)})


def likeness(table: FrameTable, these: np.ndarray, those: np.ndarray) -> Likeness:
    """A pair is as like another as the less like of its two halves. Raises MissingError without MMseqs2."""
    highest, position = np.zeros(len(these)), np.full(len(these), -1)
    if len(these) and len(those):
        of_proteins = _of_rows(table.column("sequence"), these, those, _identities)
        of_molecules = _of_rows(table.column("smiles"), these, those, scaffolds.similarities)
        for i, (one, other) in enumerate(zip(of_proteins, of_molecules, strict=True)):
            both = np.minimum(one, other)
            position[i] = int(both.argmax())
            highest[i] = both[position[i]]
    measure = (
        "the lower of two: the share of equal residues of the proteins, aligned by MMseqs2 (less than "
        f"{similarity.IDENTITY:.0%} counts as 0), and the Tanimoto similarity of the molecules' ECFP4 fingerprints"
    )
    return Likeness(measure, scaffolds.LIKE, highest, np.where(highest > 0, position, -1))


def _of_rows(
    values: pd.Series, these: np.ndarray, those: np.ndarray, compared: Callable[[list[str], list[str]], np.ndarray]
) -> Iterator[np.ndarray]:
    """For each of `these` the similarities to all of `those`; what is equal is compared once."""
    texts = values.to_numpy(object).astype(str)
    (mine, my_row), (yours, your_row) = (np.unique(texts[rows], return_inverse=True) for rows in (these, those))
    matrix = compared(mine.tolist(), yours.tolist())
    return (matrix[row][your_row] for row in my_row)


def _identities(these: list[str], those: list[str]) -> np.ndarray:
    found = np.asarray(np.array(these)[:, None] == np.array(those)[None], np.float64)
    hits = similarity.search(these, those)
    np.maximum.at(found, (hits.query, hits.target), hits.identity)
    return found


def describe(train: FrameTable) -> Facts:
    """Sizes and classes of the training rows; molecules and proteins are counted once each."""
    target, atoms_of = train.target(), train.context["num_atoms"]
    is_number = target.dtype == np.float64
    classes = () if is_number else class_names(target, f"target {train.target_name!r}")
    smiles, proteins = train.column("smiles"), train.column("sequence").unique()
    residues = np.array([len(each) for each in proteins])
    sizes = {
        "most_atoms": float(max(atoms_of[each] for each in smiles)),
        "median_atoms": float(np.median([atoms_of[each] for each in smiles])),
        "total_atoms": float(sum(atoms_of[each] for each in smiles.unique())),
        "num_molecules": float(smiles.nunique()),
        "num_proteins": float(len(proteins)),
        "total_residues": float(residues.sum()),
        "longest": float(residues.max()),
        f"longer_than_{USUAL_LIMIT}": float((residues > USUAL_LIMIT).sum()),
    }
    if classes:
        sizes["largest_share"] = largest_share(target)
    odd = train.context["oddities"]
    schema = {
        **{name: train.context[name] for name in ("smiles", "sequence", "id_column")},
        "targets": list(train.context["targets"]),
        "oddities": sorted({name for each in smiles if each in odd for name in odd[each]}),
    }
    return Facts("molecules", TASK, train.target_name, len(train), classes, sizes, schema)


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """Majority or mean; the means of molecule and protein added up; a forest on fingerprints and composition."""
    return trivial(kind_of(facts)), additive(facts.classes), pair_forest(replace(facts, task=kind_of(facts)))
