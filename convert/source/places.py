"""Places of sources: paths, globs, and names below the folders of ``--source``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from convert.errors import SourceError, UsageError
from stream.storage.remote import is_remote, join

JOIN = "+root:"
"""Text between the places of converted roots that become one dataset."""
_WILD = frozenset("*?[")


def candidates(place: str, roots: Sequence[str]) -> list[str]:
    """Return where a dataset may be: a path itself, made absolute, or a name below each root.

    A text that begins with a slash or a dot is a path. Any other text is a name below each root first, and then a path,
    if the path exists or is a glob.

    >>> candidates("lerobot/pusht", ["/hub", "s3://bucket"]), candidates("/data/mine/", ["/hub"])
    (['/hub/lerobot/pusht', 's3://bucket/lerobot/pusht'], ['/data/mine'])
    """
    place = place if place == "/" else place.rstrip("/")
    if is_remote(place):
        return [place]
    if place.startswith(("/", ".")):
        return [os.path.abspath(place)]
    is_path = os.path.exists(place) or (not roots and bool(_WILD & set(place)))
    return [*(join(root, *place.split("/")) for root in roots), *([os.path.abspath(place)] if is_path else [])]


def refuse_layout(kind: str, layout: Mapping[str, Any]) -> None:
    """Raise UsageError if an entry has a layout that its kind does not take."""
    if layout:
        raise UsageError(f"layout: {', '.join(layout)}: {kind} datasets have one layout of their files; leave it out")


def find_files(
    place: str, roots: Sequence[str], patterns: Sequence[str], *, stores: Sequence[str] = ()
) -> tuple[str, list[Path]]:
    """Return the folder and the files that a place names, in the first folder of ``roots`` that has them.

    The arguments, apart from ``roots``, are those of ``find_paths``.

    Raises:
        SourceError: Nothing exists there, or a folder cannot be read.
    """
    faults = []
    for path in candidates(place, roots):
        try:
            return find_paths(path, patterns, stores=stores)
        except SourceError as error:
            faults.append(str(error))
    raise SourceError(faults[0] if faults else f"{place}: no such file or folder here; give its folder as --source")


def find_paths(place: str, patterns: Sequence[str], *, stores: Sequence[str] = ()) -> tuple[str, list[Path]]:
    """Return the folder and the files that a place names: a file, a folder, or a glob.

    A path that exists is that path, whatever letters it has; only other texts are globs. A file in a store means the
    store.

    Args:
        place: Absolute path.
        patterns: Names of files to take of a folder and all below it.
        stores: Names of files that make a folder one file, such as ``.zgroup``.

    Raises:
        SourceError: Nothing is there, or a folder cannot be read.
    """
    if is_remote(place):
        raise SourceError(f"{place}: only local files can be read as this kind; copy them to this machine")
    path = Path(place)
    root = next(folder for folder in (path, *path.parents) if os.path.exists(folder))
    files: dict[Path, None] = {}
    for match in _matches(root, path.relative_to(root).parts, stores):
        store = next((each for each in (match, match.parent) if _is_store(each, stores)), None)
        is_folder = store is None and match.is_dir()
        files |= dict.fromkeys(walk(match, patterns, stores) if is_folder else [store or match])
    if not files:
        reason = f"no file {' or '.join(patterns)} in this folder" if path.is_dir() else "no such file or folder"
        raise SourceError(f"{place}: {reason}")
    return str(root if root.is_dir() and root not in files else min(files).parent), list(files)


def _matches(folder: Path, parts: Sequence[str], stores: Sequence[str]) -> Iterator[Path]:
    """Yield the paths of a glob, in order, hidden ones excepted.

    What follows ``**`` matches files in folders behind links too.
    """
    if not parts:
        yield folder
    elif os.path.lexists(folder / parts[0]):
        yield from _matches(folder / parts[0], parts[1:], stores)
    elif parts[0] == "**":
        yield from walk(folder, ["/".join(parts[1:]) or "*"], stores)
    elif folder.is_dir():
        for path in _children(folder):
            if not path.name.startswith(".") and fnmatchcase(path.name, parts[0]):
                yield from _matches(path, parts[1:], stores)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise _unreadable(error) from None


def walk(folder: Path, patterns: Sequence[str], stores: Sequence[str] = ()) -> Iterator[Path]:
    """Yield the files of a folder and all below it whose names match, hidden ones excepted.

    Links to folders are followed after everything else, and no folder is read twice, so links that lead back or to a
    folder of this one add nothing.

    Raises:
        SourceError: A folder cannot be read, such as one without permission.
    """
    seen: set[tuple[int, int]] = set()
    pending = [folder]
    while pending:
        links: list[Path] = []
        for start in pending:
            if _is_store(start, stores):
                yield from [start] if _is_new(start, seen) else []
            else:
                yield from _walk_real(start, patterns, stores, seen=seen, links=links)
        pending = links


def _walk_real(
    folder: Path, patterns: Sequence[str], stores: Sequence[str], *, seen: set[tuple[int, int]], links: list[Path]
) -> Iterator[Path]:
    """Yield the files below a folder without following links to folders, which are added to ``links``."""
    for top, folders, names in os.walk(folder, onerror=_refuse):
        if not _is_new(Path(top), seen):
            folders.clear()
            continue
        inner = [Path(top, name) for name in sorted(folders) if not name.startswith(".")]
        links += [path for path in inner if path.is_symlink()]
        inner = [path for path in inner if not path.is_symlink()]
        yield from (path for path in inner if _is_store(path, stores) and _is_new(path, seen))
        folders[:] = [path.name for path in inner if not _is_store(path, stores)]
        for name in sorted(names):
            if not name.startswith(".") and any(Path(top, name).match(pattern) for pattern in patterns):
                yield Path(top, name)


def _is_new(path: Path, seen: set[tuple[int, int]]) -> bool:
    status = os.stat(path)
    is_new = (status.st_dev, status.st_ino) not in seen
    seen.add((status.st_dev, status.st_ino))
    return is_new


def _refuse(error: OSError) -> None:
    raise _unreadable(error)


def _unreadable(error: OSError) -> SourceError:
    return SourceError(f"{error.filename}: cannot be read ({error.strerror}); give permission, or name other files")


def _is_store(path: Path, stores: Sequence[str]) -> bool:
    return any(os.path.exists(path / store) for store in stores)
