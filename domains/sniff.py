"""Which data type a file or folder is, and how many rows it has, from a look at its head. Standard library only.

`zoo recommend --data` uses it; the readers of the data types decide for themselves what they accept.
"""

import csv
import gzip
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from domains.images.mask_folders import MASK_COLUMNS, num_with_masks
from domains.shared.paths import is_hidden
from trainers.errors import DataError

PICTURES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"}
TAGGED = {".conll", ".conll2003", ".iob", ".iob2", ".bio", ".bioes"}
_HEAD_ROWS = 200
_LONGEST_CELL = 10_000
_LONGEST_LINE = 1 << 26
"""Characters that are read at once: a packed file without a line end may be of any length."""
_RESIDUES = re.compile(r"[ACDEFGHIKLMNPQRSTVWYXBZUOJ*]{10,}", re.IGNORECASE)
_BASES = re.compile(r"[ACGTUN]{10,}", re.IGNORECASE)
_SMILES = re.compile(r"(?=.*[BCNOPSFIbcnops])[A-Za-z0-9@+\-\[\]()=#$/\\.%:*]+")
_SMILES_NAMES = {"smiles", "canonical_smiles", "mol", "smi"}
_FEW_CLASSES = 20
_DICOM = (".dcm", ".ima")
_CHANNEL = re.compile(r"_\d{4}(?=\.nii(\.gz)?$)", re.IGNORECASE)


@dataclass(frozen=True)
class Sniffed:
    """type: data type. num_rows: exact for files that are read through. task: from the target, else None.

    num_groups: different values of the column that was named with --group.   has_positions: atoms have three coordinates.
    """

    type: str
    num_rows: int
    task: str | None
    because: str
    num_groups: int | None = None
    has_positions: bool | None = None


def sniff(path: Path, *, target: str | None = None, group: str | None = None) -> Sniffed:
    """What `path` seems to be. Raises DataError when it is missing, empty or nothing known, or has no such column."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder.")
    found = _folder(path) if path.is_dir() else _file(path, target, group)
    if group is not None and found.num_groups is None:
        raise DataError(f"{path}: --group names a column of a table or JSON lines. Say how many groups: --groups 120")
    if not found.num_rows:
        raise DataError(f"{path}: there is no row in it ({found.because}).")
    return found


def _file(path: Path, target: str | None, group: str | None) -> Sniffed:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    last = suffixes[-1] if suffixes else ""
    if last in {".fasta", ".fa", ".faa", ".fas", ".fna"}:
        return _fasta(path)
    if last == ".sdf":
        return _sdf(path, target)
    if last in {".smi", ".ism"}:
        return Sniffed("molecules", sum(1 for line in _lines(path) if line.strip()), None, "a SMILES a line, no labels")
    if last == ".parquet":
        return _parquet(path)
    if last in {".jsonl", ".ndjson"}:
        return _json_lines(path, target, group)
    if last in TAGGED:
        return Sniffed("text", _num_sentences(path), "ner", "one word a line, blank lines between sentences")
    if last == ".txt":
        return Sniffed("text", sum(1 for line in _lines(path) if line.strip()), None, f"{last} file, one line a row")
    if last in {".csv", ".tsv"}:
        return _table(path, target, group)
    raise DataError(f"{path}: cannot tell what {last or 'a file without a suffix'} holds. Say --type and --n.")


def _folder(path: Path) -> Sniffed:
    files = [file for file in path.rglob("*") if file.is_file() and not is_hidden(file.relative_to(path))]
    if (path / "dataset.json").exists() or any(_is_scan(file) for file in files):
        return _scans(path, files)
    tagged = [file for file in files if file.suffix.lower() in TAGGED]
    if len(tagged) * 2 > len(files):
        num_sentences = sum(map(_num_sentences, tagged))
        return Sniffed("text", num_sentences, "ner", f"folder with {len(tagged)} files of one word a line")
    for kind, suffixes in (("images", PICTURES), ("audio", {".wav", ".flac", ".mp3"}), ("video", {".mp4", ".avi"})):
        found = [file for file in files if file.suffix.lower() in suffixes]
        if len(found) * 2 > len(files):
            if num := num_with_masks([file.relative_to(path).as_posix() for file in found], str(path)):
                return Sniffed(kind, num, "segmentation", f"folder with {num} pictures and a mask of each")
            classes = {file.parent for file in found}
            task = "classification" if len(classes) > 1 else None
            return Sniffed(kind, len(found), task, f"folder with {len(found)} {kind} files in {len(classes)} folders")
    raise DataError(f"{path}: a folder with no pictures, sounds, videos, scans or tagged words. Say --type and --n.")


def _is_scan(file: Path) -> bool:
    return file.name.lower().endswith((".nii", ".nii.gz", *_DICOM))


def _scans(path: Path, files: Sequence[Path]) -> Sniffed:
    """Cases of a folder: NIfTI files, channels (x_0000, x_0001) as one, and folders of DICOM; masks and imagesTs are none."""
    places = [file.parent if file.suffix.lower() in _DICOM else file for file in files if _is_scan(file)]
    below = {place.relative_to(path) for place in places}
    masks = {each for each in below if any(part.lower().startswith(("label", "mask")) for part in each.parts[:-1])}
    scans = [each for each in below - masks if each.parts[:1] != ("imagesTs",)]
    is_named_alike = bool({each.name for each in masks} & {each.name for each in scans})
    cases = {each.as_posix() if is_named_alike else _CHANNEL.sub("", each.as_posix()) for each in scans}
    is_classes = len({case.split("/")[0] for case in cases}) > 1 and all("/" in case for case in cases)
    task = "segmentation" if masks else "classification" if is_classes else None
    because = f"folder of {'DICOM' if any(place.is_dir() for place in places) else 'NIfTI'} scans"
    return Sniffed("medical", len(cases), task, f"{because}{' with masks' if masks else ''}")


def _num_sentences(path: Path) -> int:
    """Stretches of lines between blank ones."""
    num, before = 0, False
    for line in _lines(path):
        num, before = num + (bool(line.strip()) and not before), bool(line.strip())
    return num


def _fasta(path: Path) -> Sniffed:
    num_rows, head = 0, []
    for at, line in enumerate(_lines(path)):
        is_header = line.startswith(">")
        num_rows += is_header
        if at < 2 * _HEAD_ROWS and not is_header:
            head.append(line.strip()[:_LONGEST_CELL])
    letters = "".join(head)
    kind = "genomics" if letters and _BASES.fullmatch(letters) else "proteins"
    return Sniffed(kind, num_rows, None, f"FASTA file of {'nucleotides' if kind == 'genomics' else 'residues'}")


def _sdf(path: Path, target: str | None) -> Sniffed:
    """Records end with $$$$; the second line of a molfile says "3D" in its 21st letter, and a property's value follows its
    name. Source: Dalby et al. 1992, doi 10.1021/ci00007a012."""
    num_rows, has_positions, is_value, values = 0, False, False, set[str]()
    for at, line in enumerate(_lines(path)):
        has_positions |= at == 1 and line[20:22] == "3D"
        if is_value:
            values.add(line.strip())
        is_value = target is not None and line.startswith(">") and f"<{target}>" in line
        num_rows += line.startswith("$$$$")
    if target is not None and not values:
        raise DataError(f"{path}: no record has a property {target!r}.")
    because = "SDF file with positions in space" if has_positions else "SDF file"
    task = _task_of(values) if target else None
    return Sniffed("molecules", num_rows, task, because, has_positions=has_positions or None)


def _parquet(path: Path) -> Sniffed:
    try:
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            f"{path}: Parquet needs pyarrow (pip install 'domain-model-zoo[data]'), or say --type and --n."
        ) from None
    try:
        return Sniffed("tabular", parquet.ParquetFile(path).metadata.num_rows, None, "Parquet file")
    except (OSError, ValueError) as error:  # pyarrow's own errors are both
        raise DataError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]}).") from None


def _json_lines(path: Path, target: str | None, group: str | None) -> Sniffed:
    """Text, as that is what JSON lines hold; the task from the target's values."""
    num_rows, values = 0, {name: set[str]() for name in (target, group) if name is not None}
    for line in _lines(path):
        num_rows += bool(line.strip())
        if values and line.strip():
            with suppress(ValueError, AttributeError):
                row = json.loads(line)
                for name, found in values.items():
                    found.add(str(row.get(name, "")))
    for name, found in values.items():
        if found <= {""}:
            raise DataError(f"{path}: no line has a key {name!r}.")
    return Sniffed("text", num_rows, *_known(values, target, "JSON lines, one object a row", group))


def _table(path: Path, target: str | None, group: str | None) -> Sniffed:
    rows = _csv_rows(path)
    header = next(rows, None)
    if not header:
        raise DataError(f"{path}: the file is empty.")
    # Several targets are labels, or numbers, of one row.
    targets = [target] if target is None or target in header else target.split(",")
    named = [name for name in (*targets, group) if name is not None]
    for name in named:
        if name not in header:
            raise DataError(f"{path}: no column {name!r}. Columns: {', '.join(header)}.")
    head, num_rows = [], 0
    values = {name: set[str]() for name in named}
    for row in rows:
        num_rows += 1
        if num_rows <= _HEAD_ROWS:
            head.append(row)
        for name, found in values.items():
            if len(row) > header.index(name):
                found.add(row[header.index(name)])
    columns = {name: [row[k] for row in head if len(row) > k] for k, name in enumerate(header)}
    kind, because = _kind_of(columns, targets)
    pictures = [name.lower() for name, cells in columns.items() if _are_pictures(cells)]
    if kind == "images" and len(pictures) > 1 and set(pictures) & {*MASK_COLUMNS, str(target).lower()}:
        because = f"{because}, and others masks"
        return Sniffed(kind, num_rows, "segmentation", because, None if group is None else len(values[group]))
    if len(targets) > 1:
        tasks = {_task_of(values[name]) for name in targets if name is not None}
        task = "multilabel" if tasks == {"classification"} else "multiregression"
        return Sniffed(kind, num_rows, task, because, None if group is None else len(values[group]))
    return Sniffed(kind, num_rows, *_known(values, target, because, group))


def _known(
    values: dict[str, set[str]], target: str | None, because: str, group: str | None
) -> tuple[str | None, str, int | None]:
    """The last fields of `Sniffed`: what the columns' values tell."""
    task = None if target is None else _task_of(values[target])
    return task, because, None if group is None else len(values[group])


def _kind_of(columns: dict[str, list[str]], targets: Iterable[str | None]) -> tuple[str, str]:
    for name, cells in columns.items():
        filled = [cell.strip() for cell in cells if cell.strip()]
        if name in targets or not filled:
            continue
        if _mostly(_BASES.fullmatch, filled):
            return "genomics", f"column {name!r} holds nucleotide sequences"
        if _mostly(_RESIDUES.fullmatch, filled):
            return "proteins", f"column {name!r} holds amino-acid sequences"
        if name.lower() in _SMILES_NAMES and _mostly(_SMILES.fullmatch, filled):
            return "molecules", f"column {name!r} holds SMILES"
        if _are_pictures(filled):
            return "images", f"column {name!r} holds picture files"
        if sum(cell.count(" ") for cell in filled) > 8 * len(filled):
            return "text", f"column {name!r} holds sentences"
    return "tabular", "a table of numbers and categories"


def _are_pictures(cells: list[str]) -> bool:
    return bool(cells) and _mostly(lambda cell: Path(cell).suffix.lower() in PICTURES, cells)


def _mostly(test: object, cells: list[str]) -> bool:
    return sum(bool(test(cell)) for cell in cells) >= 0.9 * len(cells)  # type: ignore[operator]


def _task_of(values: set[str]) -> str:
    numbers = []
    for value in values - {"", "NA", "NaN", "?"}:
        try:
            numbers.append(float(value))
        except ValueError:
            return "classification"
    whole = all(number == int(number) for number in numbers)
    return "classification" if whole and len(numbers) <= _FEW_CLASSES else "regression"


def _csv_rows(path: Path) -> Iterator[list[str]]:
    lines = (line.replace("\0", "") for line in _lines(path))
    first = next(lines, "")
    separator = max(",;\t|", key=first.count)
    return csv.reader(_chained(first, lines), delimiter=separator)


def _chained(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    yield from rest


def _lines(path: Path) -> Iterator[str]:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with suppress(UnicodeDecodeError), opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file:
        while line := file.readline(_LONGEST_LINE):
            yield line
