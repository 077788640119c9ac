"""Temporary folders that end with their user: files are written there, and renamed to their places when complete.

A used folder is locked, and the kernel frees the lock however a process ends. The next process that makes such a folder
removes the unlocked ones of killed processes. Other machines may not see a lock on a shared disk, so names carry the
machine, and each machine removes its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

STAGING = "pairstream-staging-"
"""Prefix of the folders for files on their way to or from an object store. Unlocked folders with it are removed."""


@cache
def machine() -> str:
    """Return an identifier of the running kernel, all of whose processes see the locks: letters and digits."""
    try:
        machine_name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        machine_name = socket.gethostname()
    return "".join(letter for letter in machine_name if letter.isalnum())[:12]


def staging_base(staging: str | None) -> Path:
    """Return the folder for staging folders: the chosen one, or the system's."""
    return Path(staging or tempfile.gettempdir())


@contextlib.contextmanager
def stage(base_folder: Path, *, prefix: str = STAGING, suffix: str = "") -> Iterator[Path]:
    """Make a folder that exists during the context; raises OSError if it cannot be made."""
    sweep(base_folder, prefix=prefix, suffix=suffix)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{machine()}-{os.getpid()}-", suffix=suffix, dir=base_folder))
        # Another process may sweep the folder before it is locked.
        try:
            folder_descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        # A file system without locks has no sweeping either.
        with contextlib.suppress(OSError):
            fcntl.flock(folder_descriptor, fcntl.LOCK_EX)
        if folder.is_dir():
            break
        os.close(folder_descriptor)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(folder_descriptor)


def sweep(base_folder: Path, *, prefix: str = STAGING, suffix: str = "", stale_seconds: float = math.inf) -> None:
    """Remove the folders of killed processes of this user, and those of other machines that are ``stale_seconds`` old.

    ``prefix``, which may be a pattern, and ``suffix`` are the ends of their names.
    """
    staging_folders: list[Path] = []
    # The base may be removed meanwhile.
    with contextlib.suppress(OSError):
        staging_folders = list(base_folder.glob(f"{prefix}*{suffix}"))
    for folder in staging_folders:
        with contextlib.suppress(OSError):
            folder_descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                folder_status = os.fstat(folder_descriptor)
                is_local = f"{machine()}-" in folder.name or time.time() - folder_status.st_mtime >= stale_seconds
                if is_local and folder_status.st_uid == os.getuid():
                    fcntl.flock(folder_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(folder_descriptor)
