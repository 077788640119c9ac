"""Locations of sources: paths, globs, and names below the folders of ``--source``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from convert.errors import SourceError, UsageError
from stream.storage.remote import is_remote, join

JOIN = "+root:"
"""Text between the locations of converted roots that become one dataset."""
_WILDCARDS = frozenset("*?[")


def candidates(location: str, roots: Sequence[str]) -> list[str]:
    """Return the possible locations of a dataset: a path itself, made absolute, or a name below each root.

    A text that begins with a slash or a dot is a path. Any other text is a name below each root first, and then a path,
    if the path exists or is a glob.

    >>> candidates("lerobot/pusht", ["/hub", "s3://bucket"]), candidates("/data/mine/", ["/hub"])
    (['/hub/lerobot/pusht', 's3://bucket/lerobot/pusht'], ['/data/mine'])
    """
    location = location if location == "/" else location.rstrip("/")
    if is_remote(location):
        return [location]
    if location.startswith(("/", ".")):
        return [os.path.abspath(location)]
    is_path = os.path.exists(location) or (not roots and bool(_WILDCARDS & set(location)))
    paths = [join(root_folder, *location.split("/")) for root_folder in roots]
    return [*paths, os.path.abspath(location)] if is_path else paths


def refuse_layout(kind: str, layout: Mapping[str, Any]) -> None:
    """Raise UsageError if an entry has a layout that its kind does not take."""
    if layout:
        raise UsageError(f"layout: {', '.join(layout)}: {kind} datasets have one layout of their files; leave it out")


def find_files(
    location: str, roots: Sequence[str], patterns: Sequence[str], *, stores: Sequence[str] = ()
) -> tuple[str, list[Path]]:
    """Return what ``find_paths`` returns for the first of ``roots`` that has the location; raises its SourceError."""
    messages = []
    for candidate in candidates(location, roots):
        try:
            return find_paths(candidate, patterns, stores=stores)
        except SourceError as error:
            messages.append(str(error))
    unknown = f"{location}: no such file or folder here; give its folder as --source"
    raise SourceError(messages[0] if messages else unknown)


def find_paths(location: str, patterns: Sequence[str], *, stores: Sequence[str] = ()) -> tuple[str, list[Path]]:
    """Return the folder and the files of a location, an absolute path: a file, a folder (``patterns``), or a glob.

    An existing path is never a glob, whatever characters it has. A file in a store means the store: a folder with one
    of the files ``stores``, such as ``.zgroup``.

    Raises:
        SourceError: Nothing exists there, or a folder cannot be read.
    """
    if is_remote(location):
        raise SourceError(f"{location}: only local files can be read as this kind; copy them to this machine")
    path = Path(location)
    root = next(ancestor for ancestor in (path, *path.parents) if os.path.exists(ancestor))
    files: dict[Path, None] = {}
    for match in _matches(root, path.relative_to(root).parts, stores):
        store = next((folder for folder in (match, match.parent) if _is_store(folder, stores)), None)
        is_folder = store is None and match.is_dir()
        files |= dict.fromkeys(walk(match, patterns, stores) if is_folder else [store or match])
    if not files:
        reason = f"no file {' or '.join(patterns)} in this folder" if path.is_dir() else "no such file or folder"
        raise SourceError(f"{location}: {reason}")
    return str(root if root.is_dir() and root not in files else min(files).parent), list(files)


def _matches(folder: Path, glob_parts: Sequence[str], stores: Sequence[str]) -> Iterator[Path]:
    """Yield the paths of a glob, in order, except hidden ones.

    What follows ``**`` matches files in folders behind links too.
    """
    if not glob_parts:
        yield folder
    elif os.path.lexists(folder / glob_parts[0]):
        yield from _matches(folder / glob_parts[0], glob_parts[1:], stores)
    elif glob_parts[0] == "**":
        yield from walk(folder, ["/".join(glob_parts[1:]) or "*"], stores)
    elif folder.is_dir():
        parent, folder_names, file_names = next(os.walk(folder, onerror=_refuse))
        for name in sorted([*folder_names, *file_names]):
            if not name.startswith(".") and fnmatchcase(name, glob_parts[0]):
                yield from _matches(Path(parent, name), glob_parts[1:], stores)


def walk(folder: Path, patterns: Sequence[str], stores: Sequence[str] = ()) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders whose names match, except hidden ones.

    Links to folders are followed last, and no folder is read twice, so links that lead back add nothing.

    Raises:
        SourceError: A folder cannot be read, such as one without permission.
    """
    seen: set[tuple[int, int]] = set()
    pending = [folder]
    for start in pending:  # Grows by the links that are met.
        if _is_store(start, stores):
            if _is_new(start, seen):
                yield start
            continue
        for parent, folder_names, file_names in os.walk(start, onerror=_refuse):
            if not _is_new(Path(parent), seen):
                folder_names.clear()
                continue
            subfolders = [Path(parent, name) for name in sorted(folder_names) if not name.startswith(".")]
            pending += [subfolder for subfolder in subfolders if subfolder.is_symlink()]
            subfolders = [subfolder for subfolder in subfolders if not subfolder.is_symlink()]
            yield from (path for path in subfolders if _is_store(path, stores) and _is_new(path, seen))
            folder_names[:] = [subfolder.name for subfolder in subfolders if not _is_store(subfolder, stores)]
            for file_name in sorted(file_names):
                path = Path(parent, file_name)
                if not file_name.startswith(".") and any(path.match(pattern) for pattern in patterns):
                    yield path


def _is_new(path: Path, seen_folders: set[tuple[int, int]]) -> bool:
    file_status = os.stat(path)
    is_new = (file_status.st_dev, file_status.st_ino) not in seen_folders
    seen_folders.add((file_status.st_dev, file_status.st_ino))
    return is_new


def _refuse(error: OSError) -> None:
    message = f"{error.filename}: cannot be read ({error.strerror}); give permission, or name other files"
    raise SourceError(message) from None


def _is_store(path: Path, markers: Sequence[str]) -> bool:
    return any(os.path.exists(path / marker) for marker in markers)
