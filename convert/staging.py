"""Folders on the local disk for files on their way to or from an object store, gone when their user is.

A folder is locked as long as it is used, and the kernel gives the lock back however a process ends: what nobody holds
was left by one that was killed, and the next one removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "pairstream-"


def staging_base(staging: str | None) -> Path:
    """Return the folder that staging folders are made in: the one that was asked for, or that of the system."""
    return Path(staging or tempfile.gettempdir())


@contextlib.contextmanager
def stage(base: Path) -> Iterator[Path]:
    """Make a folder of one's own for the time of the context; raises OSError if it cannot be made."""
    sweep(base)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(held, fcntl.LOCK_EX)
        # Another process may have swept it before it was locked.
        if folder.is_dir():
            break
        os.close(held)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def sweep(base: Path) -> None:
    """Remove the folders of processes of this user that were killed."""
    for folder in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(held).st_uid == os.getuid():
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)
