"""A temporary folder that the next run removes if this one is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_LOCK = "lock"


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Make a folder in the temporary one, and remove it at the end, with those whose processes were killed before.

    A folder in use is told by the lock on a file in it, which the kernel gives back however its holder ends.
    """
    remove_abandoned(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    lock = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Let what makes temporary files in this process make them in a folder."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def remove_abandoned(prefix: str) -> None:
    """Remove the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if (folder / _LOCK).is_file() and (lock := _lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """Take the lock of a folder; None if somebody has it, or it cannot be taken."""
    try:
        file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file
