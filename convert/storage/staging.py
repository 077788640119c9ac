"""Temporary folders on the local disk that end with their user.

A used folder is locked, and the kernel frees the lock however a process ends. The next process that makes such a folder
removes the unlocked ones of killed processes. Other machines may not see a lock on a shared disk, so names carry the
machine, and each machine removes its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

STAGING = "pairstream-staging-"
"""Prefix of the folders for files on their way to or from an object store. Unlocked folders with it are removed."""


@cache
def machine() -> str:
    """Return an identifier of the running kernel, all of whose processes see the locks: letters and digits."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        name = socket.gethostname()
    return "".join(letter for letter in name if letter.isalnum())[:12]


def staging_base(staging: str | None) -> Path:
    """Return the folder for staging folders: the chosen one, or the system's."""
    return Path(staging or tempfile.gettempdir())


@contextlib.contextmanager
def stage(base: Path, *, prefix: str = STAGING) -> Iterator[Path]:
    """Make a folder that exists during the context; raises OSError if it cannot be made."""
    sweep(base, prefix=prefix)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{machine()}-", dir=base))
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        # A file system without locks has no sweeping either.
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        # Another process may have swept the folder before it was locked.
        if folder.is_dir():
            break
        os.close(held)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def sweep(base: Path, *, prefix: str = STAGING) -> None:
    """Remove the folders of processes of this user on this machine that were killed."""
    for folder in base.glob(f"{prefix}{machine()}-*"):
        with contextlib.suppress(OSError):
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(held).st_uid == os.getuid():
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)
