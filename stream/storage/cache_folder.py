"""Choice of the cache of a root that is read in place: a named, the default, or a temporary folder."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Literal

from stream.base.errors import ArgumentError
from stream.storage.hub import pin_commit
from stream.storage.remote import CachedRoot, checked_url, folder_of, is_remote

CacheLike = str | Path | Literal[False] | None
"""Argument ``cache``: ``DIR`` or ``DIR:SIZE``, None for the default folder, False for a temporary one."""
VARIABLE = "PAIRSTREAM_CACHE"
"""Environment variable with the default cache, ``DIR`` or ``DIR:SIZE``."""
_DEFAULT = "~/.cache/pairstream"
_SHARE = 0.5
"""Share of the free space that the default cache may take."""
_TEMPORARY_BYTES = 1 << 30
_SIZE = re.compile(r"(.+):([0-9]+(?:\.[0-9]+)?)\s*([KMGT])B?", re.IGNORECASE)
_log = logging.getLogger("stream")


def cached_root(
    root: str | Path | CachedRoot, cache: CacheLike, *, has_members: bool = True
) -> str | Path | CachedRoot:
    """Return the root of a loader: a ``CachedRoot`` if it is an address, or there is a cache for members.

    Args:
        cache: ``DIR`` or ``DIR:200GB`` (KB to TB); None for the default cache; False for a temporary folder.
        has_members: Whether members of a mixture with separate roots may need the cache of a local root.

    Raises:
        ArgumentError: The cache has no address, or either cannot be used.
        RemoteError: The Hub does not tell the commit of the root.

    >>> cached_root("s3://bucket/oxe/", "/scratch/oxe:200GB")
    CachedRoot(url='s3://bucket/oxe', cache=PosixPath('/scratch/oxe'), most=200000000000, below='')
    """
    if isinstance(root, CachedRoot) or not isinstance(root, str | Path):
        return root
    is_local, is_named = not is_remote(root), cache is not None and cache is not False
    if is_local and (cache is None or not (is_named or has_members)):
        return root
    if is_local and not has_members:
        raise ArgumentError(f"cache={str(cache)!r:.200} is for roots like s3://BUCKET/...; leave it out for {root}")
    url = str(Path(root).absolute()) if is_local else pin_commit(checked_url(root))
    folder, max_bytes = _choose_cache(cache)
    # A folder that no user names for one root is shared by all roots.
    return CachedRoot(url, folder, max_bytes, "" if is_named else folder_of(url))


def _choose_cache(argument: CacheLike) -> tuple[Path, int | None]:
    """Return the folder of a cache, and the largest number of bytes of its records, or None for no bound.

    Raises:
        ArgumentError: The argument, or the variable ``PAIRSTREAM_CACHE``, names no local folder.
    """
    if argument is False:
        return _temporary_folder(os.getpid()), _TEMPORARY_BYTES
    if argument is not None:
        return _parse(argument, by="cache")
    folder, max_bytes = _parse(os.environ.get(VARIABLE) or _DEFAULT, by=VARIABLE)
    if max_bytes is None:
        max_bytes = _share_of_disk(folder)
    _report_once(folder, max_bytes)
    return folder, max_bytes


def _parse(argument: str | Path, *, by: str) -> tuple[Path, int | None]:
    expected = "expected a local folder, with a bound such as /scratch/oxe:200GB"
    if not isinstance(argument, str | Path):
        raise ArgumentError(f"{by}={argument!r:.100}; {expected}")
    folder, max_bytes = str(argument), None
    if sized := _SIZE.fullmatch(folder):
        folder, amount, prefix = sized.groups()
        max_bytes = int(float(amount) * 1000 ** (1 + "KMGT".index(prefix.upper())))
    if is_remote(folder) or not folder.strip() or (":" in folder and sized is None) or max_bytes == 0:
        raise ArgumentError(f"{by}={str(argument)!r:.200}; {expected}")
    return Path(os.path.expanduser(folder)).absolute(), max_bytes


def _share_of_disk(folder: Path) -> int:
    """Return the bound of the default cache: half of the space that is free or that its records take already."""
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    used = sum(path.stat().st_blocks * 512 for path in folder.rglob("*.arrayrecord") if path.is_file())
    return max(1, int(_SHARE * (shutil.disk_usage(parent).free + used)))


_reported: set[Path] = set()


def _report_once(folder: Path, max_bytes: int) -> None:
    if folder not in _reported:
        _reported.add(folder)
        # A warning: Python shows nothing less urgent by default, and the disk of the user fills.
        _log.warning(
            "data that are read in place are kept in %s, at most %.1f GB of records; cache='DIR:200GB' (--cache) or %s "
            "names another folder, cache=False (--cache none) keeps nothing",
            folder,
            max_bytes / 1e9,
            VARIABLE,
        )


@cache
def _temporary_folder(process_id: int) -> Path:
    """Return a folder that is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix="pairstream-")

    def remove() -> None:
        # A forked process has the same exit functions.
        if os.getpid() == process_id:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Path(folder)
