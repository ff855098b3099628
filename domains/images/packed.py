"""Pictures inside Parquet files, or in tar shards beside their labels: laid out once, as files and a table of them.

Parquet: a column of bytes, or of objects with `bytes`, as the `datasets` library writes pictures; names of classes that it
notes in the file stand for their numbers. Tar shards: WebDataset's layout, where the files of a sample are called alike up to
the first point: `0001.jpg`, `0001.cls`, `0001.json` (https://github.com/webdataset/webdataset). One file, or a folder of them
and nothing else; folders or files whose names begin with train, valid or test say the parts.

What is ambiguous is refused: a name that comes twice, two pictures of a sample, labels that contradict each other, files with
other columns or classes than the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from domains.images.layout import is_junk, is_picture
from domains.shared.archives import SUFFIXES as ARCHIVES
from domains.shared.archives import check_archive, is_archive
from domains.shared.folders import cache_folder, made_once
from domains.shared.frames import FREE_UNPACKED_BYTES, MAX_UNPACK_RATIO, PARQUET_SUFFIXES, is_table, parquet_file
from domains.shared.roles import part_of
from trainers.errors import DataError

ROWS, ABOUT, PATH, LABEL = "rows.parquet", "rows.json", "path", "label"
_ROWS_AT_ONCE = 256
_FORMATS = {b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp", b"II*": ".tif", b"MM\0*": ".tif"}
_UNKNOWN = ".png"
"""Of bytes that are no picture, which is found and said when they are read like all others."""
_MOST_LABEL_BYTES = 1 << 20
_PLAIN = str | int | float


class Laid(NamedTuple):
    """table: a Parquet file with a column of paths, beside its pictures.   ids, places: of its rows, by the names that the
    packed files have for them.   parts: path -> "train", "valid", "test"; empty where no name says one."""

    table: Path
    ids: list[str]
    places: list[str]
    parts: dict[str, str]


class _Row(NamedTuple):
    """name: of the sample in its file.   content: of the picture, None where there is none.   columns: what else is known."""

    name: str
    content: bytes | None
    columns: dict[str, Any]


def laid_out(path: Path) -> Laid | None:
    """The files and the table of what is packed in `path`, below the cache ($ZOO_CACHE); None where it is nothing of this kind.

    Raises DataError for a file that is broken, refused or ambiguous.
    """
    sources = [path] if path.is_file() else list(_files(path))
    packed = [each for each in sources if _column_of_pictures(each) is not None]
    shards = [each for each in sources if _is_tar(each)]
    if path.is_file():
        shards = [each for each in shards if _has_labels_beside(each)]
    if not packed and (not shards or any(is_picture(each.name) for each in sources)):
        return None
    strange = [each for each in sources if each not in packed and each not in shards and _is_data(each)]
    if strange or (packed and shards):
        other = (strange or shards)[0]
        raise DataError(
            f"{path}: holds {(packed or shards)[0].name} with pictures inside and also {other.relative_to(path)}. "
            "Give one kind of file only."
        )
    _check_alike(packed)
    return _once(packed or shards, path if path.is_dir() else path.parent)


def _files(folder: Path) -> Iterator[Path]:
    """Every file below `folder` that is not junk, in order of name."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_junk(name))
        yield from (Path(place) / name for name in sorted(files) if not is_junk(name))


def _is_tar(path: Path) -> bool:
    return is_archive(path) and path.suffix.lower() != ".zip"


def _is_data(path: Path) -> bool:
    return is_picture(path.name) or is_table(path) or path.name.lower().endswith(ARCHIVES)


def _once(sources: Sequence[Path], root: Path) -> Laid:
    names = [source.relative_to(root).as_posix() for source in sources]

    def write(folder: Path) -> None:
        rows: list[dict[str, Any]] = []
        about: list[tuple[str, str, str]] = []
        for source, name in zip(sources, names, strict=True):
            room = max(FREE_UNPACKED_BYTES, MAX_UNPACK_RATIO * source.stat().st_size)
            for row in _rows_of(source):
                file = None if row.content is None else f"{len(rows):08d}{_suffix(row.content)}"
                if row.content is not None and file is not None:
                    room -= len(row.content)
                    if room < 0:
                        raise DataError(f"{source}: unpacks to over {MAX_UNPACK_RATIO} times its size, like a bomb.")
                    (folder / file).write_bytes(row.content)
                rows.append({PATH: file, **_renamed(row.columns)})
                about.append((row.name, f"{name} {row.name}", _part(name, row.name)))
        if not rows:
            raise DataError(f"{root}: there is no picture in {', '.join(names)}.")
        _write_rows(rows, folder / ROWS)
        (folder / ABOUT).write_text(json.dumps({"rows": about, "hashes": _hashes(folder)}))

    folder = cache_folder() / "laid-out" / _mark(sources, names)
    if folder.exists() and not _is_whole(folder):
        shutil.rmtree(folder)
    about = json.loads((made_once(folder, write) / ABOUT).read_text())["rows"]
    ids, places, parts = ([row[at] for row in about] for at in range(3))
    if len(set(ids)) < len(ids):
        ids = places
    given = dict(zip(_paths(folder / ROWS), parts, strict=True)) if {"train"} < set(parts) else {}
    return Laid(folder / ROWS, ids, places, {file: part for file, part in given.items() if file and part})


def _hashes(folder: Path) -> dict[str, str]:
    """Of every file by its name, but the one that they are kept in."""
    return {
        path.name: hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != ABOUT
    }


def _is_whole(folder: Path) -> bool:
    """Whether a folder of the cache is as it was written: pictures that changed places would be taken for others."""
    try:
        return bool(json.loads((folder / ABOUT).read_text())["hashes"] == _hashes(folder))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _mark(sources: Sequence[Path], names: Sequence[str]) -> str:
    total = hashlib.sha256()
    for source, name in zip(sources, names, strict=True):
        with source.open("rb") as file:
            total.update(os.fsencode(name) + hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:32]


def _part(source: str, sample: str) -> str:
    """Of the folders and files on the way to a sample the first whose name begins like a part's."""
    words = [re.split(r"[-_.]", step)[0] for step in (*source.split("/"), *sample.split("/")[:-1])]
    return next(filter(None, map(part_of, words)), "")


def _renamed(columns: Mapping[str, Any]) -> dict[str, Any]:
    """What is called like our column of paths has another name."""
    return {f"{name} (given)" if name == PATH else name: value for name, value in columns.items()}


def _write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame(list(rows))
    for name in frame.columns:
        # One type a column: what differs from row to row, and numbers beyond 64 bits, are text.
        kinds = {type(cell) for cell in frame[name].dropna()}
        if len(kinds) > 1 or any(isinstance(cell, int) and abs(cell) >= 1 << 63 for cell in frame[name].dropna()):
            frame[name] = [None if pd.isna(cell) else str(cell) for cell in frame[name]]
    frame.to_parquet(path, index=False)


def _paths(table: Path) -> list[str | None]:
    from pyarrow import parquet

    return list(parquet.read_table(table, columns=[PATH])[PATH].to_pylist())


def _suffix(content: bytes) -> str:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return ".webp"
    return next((suffix for start, suffix in _FORMATS.items() if content.startswith(start)), _UNKNOWN)


def _rows_of(source: Path) -> Iterator[_Row]:
    return _rows_of_shard(source) if _is_tar(source) else _rows_of_parquet(source)


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
    if pa.types.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _check_alike(sources: Sequence[Path]) -> None:
    """Raise DataError where a file names columns twice, or has other columns or classes than the first."""
    first: tuple[Any, Any] | None = None
    for source in sources:
        schema = parquet_file(source).schema_arrow
        twice = [name for name in schema.names if schema.names.count(name) > 1]
        if twice:
            raise DataError(f"{source}: two columns are called {twice[0]!r}. Give each a name of its own.")
        own = (sorted((field.name, str(field.type)) for field in schema), _names_of_classes(schema, source))
        if first is not None and own != first:
            raise DataError(
                f"{source}: has other columns, types or classes than {sources[0].name}. Write all files in the same way."
            )
        first = own


def _rows_of_parquet(path: Path) -> Iterator[_Row]:
    import pyarrow as pa

    file, column = parquet_file(path), _column_of_pictures(path)
    classes = _names_of_classes(file.schema_arrow, path)
    others = [field.name for field in file.schema_arrow if field.name != column and not pa.types.is_nested(field.type)]
    number = 0
    try:
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[column, *others]):
            for row in batch.to_pylist():
                cell = row.pop(column)
                content, given = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
                columns = {key: _named(value, classes.get(key), path, number) for key, value in row.items()}
                yield _Row(f"row {number}" if not given else str(given), content, columns)
                number += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: row {number:,} cannot be read ({str(error).splitlines()[0]}).") from None


def _names_of_classes(schema: Any, path: Path) -> dict[str, list[str]]:
    """Column -> names of its classes, as the `datasets` library notes them."""
    try:
        noted = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):  # no such note, or none of that form
        return {}
    features = noted.items() if isinstance(noted, dict) else ()
    found = {name: about["names"] for name, about in features if isinstance(about, dict) and _are_names(about)}
    for name, names in found.items():
        if len(set(names)) < len(names):
            raise DataError(f"{path}: two classes of column {name!r} have the same name. Give each its own.")
    return found


def _are_names(about: Mapping[str, Any]) -> bool:
    names = about.get("names")
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _named(cell: Any, names: list[str] | None, path: Path, number: int) -> Any:
    if names is None or not isinstance(cell, int) or cell == -1:  # -1: not labelled
        return None if names is not None and cell == -1 else cell
    if not 0 <= cell < len(names):
        raise DataError(f"{path}: row {number:,}: class {cell} is none of the {len(names)} that the file names.")
    return names[cell]


# --- tar shards --------------------------------------------------------------------------------------------------------


def _is_label(name: str) -> bool:
    return name.lower().endswith((".cls", ".json")) and not is_junk(name)


def _has_labels_beside(path: Path) -> bool:
    """Whether a sample of this archive has a picture and a label."""
    check_archive(path)
    keys: dict[str, set[bool]] = {}
    with tarfile.open(path) as bundle:
        for entry in bundle:
            name = entry.name.rsplit("/", 1)[-1]
            if entry.isreg() and (is_picture(name) or _is_label(name)):
                keys.setdefault(_key(entry.name), set()).add(is_picture(name))
    return any(len(found) == 2 for found in keys.values())


def _key(name: str) -> str:
    folder, _, file = name.rpartition("/")
    stem = file.split(".")[0]
    return f"{folder}/{stem}" if folder else stem


def _rows_of_shard(path: Path) -> Iterator[_Row]:
    """Samples in the order of their first file. Those with a label and no picture are rows without one."""
    check_archive(path)
    with tarfile.open(path) as bundle:
        samples: dict[str, dict[str, tarfile.TarInfo]] = {}
        for entry in bundle:
            file = entry.name.rsplit("/", 1)[-1]
            if entry.isreg() and (is_picture(file) or _is_label(file)):
                _join(samples.setdefault(_key(entry.name), {}), file, entry, path)
        for key, parts in samples.items():
            columns: dict[str, Any] = {}
            for name in filter(_is_label, parts):
                found = _label(name, _content(bundle, parts[name]), path)
                _add(columns, found, f"{path}: sample {_shown(key)!r}")
            picture = next((entry for name, entry in parts.items() if is_picture(name)), None)
            yield _Row(_shown(key), None if picture is None else _content(bundle, picture), columns)


def _join(parts: dict[str, tarfile.TarInfo], file: str, entry: tarfile.TarInfo, path: Path) -> None:
    if file in parts or (is_picture(file) and any(is_picture(other) for other in parts)):
        raise DataError(
            f"{path}: sample {_shown(_key(entry.name))!r} has {_shown(file)!r} and another file of that kind. The files of a "
            "sample are called alike up to the first point: give each sample one name and one picture."
        )
    if _is_label(file) and entry.size > _MOST_LABEL_BYTES:
        raise DataError(f"{path}: {_shown(entry.name)}: {entry.size:,} bytes are no label.")
    parts[file] = entry


def _content(bundle: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    reader: Any = bundle.extractfile(entry)
    return bytes(reader.read())


def _shown(name: str) -> str:
    """Names of files may hold bytes that are no text."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _add(columns: dict[str, Any], new: Mapping[str, Any], where: str) -> None:
    for name, value in new.items():
        if name in columns and str(columns[name]) != str(value):
            raise DataError(f"{where}: its files say {columns[name]!r} and {value!r} for {name!r}. Keep the right one.")
        columns[name] = value


def _label(name: str, content: bytes, path: Path) -> dict[str, Any]:
    """What a file beside a picture says: a class, or an object whose plain values are columns."""
    try:
        text = content.decode("utf-8").strip()
        if name.lower().endswith(".cls"):
            return {LABEL: text}
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: {_shown(name)} cannot be read ({str(error)[:100]}). Mend it and pack again."
        ) from None
    if not isinstance(found, dict):
        return {LABEL: found} if isinstance(found, _PLAIN) else {}
    return {key: value for key, value in found.items() if isinstance(value, _PLAIN)}
