"""Folders of data packed as tar or zip: looked through first, then unpacked once into the cache.

An archive comes from strangers. Members that lead out of the folder, links and devices are refused by name before a byte is
written, and so is what unpacks to far more than its size. Tar is unpacked through Python's `data` filter (PEP 706).
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from typing import Any, NamedTuple

from domains.shared.folders import cache_folder
from domains.shared.frames import FREE_UNPACKED_BYTES, MAX_UNPACK_RATIO
from trainers.errors import DataError

SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip")
MOST_MEMBERS = 5_000_000


class _Member(NamedTuple):
    """A file or folder of an archive; kind: "file", "folder", or what else it is, in words."""

    name: str
    size: int
    kind: str


def is_archive(path: Path) -> bool:
    """Whether the name says tar or zip."""
    return path.name.lower().endswith(SUFFIXES)


def unpacked(path: Path) -> Path:
    """The folder of an archive's files, below the cache ($ZOO_CACHE); where all lie in one folder, that one.

    The same bytes are unpacked once. Raises DataError for a member that would lie elsewhere, a link, a device, a bomb, an
    archive that is broken.
    """
    with path.open("rb") as file:
        mark = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    folder = cache_folder() / "unpacked" / mark
    with _told(path):
        sizes = _checked(path)
        if not _holds(folder, sizes):
            _unpack(path, folder)
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() and not _is_class_folder(inside[0]) else folder


def check_archive(path: Path) -> None:
    """Raise DataError for an archive that `unpacked` would refuse, without unpacking it."""
    with _told(path):
        _checked(path)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}). Pack or fetch it again, or give the folder.") from None


def _is_class_folder(folder: Path) -> bool:
    """Whether a lone folder holds files itself, so that its name may mean something."""
    return any(path.is_file() for path in folder.iterdir())


def _checked(path: Path) -> dict[str, int]:
    """Bytes of every file by name. Raises DataError for the first member that is refused."""
    limit = max(FREE_UNPACKED_BYTES, MAX_UNPACK_RATIO * path.stat().st_size)
    sizes: dict[str, int] = {}
    total = 0
    for number, member in enumerate(_members(path)):
        if problem := _problem(member):
            raise DataError(
                f"{path}: member {member.name!r} {problem}. Nothing was unpacked. Give an archive of files only."
            )
        total += member.size
        if total > limit or number >= MOST_MEMBERS:
            raise DataError(f"{path}: unpacks to more than {limit:,} bytes, like a bomb. Unpack it yourself.")
        if member.kind == "file":
            sizes[str(PurePosixPath(member.name))] = member.size
    if not sizes:
        raise DataError(f"{path}: there is no file in this archive.")
    return sizes


def _members(path: Path) -> Iterator[_Member]:
    if path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path) as packed:
            for info in packed.infolist():
                is_link = (info.external_attr >> 16) & 0o170000 == 0o120000
                kind = "is a link" if is_link else "folder" if info.is_dir() else "file"
                yield _Member(info.filename, info.file_size, kind)
        return
    with tarfile.open(path) as bundle:
        for entry in bundle:
            odd = "is a link" if entry.issym() or entry.islnk() else "is no file"
            yield _Member(entry.name, entry.size, "file" if entry.isreg() else "folder" if entry.isdir() else odd)
        _check_end(bundle)


def _check_end(bundle: tarfile.TarFile) -> None:
    """Raise TarError where a tar does not end as it should: Python takes whatever is no header for the end."""
    file: Any = bundle.fileobj
    file.seek(bundle.offset)
    first = file.read(tarfile.BLOCKSIZE)
    if len(first) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError(f"it is cut off at byte {bundle.offset:,}")
    rest = first
    while rest:
        if rest.strip(b"\0"):
            raise tarfile.ReadError(f"after byte {bundle.offset:,} it is damaged, or another archive follows")
        rest = file.read(1 << 20)


def _problem(member: _Member) -> str:
    parts = PurePosixPath(member.name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or (parts.parts and parts.parts[0].endswith(":")):
        return "leads out of the folder"
    return "" if member.kind in ("file", "folder") else member.kind


def _holds(folder: Path, sizes: dict[str, int]) -> bool:
    """Whether the files lie there already, as large as they are in the archive."""
    return folder.is_dir() and all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items()
    )


def _unpack(path: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(mkdtemp(prefix=".unpacking-", dir=folder.parent))
    try:
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as packed:
                packed.extractall(unfinished)
        else:
            with tarfile.open(path) as bundle:
                bundle.extractall(unfinished, filter="data")
        if folder.exists():  # damaged, or another process was first
            shutil.rmtree(folder)
        unfinished.rename(folder)  # whole or not at all
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
