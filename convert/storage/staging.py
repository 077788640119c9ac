"""Temporary folders on the local disk, gone when their user is.

A folder is locked as long as it is used, and the kernel gives the lock back however a process ends. An unlocked folder
was left by a process that was killed, and the next one that makes such a folder removes it. Locks may be seen by one
machine only, though a disk is shared by many; so names carry the machine, and each removes its own.
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
"""Prefix of the folders for files on their way to or from an object store. No folder that is not locked may have it."""


@cache
def machine() -> str:
    """Return the name of the running kernel, within which locks are seen for sure: letters and digits."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        name = socket.gethostname()
    return "".join(letter for letter in name if letter.isalnum())[:12]


def staging_base(staging: str | None) -> Path:
    """Return the folder that staging folders are made in: the one that was asked for, or that of the system."""
    return Path(staging or tempfile.gettempdir())


@contextlib.contextmanager
def stage(base: Path, *, prefix: str = STAGING) -> Iterator[Path]:
    """Make a folder for the time of the context; raises OSError if it cannot be made."""
    sweep(base, prefix=prefix)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{machine()}-", dir=base))
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        # Without locks nobody removes it either.
        with contextlib.suppress(OSError):
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
