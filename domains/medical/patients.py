"""Which scans are of one patient: those with one value in a column, else in one folder, else of one name.

In a path below the folder that is read, `sub-12/ses-2/ct` and `sub-12_ses-2` belong to `sub-12`, `patient001_frame12` to
`patient001`, and a name that ends in a visit, session, scan, time point or slice (`p7_visit2`, `p7-slice031`), or in a date,
a side, `pre` or `post`, to what stands before it. Folders that speak of nobody are patients too where there are several with
a few scans each (`P0/week1`). Where all names would be one patient, or nothing is said, every scan is a patient of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pandas as pd

from domains.contract import Doubt
from domains.medical.volumes import stem
from domains.shared.groupings import joined
from domains.shared.roles import part_of
from trainers.errors import UsageError

_COLUMN = re.compile(
    r"(patients?|subjects?|participants?|donors?|animals?)[ _.-]*(id|ids|no|nr|num|number|code|key|name)?",
    re.IGNORECASE,
)
USUAL_COLUMNS = ("patient", "patient_id", "patientid", "PatientID", "subject", "subject_id")
"""To be read as text: patient 1e5 is not patient 100000."""
_BIDS = re.compile(r"^(?P<patient>sub-[A-Za-z0-9]+)(?=_|$)")
_OWNER = re.compile(
    r"^(?P<patient>(?:patient|participant|subject|subj|pat)[_-]?[A-Za-z]{0,3}\d+)(?=[_.-]|$)", re.IGNORECASE
)
_VISIT = re.compile(
    r"^(?P<patient>.+?)[_.-](?:(?:ses|session|visit|scan|slice|time|timepoint|tp|fu)[_-]?\d+(?:[_.-].*)?"
    r"|v\d+|(?:day|week|month|year)[_-]?\d+|baseline|follow[_-]?up|pre|post|left|right|[lr]|(?:19|20)\d{6})$",
    re.IGNORECASE,
)
_FEWEST, _MOST_SCANS = 3, 10
"""Folders that are to be patients, and scans in one of them on average: more are sites or years."""
BY_NAME, BY_FOLDER, NO_NAME = "the name of the file", "the folder", "(none)"


def patient_column(frame: pd.DataFrame) -> str | None:
    """The first column that is called like one of patients: PatientID, subject, participant_no."""
    return next((str(name) for name in frame.columns if _COLUMN.fullmatch(str(name).strip())), None)


def patients_of(paths: Sequence[str]) -> tuple[list[str], str]:
    """The patient of each scan, and what told them. paths: below the folder that is read."""
    places = [PurePosixPath(path.replace("\\", "/")) for path in paths]
    said = [_said(place) for place in places]
    names = [stem(place.name) for place in places]
    if len(set(names)) < len(names):  # a/ct and b/ct
        names = [stem(str(place)) for place in places]
    if None in said:
        level = _level(places)
        if level is not None:
            return [one or "/".join(place.parts[:level]) for one, place in zip(said, places, strict=True)], BY_FOLDER
        said = [one or name for one, name in zip(said, names, strict=True)]
    nobody = len(set(said)) == 1
    return (names if nobody else [str(one) for one in said]), BY_NAME


class Owners(NamedTuple):
    """The patient of each scan, what told them, and what to say of it."""

    patients: list[str]
    how: str
    notices: Sequence[str] = ()


def of_folder(names: Sequence[str], paths: Sequence[str], group: str | None, where: Path) -> Owners:
    """The patient of each case of a folder. group: a regular expression that finds it in a name or path.

    Raises UsageError for one that is none, or that does not match every case.
    """
    if group is None:
        return Owners(*patients_of(paths))
    try:
        pattern = re.compile(group)
    except re.error as error:
        raise UsageError(f"--group {group}: no regular expression ({error}).") from None
    found = [pattern.search(name) or pattern.search(f"/{path}") for name, path in zip(names, paths, strict=True)]
    missing = [name for name, match in zip(names, found, strict=True) if match is None]
    if missing:
        raise UsageError(
            f"{where}: --group {group}: in a folder this is a regular expression whose (first group's) match in the name or "
            f"path of a case is its patient, and {len(missing)} of {len(names)} do not match, such as {missing[0]!r}."
        )
    named = [match[1] if match.re.groups else match[0] for match in found if match is not None]
    return Owners(named, f"--group {group!r}")


def of_column(values: pd.Series, name: str) -> tuple[list[str], list[str]]:
    """The patient of each row by a column, and what to say: rows without one are one patient, so that none is torn."""
    texts = ["" if pd.isna(value) else str(value).strip() for value in values]
    num_empty = texts.count("")
    said = f"{num_empty:,} of {len(texts):,} rows have no value in column {name!r}, and are taken as one patient"
    return [text or NO_NAME for text in texts], [Doubt(said)] if num_empty else []


def with_headers(patients: Sequence[str], headers: Sequence[str]) -> tuple[list[str], list[str]]:
    """The patients, joined where the PatientID of DICOM headers is the same; and what to say.

    headers: of each scan, "" where it has none. One that all scans share tells nothing (ANONYMOUS) and is left aside.
    """
    known = set(headers) - {""}
    if len(known) < 2:
        shared = [
            Doubt(f"the PatientID of {len(headers)} scans is {name!r}: it tells no patients apart") for name in known
        ]
        return list(patients), list(shared) if len(headers) > 1 else []
    group = joined([patients, [header or f"row {row}" for row, header in enumerate(headers)]])
    names: dict[int, str] = {}
    for number, patient, header in zip(group.tolist(), patients, headers, strict=True):
        names[number] = names.get(number) or header or patient
    if len(names) == len(set(patients)):
        return list(patients), []
    return [names[number] for number in group.tolist()], [
        "scans with one PatientID in their DICOM headers are one patient's"
    ]


def _said(place: PurePosixPath) -> str | None:
    name = stem(place.name)
    for part in (*place.parts[:-1], name):
        if found := _BIDS.match(part) or _OWNER.match(part):
            return found["patient"]
    found = _VISIT.match(name)
    return found["patient"] if found else None


def _level(places: Sequence[PurePosixPath]) -> int | None:
    """How many folders down the patients are: the first level with several folders of a few scans, and not of one each."""
    depth = min((len(place.parts) - 1 for place in places), default=0)
    for level in range(1, depth + 1):
        folders = {place.parts[:level] for place in places}
        is_split = all(part_of(folder[-1]) for folder in folders)
        if not is_split and len(folders) >= _FEWEST and len(folders) < len(places) <= _MOST_SCANS * len(folders):
            return level
    return None
