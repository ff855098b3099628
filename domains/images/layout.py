"""Which pictures a folder holds, and what the names of its folders say: class, or given part. Nothing is opened here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from domains.contract import Doubt
from domains.shared.pictures import SUFFIXES
from domains.shared.roles import part_of
from trainers.errors import DataError

_JUNK_NAMES = ("thumbs.db", "desktop.ini", "__macosx", "@eadir", "icon\r")
_MOST_NAMED = 50


@dataclass(frozen=True)
class Found:
    """One picture. file: path below the root, with slashes.   label: folder name, None outside every class folder.
    part: "train", "valid", "test" as laid out, or ""."""

    file: str
    label: str | None = None
    part: str = ""


@dataclass
class Listing:
    """The pictures of a folder in a fixed order, and every path that was passed over."""

    pictures: list[Found] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def is_junk(name: str) -> bool:
    """Whether a file or folder is hidden or left behind by a system: .DS_Store, ._x.png, Thumbs.db, __MACOSX."""
    return name.startswith(".") or name.lower() in _JUNK_NAMES


def is_picture(name: str) -> bool:
    """Whether the name ends like a picture's; case does not matter."""
    return not is_junk(name) and name.lower().endswith(SUFFIXES)


def any_depth(root: Path) -> Listing:
    """Every picture below `root`, its folders without meaning: what `predict` reads."""
    listing = Listing()
    listing.pictures = [Found(file) for file in _pictures(root, listing)]
    listing.notices += _about_ignored(listing.ignored)
    return listing


def labelled(root: Path) -> Listing:
    """Every picture below `root` with its class, and its part where there is a folder `train`.

    The class is the NAME of the folder, at whatever position it comes and whichever classes another part lacks.
    """
    listing, by_part = Listing(), has_parts(root)
    skipped: dict[str, int] = {}
    for file in _pictures(root, listing):
        found = _with_part(file) if by_part else _with_class(file, file.split("/"))
        if by_part and (not found.part or (found.label is None and found.part != "train")):
            top = file.split("/")[0] if "/" in file else ""
            skipped[top] = skipped.get(top, 0) + 1
        else:
            listing.pictures.append(found)
    for name, count in sorted(skipped.items()):
        why = "it has no class folders" if part_of(name) else "it is none of train, valid, test"
        place = f"under {name}/" if name else "outside of every folder"
        listing.notices.append(f"pictures {place} are not used ({count}){f': {why}' if name else ''}")
    listing.notices += _inner_folders(listing.pictures, by_part)
    listing.notices += [*_empty_classes(root, listing, by_part), *_about_ignored(listing.ignored)]
    return listing


def refuse_parts_as_classes(root: Path, pictures: list[Found]) -> None:
    """Raise DataError where folders that would be classes are all named like parts, or one of them is and all hold the same
    folders."""
    inner: dict[str, set[str]] = {}
    for found in pictures:
        if found.label is not None:
            _, *folders = found.file.split("/")[:-1]
            inner.setdefault(found.label, set()).add(folders[0] if folders else "")
    named = sorted(name for name in inner if part_of(name))
    same = {frozenset(names) for names in inner.values()}
    if len(inner) < 2 or not named:
        return
    if len(named) == len(inner):
        raise DataError(
            f"{root}: folders {', '.join(named)} are named like parts of a split, not like classes. Lay pictures out as "
            "train/CLASS/x.png and test/CLASS/x.png, or as CLASS/x.png alone."
        )
    if len(same) == 1 and "" not in next(iter(same)) and len(next(iter(same))) > 1:
        others = ", ".join(sorted(inner.keys() - set(named)))
        raise DataError(
            f"{root}: every folder holds {', '.join(sorted(next(iter(same))))}, and {', '.join(named)} is named like a part of "
            f"a split, but {others} is not. Name the parts train, valid and test, or move what is no part away."
        )


def _inner_folders(pictures: list[Found], by_part: bool) -> list[str]:
    """Folders inside class folders mean nothing, which is said; and loudly where several classes have the same ones."""
    place = 2 if by_part else 1
    inner: dict[str, set[str]] = {}
    for found in pictures:
        folders = found.file.split("/")[place:-1]
        if found.label is not None and folders:
            inner.setdefault(folders[0], set()).add(found.label)
    if not inner:
        return []
    names = ", ".join(sorted(inner)[:_MOST_NAMED])
    text = f"classes are the outer folders; folders inside them mean nothing ({names})"
    if shared := sorted(name for name, labels in inner.items() if len(labels) > 1):
        text += (
            f". But {shared[0]!r} is in several classes: if the inner folders are the classes, put them on the outside"
        )
        return [Doubt(text) if len(shared) > 1 and len(shared) == len(inner) else text]
    return [text]


def has_parts(root: Path) -> bool:
    """Whether `root` is laid out as train/CLASS/..., beside test/ or valid/ or alone."""
    folders = {p: part_of(p.name) for p in root.iterdir() if p.is_dir() and not is_junk(p.name)}
    train = [folder for folder, part in folders.items() if part == "train"]
    if not any(p.is_dir() and not is_junk(p.name) for folder in train for p in folder.iterdir()):
        return False
    # Alone or beside other parts. Beside anything else, "train" is a class of its own: cars, planes, trains.
    return all(folders.values()) or "test" in folders.values()


def _with_part(file: str) -> Found:
    top, *rest = file.split("/")
    return _with_class(file, rest, part_of(top))


def _with_class(file: str, below: list[str], part: str = "") -> Found:
    return Found(file, below[0] if len(below) > 1 else None, part)


def _pictures(root: Path, listing: Listing) -> Iterator[str]:
    """Paths of pictures below `root`, in order of name; what is no picture goes to `listing.ignored`, once."""
    for folder, names, files in os.walk(root):
        names.sort()
        below = Path(folder).relative_to(root)
        junk = any(is_junk(part) for part in below.parts)
        for name in [n for n in names if (Path(folder) / n).is_symlink()]:
            listing.ignored.append((below / name).as_posix() + "/ (a link to a folder)")
        for name in sorted(files):
            file = (below / name).as_posix()
            if junk or not is_picture(name):
                listing.ignored.append(file)
            else:
                yield file


def _about_ignored(ignored: list[str]) -> list[str]:
    if not ignored:
        return []
    more = f" and {len(ignored) - _MOST_NAMED} more" if len(ignored) > _MOST_NAMED else ""
    return [f"ignored, no pictures ({len(ignored)}): {', '.join(ignored[:_MOST_NAMED])}{more}"]


def _empty_classes(root: Path, listing: Listing, by_part: bool) -> list[str]:
    """Class folders without a picture: said, for a forgotten download looks just like this."""
    places = [p for p in root.iterdir() if p.is_dir() and part_of(p.name)] if by_part else [root]
    full = {str(Path(*Path(found.file).parts[: 2 if by_part else 1])) for found in listing.pictures}
    folders = [c.relative_to(root) for p in places for c in p.iterdir() if c.is_dir() and not is_junk(c.name)]
    empty = sorted(folder.as_posix() for folder in folders if str(folder) not in full)
    return [f"folders without a picture are no classes: {', '.join(empty[:_MOST_NAMED])}"] if empty else []
