"""BED intervals cut out of a reference genome.

The format: zero-based starts, ends that are not included, tabs, three to twelve columns of fixed meaning (UCSC genome
browser, "BED format"; GA4GH BED v1.0). Further columns are the user's own; a line "#chrom start end ..." names them all.
A stretch of the minus strand is read in its own direction.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from domains.contract import BadRow
from domains.genomics.bases import reverse_complement
from domains.shared.fasta import plain_lines
from domains.shared.sequences import Raw
from trainers.errors import DataError, MissingError, did_you_mean

STANDARD = ("chrom", "start", "end", "name", "score", "strand")
CLUSTER = "overlapping intervals"
"""The column that numbers stretches of overlapping intervals."""
_NO_ROWS = ("track", "browser", "#")
_STRANDS, _FEWEST_COLUMNS = ("+", "-", "."), 3


def is_bed(path: Path) -> bool:
    """Whether the name says BED."""
    names = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return names.suffix.lower() == ".bed"


def read_bed(path: Path, reference: str | None) -> Raw:
    """Every interval in the order of the file, with its sequence; places the reference has not are bad rows.

    Raises DataError without a reference, for a file without intervals, and where no chromosome is in the reference.
    """
    if reference is None:
        raise DataError(f"{path}: BED holds places, no sequences. Name the genome they are in: --reference GENOME.fa")
    lines = [(number, line) for number, line in enumerate(plain_lines(path), 1) if line.strip()]
    rows = [(number, line.split("\t")) for number, line in lines if not line.startswith(_NO_ROWS)]
    if not rows:
        raise DataError(f"{path}: there is no interval in it. A line is chromosome, start and end with tabs between.")
    width = max(len(cells) for _, cells in rows)
    if width < _FEWEST_COLUMNS:
        raise DataError(
            f"{path} line {rows[0][0]}: {rows[0][1][0][:60]!r} is no interval. A line is chromosome, start and end with tabs "
            "between; spaces do not count."
        )
    names = _names(path, [line for _, line in lines], width)
    frame = pd.DataFrame([cells + [None] * (len(names) - len(cells)) for _, cells in rows], columns=names)
    places = [f"{path.name} line {number}" for number, _ in rows]
    return _with_sequences(frame, places, _Genome(Path(reference)), path)


def overlap_clusters(chrom: Sequence[str], start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """(rows,) equal for intervals that overlap, or that a chain of overlapping ones joins."""
    order = np.lexsort((start, np.asarray(chrom, str)))
    found, number, reach, last = np.zeros(len(order), np.int64), -1, 0, None
    for row in order:
        if chrom[row] != last or start[row] >= reach:
            number, reach, last = number + 1, 0, chrom[row]
        reach, found[row] = max(reach, int(end[row])), number
    return found


def _names(path: Path, lines: Sequence[str], num_columns: int) -> list[str]:
    """Of the columns: as a line that begins with # names them, else the standard ones and column7 ..."""
    for line in lines:
        named = line.lstrip("#").strip().split("\t")
        if line.startswith("#") and len(named) == num_columns:
            if len(set(named)) < len(named):
                raise DataError(f"{path}: two columns of the line {line!r} have the same name.")
            return [*STANDARD[:3], *named[3:]]
    return [STANDARD[at] if at < len(STANDARD) else f"column{at + 1}" for at in range(num_columns)]


def _with_sequences(frame: pd.DataFrame, places: list[str], genome: _Genome, path: Path) -> Raw:
    start, end = (pd.to_numeric(frame[name], errors="coerce") for name in STANDARD[1:3])
    bad, texts = [], []
    with genome:
        for at, chrom in enumerate(frame["chrom"]):
            text, reason = genome.stretch(str(chrom), start.iloc[at], end.iloc[at])
            texts.append(reverse_complement(text.upper()) if _is_minus(frame, at) else text)
            reason = reason or _strange_strand(frame, at)
            bad += [BadRow(at, places[at], reason)] if reason else []
        if len(bad) == len(frame):
            raise DataError(f"{path}: no interval can be read. The first: {bad[0].place}: {bad[0].reason}")
    whole = [values.fillna(-1).to_numpy(np.int64) for values in (start, end)]
    cluster = overlap_clusters(frame["chrom"].astype(str).tolist(), *whole)
    own = frame.drop(columns=[name for name in STANDARD[1:3] if name in frame])
    numbers = {str(name): _numbers(own[name]) for name in own if name not in (STANDARD[0], STANDARD[3], STANDARD[5])}
    region = [_region(frame, at) for at in range(len(frame))]
    made = own.assign(**numbers, start=whole[0], end=whole[1], sequence=texts, region=region)
    made[CLUSTER] = cluster
    return Raw(made, "sequence", "region" if made["region"].is_unique else None, places, bad)


def _is_minus(frame: pd.DataFrame, at: int) -> bool:
    return "strand" in frame and frame["strand"].iloc[at] == "-"


def _strange_strand(frame: pd.DataFrame, at: int) -> str:
    strand = frame["strand"].iloc[at] if "strand" in frame else None
    return "" if strand in (None, "", *_STRANDS) else f"strand {strand!r}: BED has {', '.join(_STRANDS)}"


def _region(frame: pd.DataFrame, at: int) -> str:
    row = frame.iloc[at]
    strand = f"({row['strand']})" if row.get("strand") in ("+", "-") else ""
    return f"{row['chrom']}:{row['start']}-{row['end']}{strand}"


def _numbers(values: pd.Series) -> pd.Series:
    """As numbers where all of them are."""
    found = pd.to_numeric(values, errors="coerce")
    return found if bool((found.notna() == values.notna()).all()) and bool(found.notna().any()) else values


class _Genome:
    """A FASTA file of chromosomes, read by place. Its index is kept in memory's stead in a folder that goes again, unless
    one lies beside the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: Any = None
        self._sizes: Mapping[str, int] = {}

    def __enter__(self) -> _Genome:
        try:
            from pyfaidx import Fasta, FastaIndexingError, UnsupportedCompressionFormat
        except ModuleNotFoundError as error:
            raise MissingError(
                f"Package {error.name!r} is not installed. Install it with: pip install 'domain-model-zoo[genomics]'"
            ) from None
        if not self.path.is_file():
            raise DataError(f"--reference {self.path}: no such file.")
        self._folder = tempfile.TemporaryDirectory()
        beside = self.path.with_name(f"{self.path.name}.fai")
        # An index older than its file may be of another: it would cut other bases out in silence.
        is_fresh = beside.is_file() and beside.stat().st_mtime >= self.path.stat().st_mtime
        index = beside if is_fresh else Path(self._folder.name) / beside.name
        try:
            self._open = Fasta(str(self.path), indexname=str(index), as_raw=True, rebuild=False)
        except (FastaIndexingError, UnsupportedCompressionFormat, ValueError, OSError) as error:
            self._folder.cleanup()
            raise DataError(
                f"--reference {self.path}: not readable as FASTA ({error}). It must be plain text or packed by bgzip."
            ) from None
        self._sizes = {name: len(self._open[name]) for name in self._open.keys()}  # noqa: SIM118 - no mapping
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._folder.cleanup()

    def stretch(self, chrom: str, start: float, end: float) -> tuple[str, str]:
        """(the bases from start to before end, what is wrong with the place or "")."""
        if chrom not in self._sizes:
            return "", f"chromosome {chrom!r} is not in {self.path.name}.{self._called_otherwise(chrom)}"
        if not (start == start // 1 and end == end // 1):  # also where one is no number
            return "", "start and end must be whole numbers"
        if not 0 <= start < end:
            return "", f"start {start:.0f} and end {end:.0f}: BED counts from 0, and the end lies behind the start"
        if end > self._sizes[chrom]:
            return "", f"end {end:.0f} lies beyond {chrom}, which has {self._sizes[chrom]:,} bases"
        return str(self._open[chrom][int(start) : int(end)]), ""

    def _called_otherwise(self, chrom: str) -> str:
        other = chrom.removeprefix("chr") if chrom.startswith("chr") else f"chr{chrom}"
        return f" It is called {other!r} there." if other in self._sizes else did_you_mean(chrom, self._sizes)
