"""Pictures inside Parquet files, or in tar shards beside their labels: laid out once, as files and a table of them.

Parquet: a column of bytes, or of objects with `bytes`, as the `datasets` library writes pictures; names of classes that it
notes in the file stand for their numbers. Tar shards: WebDataset's layout, where files of one name but for what follows its
first point belong together: `0001.jpg`, `0001.cls`, `0001.json` (https://github.com/webdataset/webdataset). One file, or a
folder of them; names that begin with train, valid or test say the parts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from domains.images.layout import PARTS, is_junk, is_picture
from domains.shared.archives import is_archive, unpacked
from domains.shared.folders import cache_folder, made_once
from domains.shared.frames import PARQUET_SUFFIXES, parquet_file
from trainers.errors import DataError

ROWS, PATH, LABEL = "rows.parquet", "path", "label"
_ROWS_AT_ONCE = 256
_FORMATS = {b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp", b"II*": ".tif", b"MM\0*": ".tif"}
_UNKNOWN = ".png"
"""Of bytes that are no picture, which is found and said when they are read like all others."""


class Laid(NamedTuple):
    """table: a Parquet file with a column of paths, beside its pictures.   parts: path -> "train", "valid", "test"; empty
    where the names of the files say none."""

    table: Path
    parts: dict[str, str]


def laid_out(path: Path) -> Laid | None:
    """The files and the table of what is packed in `path`, below the cache ($ZOO_CACHE); None where it is nothing of this kind.

    Raises DataError for a file that is broken, refused, or holds several columns of pictures.
    """
    inside = [path] if path.is_file() else sorted(each for place in (path, path / "data") for each in _files(place))
    packed = [each for each in inside if _column_of_pictures(each) is not None]
    shards = [each for each in inside if is_archive(each)]
    if packed:
        return _once(packed, _lay_parquet)
    if shards and all(_has_labels_beside(unpacked(shard)) for shard in shards):
        return _once(shards, _lay_shard)
    return None


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (each for each in folder.iterdir() if each.is_file() and not is_junk(each.name))


def _once(sources: Sequence[Path], lay: Any) -> Laid:
    """Lay out every source in a folder of its own where there are several, and write the table of all."""
    several, parts = len(sources) > 1, _parts(sources)

    def write(folder: Path) -> None:
        rows: list[dict[str, Any]] = []
        for source in sources:
            place = folder / _stem(source) if several else folder
            place.mkdir(exist_ok=True)
            found = lay(source, place)
            rows += [{**row, PATH: row[PATH] and (place / row[PATH]).relative_to(folder).as_posix()} for row in found]
        _write_rows(rows, folder / ROWS)

    table = made_once(cache_folder() / "laid-out" / _mark(sources), write) / ROWS
    given = {stem: part for stem, part in parts.items() if several}
    files = _paths(table) if given else []
    return Laid(table, {file: given[file.split("/")[0]] for file in files if file.split("/")[0] in given})


def _mark(sources: Sequence[Path]) -> str:
    total = hashlib.sha256()
    for source in sources:
        with source.open("rb") as file:
            total.update(source.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:32]


def _stem(source: Path) -> str:
    return source.name.split(".")[0]


def _parts(sources: Sequence[Path]) -> dict[str, str]:
    """The part of each source by its stem, where there is one to learn from and another."""
    first = {_stem(source): re.split(r"[-_.]", source.name.lower())[0] for source in sources}
    found = {stem: PARTS[word] for stem, word in first.items() if word in PARTS}
    return found if "train" in found.values() and len(set(found.values())) > 1 else {}


def _write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame(list(rows))
    # One type a column: what differs from row to row is text.
    mixed = [name for name in frame.columns if len({type(cell) for cell in frame[name].dropna()}) > 1]
    frame.astype(dict.fromkeys(mixed, str)).to_parquet(path, index=False)


def _paths(table: Path) -> list[str]:
    from pyarrow import parquet

    return [str(cell) for cell in parquet.read_table(table, columns=[PATH])[PATH].to_pylist() if cell]


# --- Parquet -----------------------------------------------------------------------------------------------------------


def _column_of_pictures(path: Path) -> str | None:
    """The column that holds bytes; None where none does, and of other files."""
    if path.suffix.lower() not in PARQUET_SUFFIXES:
        return None
    found = [field.name for field in parquet_file(path).schema_arrow if _holds_bytes(field.type)]
    if len(found) > 1:
        raise DataError(f"{path}: columns {', '.join(found)} all hold bytes. Keep the one with the pictures.")
    return found[0] if found else None


def _holds_bytes(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and _holds_bytes(field.type) for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _lay_parquet(path: Path, folder: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    file, column = parquet_file(path), _column_of_pictures(path)
    classes = _names_of_classes(file.schema_arrow)
    others = [field.name for field in file.schema_arrow if field.name != column and not pa.types.is_nested(field.type)]
    number = 0
    try:
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[column, *others]):
            for row in batch.to_pylist():
                name = _written(row.pop(column), folder, number)
                yield {PATH: name, **{key: _named(cell, classes.get(key)) for key, cell in row.items() if key != PATH}}
                number += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: row {number:,} cannot be read ({str(error).splitlines()[0]}).") from None


def _written(cell: Any, folder: Path, number: int) -> str | None:
    """The name of the file that a cell's bytes went into; None of a cell without."""
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if content is None:
        return None
    name = f"{number:08d}{_suffix(content)}"
    (folder / name).write_bytes(content)
    return name


def _suffix(content: bytes) -> str:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return ".webp"
    return next((suffix for start, suffix in _FORMATS.items() if content.startswith(start)), _UNKNOWN)


def _names_of_classes(schema: Any) -> dict[str, list[str]]:
    """Column -> names of its classes, as the `datasets` library notes them."""
    try:
        noted = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        found = {name: list(map(str, about["names"])) for name, about in noted.items() if "names" in about}
    except (KeyError, TypeError, ValueError):  # no such note, or none of that form
        return {}
    return found


def _named(cell: Any, names: list[str] | None) -> Any:
    if names is None or not isinstance(cell, int):
        return cell
    return names[cell] if 0 <= cell < len(names) else None  # -1: not labelled


# --- tar shards --------------------------------------------------------------------------------------------------------


def _has_labels_beside(folder: Path) -> bool:
    return any(any(_is_label(name) for name in names) for _, names in _samples(folder))


def _is_label(name: str) -> bool:
    return name.lower().endswith((".cls", ".json")) and not is_junk(name)


def _samples(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """The files of each sample, in order: those of one folder that are called alike up to the first point."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        together: dict[str, list[str]] = {}
        for name in sorted(files):
            together.setdefault(name.split(".")[0], []).append(name)
        for names in together.values():
            if any(is_picture(name) for name in names):
                yield Path(place), names


def _lay_shard(path: Path, folder: Path) -> Iterator[dict[str, Any]]:
    root = unpacked(path)
    for place, names in _samples(root):
        picture = next(name for name in names if is_picture(name))
        file = (place / picture).relative_to(root)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        _link(place / picture, folder / file)
        row: dict[str, Any] = {PATH: file.as_posix()}
        for name in filter(_is_label, names):
            row |= _label(place / name)
        yield row


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _label(path: Path) -> dict[str, Any]:
    """What a file beside a picture says: a class, or an object whose plain values are columns."""
    try:
        text = path.read_text("utf-8").strip()
        if path.suffix.lower() == ".cls":
            return {LABEL: text}
        found = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path.name}: cannot be read ({error}). Mend it and pack the shard again.") from None
    if not isinstance(found, dict):
        return {LABEL: found if isinstance(found, str | int | float) else None}
    return {name: value for name, value in found.items() if isinstance(value, str | int | float) and name != PATH}
