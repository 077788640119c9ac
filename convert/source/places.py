"""Places of sources: paths, globs, and names below the folders of ``--source``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
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


def find_paths(place: str, patterns: Sequence[str], *, stores: Sequence[str] = ()) -> tuple[str, list[Path]]:
    """Return the folder and the files that a place names: a file, a folder, or a glob.

    A path that exists is that path, whatever letters it has; only other texts are globs.

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
    if path.is_file() or _is_store(path, stores):
        return str(path.parent), [path]
    if path.exists() or not _WILD & set(place):
        root, paths = path, list(walk(path, patterns, stores)) if path.exists() else []
    else:
        root = Path(*path.parts[: next(i for i, part in enumerate(path.parts) if _WILD & set(part))])
        paths = list(_matches(root, str(path.relative_to(root)), stores))
    if not paths:
        reason = f"no file {' or '.join(patterns)} in this folder" if path.is_dir() else "no such file or folder"
        raise SourceError(f"{place}: {reason}")
    return str(root), paths


def _matches(root: Path, pattern: str, stores: Sequence[str]) -> Iterator[Path]:
    """Yield the files of a glob, in order; what follows ``**`` matches in folders behind links too."""
    head, deep, tail = pattern.partition("**")
    if not deep:
        yield from sorted(path for path in root.glob(pattern) if path.is_file() or _is_store(path, stores))
        return
    for folder in sorted(root.glob(head)) if head else [root]:
        yield from walk(folder, [tail.strip("/") or "*"], stores)


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
    status = path.stat()
    is_new = (status.st_dev, status.st_ino) not in seen
    seen.add((status.st_dev, status.st_ino))
    return is_new


def _refuse(error: OSError) -> None:
    raise SourceError(f"{error.filename}: cannot be read ({error.strerror}); give permission, or name other files")


def _is_store(path: Path, stores: Sequence[str]) -> bool:
    return any((path / store).exists() for store in stores)
