"""Molecules as a data type: reading, keys for splits, facts, metrics and rivals. See `domains.contract.Domain`.

A row is a labelled molecule; its column is always called "smiles" in the table and holds the canonical form
(`domains.molecules.chemistry`), whatever the file calls it and however it writes it. Other columns are no features.
Pairs of a molecule and a protein (interaction) are those of `domains.molecules.pairs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.baselines import trivial
from domains.contract import BadRow, Baseline, Facts, Keys, Likeness, Metric, Profile, Reading, Request
from domains.metrics import classification_metrics, label_set_metrics, number_row_metrics, regression_metrics
from domains.molecules import generated, pairs, scaffolds
from domains.molecules.baselines import forest, means, shares
from domains.molecules.chemistry import fragment_notice, oddity_notice
from domains.molecules.ngrams import rival
from domains.molecules.readers import read_raw, row_ids
from domains.molecules.structures import RECORD, STRUCTURES, given
from domains.molecules.targets import MULTILABEL, MULTIREGRESSION, differing_notice, read_target, stratum_of
from domains.shared.frames import FrameTable
from domains.shared.label_sets import label_names
from domains.shared.roles import (
    IMBALANCED_SHARE,
    keep_split_columns,
    largest_share,
    named_keys,
    one_a_row,
    refuse_target_called,
)
from domains.shared.targets import class_names
from trainers.errors import DataError

COLUMNS = ("smiles", "sequence")
LARGEST_FIRST = "scaffold-largest-first"


def read(data: Any, request: Request) -> Reading:
    """Read SDF, CSV, TSV, JSON lines, Parquet or a DataFrame, every row in order.

    With `request.facts` the target may be absent; it is checked only if `request.target` is named (evaluating).
    Raises DataError for what holds no SMILES, or no such target.
    """
    if (request.facts.task if request.facts else request.task) == pairs.TASK:
        return pairs.read(data, request)
    raw = read_raw(data, request)
    where = "DataFrame" if isinstance(data, pd.DataFrame) else str(Path(data))
    if not len(raw.frame):
        raise DataError(f"{where}: there is a header but no row.")
    target = read_target(raw, request, where)
    found = raw.molecules
    bad = [*raw.bad, *(BadRow(i, raw.places[i], each.reason) for i, each in enumerate(found) if each.reason)]
    bad += target.bad
    canonical = [each.canonical for each in found]
    columns: dict[str, Any] = {"smiles": np.array(canonical, dtype=object)}
    if target.values is not None:
        columns[str(target.name)] = target.values
    refuse_target_called("smiles", target.name, where)
    groups = keep_split_columns(columns, raw.frame, request, where=where, target=target.name, uses_found=False)
    known = request.facts.schema["oddities"] if request.facts else ()
    notices = [*raw.notices, *target.notices, *fragment_notice(found), *oddity_notice(found, raw.places, known)]
    if request.facts is None and target.task != generated.TASK:
        notices += differing_notice(canonical, target, raw.places)
    ids, placed = row_ids(raw), {number: each.structure for number, each in enumerate(found) if each.structure}
    if placed:
        columns[RECORD] = np.arange(len(found))
    context = {
        STRUCTURES: placed,
        "smiles": raw.smiles,
        "id_column": raw.id_column,
        "targets": target.columns,
        "oddities": {each.canonical: each.oddities for each in found if each.oddities},
        "num_atoms": {each.canonical: each.num_atoms for each in found},
    }
    table = FrameTable(pd.DataFrame(columns), ids, target.name, context)
    return Reading(table, target.task, target.name, tuple(one_a_row(bad)), (*notices, *groups))


def keys(table: FrameTable, task: str, request: Request, *, fast: bool) -> Keys:
    """Molecules with the same scaffold stay together, acyclic ones by cluster; so do copies and mirror images.

    A column named with --group or --order, or one called "split", is used instead.
    """
    if task == pairs.TASK:
        return pairs.keys(table, request, fast=fast)
    stratum = None
    if table.target_name is not None and table.target_name in table.frame.columns:
        stratum = stratum_of(task, table.target())
    if (named := named_keys(table, request, stratum)) is not None:
        return named
    smiles = table.column("smiles").to_numpy(object)
    distinct, code = np.unique(smiles.astype(str), return_inverse=True)
    evidence = {"copies": len(smiles) - len(distinct)}
    if "split" in table.frame.columns and request.target != "split":
        given = table.column("split").tolist()
        because = "the column 'split' says which row goes where"
        return Keys("given", because, given=given, group=code, stratum=stratum, evidence=evidence)
    group, figures = scaffolds.relatives(distinct.tolist(), fast=fast)
    because = "molecules with the same scaffold (Bemis-Murcko) stay together, acyclic ones by cluster (Butina, ECFP4)"
    if figures.get("acyclic_clusters") == "not looked for":
        because += "; acyclic ones were not compared" + (" (--fast)" if fast else ", as they are too many")
    compares = not fast and len(distinct) <= scaffolds.MOST_COMPARED
    return Keys(
        *("grouped", because),
        group=group[code],
        stratum=stratum,
        links=scaffolds.links(distinct.tolist(), code) if compares else None,
        near=2.0,  # nothing moves: scaffolds decide, and the highest similarity is stated as proof
        evidence={**evidence, **figures},
        named={LARGEST_FIRST: lambda seed: _largest_first(smiles.tolist(), group[code], stratum)},
    )


def _largest_first(canonical: Sequence[str], group: np.ndarray, stratum: np.ndarray | None) -> Keys:
    because = "the largest scaffolds train (80/10/10), as DeepChem and OGB divide molecules"
    return Keys("given", because, given=scaffolds.largest_first(canonical).tolist(), group=group, stratum=stratum)


def profile(table: FrameTable, task: str, request: Request) -> Profile:
    """Atoms, copies (the same canonical SMILES) and values that are not known, of several targets."""
    if task == pairs.TASK:
        return pairs.profile(table)
    smiles = table.column("smiles")
    atoms = np.array([table.context["num_atoms"][each] for each in smiles])
    return Profile(int(smiles.duplicated().sum()), lengths={"heavy atoms": atoms})


def likeness(table: FrameTable, these: np.ndarray, those: np.ndarray, request: Request) -> Likeness:
    """Tanimoto similarity of ECFP4 fingerprints."""
    if request.task == pairs.TASK:
        return pairs.likeness(table, these, those)
    highest, position = scaffolds.nearest(table.column("smiles").tolist(), these, those)
    return Likeness("Tanimoto similarity of ECFP4 fingerprints", scaffolds.LIKE, highest, position)


def describe(train: FrameTable, task: str, request: Request) -> Facts:
    """Sizes, classes and what is unusual in the training rows."""
    if task == pairs.TASK:
        return pairs.describe(train)
    smiles, target = train.column("smiles"), train.target()
    atoms = np.array([train.context["num_atoms"][each] for each in smiles])
    columns = train.context["targets"]
    classes: tuple[str, ...] = ()
    if task == "classification":
        classes = class_names(target, f"target {train.target_name!r}")
    elif task == MULTILABEL:
        classes = label_names(target, str(train.target_name), columns)
    sizes = {
        "most_atoms": float(atoms.max()),
        "median_atoms": float(np.median(atoms)),
        "total_atoms": float(atoms.sum()),
    }
    if task == "classification":
        sizes["largest_share"] = largest_share(target)
    odd = train.context["oddities"]
    schema = {
        "smiles": train.context["smiles"],
        "id_column": train.context["id_column"],
        "targets": list(columns),
        "without_positions": sum(each is None for each in given(train)),
        "oddities": sorted({name for each in smiles if each in odd for name in odd[each]}),
    }
    return Facts("molecules", task, train.target_name, len(train), classes, sizes, schema)


def metrics(facts: Facts) -> tuple[Metric, ...]:
    """Two classes: ROC-AUC decides, as in MoleculeNet (Wu et al. 2018, table 3), and of several labels their mean; numbers:
    RMSE. More classes: accuracy, or macro-F1 where one class has over 80 % of the rows."""
    if facts.task == generated.TASK:
        return generated.metrics()
    if facts.task == MULTILABEL:
        return label_set_metrics(facts.classes, first="mean_auc", each=True)
    if facts.task == MULTIREGRESSION:
        return number_row_metrics(facts.schema["targets"])
    if not facts.classes:
        return regression_metrics("rmse")
    found = classification_metrics(facts.classes, imbalanced=facts.sizes["largest_share"] > IMBALANCED_SHARE)
    if len(facts.classes) > 2:
        return found
    return tuple(sorted(found, key=lambda metric: metric.name != "auc"))


def baselines(facts: Facts) -> tuple[Baseline, ...]:
    """Majority, mean or shares; then ECFP4 fingerprints with a random forest. What writes molecules: n-grams of tokens."""
    if facts.task == generated.TASK:
        return rival(1), rival(6)
    if facts.task == pairs.TASK:
        return pairs.baselines(facts)
    several = {MULTILABEL: lambda: shares(facts.classes), MULTIREGRESSION: means}
    return several.get(facts.task, lambda: trivial(facts.task))(), forest(facts)
